"""Points on a Slurm cluster: a job for each, on one node, with the GPUs and cores of all its ranks.

A job writes its point's ``point.json`` itself. `course_lib.runs.slurm.job_queue` submits and watches the jobs. When this
process is killed they go on, and the next call finds and watches them; Ctrl-C cancels them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from course_lib.runs.slurm import job_array
from course_lib.runs.slurm.array_task import BEGAN
from course_lib.runs.slurm.job_array import JobArray, RefusedError
from course_lib.runs.slurm.job_queue import POLL_SECONDS, JobQueue, WatchedTask
from course_lib.runs.slurm.squeue import SlurmError
from course_lib.runs.sweep.folder import read_outcome
from course_lib.runs.sweep.local import Ended
from course_lib.runs.sweep.on_slurm.slurm_job import GPUS, run_job
from course_lib.runs.sweep.on_slurm.slurm_request import Request
from course_lib.runs.sweep.points import Point
from course_lib.runs.sweep.run_point import DISK_FULL, Task

__all__ = ["cancel_left", "handed_over", "run_slurm"]

LOGS = "slurm_logs"


def handed_over(sweep: Path) -> dict[str, int]:
    """Folders of points that an interrupted call gave to Slurm, and which attempt that is."""
    return {name: attempt for array in JobArray.left_in(sweep / LOGS) for name, attempt in array.labels}


def cancel_left(sweep: Path, say: Callable[[str], None]) -> None:
    """Cancel what an interrupted call gave to Slurm, so that the points can be run in another way."""
    for array in job_array.cancel_left(sweep / LOGS, say):
        array.clean_up()  # jobs that wait do nothing without their record


def run_slurm(
    points: Sequence[Point],
    task: Callable[[Point], Task],
    sweep: Path,
    jobs: int,
    options: Mapping[str, str],
    began: Callable[[Point], None] = lambda point: None,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Ended]:
    """Run points as Slurm jobs, those of many ranks first. Leaving the iterator early cancels them.

    Parameters
    ----------
    points : sequence of Point
        Those of them that an interrupted call gave to Slurm, and that still wait or run, are not submitted again.
    task : callable
        What a point's job needs, by the point.
    sweep : path
        The sweep's folder. The nodes see it, the notebook and this Python environment under the same paths.
    jobs : int
        Points that Slurm has at a time, at most; 0: all, and it decides.
    options : mapping
        As `course_lib.runs.sweep.on_slurm.slurm_request.sweep_option` reads them.
    began : callable
        Called with each point whose job begins.
    say : callable
        Called with each line about the jobs, such as what they wait for.

    Yields
    ------
    Ended
        In the order in which they end. A full disk is the exit code `DISK_FULL`; nothing more is submitted then.

    Raises
    ------
    SlurmError
        Slurm refuses the jobs, or does not answer. In the second case they go on, and the next call finds them.
    """
    by_folder = {point.folder: point for point in points}

    def heard(job: WatchedTask, what: str, data: Mapping[str, Any]) -> None:
        point = by_folder[job.label[0]]
        if what == BEGAN:
            began(point)
        elif what == GPUS and data["asked"] and data["gpus"] < point.ranks:
            queue.say_once(
                f"note: on node {data['node']} Slurm gave GPUs, {point.ranks}, and PyTorch sees {data['gpus']}; "
                "ranks without GPUs are CPU processes",
                about="GPUs",
            )

    def finished(job: WatchedTask) -> bool:
        name, attempt = job.label
        with contextlib.suppress(OSError):
            os.listdir(sweep / name)  # a network file system looks anew
        outcome = read_outcome(sweep / name)
        return job.code == DISK_FULL or (outcome is not None and outcome.attempts >= attempt)

    with JobQueue(sweep / LOGS, "lab-sweep", "point", say, heard, finished) as queue:
        queue.adopt(lambda label: label[0] in by_folder)
        handed = {job.label[0] for job in queue.tasks}
        waiting = sorted((point for point in points if point.folder not in handed), key=lambda point: -point.ranks)
        request = Request.of(options) if waiting else None
        while waiting or queue.tasks:
            while waiting and (taken := _submit(queue, waiting, request, task, jobs)):
                waiting = waiting[taken:]
            for job in queue.poll():
                point = by_folder[job.label[0]]
                if job.code == DISK_FULL:
                    waiting = []
                if not job.begun:
                    began(point)
                yield _lost(job, point) if job.lost else Ended(point, job.code or 0)
            time.sleep(POLL_SECONDS)


def _submit(queue: JobQueue, waiting: list[Point], request: Request, task: Callable[[Point], Task], jobs: int) -> int:
    """Submit an array of points with the same number of ranks, if there is room; returns how many Slurm took."""
    room = jobs - len(queue.tasks) if jobs else len(waiting)
    if room <= 0:
        return 0
    ranks = waiting[0].ranks
    same = itertools.takewhile(lambda point: point.ranks == ranks, waiting[:room])
    work = [(point.folder, task(point)) for point in same]
    tasks = [((folder, each.attempts), (each, request.gpus)) for folder, each in work]
    try:
        taken = queue.submit(run_job, tasks, request.parameters(ranks))
    except RefusedError as error:
        raise SlurmError(
            f"sbatch refuses a job for num_gpus = {ranks} ({request.describe(ranks)} on one node): {error}; "
            "see --slurm KEY=VALUE, or leave these points out"
        ) from None
    if taken:
        queue.say_once(f"to Slurm: points of {request.describe(ranks)}, a job each")
    return len(taken)


def _lost(job: WatchedTask, point: Point) -> Ended:
    """Of a point whose job left no outcome: what became of the job, where its log is, and what that says."""
    if not job.job:
        return Ended(point, 1, f"its Slurm job never began: it {job.why()}")
    return Ended(point, 1, f"its Slurm job {job.job} {job.why()}; log: {job.array.log(job.index)}", job.tail())
