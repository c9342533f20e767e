"""Grading by a Slurm job array over a shared folder.

Each task grades its share of the students and saves the verdicts itself (`autograde.batch.slurm_task`).
`course_lib.runs.slurm.job_queue` submits and watches the tasks. A batch whose submitting process was killed is found, and
cancelled, by the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from time import sleep
from types import MappingProxyType
from typing import Any

from autograde.batch.pool import ATTEMPTS, Finished
from autograde.batch.slurm_options import sbatch_parameters, threads_per_task
from autograde.batch.slurm_task import GRADED, NO_SANDBOX, grade_chunk
from autograde.batch.worker import Setting
from autograde.rubric.verdict import load_verdict, verdict_path
from autograde.sandbox.bubblewrap import SandboxError
from autograde.submission.quoting import printable
from course_lib.runs.slurm.job_array import RefusedError, cancel_left
from course_lib.runs.slurm.job_queue import POLL_SECONDS, JobQueue, WatchedTask
from course_lib.runs.slurm.squeue import SlurmError, check_slurm

__all__ = ["run_slurm"]

LOGS = "slurm_logs"
_START_SECONDS = 300.0  # for imports from a cold file system


def run_slurm(
    setting: Setting,
    students: list[str],
    workers: int,
    patience: float,
    options: Mapping[str, str] = MappingProxyType({}),
    told: Callable[[str], None] = lambda line: None,
) -> Iterator[Finished]:
    """Grade students by a job array, in the order in which they get done.

    A task that fails, is cancelled, reaches its time limit or loses its node loses what it had not finished. Those
    students get one more try, each in a task of its own, so that one who brings a task down takes nobody along.

    Parameters
    ----------
    setting : Setting
        Its course folder, and this Python environment, must be seen by the compute nodes under the same paths.
    students : list of str
    workers : int
        Tasks that run at a time, at most; also the length of the first array.
    patience : float
        Seconds after which a student is given up. A task's time limit is that times its students, unless `options`
        has another.
    options : mapping
        For sbatch, as `autograde.batch.slurm_options.slurm_option` reads them.
    told : callable
        Called with each line about the jobs, such as what they wait for.

    Raises
    ------
    SlurmError
        Slurm is not there, refuses the jobs or does not answer; or another process grades this lab.
    SandboxError
        Nothing can be executed on one of the nodes.
    """
    check_slurm()
    setting = replace(setting, threads=threads_per_task(options))
    folder = setting.course / LOGS / setting.lab
    with _only_batch(folder):
        if alive := cancel_left(folder, told):
            raise SlurmError(
                f"Slurm does not say that jobs {alive[0].name} are over; once it does, the same command goes on"
            )
        lost: dict[str, Finished] = {}
        for attempt in range(ATTEMPTS):
            count = len(students) if attempt else min(workers, len(students))
            chunks = [students[index::count] for index in range(count)]
            lost = {}
            with contextlib.closing(_graded(setting, folder, chunks, workers, patience, options, told)) as results:
                for finished in results:
                    if finished.verdict is None:
                        lost[finished.student] = finished
                    else:
                        yield finished
            if not lost:
                shutil.rmtree(folder, ignore_errors=True)
                return
            told(f"{len(lost)} not graded, logs in {folder}")
            students = sorted(lost)
        yield from lost.values()


@contextlib.contextmanager
def _only_batch(folder: Path) -> Iterator[None]:
    """Hold a lock beside the logs' folder, so that no other process grades the lab by Slurm."""
    try:
        folder.parent.mkdir(exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = open(folder.parent / f".{folder.name}.lock", "w")  # noqa: SIM115 (held until the batch is over)
    except OSError as error:
        raise SlurmError(f"{folder} cannot be used ({error.strerror}); see that it is yours and writable") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SlurmError(f"{folder.name} is being graded by Slurm already; wait until that is done") from None
        except OSError:
            pass  # a file system without locks
        yield


def _graded(
    setting: Setting,
    folder: Path,
    chunks: list[list[str]],
    workers: int,
    patience: float,
    options: Mapping[str, str],
    told: Callable[[str], None],
) -> Iterator[Finished]:
    """Every student of the chunks once: as soon as there is a verdict, or once the task that had the student is over."""
    reported: dict[str, str] = {}  # student → problem
    results: dict[str, Finished] = {}  # still to be given out
    seen: set[str] = set()

    def heard(task: WatchedTask, what: str, data: Mapping[str, Any]) -> None:
        if what == NO_SANDBOX:
            raise SandboxError(f"on node {data['node']}: {data['problem']}")
        if what == GRADED:
            reported[data["student"]] = data["problem"]

    def finished(task: WatchedTask) -> bool:
        for student in reported.keys() & set(task.label) - seen:
            if reported[student]:
                results[student] = Finished(student, None, printable(reported[student], 200))
            else:
                with contextlib.suppress(OSError, ValueError):  # not to be seen yet
                    results[student] = Finished(
                        student, load_verdict(verdict_path(setting.course, student, setting.lab))
                    )
        seen.update(results)
        return seen.issuperset(task.label)

    with JobQueue(folder, f"lab-grade-{setting.lab}", "task", told, heard, finished) as queue:
        waiting = [(chunk, (setting, chunk, patience)) for chunk in chunks]
        parameters = sbatch_parameters(options, _START_SECONDS + patience * len(chunks[0]))
        while waiting or queue.tasks:
            try:
                taken = queue.submit(grade_chunk, waiting, parameters, workers) if waiting else []
            except RefusedError as error:
                raise SlurmError(f"sbatch refuses: {printable(str(error), 300)}; see --slurm KEY=VALUE") from None
            if taken:
                graded = sum(len(chunk) for chunk, _ in waiting[: len(taken)])
                told(f"jobs {taken[0].array.name}: {_count(graded, 'submission')} in {_count(len(taken), 'task')}")
                waiting = waiting[len(taken) :]
            over = list(queue.poll())
            for task in queue.tasks:
                finished(task)
            yield from [results.pop(student) for student in sorted(results)]
            for task in over:
                why = _what_became_of(task) if task.lost else ""
                yield from (Finished(student, None, why) for student in task.label if student not in seen)
            if queue.tasks:
                sleep(POLL_SECONDS)


def _what_became_of(task: WatchedTask) -> str:
    """One printable line about a lost task: its state, and the last line that its job wrote to stderr."""
    if not task.job:
        return printable(f"never began: its Slurm job {task.why()}", 300)
    said = [line.strip() for line in task.tail().splitlines() if line.strip()]
    return printable(f"ended with its job {task.job} ({task.over[1]}){': ' + said[-1] if said else ''}", 300)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
