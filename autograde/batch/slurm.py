"""Grading by a Slurm job array over a shared folder.

Each task grades its part of the students and saves the verdicts itself (`autograde.batch.slurm_task`).
`course_lib.runs.slurm.job_queue` submits and watches the tasks. The next batch finds and cancels the jobs of one whose
submitting process was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from autograde.batch.pool import ATTEMPTS, GradingResult
from autograde.batch.slurm_task import GRADED, NO_SANDBOX, grade_chunk
from autograde.batch.worker import GradingJob
from autograde.rubric.verdict import load_verdict, verdict_path
from autograde.sandbox.bubblewrap import SandboxError
from course_lib.runs.run_evidence.quoting import printable
from course_lib.runs.slurm import options as sbatch
from course_lib.runs.slurm.job_array import cancel_left
from course_lib.runs.slurm.job_queue import JobQueue, WatchedTask, Work
from course_lib.runs.slurm.squeue import SlurmError, check_slurm

__all__ = ["run_slurm", "slurm_option"]

LOGS = "slurm_logs"
CPUS_PER_TASK = 2
_START_SECONDS = 300.0  # for imports from a cold file system


def slurm_option(text: str) -> tuple[str, str]:
    """Read one ``KEY=VALUE``; see `course_lib.runs.slurm.options.slurm_option`, whose errors it raises."""
    return sbatch.slurm_option(text, "grader", ("nodes", "ntasks", "ntasks_per_node"))


def run_slurm(
    job: GradingJob,
    students: list[str],
    workers: int,
    timeout: float,
    options: Mapping[str, str] = MappingProxyType({}),
    log: Callable[[str], None] = lambda line: None,
) -> Iterator[GradingResult]:
    """Grade students by a job array, in the order in which they are done.

    A task may fail, be cancelled, reach its time limit or lose its node. Its unfinished students get one more try, each
    in a separate task, so that a submission that ends its task does not affect the others.

    Parameters
    ----------
    job : GradingJob
        The compute nodes see its course folder, and this Python environment, under the same paths.
    workers : int
        The most tasks that run at a time; also the length of the first array.
    timeout : float
        Seconds after which a student is given up. A task's time limit is this times its number of students, unless
        `options` has another.
    options : mapping
        For sbatch, as `slurm_option` reads them.
    log : callable
        Called with each line about the jobs, such as the reason why they wait.

    Raises
    ------
    SlurmError
        Slurm is missing, refuses the jobs or does not answer; or another process grades this lab.
    SandboxError
        Nothing can be executed on one of the nodes.
    """
    check_slurm()
    job = replace(job, threads=int(options.get("cpus_per_task", CPUS_PER_TASK)))
    folder = job.course / LOGS / job.lab
    with _only_batch(folder):
        if alive := cancel_left(folder, log):
            raise SlurmError(
                f"Slurm does not confirm that jobs {alive[0].name} are over; once it does, the same command continues"
            )
        for attempt in range(ATTEMPTS):
            count = len(students) if attempt else min(workers, len(students))
            chunks = [students[index::count] for index in range(count)]
            lost: dict[str, GradingResult] = {}
            with contextlib.closing(_graded(job, folder, chunks, workers, timeout, options, log)) as results:
                for result in results:
                    if result.verdict is None:
                        lost[result.student] = result
                    else:
                        yield result
            if not lost:
                shutil.rmtree(folder, ignore_errors=True)
                return
            log(f"{len(lost)} not graded, logs in {folder}")
            students = sorted(lost)
        yield from lost.values()


@contextlib.contextmanager
def _only_batch(folder: Path) -> Iterator[None]:
    """Hold a lock beside the logs' folder, so that no other process grades the lab by Slurm."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = open(folder.parent / f".{folder.name}.lock", "w")  # noqa: SIM115 (held until the batch is over)
    except OSError as error:
        raise SlurmError(f"{folder} cannot be used ({error.strerror}); it must be yours and writable") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SlurmError(f"{folder.name} is being graded by Slurm already; wait until that is done") from None
        except OSError:
            pass  # a file system without locks, where a FileLock would always be taken
        yield


def _graded(
    job: GradingJob,
    folder: Path,
    chunks: list[list[str]],
    workers: int,
    timeout: float,
    options: Mapping[str, str],
    log: Callable[[str], None],
) -> Iterator[GradingResult]:
    """Every student of the chunks once: when there is a verdict, or when the task that had the student is over."""
    reported: dict[str, str] = {}  # student → problem
    results: dict[str, GradingResult] = {}
    yielded: set[str] = set()

    def on_report(task: WatchedTask, what: str, data: Mapping[str, Any]) -> None:
        if what == NO_SANDBOX:
            raise SandboxError(f"on node {data['node']}: {data['problem']}")
        if what == GRADED:
            reported[data["student"]] = data["problem"]

    def finished(task: WatchedTask) -> bool:
        for student in reported.keys() & set(task.label) - results.keys():
            if problem := reported[student]:
                results[student] = GradingResult(student, None, printable(problem, 200))
                continue
            with contextlib.suppress(OSError, ValueError):  # not visible yet
                results[student] = GradingResult(student, load_verdict(verdict_path(job.course, student, job.lab)))
        return results.keys() >= set(task.label)

    limit = math.ceil((_START_SECONDS + timeout * len(chunks[0])) / 60)
    parameters = sbatch.submitit_parameters(options, job.threads, limit) | {"setup": _setup()}
    request = f"up to {len(chunks[0])} submission(s) ({job.threads} cores, {parameters['time']} min)"
    work = [Work(chunk, (job, chunk, timeout), parameters, request) for chunk in chunks]
    with JobQueue(folder, f"lab-grade-{job.lab}", "task", log, on_report, finished) as queue:
        for ended in queue.run(grade_chunk, work, workers):
            for task in queue.tasks:
                finished(task)
            for task in [task for task in ended if task.lost]:
                last_line = task.tail().strip().rpartition("\n")[2]
                problem = printable(f"ended: {task.describe_end()}: {last_line}", 300)
                for student in task.label:
                    results.setdefault(student, GradingResult(student, None, problem))
            yield from [results[student] for student in sorted(results.keys() - yielded)]
            yielded |= results.keys()


def _setup() -> list[str]:
    """Lines of the jobs' script: they run this grader, not one in the folder where they start, a checkout perhaps."""
    lines = ["export PYTHONSAFEPATH=1"]
    if path := os.environ.get("PYTHONPATH"):  # a site may let jobs inherit nothing
        lines.append(f"export PYTHONPATH={shlex.quote(path)}")
    return lines
