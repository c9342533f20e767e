"""Grading by a Slurm job array over a shared folder (submitit writes the job and submits it).

Each task grades its share of the students and saves the verdicts itself (`autograde.slurm_task`). This end watches the
folder in which tasks tell what they have done, and asks squeue now and then which of them still live, because a task
that was killed tells nothing. Accounting (sacct) is not needed, and no result is a pickle.

A batch's jobs have a name of their own, which lies in ``COURSE/slurm_logs/LAB.running`` from before they are submitted
until they are over. A batch whose submitting process was killed is therefore found, and cancelled, by the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from course_lib.atomic import write_atomically
from course_lib.slurm.squeue import cancel, missing_command, tasks_of

from .gradebook import CourseError
from .pool import ATTEMPTS, Finished
from .quoting import printable
from .sandbox import SandboxError
from .slurm_options import sbatch_parameters, threads_per_task
from .slurm_task import ENDED, GRADED, grade_chunk
from .verdict import load_verdict, verdict_path
from .worker import Setting

__all__ = ["SlurmError", "run_slurm"]

LOGS = "slurm_logs"
POLL_SECONDS = 1.0
# How long after a task's end its last verdict may take to be seen through the shared file system.
GRACE_SECONDS = 15.0
SILENCE_SECONDS = 900.0
MOST_TASKS = 1000  # Slurm's own default for the length of an array, less one
_START_SECONDS = 300.0  # for imports from a cold file system


class SlurmError(CourseError):
    """Slurm is not there, refuses the jobs, or does not answer; one line with the remedy."""


@dataclass(frozen=True)
class _Array:
    folder: Path
    name: str
    job: str
    chunks: list[list[str]]
    ids: list[str]  # of the tasks
    logs: list[Path]  # their stderr


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
        For sbatch, as `autograde.slurm_options.slurm_option` reads them.
    told : callable
        Told in one line what the jobs wait for.

    Raises
    ------
    SlurmError
        Slurm is not there, refuses the jobs or does not answer; or another process grades this lab.
    SandboxError
        Nothing can be executed on one of the nodes.
    """
    if missing := missing_command():
        raise SlurmError(
            f"no Slurm here: {missing} is not on PATH; run this on a login node of the cluster, or without "
            "--executor slurm"
        )
    setting = replace(setting, threads=threads_per_task(options))
    with _only_batch(setting, told) as (name, folder):
        lost: dict[str, Finished] = {}
        for attempt in range(ATTEMPTS):
            tasks = [workers] if attempt == 0 else [MOST_TASKS, workers]
            array = _submit(setting, students, tasks, workers, patience, name, folder, options)
            told(f"job {array.job}: {_count(len(students), 'submission')} in {_count(len(array.chunks), 'task')}")
            lost = {}
            for finished in _watch(array, setting, told):
                if finished.verdict is None:
                    lost[finished.student] = finished
                else:
                    yield finished
            students = sorted(lost)
            if not lost:
                _wait_until_over(name)
                shutil.rmtree(folder, ignore_errors=True)
                return
            told(f"job {array.job}: {len(lost)} not graded, logs in {array.folder}")
        yield from lost.values()


@contextlib.contextmanager
def _only_batch(setting: Setting, told: Callable[[str], None]) -> Iterator[tuple[str, Path]]:
    """The name of this batch's jobs and a private folder for them, while no other process grades the lab by Slurm.

    Jobs that an earlier batch left are cancelled before, jobs that this one leaves behind after.
    """
    logs = setting.course / LOGS
    running = logs / f"{setting.lab}.running"
    try:
        logs.mkdir(exist_ok=True)
        lock = open(logs / f".{setting.lab}.lock", "w")  # noqa: SIM115 (held until the batch is over)
        left = running.read_text().strip() if running.exists() else ""
    except OSError as error:
        raise SlurmError(f"{logs} cannot be used ({error.strerror}); see that it is yours and writable") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SlurmError(f"{setting.lab} is being graded by Slurm already; wait until that is done") from None
        except OSError:
            pass  # a file system without locks
        if left:
            _cancel_left(left, told)
        name = f"lab-grade-{setting.lab}-{secrets.token_hex(4)}"
        # Made by mkdtemp: nobody else can read or write there, and submitit's pickles are ours.
        folder = Path(tempfile.mkdtemp(prefix=time.strftime(f"{setting.lab}-%Y%m%d-%H%M%S-"), dir=logs))
        write_atomically(running, name)
        try:
            yield name, folder
        except BaseException:
            if cancel(name):
                running.unlink(missing_ok=True)
            raise
        running.unlink(missing_ok=True)


def _cancel_left(name: str, told: Callable[[str], None]) -> None:
    states = tasks_of(name)
    if states is None:
        raise SlurmError("squeue does not answer; once Slurm is back, the same command goes on")
    if any(state.live for state in states.values()):
        told(f"cancelling jobs {name}, which an interrupted batch left")
        cancel(name)
        _wait_until_over(name, 60.0)


