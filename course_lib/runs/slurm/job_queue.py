"""Job arrays from their submission to the end of every task, for grading and for sweeps on Slurm.

This process reads the tasks' reports, and regularly asks squeue which tasks still live, because a task that was killed
reports nothing. When this process is killed the jobs continue: the next one adopts them (`JobQueue.adopt`) or cancels
them (`course_lib.runs.slurm.job_array.cancel_left`). An exception, such as that of Ctrl-C, cancels them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.runs.slurm.array_task import BEGAN, ENDED, RECORD
from course_lib.runs.slurm.job_array import JobArray, RefusedError
from course_lib.runs.slurm.squeue import BECAME, FOR_EVER, TOO_MANY, SlurmError, TaskState, tasks_by_name

__all__ = ["JobQueue", "WatchedTask", "Work"]

POLL_SECONDS = 1.0
SQUEUE_SECONDS = (2.0, 30.0)  # between two calls of squeue: at first, and in a long batch
# How long after a task's end its results may take to become visible through the shared file system: for a task that was
# killed, and for one that reports that it wrote them.
GRACE_SECONDS, VISIBLE_SECONDS = 10.0, 60.0
SILENCE_SECONDS = 900.0
LATER_SECONDS = 30.0
LONGEST_ARRAY = 1000  # Slurm's own default, less one


class _SilentError(SlurmError):
    """squeue does not answer; the jobs may continue."""


@dataclass(frozen=True)
class Work:
    """A task to submit.

    Parameters
    ----------
    label : plain data
        By which the submitter identifies the task.
    arguments : sequence
        For the function that the task runs.
    parameters : mapping
        For submitit's executor; neighbours with equal ones become one array.
    request : str
        The same in words, for messages.
    """

    label: Any
    arguments: Sequence[Any]
    parameters: Mapping[str, Any]
    request: str


@dataclass(eq=False)
class WatchedTask:
    """A task that Slurm has, or had; `lost` where it is over and its results are not visible."""

    array: JobArray
    index: int
    begun: bool = False
    code: int | None = None  # the exit code that it reported
    # Since when (`time.monotonic`), and how it ended: COMPLETED (its own report), its exception, or Slurm's last state.
    over: tuple[float, str] | None = None
    lost: bool = False

    @property
    def label(self) -> Any:
        return self.array.labels[self.index]

    @property
    def log(self) -> Path | None:
        """The file with what it wrote to stderr; None where it never began."""
        return self.array.log(self.index)

    def describe_end(self) -> str:
        """What happened to it, in one line: the job's id, in words, and in Slurm's word."""
        state = self.over[1] if self.over else "gone"
        job = f"job {self.log.name.removesuffix('_0_log.err')}" if self.log else "job never began: it"
        return f"its Slurm {job} {BECAME.get(state, 'failed')} ({state})"

    def tail(self) -> str:
        """The end of what it wrote to stderr."""
        try:
            return self.log.read_text(errors="replace")[-4000:] if self.log else ""
        except OSError:
            return ""


class JobQueue:
    """The tasks of one submitter, `tasks` being those that have not ended.

    Leaving it by an exception cancels them, except where squeue is silent (`SlurmError` from `adopt` and `poll`).

    Parameters
    ----------
    folder : path
        For the arrays' folders; the nodes see it under the same path.
    prefix : str
        Beginning of the jobs' names.
    noun : str
        What a task is to the user: ``trial``.
    log : callable
        Called with each line for the user.
    on_report : callable
        Called with a `WatchedTask`, the kind of its report, and the data.
    finished : callable
        Whether all results of a `WatchedTask` that is over are visible.
    """

    def __init__(
        self,
        folder: Path,
        prefix: str,
        noun: str,
        log: Callable[[str], None],
        on_report: Callable[[WatchedTask, str, Mapping[str, Any]], None],
        finished: Callable[[WatchedTask], bool],
    ) -> None:
        self.folder, self.prefix, self.noun = folder, prefix, noun
        self.tasks: list[WatchedTask] = []
        self._log, self._on_report, self._finished = log, on_report, finished
        self._arrays: dict[JobArray, bool] = {}  # → whether a task was lost
        self._later = 0.0
        self._started = self._asked = self._answered = time.monotonic()
        self._logged: set[str] = set()

    def __enter__(self) -> JobQueue:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, _SilentError):
            return
        if self.tasks:
            self._log(f"cancelling {self._count(self.tasks)} that Slurm has")
            for array in {task.array for task in self.tasks}:
                array.cancel()
        for array, lost in self._arrays.items():
            array.wait_until_over()
            if not (array.folder / RECORD).exists():
                array.clean_up(keep_logs=lost)

    def adopt(self, wanted: Callable[[Any], bool]) -> None:
        """Take over the live tasks that an interrupted process left, and whose labels are `wanted`."""
        left = JobArray.left_in(self.folder)
        states = tasks_by_name([array.name for array in left])
        if states is None:
            raise _SilentError("squeue does not answer; once Slurm is back, the same command continues")
        for array in left:
            live = sorted(index for index, state in states[array.name].items() if state.live)
            mine = [WatchedTask(array, index) for index in live if wanted(array.labels[index])]
            self.tasks += mine
            self._arrays[array] = False
            if mine:
                self._log(f"Slurm has {self._count(mine)} from an interrupted call (jobs {array.name}); watching them")
        self._forget_ended()

    def run(self, function: Callable[..., int | None], work: list[Work], most: int = 0) -> Iterator[list[WatchedTask]]:
        """Submit `work` as Slurm takes it, and watch the tasks; yields after each poll those that have ended since.

        Parameters
        ----------
        function : callable
            What a task runs; see `course_lib.runs.slurm.array_task.run_task`.
        work : list of Work
            Shortened as tasks are submitted; a caller who empties it stops the submission.
        most : int
            Tasks that Slurm has at a time, at most; 0: all.

        Raises
        ------
        SlurmError
            sbatch refuses even one task, or squeue does not answer. In the second case the jobs continue.
        """
        while work or self.tasks:
            while taken := self.submit(function, work[: max(0, most - len(self.tasks)) if most else None]):
                del work[: len(taken)]
            yield list(self.poll())
            if self.tasks:
                time.sleep(POLL_SECONDS)

    def submit(self, function: Callable[..., int | None], work: Sequence[Work]) -> list[WatchedTask]:
        """Submit the first of `work` as one array, as many as Slurm takes; perhaps none for now."""
        if not work or time.monotonic() < self._later:
            return []
        first = work[0]
        work = list(itertools.takewhile(lambda each: each.parameters == first.parameters, work[:LONGEST_ARRAY]))
        while True:
            tasks = [(each.label, each.arguments) for each in work]
            try:
                array = JobArray.submit(self.folder, self.prefix, function, tasks, first.parameters)
                break
            except RefusedError as error:
                if len(work) > 1:
                    work = work[: len(work) // 2]  # there may be a limit on the length of an array, or on jobs
                elif self.tasks and TOO_MANY.search(str(error)):
                    self.log_once(f"Slurm takes no more jobs for now ({error}); the rest follows as these end")
                    self._later = time.monotonic() + LATER_SECONDS
                    return []
                else:
                    refused = f"sbatch refuses a {self.noun} of {first.request}: {error}; see --slurm KEY=VALUE"
                    raise SlurmError(refused) from None
        self._arrays[array] = False
        taken = [WatchedTask(array, index) for index in range(len(work))]
        self.tasks += taken
        self.log_once(f"jobs {array.name}: {self._count(taken)}, each {first.request}", about=first.request)
        return taken

    def poll(self) -> Iterator[WatchedTask]:
        """Read the reports, call squeue now and then, and yield the tasks that have ended since."""
        self._read_reports()
        now = time.monotonic()
        if now - self._asked > min(SQUEUE_SECONDS[1], max(SQUEUE_SECONDS[0], (now - self._started) / 10)):
            self._asked = now
            states = tasks_by_name([array.name for array in self._arrays])
            if states is not None:
                self._answered = now
                self._compare(states, now)
            elif now - self._answered > SILENCE_SECONDS:
                raise _SilentError(
                    "squeue does not answer; the jobs continue: once Slurm is back, give the same command"
                )
        for task in [task for task in self.tasks if task.over is not None]:
            since, state = task.over
            visible = self._finished(task)
            if visible or time.monotonic() - since > (VISIBLE_SECONDS if state == "COMPLETED" else GRACE_SECONDS):
                self.tasks.remove(task)
                task.lost = not visible
                self._arrays[task.array] |= task.lost
                yield task
        self._forget_ended()

    def log_once(self, line: str, about: str = "") -> None:
        """Log a line, unless one `about` the same was logged."""
        if (about or line) not in self._logged:
            self._logged.add(about or line)
            self._log(line)

    def _read_reports(self) -> None:
        watched = {(task.array, task.index): task for task in self.tasks}
        for array in {task.array for task in self.tasks}:
            for index, what, data in array.reports():
                if (task := watched.get((array, index))) is None:
                    continue
                if what == ENDED:
                    task.code = int(data["code"])
                    task.over = (time.monotonic(), data.get("problem", "COMPLETED"))
                else:
                    task.begun |= what == BEGAN
                    self._on_report(task, what, data)

    def _compare(self, states: Mapping[str, Mapping[int, TaskState]], now: float) -> None:
        mine = [(task, states[task.array.name].get(task.index)) for task in self.tasks]
        for task, state in mine:
            if state is None or not state.live:
                task.over = task.over or (now, state.name if state else "gone")
            elif task.code is None:
                task.over = None  # Slurm has queued it again
        reasons = [state.reason for _, state in mine if state is not None and state.name == "PENDING"]
        running = any(state is not None and state.live and state.name != "PENDING" for _, state in mine)
        for reason in sorted(set(reasons)):
            if reason in FOR_EVER:
                number = self._count([each for each in reasons if each == reason])
                remedy = f"{reason} ({FOR_EVER[reason]}); Ctrl-C, and give the command again"
                self.log_once(f"{number} will wait for ever: {remedy}")
            elif not running and reason != "None":
                self.log_once(f"jobs wait: {reason}")
        used = {task.array for task in self.tasks}
        for array in [array for array in self._arrays if array not in used]:
            if not any(state.live for state in states[array.name].values()):
                array.clean_up(keep_logs=self._arrays.pop(array))

    def _forget_ended(self) -> None:
        for array in self._arrays.keys() - {task.array for task in self.tasks}:
            array.forget()

    def _count(self, tasks: Sequence[Any]) -> str:
        return f"{len(tasks)} {self.noun}{'s' * (len(tasks) != 1)}"
