"""How long a sweep will take, from past runs."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from course_lib.runs.sweep.folder import Outcome, read_outcome
from course_lib.runs.sweep.trials import Trial

__all__ = ["SIZES", "makespan", "past_runs", "trial_seconds"]

SIZES = ("dataset", "train_samples", "epochs", "width", "num_gpus", "batch_size")  # what a run's duration depends on
MOST_READ = 5000


def past_runs(root: Path, lab: str) -> list[Outcome]:
    """Outcomes of this lab's trials that succeeded, in the sweeps below `root`."""
    outcomes = (read_outcome(path.parent) for path in itertools.islice(root.glob("*/*/*/point.json"), MOST_READ))
    return [each for each in outcomes if each is not None and each.status == "done" and each.lab == lab]


def trial_seconds(trial: Trial, past: Sequence[Outcome]) -> float | None:
    """Median seconds of the most similar runs; None where no run is similar.

    Similar runs have the same data, epochs and width. Those with the same ranks and batch size come first, then those
    with the same ranks.
    """
    for names in (SIZES, SIZES[:5], SIZES[:4]):
        values = [trial.parameters.get(name) for name in names]
        seconds = [run.seconds for run in past if [run.parameters.get(name) for name in names] == values]
        if seconds:
            return statistics.median(seconds)
    return None


def makespan(
    seconds: Mapping[str, float], trials: Sequence[Trial], budget: Mapping[str, int], cores: int, jobs: int
) -> float:
    """Seconds from the first start to the last end if `run_local` schedules: the largest first, where there is room."""
    waiting = sorted(trials, key=lambda trial: -trial.ranks)
    running: list[tuple[float, int]] = []  # end, cores
    now = 0.0
    while waiting or running:
        free = cores - sum(used for _, used in running)
        for trial in list(waiting):
            if len(running) == jobs or not free:
                break
            if budget[trial.folder] <= free:
                running.append((now + seconds[trial.folder], budget[trial.folder]))
                waiting.remove(trial)
                free -= budget[trial.folder]
        now = min(end for end, _ in running)
        running.remove(min(running))
    return now
