"""Points on a Slurm cluster: a job for each, on one node, with the GPUs and cores of all its ranks (submitit).

A job writes its point's ``point.json`` itself. This end watches the folders in which jobs tell that they began and
ended, and asks squeue now and then which still live, because a job that was killed tells nothing. When this end is
killed the jobs go on, and the next call finds and watches them; Ctrl-C cancels them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.slurm.reasons import BECAME, FOR_EVER, TOO_MANY
from course_lib.slurm.squeue import TaskState, tasks_by_name
from course_lib.sweep.folder import read_outcome
from course_lib.sweep.local import Ended
from course_lib.sweep.points import Point
from course_lib.sweep.run_point import DISK_FULL, Task
from course_lib.sweep.slurm_job import BEGAN, ENDED, RECORD
from course_lib.sweep.slurm_request import Request, SweepSlurmError
from course_lib.sweep.slurm_submission import RefusedError, Submission

__all__ = ["cancel_left", "handed_over", "run_slurm"]

POLL_SECONDS = 1.0
# How long after a job's end its outcome may take to be seen through the shared file system: of one that was killed, and
# of one that says that it wrote it.
GRACE_SECONDS, VISIBLE_SECONDS = 10.0, 60.0
SILENCE_SECONDS = 900.0
LATER_SECONDS = 30.0
LONGEST_ARRAY = 1000  # Slurm's own default, less one


@dataclass
class _Handed:
    """A point that Slurm has."""

    point: Point
    submission: Submission
    index: int
    begun: bool = False
    ended: int | None = None  # its exit code, by its own word
    over: tuple[float, str] | None = None  # since when, and its last state

    @property
    def attempt(self) -> int:
        return self.submission.points[self.index][1]


def handed_over(sweep: Path) -> dict[str, int]:
    """Folders of points that an interrupted call gave to Slurm, and which attempt that is."""
    return {name: attempt for submission in Submission.left_in(sweep) for name, attempt in submission.points}


def cancel_left(sweep: Path, say: Callable[[str], None]) -> None:
    """Cancel what an interrupted call gave to Slurm, so that the points can be run in another way."""
    for submission in Submission.left_in(sweep):
        say(f"cancelling Slurm jobs {submission.name}, which an interrupted call left")
        submission.cancel()
        submission.wait_until_over()
        submission.clean_up()


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
        What a point's job is told.
    sweep : path
        The sweep's folder. The nodes see it, the notebook and this Python environment under the same paths.
    jobs : int
        Points that Slurm has at a time, at most; 0: all, and it decides.
    options : mapping
        As `course_lib.sweep.slurm_request.sweep_option` reads them.
    began : callable
        Told each point whose job begins.
    say : callable
        Told in one line what happens, and what jobs wait for.

    Yields
    ------
    Ended
        In the order in which they end. A full disk is the exit code `DISK_FULL`; nothing more is submitted then.

    Raises
    ------
    SweepSlurmError
        Slurm refuses the jobs, or does not answer. In the second case they go on, and the next call finds them.
    """
    queue = _Queue(sweep, task, jobs, began, say)
    try:
        queue.adopt(points)
        waiting = sorted((point for point in points if point.folder not in queue.handed), key=lambda p: -p.ranks)
        request = Request.of(options) if waiting else None
        while waiting or queue.handed:
            while waiting and len(left := queue.submit(waiting, request)) < len(waiting):
                waiting = left
            for end in queue.ended():
                if end.code == DISK_FULL:
                    waiting = []
                yield end
            queue.look()
            time.sleep(POLL_SECONDS)
    except _SilentError as error:
        raise SweepSlurmError(str(error)) from None
    except BaseException:
        queue.cancel()
        raise
    queue.close()


class _SilentError(RuntimeError):
    """squeue does not answer; the jobs may go on."""


