"""The visible check of the assessment's run folder: what a student can see before handing in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from course_lib.checks.registry import CheckFailed
from course_lib.records import read_learning_curve

__all__ = ["run"]

LAB = "12_assessment"
SECONDS, SECONDS_GPU = 900, 600
TARGET = 0.85


def run(folder: str | Path) -> float:
    """Score the run folder out of 20, with a printed line for each part; the instructor's grader looks closer.

    Raises
    ------
    CheckFailed
        There is no finished run.
    """
    folder = Path(folder)
    try:
        record = json.loads((folder / "run.json").read_text())
        curve = read_learning_curve(folder / "learning_curve.csv")
        lines = (folder / "assessment.out").read_text().splitlines()
    except (OSError, ValueError) as error:
        raise CheckFailed(f"no finished run in {folder} ({error}); run the notebook from its top to its end") from None
    accuracies, seconds = curve["val_accuracy"].iloc[1:].tolist(), float(curve["time"].iloc[-1])
    budget = SECONDS if str(record.get("device", "cpu")).startswith("cpu") else SECONDS_GPU
    data = record.get("data", {})
    finished = record.get("lab") == LAB and record.get("ended") is not None and data.get("provenance") != "synthetic"
    return sum(
        (
            _line(finished, 4, f"a finished run of {LAB} on real images", _told(record, data)),
            _line(_stopped_by_the_rule(record, accuracies), 3, "stopped where the rule says", f"{len(accuracies)} epochs"),
            _line(_transcript(lines, record, len(accuracies)), 4, "a line an epoch in the transcript", f"{len(lines)} lines"),
            _line(max(accuracies, default=0) >= TARGET, 2, f"best accuracy {TARGET:.0%}", f"{max(accuracies, default=0):.1%}"),
            _line(accuracies[-1:] >= [TARGET], 4, f"final accuracy {TARGET:.0%}", f"{(accuracies or [0])[-1]:.1%}"),
            _line(0 < seconds <= budget, 3, f"at most {budget} s of training", f"{seconds:.0f} s"),
        )
    )  # fmt: skip


def _told(record: dict[str, Any], data: dict[str, Any]) -> str:
    return f"{record.get('lab')}, ended {record.get('ended')}, {data.get('name')} ({data.get('provenance')})"


def _stopped_by_the_rule(record: dict[str, Any], accuracies: list[float]) -> bool:
    parameters = record.get("parameters", {})
    target, patience = parameters.get("target_accuracy", 1), parameters.get("patience", 1)
    held = [
        len(accuracies[:n]) >= patience and min(accuracies[n - patience : n]) >= target
        for n in range(1, len(accuracies) + 1)
    ]
    due = held.index(True) + 1 if True in held else None
    if due is None:
        return len(accuracies) == parameters.get("epochs") and not record.get("stopped_early")
    return due == len(accuracies) and bool(record.get("stopped_early"))


def _transcript(lines: list[str], record: dict[str, Any], epochs: int) -> bool:
    ends = [f"Early stopping after epoch {epochs}"] if record.get("stopped_early") else []
    told = all(line.startswith(f"Epoch = {n:2d}: ") for n, line in enumerate(lines[:epochs], 1))
    return told and len(lines) >= epochs and lines[epochs:] == ends


def _line(passed: bool, points: int, wanted: str, found: str) -> float:
    print(f"{points if passed else 0} of {points}: {wanted}; {found}")
    return float(points) if passed else 0.0
