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

__all__ = ["MEASURED", "collect", "conditions", "csv_text", "write_results"]

MEASURED = [
    "status", "epochs", "train_seconds", "images_per_sec", "best_accuracy", "final_accuracy", "final_loss",
    "target", "seconds_to_target", "seconds", "core_seconds", "gpu_seconds", "ranks", "effective_batch",
    "dataset", "provenance", "device", "folder", "error",
]  # fmt: skip
FORMULA = tuple("=+-@\t\r＝＋－＠")


def collect(
    sweep: SweepFolder, trials: Sequence[Trial], axes: Sequence[str], target: float | None = None
) -> pd.DataFrame:
    """The results of the trials.

    Parameters
    ----------
    target : float, optional
        Validation accuracy in 0…1 for ``seconds_to_target``; by default each trial's parameter ``target_accuracy``.

    Returns
    -------
    DataFrame
        A row for each trial that has ended, in the grid's order: the parameters that name its folder or were varied,
        ``seed``, and `MEASURED`. ``images_per_sec`` is the median over epochs, the first left out where there are
        more (the multi-GPU tutorial: "Wait until epoch 2"), summed over ranks; ``train_seconds`` leaves validation out;
        ``seconds_to_target`` is the training time at the end of the first epoch whose validation accuracy is at least
        ``target``, empty where there is none; ``seconds`` is the whole notebook's; ``core_seconds`` is that
        times the cores that the trial had, ``gpu_seconds`` times its GPUs; accuracies are in 0…1.
    """
    ended = [(trial, sweep.outcomes[trial.folder]) for trial in trials if trial.folder in sweep.outcomes]
    rows = [_row(sweep.path, trial, outcome, axes, target) for trial, outcome in ended]
    names = list(dict.fromkeys([*NAMED, *axes, "seed"]))
    columns = [name for name in names if any(name in row for row in rows)] if rows else names
    return pd.DataFrame(rows, columns=list(dict.fromkeys([*columns, *MEASURED])))


def conditions(table: pd.DataFrame, lab: str) -> str:
    """Lab, data with their provenance, and devices: no number is shown without them."""
    named = table[table["dataset"].notna()]
    data = ", ".join(sorted({f"{row.dataset} ({row.provenance})" for row in named.itertuples()}))
    devices = ", ".join(sorted({str(device) for device in table["device"].dropna()}))
    return f"{lab}; {data}; {devices}"


def write_results(path: Path, table: pd.DataFrame) -> None:
    """Write the table as CSV, whole or not at all."""
    write_atomically(path, csv_text(table))


def csv_text(table: pd.DataFrame) -> str:
    """The table as CSV. What a spreadsheet would take for a formula, such as an error's text, gets an apostrophe in front."""
    safe = table.map(lambda cell: f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell)
    return safe.to_csv(index=False, lineterminator="\n")


def _row(root: Path, trial: Trial, outcome: Outcome, axes: Sequence[str], target: float | None) -> dict[str, Any]:
    parameters = trial.parameters
    row: dict[str, Any] = {name: parameters[name] for name in (*NAMED, *axes, "seed") if name in parameters}
    row |= {"status": outcome.status, "seconds": outcome.seconds, "error": outcome.error}
    row |= {"ranks": trial.ranks, "folder": trial.folder}
    if "batch_size" in parameters:
        row["effective_batch"] = parameters["batch_size"] * trial.ranks
    if outcome.cores:
        row["core_seconds"] = outcome.seconds * outcome.cores
    if outcome.status == "done":
        target = parameters.get("target_accuracy") if target is None else target
        # A parameter that was varied keeps its column: a run of `epochs` may have ended after fewer.
        row = {"target": target or None} | _measured(root / trial.folder, target) | row
        if str(row.get("device")).startswith("cuda"):
            row["gpu_seconds"] = outcome.seconds * trial.ranks
    return row


def _measured(folder: Path, target: float | None) -> dict[str, Any]:
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
        if target:
            row["seconds_to_target"] = epochs.loc[epochs["val_accuracy"] >= target, "time"].min()
        if "images_per_sec" in epochs:
            row["images_per_sec"] = epochs["images_per_sec"].iloc[1 if len(epochs) > 1 else 0 :].median()
        if "val_loss" in epochs:
            row["final_loss"] = epochs["val_loss"].iloc[-1]
    return row
