"""What a sweep publishes of its trials: tables and figures, at its end or again later."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from course_lib.runs.sweep.folder import RECORD, SweepFolder, SweepFolderError, read_outcome
from course_lib.runs.sweep.outcome.figures import draw_results
from course_lib.runs.sweep.outcome.results import collect, conditions, write_results
from course_lib.runs.sweep.outcome.summary import summarise, write_summary
from course_lib.runs.sweep.trials import Trial

__all__ = ["SweepResult", "publish", "publish_again"]


@dataclass(frozen=True)
class SweepResult:
    """How a sweep ended: numbers of trials, and the figures that were drawn."""

    done: int
    failed: int
    figures: Sequence[Path]


def publish(
    sweep: SweepFolder, trials: Sequence[Trial], axes: Sequence[str], lab: str, target: float | None = None
) -> SweepResult:
    """Write ``results.csv``, ``summary.csv``, ``summary.md`` and the figures of the trials that have ended."""
    table = collect(sweep, trials, axes, target)
    write_results(sweep.path / "results.csv", table)
    write_summary(sweep.path, summarise(table, axes), conditions(table, lab))
    figures = draw_results(sweep.path, table, axes, lab)
    done = int((table["status"] == "done").sum()) if len(table) else 0
    return SweepResult(done, len(table) - done, figures)


def publish_again(folder: Path, target: float | None = None) -> SweepResult:
    """Do the same for a folder that is there, from its files alone: without the notebook, and without running anything.

    Raises
    ------
    SweepFolderError
        Not a sweep's folder, or no trial in it has ended, or it cannot be written.
    """
    try:
        description = json.loads((folder / "sweep.json").read_text())
        axes, lab = dict(description["axes"]), str(description["lab"])
    except (OSError, ValueError, TypeError, KeyError):
        raise SweepFolderError(f"{folder} is no sweep's folder: it has no readable sweep.json") from None
    found = {
        path.parent.relative_to(folder).as_posix(): read_outcome(path.parent) for path in folder.glob(f"*/*/{RECORD}")
    }
    outcomes = {name: outcome for name, outcome in found.items() if outcome is not None and outcome.lab == lab}
    if not outcomes:
        raise SweepFolderError(f"no trial has ended in {folder}: there is nothing to draw")

    def order(trial: Trial) -> list[int]:  # the grid's
        places = ((values, trial.parameters.get(name)) for name, values in axes.items())
        return [values.index(value) if value in values else len(values) for values, value in places] + [trial.seed]

    trials = sorted((Trial(outcome.parameters, name) for name, outcome in sorted(outcomes.items())), key=order)
    try:
        return publish(SweepFolder(folder, outcomes), trials, list(axes), lab, target)
    except OSError as error:
        raise SweepFolderError(
            f"{folder} cannot be written ({error.strerror}); copy it to a place of your own"
        ) from None