class _Queue:
    """What Slurm has of a sweep."""

    def __init__(self, sweep: Path, task: Callable, jobs: int, began: Callable, say: Callable) -> None:
        self.sweep, self.task, self.jobs, self.began, self.say = sweep, task, jobs, began, say
        self.handed: dict[str, _Handed] = {}
        self.lost: dict[Submission, list[int]] = {}  # every submission of this call → points that left no outcome
        self._later = 0.0
        self._started = self._asked = self._answered = time.monotonic()
        self._said: set[str] = set()

    def adopt(self, points: Sequence[Point]) -> None:
        """Take over what an interrupted call left."""
        left = Submission.left_in(self.sweep)
        states = tasks_by_name([submission.name for submission in left])
        if states is None:
            raise _SilentError("squeue does not answer; once Slurm is back, the same command goes on")
        wanted = {point.folder: point for point in points}
        for submission in left:
            live = {index for index, state in states[submission.name].items() if state.live}
            mine = [index for index, (name, _) in enumerate(submission.points) if name in wanted and index in live]
            for index in mine:
                name, _ = submission.points[index]
                self.handed[name] = _Handed(wanted[name], submission, index)
            self.lost[submission] = []
            if mine:
                self.say(f"Slurm has {_count(mine)} from an interrupted call (jobs {submission.name}); watching them")
        self._close_ended()

    def submit(self, waiting: list[Point], request: Request) -> list[Point]:
        """Hand over an array of points with the same number of ranks, if there is room; returns what is left.

        Raises
        ------
        SweepSlurmError
            sbatch refuses.
        """
        now = time.monotonic()
        room = self.jobs - len(self.handed) if self.jobs else len(waiting)
        if now < self._later or room <= 0:
            return waiting
        ranks = waiting[0].ranks
        same = list(itertools.takewhile(lambda point: point.ranks == ranks, waiting[: min(room, LONGEST_ARRAY)]))
        while True:
            tasks = {point.folder: self.task(point) for point in same}
            try:
                submission = Submission.send(self.sweep, tasks, request.parameters(ranks), request.gpus)
                break
            except RefusedError as error:
                if len(same) > 1:
                    same = same[: len(same) // 2]  # there may be a limit on the length of an array, or on jobs
                elif self.handed and TOO_MANY.search(str(error)):
                    self._say_once(f"Slurm takes no more jobs for now ({error}); the rest follows as these end")
                    self._later = now + LATER_SECONDS
                    return waiting
                else:
                    raise SweepSlurmError(
                        f"sbatch refuses a job for num_gpus = {ranks} ({request.describe(ranks)} on one node): {error}; "
                        "see --slurm KEY=VALUE, or leave these points out"
                    ) from None
        self.lost[submission] = []
        for index, point in enumerate(same):
            self.handed[point.folder] = _Handed(point, submission, index)
        self._say_once(f"to Slurm: points of {request.describe(ranks)}, a job each")
        return waiting[len(same) :]

    def look(self) -> None:
        """See what jobs tell, and what Slurm says of them."""
        for submission in {handed.submission for handed in self.handed.values()}:
            mine = {handed.index: handed for handed in self.handed.values() if handed.submission is submission}
            for what, index, more in submission.told():
                if index in mine and what == BEGAN and not mine[index].begun:
                    mine[index].begun = True
                    self.began(mine[index].point)
                    self._compare_gpus(mine[index].point, more)
                elif index in mine and what == ENDED and mine[index].ended is None:
                    mine[index].ended = int(more["code"])
                    mine[index].over = (time.monotonic(), "COMPLETED")
        now = time.monotonic()
        if now - self._asked > min(30.0, max(2.0, (now - self._started) / 10)):
            self._asked = now
            states = tasks_by_name([submission.name for submission in self.lost])
            if states is not None:
                self._answered = now
                self._compare(states, now)
            elif now - self._answered > SILENCE_SECONDS:
                raise _SilentError("squeue does not answer; the jobs go on: once Slurm is back, give the same command")

    def ended(self) -> Iterator[Ended]:
        """Points that have ended since."""
        for handed in list(self.handed.values()):
            if handed.over is None:
                continue
            since, how = handed.over
            folder = self.sweep / handed.point.folder
            with contextlib.suppress(OSError):
                os.listdir(folder)  # a network file system looks anew
            outcome = read_outcome(folder)
            known = handed.ended == DISK_FULL or (outcome is not None and outcome.attempts >= handed.attempt)
            late = time.monotonic() - since > (VISIBLE_SECONDS if how == "COMPLETED" else GRACE_SECONDS)
            if not known and not late:
                continue
            del self.handed[handed.point.folder]
            if not handed.begun:
                self.began(handed.point)
            if known:
                yield Ended(handed.point, handed.ended or 0)
            else:
                self.lost[handed.submission].append(handed.index)
                yield self._lost(handed, how)
        self._close_ended()

    def cancel(self) -> None:
        """Cancel all that still waits or runs, and wait until it is over."""
        if not self.handed:
            return
        self.say(f"cancelling {_count(self.handed)} that Slurm has")
        for submission in {handed.submission for handed in self.handed.values()}:
            submission.cancel()
        self.close()

    def close(self) -> None:
        """Remove what is not needed any more."""
        for submission, lost in self.lost.items():
            submission.wait_until_over()
            if not (submission.folder / RECORD).exists():
                submission.clean_up(lost)

    def _close_ended(self) -> None:
        for submission in self.lost.keys() - {handed.submission for handed in self.handed.values()}:
            submission.forget()

    def _compare(self, states: Mapping[str, Mapping[int, TaskState]], now: float) -> None:
        for handed in self.handed.values():
            state = states[handed.submission.name].get(handed.index)
            if state is None or not state.live:
                handed.over = handed.over or (now, state.name if state else "gone")
            elif handed.ended is None:
                handed.over = None  # Slurm has queued it again
        mine = [states[handed.submission.name].get(handed.index) for handed in self.handed.values()]
        reasons = [state.reason.strip("()") for state in mine if state is not None and state.name == "PENDING"]
        running = any(state is not None and state.running for state in mine)
        for reason in sorted(set(reasons)):
            if reason in FOR_EVER:
                number = _count([each for each in reasons if each == reason])
                self._say_once(f"{number} will wait for ever: {reason} ({FOR_EVER[reason]}); Ctrl-C, and give the command anew")  # fmt: skip
            elif not running and reason != "None":
                self._say_once(f"jobs wait: {reason}")
        for submission, lost in list(self.lost.items()):
            over = not any(state.live for state in states[submission.name].values())
            if over and all(handed.submission is not submission for handed in self.handed.values()):
                submission.clean_up(lost)
                del self.lost[submission]

    def _compare_gpus(self, point: Point, told: Mapping[str, Any]) -> None:
        if told.get("asked") and told.get("gpus", 0) < point.ranks:
            self._say_once(
                f"note: on node {told.get('node')} Slurm gave GPUs, {point.ranks}, and PyTorch sees {told.get('gpus')}; "
                "ranks without GPUs are CPU processes",
                about="GPUs",
            )

    def _lost(self, handed: _Handed, how: str) -> Ended:
        """Of a point whose job left no outcome: its state, where its log is, and what that says."""
        log = handed.submission.log(handed.index)
        became = BECAME.get(how, "failed")
        if log is None:
            return Ended(handed.point, 1, f"its Slurm job never began: it {became} ({how})")
        said = ""
        with contextlib.suppress(OSError):
            said = log.read_text(errors="replace")[-4000:]
        job = log.name.removesuffix("_0_log.err")
        return Ended(handed.point, 1, f"its Slurm job {job} {became} ({how}); log: {log}", said)

    def _say_once(self, line: str, about: str = "") -> None:
        if (about or line) not in self._said:
            self._said.add(about or line)
            self.say(line)


def _count(points: Sequence | Mapping) -> str:
    return f"{len(points)} point{'s' * (len(points) != 1)}"
