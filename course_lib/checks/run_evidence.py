"""The visible check of a run folder: what a student can see before handing in."""

from __future__ import annotations

import json
from pathlib import Path

from course_lib.checks.registry import CheckFailed
from course_lib.records import read_learning_curve

__all__ = ["check_run"]


def check_run(folder: str | Path, lab: str, threshold: float, min_world_size: int) -> float:
    """Score a run folder out of 20: 6 for a complete record, 7 for the best accuracy, 7 for the final one.

    Prints a line per part. The instructor's grader looks closer (`autograde`), at the same run folder.

    Raises
    ------
    CheckFailed
        There is no finished run.
    """
    folder = Path(folder)
    try:
        record = json.loads((folder / "run.json").read_text())
        curve = read_learning_curve(folder / "learning_curve.csv")
    except (OSError, ValueError) as error:
        raise CheckFailed(f"no finished run in {folder} ({error}); run the notebook from its top to its end") from None
    points = 0.0
    points += _line(
        record.get("lab") == lab and record.get("ended") is not None and record.get("world_size", 0) >= min_world_size,
        6, f"a finished run of {lab} on at least {min_world_size} rank(s)",
        f"run.json says lab {record.get('lab')}, ended {record.get('ended')}, {record.get('world_size')} rank(s)",
    )  # fmt: skip
    best, final = curve["val_accuracy"].max(), curve["val_accuracy"].iloc[-1]
    points += _line(best >= threshold, 7, f"best validation accuracy {threshold:.0%}", f"it is {best:.1%}")
    points += _line(final >= threshold, 7, f"final validation accuracy {threshold:.0%}", f"it is {final:.1%}")
    return points


def _line(passed: bool, points: int, wanted: str, found: str) -> float:
    print(f"{points if passed else 0} of {points}: {wanted}; {found}")
    return float(points) if passed else 0.0
