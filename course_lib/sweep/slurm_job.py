"""A point on a compute node: what its Slurm job runs.

What becomes of the point lies in its ``point.json``. Beside it a job tells in its submission's folder that it has
begun, and where, and that it has ended: plain data, so that who watches needs no accounting and no pickle.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

import torch

from course_lib.atomic import write_atomically
from course_lib.execute_notebook import is_disk_full
from course_lib.hardware import available_cores
from course_lib.sweep.folder import read_outcome
from course_lib.sweep.run_point import DISK_FULL, Task, run_point

__all__ = ["BEGAN", "ENDED", "RECORD", "TOLD", "run_job"]

RECORD = "points.json"
TOLD, BEGAN, ENDED = "told", "began", "ended"


def run_job(task: Task, submission: Path, index: int, gpus: bool) -> NoReturn:
    """Run a point with all cores and GPUs of the job, and exit: 0 done, 1 failed, 28 disk full.

    Parameters
    ----------
    task : Task
    submission : path
        Folder of the submission. Without its record nobody waits for the job, and it does nothing: that is how a job
        ends that Slurm took although sbatch said that it did not, or that could not be cancelled.
    index : int
        Of the point in the submission.
    gpus : bool
        Whether the job asked for GPUs.
    """
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # submitit's sign to have the job queued again; Slurm does that
    if not (submission / RECORD).exists():
        print(f"{submission.name}: nobody waits for this job any more")
        sys.exit(0)
    if not gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # where Slurm does not confine jobs, others' would be seen
    # Where Slurm does not bind jobs to their cores, the notebook's own process would take all of the node's.
    os.environ["OMP_NUM_THREADS"] = str(available_cores())
    _tell(submission, BEGAN, index, node=socket.gethostname(), asked=gpus, gpus=torch.cuda.device_count())
    code = _run(task)
    _tell(submission, ENDED, index, code=code)
    sys.exit(code)


def _run(task: Task) -> int:
    before = read_outcome(Path(task.folder))
    if before is not None and before.attempts >= task.attempts:  # Slurm has started the job again
        return int(before.status != "done")
    try:
        return int(run_point(task).status != "done")
    except OSError as error:
        if not is_disk_full(error):
            raise
        return DISK_FULL


def _tell(submission: Path, what: str, index: int, **told: str | int) -> None:
    with contextlib.suppress(OSError):  # a full disk; squeue then tells of the end
        write_atomically(submission / TOLD / f"{what}-{index}", json.dumps(told))


def _end(*_: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)
