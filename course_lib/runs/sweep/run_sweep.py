"""A sweep from its grid to its results: what is left to do, who does it, what it gave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib.runs.labs import Lab
from course_lib.runs.slurm.squeue import check_slurm
from course_lib.runs.sweep.folder import DiskFullError, Outcome, SweepFolder, read_outcome, write_outcome
from course_lib.runs.sweep.local import Ended, Machine, describe_end, run_local, shares
from course_lib.runs.sweep.on_slurm.slurm import cancel_left, handed_over, run_slurm
from course_lib.runs.sweep.outcome.estimate import SIZES, makespan, past_runs, point_seconds
from course_lib.runs.sweep.outcome.figures import draw_results
from course_lib.runs.sweep.outcome.progress import SweepProgress
from course_lib.runs.sweep.outcome.results import collect, write_results
from course_lib.runs.sweep.points import Point, plan
from course_lib.runs.sweep.run_point import DISK_FULL, LESSON, Task, digest

__all__ = ["DiskFullError", "Sweep", "SweepResult"]


@dataclass(frozen=True)
class SweepResult:
    """How a sweep stands: numbers of points, and the figures that were drawn."""

    done: int
    failed: int
    figures: Sequence[Path]
    table: Any  # pandas.DataFrame


@dataclass
class Sweep:
    """A sweep of a lab's notebook.

    Parameters
    ----------
    lab : Lab
    profile : str
    axes : mapping of parameter to values
    fixed : mapping
        Parameters that override the profile's.
    repeats : int
        Seeds a point.
    folder : path
    whole : bool
        Execute the cells tagged ``lesson`` too, which a run does not need.

    Raises
    ------
    ParameterError
        From `points`; see `plan`.
    SweepFolderError
        From `run`.
    """

    lab: Lab
    profile: str
    axes: Mapping[str, Sequence[Any]]
    fixed: Mapping[str, Any]
    repeats: int
    folder: Path
    whole: bool = False
    points: list[Point] = field(init=False)

    def __post_init__(self) -> None:
        self.folder = Path(self.folder).absolute()
        self.points = plan(self.lab, self.profile, self.axes, self.fixed, self.repeats)
        self._sweep = SweepFolder(self.folder)

    def check_folder(self) -> None:
        """Raise `SweepFolderError` where `run` would find a folder that is not this sweep's."""
        self._sweep.check(self._description())

    def _description(self) -> dict[str, Any]:
        """What ``sweep.json`` holds."""
        return {
            "lab": self.lab.name, "profile": self.profile, "fixed": dict(self.fixed),
            "seed": int(self.points[0].parameters["seed"]),
            "axes": {name: list(values) for name, values in self.axes.items()}, "repeats": self.repeats,
        }  # fmt: skip

    def to_do(self, retry: bool = False) -> list[Point]:
        """Points that have not ended; with `retry` those that failed too."""
        self._sweep.read(self.points)
        again = {"done"} if retry else {"done", "failed"}
        return [
            point for point in self.points
            if point.folder not in self._sweep.outcomes or self._sweep.outcomes[point.folder].status not in again
        ]  # fmt: skip

    def estimate(self, points: Sequence[Point], jobs: int, machine: Machine) -> tuple[float | None, int]:
        """Seconds that `points` will take on this machine, and how many of them no past run is like.

        None where no past run is like any of them; one that is like none is taken for the mean of the others.
        """
        past = past_runs(self.folder.parent, self.lab.name)
        sizes = {point.folder: str([point.parameters.get(name) for name in SIZES]) for point in points}
        some = {sizes[point.folder]: point for point in points}  # a long grid has few sizes; each is looked up once
        found = {size: point_seconds(point, past) for size, point in some.items()}
        known = {folder: found[size] for folder, size in sizes.items()}
        seconds = [value for value in known.values() if value is not None]
        if not seconds:
            return None, len(points)
        mean = sum(seconds) / len(seconds)
        filled = {folder: mean if value is None else value for folder, value in known.items()}
        room = len(machine.gpus) or len(machine.cores)
        share = {point.folder: point.ranks for point in points} if machine.gpus else shares(self.points, machine, jobs)
        return makespan(filled, points, share, room, jobs), len(points) - len(seconds)

    def task(self, point: Point, executor: str = "local") -> Task:
        """What the process that runs the point is told."""
        before = self._sweep.outcomes.get(point.folder)
        return Task(
            notebook=str(self.lab.notebook),
            folder=str(self.folder / point.folder),
            lab=self.lab.name,
            profile=self.profile,
            parameters=dict(point.parameters),
            attempts=1 if before is None else before.attempts + 1,
            skip="" if self.whole else LESSON,
            executor=executor,
        )

    def run(
        self, executor: str = "local", jobs: int = 1, retry: bool = False, options: Mapping[str, str] | None = None
    ) -> SweepResult:
        """Run what is left to do, and write the table and the figures.

        They are written too when the sweep is interrupted, of what has ended by then.

        Parameters
        ----------
        executor : {"local", "slurm"}
        jobs : int
            Points at a time; 0, for Slurm: all, and it decides.
        retry : bool
            Run again what failed.
        options : mapping, optional
            For Slurm: sbatch's.

        Raises
        ------
        SweepFolderError
        ParameterError
            A point has more ranks than the machine can hold.
        SlurmError
            There is no Slurm here, or it refuses the jobs or does not answer.
        WarmServerError
            The warm process cannot be started.
        DiskFullError
        """
        machine = Machine.here()
        share: dict[str, int] = {}
        if executor == "local":
            share = shares(self.points, machine, jobs)  # refuses before anything is written
        else:
            check_slurm()
        with self._sweep.hold(self._description()):
            left = self.to_do(retry)
            if executor == "slurm":
                left = self._with_handed_over(left)
            progress = SweepProgress(len(left))
            if len(left) < len(self.points):
                failed = sum(outcome.status == "failed" for outcome in self._sweep.outcomes.values())
                told = f", {failed} of them failed (--retry runs these again)" if failed and not retry else ""
                progress.say(f"{len(self.points) - len(left)} of {len(self.points)} points have ended before{told}")
            self._warn_of_another_notebook(progress)
            self._warn_of_other_values(progress)
            if left:
                self._warn_of_other_cores(share, progress)
            try:
                if left:
                    ended = self._executed(executor, left, share, machine, jobs, options or {}, progress)
                    with closing(ended):
                        for end in ended:
                            self._note(end, executor, progress)
            finally:
                progress.close()
                result = self._publish()
        return result

    def _executed(
        self,
        executor: str,
        points: Sequence[Point],
        share: Mapping[str, int],
        machine: Machine,
        jobs: int,
        options: Mapping[str, str],
        progress: SweepProgress,
    ) -> Iterator[Ended]:
        if executor == "slurm":
            return run_slurm(points, lambda point: self.task(point, "slurm"), self.folder, jobs, options, progress.began, progress.say)  # fmt: skip
        cancel_left(self.folder, progress.say)
        return run_local(points, share, self.task, machine, jobs, progress.began)

    def _note(self, end: Ended, executor: str, progress: SweepProgress) -> None:
        point, code = end.point, end.code
        folder = self.folder / point.folder
        if code == DISK_FULL:
            raise DiskFullError(
                f"no space left in {self.folder}; what is done stays: make room and give the same command"
            )
        before = self._sweep.outcomes.get(point.folder)
        outcome = read_outcome(folder)
        if outcome is None or outcome == before:  # its process did not come to write one
            task = self.task(point)
            outcome = Outcome("failed", task.lab, task.profile, task.parameters, 0.0, "", task.attempts,
                              end.reason or describe_end(code), end.said if end.reason else _tail(folder / "process.log"),
                              executor, notebook=digest(self.lab.notebook))  # fmt: skip
            write_outcome(folder, outcome)
        self._sweep.outcomes[point.folder] = outcome
        progress.ended(point, outcome)

    def _with_handed_over(self, left: Sequence[Point]) -> list[Point]:
        """Points to do, and those that an interrupted ``--retry`` gave to Slurm: they count as failed until they end."""
        attempts = handed_over(self.folder)
        outcomes = self._sweep.outcomes
        return [
            point for point in self.points
            if point in left or (point.folder in attempts and attempts[point.folder] > outcomes[point.folder].attempts)
        ]  # fmt: skip

    def _publish(self) -> SweepResult:
        table = collect(self._sweep, self.points, list(self.axes))
        write_results(self.folder / "results.csv", table)
        figures = draw_results(self.folder, table, list(self.axes), self.lab.name)
        done = int((table["status"] == "done").sum()) if len(table) else 0
        return SweepResult(done, len(table) - done, figures, table)

    def _warn_of_another_notebook(self, progress: SweepProgress) -> None:
        now = digest(self.lab.notebook)
        other = sum(outcome.notebook not in ("", now) for outcome in self._sweep.outcomes.values())
        if other:
            progress.say(
                f"note: {self.lab.notebook.name} has changed since {other} of these points ran; "
                "compare them with care, or sweep anew with another -o DIR"
            )

    def _warn_of_other_values(self, progress: SweepProgress) -> None:
        """The folder's name does not hold every parameter, and a profile can be edited between two calls."""
        told: dict[str, tuple[Any, Any]] = {}
        other = 0
        for point in self.points:
            outcome = self._sweep.outcomes.get(point.folder)
            then = {} if outcome is None else outcome.parameters
            changed = {name: (then[name], now) for name, now in point.parameters.items() if then.get(name, now) != now}
            told |= changed
            other += bool(changed)
        if other:
            values = ", ".join(f"{name} = {then} (now {now})" for name, (then, now) in told.items())
            progress.say(
                f"note: {other} of these points ran with {values}: the profile or the notebook has changed; "
                "compare them with care, or sweep anew with another -o DIR"
            )

    def _warn_of_other_cores(self, share: Mapping[str, int], progress: SweepProgress) -> None:
        """More ranks than before, or another --jobs, divide the cores in another way."""
        cores = [
            (outcome.cores // point.ranks, share[point.folder] // point.ranks)
            for point in self.points
            if point.folder in share and (outcome := self._sweep.outcomes.get(point.folder)) is not None
            and outcome.status == "done" and outcome.executor == "local" and outcome.cores != share[point.folder]
        ]  # fmt: skip
        if cores:
            progress.say(
                f"note: {len(cores)} of these points ran with {cores[0][0]} core(s) a rank, and now a rank has "
                f"{cores[0][1]}; to compare their times sweep anew with another -o DIR"
            )


def _tail(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[-4000:]
    except OSError:
        return ""