def _submit(
    setting: Setting,
    students: Sequence[str],
    tasks: Sequence[int],
    at_a_time: int,
    patience: float,
    name: str,
    folder: Path,
    options: Mapping[str, str],
) -> _Array:
    """Submit an array of so many tasks at most, or of the next number where Slurm refuses the first."""
    # Imported late: it configures logging.
    os.environ.setdefault("SUBMITIT_LOG_LEVEL", "WARNING")
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    count = min(len(students), tasks[0])
    chunks = [list(students[index::count]) for index in range(count)]
    own = Path(tempfile.mkdtemp(prefix="array-", dir=folder))
    for part in (GRADED, ENDED):
        (own / part).mkdir()
    executor = submitit.SlurmExecutor(own, max_num_timeout=0)
    # Without srun: since Slurm 22.05 a step does not inherit the job's --cpus-per-task.
    executor.update_parameters(
        job_name=name,
        array_parallelism=at_a_time,
        use_srun=False,
        **sbatch_parameters(options, _START_SECONDS + patience * len(chunks[0])),
    )
    arguments = [setting] * count, chunks, [patience] * count, [own] * count, range(count)
    try:
        jobs = executor.map_array(grade_chunk, *arguments)
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        if tasks[1:]:
            return _submit(setting, students, tasks[1:], at_a_time, patience, name, folder, options)
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise SlurmError(f"sbatch refuses: {printable(said[-1], 300)}; see --slurm KEY=VALUE") from None
    ids = [each.job_id for each in jobs]
    return _Array(own, name, ids[0].partition("_")[0], chunks, ids, [each.paths.stderr for each in jobs])


def _watch(array: _Array, setting: Setting, told: Callable[[str], None]) -> Iterator[Finished]:
    """Every student of an array: as soon as there is a verdict, or once the task that should reach it is over."""
    left = {student: index for index, chunk in enumerate(array.chunks) for student in chunk}
    over: dict[int, tuple[float, str]] = {}  # task → since when, and how it ended
    started = asked = answered = time.monotonic()
    reason = ""
    while True:
        ended = _ended(array)  # before the students: a task that has ended has told of all of them
        for student in sorted(left.keys() & set(os.listdir(array.folder / GRADED))):
            finished = _finished(array, setting, student)
            if finished is not None:
                del left[student]
                answered = time.monotonic()
                yield finished
        if not left:
            return
        for index, how in ended.items():
            if "sandbox" in how:
                raise SandboxError(f"on node {how['node']}: {how['sandbox']}")
            over.setdefault(index, (time.monotonic(), how.get("problem", "its verdict is not to be seen")))
        now = time.monotonic()
        if now - asked > min(30.0, max(2.0, (now - started) / 10)):
            asked = now
            states = tasks_of(array.name, array.job)
            if states is not None:
                answered = now
                for index in range(len(array.chunks)):
                    state = states.get(index)
                    if state is None or not state.live:
                        over.setdefault(index, (now, state.name if state else "gone"))
                    elif index not in ended:
                        over.pop(index, None)  # Slurm has queued it again
                reasons = sorted({state.reason for state in states.values() if state.name == "PENDING"})
                waiting = ", ".join(reasons) if not any(state.running for state in states.values()) else ""
                if waiting not in ("", "None", reason):
                    told(f"job {array.job} waits: {waiting}")
                    reason = waiting
            elif now - answered > SILENCE_SECONDS:
                raise SlurmError("squeue does not answer; once Slurm is back, the same command goes on")
        for index, (since, how) in over.items():
            if now - since > GRACE_SECONDS:
                for student in [student for student in array.chunks[index] if left.get(student) == index]:
                    del left[student]
                    yield Finished(student, None, _what_became_of(array, index, how))
        time.sleep(POLL_SECONDS)


def _finished(array: _Array, setting: Setting, student: str) -> Finished | None:
    """What a task has told of a student; None where that is not to be seen yet."""
    try:
        problem = json.loads((array.folder / GRADED / student).read_text())["problem"]
        if problem:
            return Finished(student, None, printable(problem, 200))
        return Finished(student, load_verdict(verdict_path(setting.course, student, setting.lab)))
    except (OSError, ValueError):
        return None


def _ended(array: _Array) -> dict[int, dict[str, str]]:
    ended = {}
    for name in os.listdir(array.folder / ENDED):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                ended[int(name)] = json.loads((array.folder / ENDED / name).read_text())
    return ended


def _what_became_of(array: _Array, index: int, how: str) -> str:
    """One printable line about a task that is over: its state, and the last line that its job wrote to stderr."""
    said: Sequence[str] = []
    with contextlib.suppress(OSError), open(array.logs[index], "rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - 4096))
        said = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    last = f": {said[-1]}" if said else ""
    return printable(f"ended with its job {array.ids[index]} ({how}){last}", 300)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _wait_until_over(name: str, seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(state.live for state in (tasks_of(name) or {}).values()):
        time.sleep(POLL_SECONDS)
