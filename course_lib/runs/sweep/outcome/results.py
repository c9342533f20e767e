"""The table of a sweep: a row per trial."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from course_lib.runs.records import read_learning_curve
from course_lib.runs.sweep.folder import Outcome, SweepFolder
from course_lib.runs.sweep.trials import NAMED, Trial
from course_lib.system.atomic import write_atomically

__all__ = ["MEASURED", "collect", "write_results"]

MEASURED = [
    "status", "epochs", "train_seconds", "images_per_sec", "best_accuracy", "final_accuracy", "final_loss", "seconds",
    "ranks", "effective_batch", "dataset", "provenance", "device", "folder", "error",
]  # fmt: skip


def collect(sweep: SweepFolder, trials: Sequence[Trial], axes: Sequence[str]) -> pd.DataFrame:
    """The results of the trials.

    Returns
    -------
    DataFrame
        A row for each trial that has ended, in the grid's order: the parameters that name its folder or were varied,
        ``seed``, and `MEASURED`. ``images_per_sec`` is the median over epochs, the first left out where there are
        more (the multi-GPU tutorial: "Wait until epoch 2"), summed over ranks; ``train_seconds`` leaves validation out;
        ``seconds`` is the whole notebook's; accuracies are in 0…1.
    """
    ended = [(trial, sweep.outcomes[trial.folder]) for trial in trials if trial.folder in sweep.outcomes]
    rows = [_row(sweep.path, trial, outcome, axes) for trial, outcome in ended]
    names = list(dict.fromkeys([*NAMED, *axes, "seed"]))
    columns = [name for name in names if any(name in row for row in rows)] if rows else names
    return pd.DataFrame(rows, columns=[*columns, *MEASURED])


def write_results(path: Path, table: pd.DataFrame) -> None:
    """Write the table as CSV, whole or not at all."""
    write_atomically(path, table.to_csv(index=False, lineterminator="\n"))


def _row(root: Path, trial: Trial, outcome: Outcome, axes: Sequence[str]) -> dict[str, Any]:
    parameters = trial.parameters
    row: dict[str, Any] = {name: parameters[name] for name in (*NAMED, *axes, "seed") if name in parameters}
    row |= {"status": outcome.status, "seconds": outcome.seconds, "error": outcome.error}
    row |= {"ranks": trial.ranks, "folder": trial.folder}
    if "batch_size" in parameters:
        row["effective_batch"] = parameters["batch_size"] * trial.ranks
    if outcome.status == "done":
        row |= _measured(root / trial.folder)
    return row


def _measured(folder: Path) -> dict[str, Any]:
    """Measurements from the run folder; none where the notebook leaves no run folder (not every lab trains)."""
    try:
        record: Mapping[str, Any] = json.loads((folder / "run.json").read_text())
        curve = read_learning_curve(folder / "learning_curve.csv")
    except (OSError, ValueError):
        return {}
    epochs = curve[curve["epoch"] > 0]
    data = record.get("data", {})
    row = {"dataset": data.get("name"), "provenance": data.get("provenance"), "device": record.get("device")}
    row["epochs"] = len(epochs)
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
