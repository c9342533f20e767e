"""The table of a sweep: a row per point and repeat."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from course_lib.runs.records import read_learning_curve
from course_lib.runs.sweep.folder import Outcome, SweepFolder
from course_lib.runs.sweep.points import NAMED, Point
from course_lib.system.atomic import write_atomically

__all__ = ["MEASURED", "collect", "write_results"]

MEASURED = [
    "status", "epochs", "train_seconds", "images_per_sec", "best_accuracy", "final_accuracy", "final_loss", "seconds",
    "ranks", "effective_batch", "dataset", "provenance", "device", "folder", "error",
]  # fmt: skip


def collect(sweep: SweepFolder, points: Sequence[Point], axes: Sequence[str]) -> pd.DataFrame:
    """What the points left behind.

    Returns
    -------
    DataFrame
        A row for each point that has ended, in the grid's order: the parameters that name its folder or were varied,
        ``seed``, and `MEASURED`. ``images_per_sec`` is the median over epochs, the first left out where there are
        more (the multi-GPU tutorial: "Wait until epoch 2"), summed over ranks; ``train_seconds`` leaves validation out;
        ``seconds`` is the whole notebook's; accuracies are in 0…1.
    """
    rows = []
    for point in points:
        outcome = sweep.outcomes.get(point.folder)
        if outcome is not None:
            rows.append(_row(sweep.path, point, outcome, axes))
    names = list(dict.fromkeys([*NAMED, *axes, "seed"]))
    columns = [name for name in names if any(name in row for row in rows)] if rows else names
    return pd.DataFrame(rows, columns=[*columns, *MEASURED])


def write_results(path: Path, table: pd.DataFrame) -> None:
    """Write the table as CSV, whole or not at all."""
    write_atomically(path, table.to_csv(index=False, lineterminator="\n"))


def _row(root: Path, point: Point, outcome: Outcome, axes: Sequence[str]) -> dict[str, Any]:
    parameters = point.parameters
    row: dict[str, Any] = {name: parameters[name] for name in (*NAMED, *axes, "seed") if name in parameters}
    row |= {
        "status": outcome.status,
        "seconds": outcome.seconds,
        "ranks": point.ranks,
        "folder": point.folder,
        "error": outcome.error,
    }
    if "batch_size" in parameters:
        row["effective_batch"] = parameters["batch_size"] * point.ranks
    if outcome.status == "done":
        row |= _measured(root / point.folder)
    return row


def _measured(folder: Path) -> dict[str, Any]:
    """What the run folder says; nothing where the notebook leaves none (not every lab trains)."""
    try:
        record: Mapping[str, Any] = json.loads((folder / "run.json").read_text())
        curve = read_learning_curve(folder / "learning_curve.csv")
    except (OSError, ValueError):
        return {}
    epochs = curve[curve["epoch"] > 0]
    row: dict[str, Any] = {
        "dataset": record.get("data", {}).get("name"),
        "provenance": record.get("data", {}).get("provenance"),
        "device": record.get("device"),
        "epochs": len(epochs),
    }
    if len(epochs):
        row |= {
            "train_seconds": epochs["time"].iloc[-1],
            "best_accuracy": epochs["val_accuracy"].max(),
            "final_accuracy": epochs["val_accuracy"].iloc[-1],
        }
        if "images_per_sec" in epochs:
            row["images_per_sec"] = epochs["images_per_sec"].iloc[1 if len(epochs) > 1 else 0 :].median()
        if "val_loss" in epochs:
            row["final_loss"] = epochs["val_loss"].iloc[-1]
    return row
