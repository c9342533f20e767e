"""Job arrays from their submission to the end of every task; what grading and sweeps by Slurm share.

This process reads the tasks' reports, and asks squeue from time to time which tasks still live, because a task that
was killed reports nothing. When this process is killed the jobs go on: the next one adopts them (`JobQueue.adopt`) or
cancels them (`course_lib.runs.slurm.job_array.cancel_left`). An exception, such as that of Ctrl-C, cancels them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.runs.slurm.array_task import BEGAN, ENDED, RECORD
from course_lib.runs.slurm.job_array import JobArray, RefusedError
from course_lib.runs.slurm.reasons import BECAME, FOR_EVER, TOO_MANY
from course_lib.runs.slurm.squeue import SlurmError, TaskState, tasks_by_name

__all__ = ["POLL_SECONDS", "JobQueue", "WatchedTask"]

POLL_SECONDS = 1.0
ASK_SECONDS = (2.0, 30.0)  # between two questions to squeue: at first, and in a long batch
# How long after a task's end its results may take to be seen through the shared file system: of a task that was killed,
# and of one that reports that it wrote them.
GRACE_SECONDS, VISIBLE_SECONDS = 10.0, 60.0
SILENCE_SECONDS = 900.0
LATER_SECONDS = 30.0
LONGEST_ARRAY = 1000  # Slurm's own default, less one


class _SilentError(SlurmError):
    """squeue does not answer; the jobs may go on."""


@dataclass(eq=False)
class WatchedTask:
    """A task that Slurm has, or had; `lost` where it is over and its results are not to be seen."""

    array: JobArray
    index: int
    begun: bool = False
    code: int | None = None  # the exit code that it reported
    # Since when (`time.monotonic`), and how it ended: COMPLETED by its own report, its exception, or Slurm's last state.
    over: tuple[float, str] | None = None
    lost: bool = False

    @property
    def label(self) -> Any:
        return self.array.labels[self.index]

    @property
    def job(self) -> str:
        """Slurm's id of the job, such as ``12_0``; empty where it never began."""
        log = self.array.log(self.index)
        return "" if log is None else log.name.removesuffix("_0_log.err")

    def why(self) -> str:
        """What became of it, in words; then, in brackets, in Slurm's."""
        how = self.over[1] if self.over else "gone"
        return f"{BECAME.get(how, 'failed')} ({how})"

    def tail(self) -> str:
        """The end of what it wrote to stderr."""
        try:
            return self.array.log(self.index).read_text(errors="replace")[-4000:]
        except (AttributeError, OSError):  # no log, or an unreadable one
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
        What a task is to the user: ``point``.
    say : callable
        Called with each line for the user.
    heard : callable
        Called with a `WatchedTask`, the kind of its report, and the data.
    finished : callable
        Whether all results of a `WatchedTask` that is over can be seen.
    """

    def __init__(
        self,
        folder: Path,
        prefix: str,
        noun: str,
        say: Callable[[str], None],
        heard: Callable[[WatchedTask, str, Mapping[str, Any]], None],
        finished: Callable[[WatchedTask], bool],
    ) -> None:
        self.folder, self.prefix, self.noun = folder, prefix, noun
        self.tasks: list[WatchedTask] = []
        self._say, self._heard, self._finished = say, heard, finished
        self._lost: dict[JobArray, list[int]] = {}  # every array → tasks that were lost
        self._later = 0.0
        self._started = self._asked = self._answered = time.monotonic()
        self._said: set[str] = set()

    def __enter__(self) -> JobQueue:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, _SilentError):
            return
        if self.tasks:
            self._say(f"cancelling {self._count(self.tasks)} that Slurm has")
            for array in {task.array for task in self.tasks}:
                array.cancel()
        for array, lost in self._lost.items():
            array.wait_until_over()
            if not (array.folder / RECORD).exists():
                array.clean_up(lost)

    def adopt(self, wanted: Callable[[Any], bool]) -> None:
        """Take over the live tasks that an interrupted process left, and whose labels are `wanted`."""
        left = JobArray.left_in(self.folder)
        states = tasks_by_name([array.name for array in left])
        if states is None:
            raise _SilentError("squeue does not answer; once Slurm is back, the same command goes on")
        for array in left:
            live = sorted(index for index, state in states[array.name].items() if state.live)
            mine = [WatchedTask(array, index) for index in live if wanted(array.labels[index])]
            self.tasks += mine
            self._lost[array] = []
            if mine:
                self._say(f"Slurm has {self._count(mine)} from an interrupted call (jobs {array.name}); watching them")
        self._forget_ended()

    def submit(
        self,
        function: Callable[..., int | None],
        tasks: Sequence[tuple[Any, Sequence[Any]]],
        parameters: Mapping[str, Any],
        at_a_time: int = 0,
    ) -> list[WatchedTask]:
        """Submit the first tasks as one array (see `JobArray.submit`), as many as Slurm takes; perhaps none for now.

        Raises `RefusedError` where sbatch refuses even one task.
        """
        if time.monotonic() < self._later:
            return []
        tasks = tasks[:LONGEST_ARRAY]
        while True:
            try:
                array = JobArray.submit(self.folder, self.prefix, function, tasks, parameters, at_a_time)
                break
            except RefusedError as error:
                if len(tasks) > 1:
                    tasks = tasks[: len(tasks) // 2]  # there may be a limit on the length of an array, or on jobs
                elif self.tasks and TOO_MANY.search(str(error)):
                    self.say_once(f"Slurm takes no more jobs for now ({error}); the rest follows as these end")
                    self._later = time.monotonic() + LATER_SECONDS
                    return []
                else:
                    raise
        self._lost[array] = []
        taken = [WatchedTask(array, index) for index in range(len(tasks))]
        self.tasks += taken
        return taken

    def poll(self) -> Iterator[WatchedTask]:
        """Read the reports, ask squeue now and then, and yield the tasks that have ended since."""
        self._read_reports()
        now = time.monotonic()
        if now - self._asked > min(ASK_SECONDS[1], max(ASK_SECONDS[0], (now - self._started) / 10)):
            self._asked = now
            states = tasks_by_name([array.name for array in self._lost])
            if states is not None:
                self._answered = now
                self._compare(states, now)
            elif now - self._answered > SILENCE_SECONDS:
                raise _SilentError("squeue does not answer; the jobs go on: once Slurm is back, give the same command")
        for task in [task for task in self.tasks if task.over is not None]:
            since, how = task.over
            seen = self._finished(task)
            if seen or time.monotonic() - since > (VISIBLE_SECONDS if how == "COMPLETED" else GRACE_SECONDS):
                self.tasks.remove(task)
                if not seen:
                    task.lost = True
                    self._lost[task.array].append(task.index)
                yield task
        self._forget_ended()

    def say_once(self, line: str, about: str = "") -> None:
        """Say a line, unless one `about` the same was said."""
        if (about or line) not in self._said:
            self._said.add(about or line)
            self._say(line)

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
                    self._heard(task, what, data)

    def _compare(self, states: Mapping[str, Mapping[int, TaskState]], now: float) -> None:
        mine = [(task, states[task.array.name].get(task.index)) for task in self.tasks]
        for task, state in mine:
            if state is None or not state.live:
                task.over = task.over or (now, state.name if state else "gone")
            elif task.code is None:
                task.over = None  # Slurm has queued it again
        reasons = [state.reason.strip("()") for _, state in mine if state is not None and state.name == "PENDING"]
        running = any(state is not None and state.running for _, state in mine)
        for reason in sorted(set(reasons)):
            if reason in FOR_EVER:
                number = self._count([each for each in reasons if each == reason])
                self.say_once(
                    f"{number} will wait for ever: {reason} ({FOR_EVER[reason]}); Ctrl-C, and give the command anew"
                )
            elif not running and reason != "None":
                self.say_once(f"jobs wait: {reason}")
        used = {task.array for task in self.tasks}
        for array in [array for array in self._lost if array not in used]:
            if not any(state.live for state in states[array.name].values()):
                array.clean_up(self._lost.pop(array))

    def _forget_ended(self) -> None:
        for array in self._lost.keys() - {task.array for task in self.tasks}:
            array.forget()

    def _count(self, tasks: Sequence[Any]) -> str:
        return f"{len(tasks)} {self.noun}{'s' * (len(tasks) != 1)}"
