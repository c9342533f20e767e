"""What a sweep's Slurm job runs on a compute node: one point, whose outcome goes to its ``point.json``."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from course_lib.runs.execute_notebook import is_disk_full
from course_lib.runs.slurm.array_task import ArrayTask
from course_lib.runs.sweep.folder import read_outcome
from course_lib.runs.sweep.run_point import DISK_FULL, Task, run_point
from course_lib.system.hardware import available_cores

__all__ = ["GPUS", "run_job"]

GPUS = "gpus"  # report


def run_job(job: ArrayTask, task: Task, gpus: bool) -> int:
    """Run a point with all cores and GPUs of the job, which has GPUs where it asked for `gpus`.

    Returns the exit code: 0 done, 1 failed, 28 disk full.
    """
    if not gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # where Slurm does not confine jobs, others' would be seen
    # Where Slurm does not bind jobs to their cores, the notebook's own process would take all of the node's.
    os.environ["OMP_NUM_THREADS"] = str(available_cores())
    job.report(GPUS, asked=gpus, gpus=torch.cuda.device_count())
    before = read_outcome(Path(task.folder))
    if before is not None and before.attempts >= task.attempts:  # Slurm has started the job again
        return int(before.status != "done")
    try:
        return int(run_point(task).status != "done")
    except OSError as error:
        if not is_disk_full(error):
            raise
        return DISK_FULL
