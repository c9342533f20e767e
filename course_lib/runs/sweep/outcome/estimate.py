"""How long a sweep will take, from runs that have been."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from course_lib.runs.sweep.folder import Outcome, read_outcome
from course_lib.runs.sweep.points import Point

__all__ = ["SIZES", "makespan", "past_runs", "point_seconds"]

SIZES = ("dataset", "train_samples", "epochs", "width", "num_gpus", "batch_size")  # what a run's length hangs on
MOST_LOOKED_AT = 5000


def past_runs(root: Path, lab: str) -> list[Outcome]:
    """Points of this lab that went through, in the sweeps below `root`."""
    found = []
    for index, path in enumerate(root.glob("*/*/*/point.json")):
        if index == MOST_LOOKED_AT:
            break
        outcome = read_outcome(path.parent)
        if outcome is not None and outcome.status == "done" and outcome.lab == lab:
            found.append(outcome)
    return found


def point_seconds(point: Point, past: Sequence[Outcome]) -> float | None:
    """Median seconds of the runs most like this one; None where none is alike.

    A run of the same data, epochs and width counts, the nearer the better: the same ranks and batch size first, then
    the same ranks, then any.
    """

    def alike(outcome: Outcome, names: Sequence[str]) -> bool:
        return all(outcome.parameters.get(name) == point.parameters.get(name) for name in names)

    for names in (SIZES, SIZES[:5], SIZES[:4]):
        seconds = [outcome.seconds for outcome in past if alike(outcome, names)]
        if seconds:
            return statistics.median(seconds)
    return None


def makespan(
    seconds: Mapping[str, float], points: Sequence[Point], share: Mapping[str, int], cores: int, jobs: int
) -> float:
    """Seconds from the first start to the last end, as `run_local` schedules: the largest first, where there is room."""
    waiting = sorted(points, key=lambda point: -point.ranks)
    running: list[tuple[float, int]] = []  # end, cores
    now = 0.0
    while waiting or running:
        free = cores - sum(used for _, used in running)
        for point in list(waiting):
            if len(running) == jobs or not free:
                break
            if share[point.folder] <= free:
                running.append((now + seconds[point.folder], share[point.folder]))
                waiting.remove(point)
                free -= share[point.folder]
        now = min(end for end, _ in running)
        running.remove(min(running))
    return now
