"""Trials on a Slurm cluster: one job per trial, on one node, with the GPUs and cores of all its ranks.

A job writes its trial's ``point.json`` itself. `course_lib.runs.slurm.job_queue` submits and watches the jobs. When
this process is killed they continue, and the next call finds and watches them; Ctrl-C cancels them.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from course_lib.runs.slurm import job_array
from course_lib.runs.slurm.array_task import BEGAN, ArrayTask
from course_lib.runs.slurm.job_array import JobArray
from course_lib.runs.slurm.job_queue import JobQueue, WatchedTask, Work
from course_lib.runs.sweep.folder import read_outcome
from course_lib.runs.sweep.local import EndedTrial
from course_lib.runs.sweep.run_trial import DISK_FULL, TrialTask, run_to_exit_code
from course_lib.runs.sweep.slurm_request import Request
from course_lib.runs.sweep.trials import Trial
from course_lib.system.hardware import available_cores

__all__ = ["cancel_left", "run_slurm", "submitted_attempts"]

LOGS = "slurm_logs"
GPUS = "gpus"  # report


def submitted_attempts(sweep: Path) -> dict[str, int]:
    """Folders of trials that an interrupted call submitted to Slurm, and the number of that attempt."""
    return {name: attempt for array in JobArray.left_in(sweep / LOGS) for name, attempt in array.labels}


def cancel_left(sweep: Path, log: Callable[[str], None]) -> None:
    """Cancel what an interrupted call submitted to Slurm, so that the trials can be run in another way."""
    for array in job_array.cancel_left(sweep / LOGS, log):
        array.clean_up()  # jobs that wait do nothing without their record


def run_slurm(
    trials: Sequence[Trial],
    task: Callable[[Trial], TrialTask],
    sweep: Path,
    jobs: int,
    options: Mapping[str, str],
    on_start: Callable[[Trial], None],
    log: Callable[[str], None],
) -> Iterator[EndedTrial]:
    """Run trials as Slurm jobs, those of many ranks first. Leaving the iterator early cancels them.

    Parameters
    ----------
    trials : sequence of Trial
        Those that an interrupted call submitted to Slurm, and that still wait or run, are not submitted again.
    task : callable
        What a trial's job needs.
    sweep : path
        The sweep's folder. The nodes see it, the notebook and this Python environment under the same paths.
    jobs : int
        Trials that Slurm has at a time, at most; 0: all.
    options : mapping
        As `course_lib.runs.sweep.slurm_request.sweep_option` reads them.
    on_start, log : callable
        Called with each trial whose job begins, and with each line about the jobs, such as what they wait for.

    Yields
    ------
    EndedTrial
        In the order in which they end. A full disk is the exit code `DISK_FULL`; nothing more is submitted then.

    Raises
    ------
    SlurmError
        Slurm refuses the jobs, or does not answer. In the second case they continue, and the next call finds them.
    """
    by_folder = {trial.folder: trial for trial in trials}

    def on_report(job: WatchedTask, what: str, data: Mapping[str, Any]) -> None:
        trial = by_folder[job.label[0]]
        if what == BEGAN:
            on_start(trial)
        elif what == GPUS and data["asked"] and data["gpus"] < trial.ranks:
            queue.log_once(
                f"note: on node {data['node']} Slurm gave GPUs, {trial.ranks}, and PyTorch sees {data['gpus']}; "
                "ranks without GPUs are CPU processes",
                about="GPUs",
            )

    def finished(job: WatchedTask) -> bool:
        name, attempt = job.label
        with contextlib.suppress(OSError):
            os.listdir(sweep / name)  # makes a network file system look again
        outcome = read_outcome(sweep / name)
        return job.code == DISK_FULL or (outcome is not None and outcome.attempts >= attempt)

    def work(trial: Trial) -> Work:
        order = task(trial)
        label, arguments = (trial.folder, order.attempts), (order, request.gpus)
        return Work(label, arguments, request.parameters(trial.ranks), request.describe(trial.ranks))

    with JobQueue(sweep / LOGS, "lab-sweep", "trial", log, on_report, finished) as queue:
        queue.adopt(lambda label: label[0] in by_folder)
        adopted = {job.label[0] for job in queue.tasks}
        new = sorted((trial for trial in trials if trial.folder not in adopted), key=lambda trial: -trial.ranks)
        request = Request.of(options) if new else None
        waiting = [work(trial) for trial in new]
        for ended in queue.run(run_job, waiting, jobs):
            for job in ended:
                trial = by_folder[job.label[0]]
                if job.code == DISK_FULL:
                    waiting.clear()
                if not job.begun:
                    on_start(trial)
                if job.lost:
                    log_file = f"; log: {job.log}" if job.log else ""
                    yield EndedTrial(trial, 1, job.describe_end() + log_file, job.tail())
                else:
                    yield EndedTrial(trial, job.code or 0)


def run_job(job: ArrayTask, task: TrialTask, gpus: bool) -> int:
    """Run a trial on a compute node with all cores of the job, and its GPUs if it has `gpus`; returns the exit code."""
    if not gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # where Slurm does not confine jobs, others' would be seen
    # Where Slurm does not bind jobs to their cores, the notebook's own process would take all of the node's.
    os.environ["OMP_NUM_THREADS"] = str(available_cores())
    job.report(GPUS, asked=gpus, gpus=torch.cuda.device_count())
    before = read_outcome(Path(task.folder))
    if before is not None and before.attempts >= task.attempts:  # Slurm has started the job again
        return int(before.status != "done")
    return run_to_exit_code(task)
