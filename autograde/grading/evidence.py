"""All the evidence of one submission, read once. For a part that cannot be read, its one-line reason is kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from autograde.rubric.verdict import RunSummary
from autograde.submission.run_folder import EvidenceError, RunFolder, open_submission, read_plain
from course_lib.runs.run_evidence import learning_curve, run_record, transcript
from course_lib.runs.run_evidence.evidence import Evidence, HeldOut, RunFiles, parse_evidence
from course_lib.runs.run_evidence.learning_curve import LearningCurve
from course_lib.runs.run_evidence.quoting import printable
from course_lib.runs.run_evidence.run_record import RunRecord

__all__ = ["LIMITS", "PROGRAM", "WEIGHTS", "read_evidence", "read_program", "read_run_files", "summarise"]

WEIGHTS = "model.safetensors"
PROGRAM = "program"  # of a run's files: the text of the program that trained it, from beside the notebook
MAX_PROGRAM = 256 << 10
# The files of a run folder that are read, with their largest sizes in bytes.
LIMITS = {
    "run.json": run_record.MAX_BYTES,
    "learning_curve.csv": learning_curve.MAX_BYTES,
    "assessment.out": transcript.MAX_BYTES,
    WEIGHTS: 256 << 20,  # several times the largest network of the labs; a worker holds a few copies
}
WEIGHTS_OF_SEVERAL = 128 << 20  # a worker holds those of all runs


def read_run_files(submission: Path, lab: str, folder: str = "", writer: str = "") -> RunFiles:
    """Read one of a submission's run folders, as bytes.

    Parameters
    ----------
    submission : Path
        ``submitted/STUDENT/LAB``.
    lab : str
        The lab's full name.
    folder, writer : str
        For a lab with several runs: see `autograde.submission.run_folder.RunFolder`.

    Returns the name of each file → its bytes, or the error that says why there are none. Never raises for a submission's
    content.
    """
    limits = LIMITS | {WEIGHTS: WEIGHTS_OF_SEVERAL} if folder else LIMITS
    files: RunFiles = {}
    try:
        with RunFolder(submission, lab, folder, writer) as opened:
            for name, limit in limits.items():
                try:
                    files[name] = opened.read(name, limit)
                except EvidenceError as error:
                    files[name] = error
    except EvidenceError as error:
        return dict.fromkeys(LIMITS, error)
    return files


def read_program(submission: Path, program: str) -> bytes | EvidenceError:
    """The text of ``PROGRAM.py`` beside the notebook, or why there is none. The name is the rubric's."""
    shown = f"{program}.py"
    missing = "hand in the program that trained the run, beside the notebook"
    try:
        folder = open_submission(submission)
        try:
            return read_plain(folder, shown, MAX_PROGRAM, shown=shown, missing=missing, remedy=missing)
        finally:
            os.close(folder)
    except FileNotFoundError:
        return EvidenceError(f"there is no {shown}: {missing}")
    except EvidenceError as error:
        return error


def read_evidence(submission: Path, lab: str) -> Evidence:
    """The evidence in a submission's run folder; never raises for its content."""
    return parse_evidence(lab, read_run_files(submission, lab))


def summarise(evidence: Evidence, **known: Any) -> RunSummary:
    """The run's figures, None for unreadable ones, with the fields of the summary that are `known` already."""
    figures: dict[str, Any] = known
    if isinstance(curve := evidence.curve_or_error, LearningCurve):
        accuracies = curve.accuracies
        figures |= {
            "curve": [[row.epoch, row.time, row.val_accuracy] for row in curve.rows],
            "epochs": len(accuracies),
            "seconds": curve.rows[-1].time,
            "best_accuracy": max(accuracies),
            "final_accuracy": accuracies[-1],
        }
    if isinstance(record := evidence.record_or_error, RunRecord):
        figures |= {
            "world_size": record.world_size,
            "device": printable(record.device, 80),
            "data_name": printable(record.data_name, 80),
            "data_provenance": record.data_provenance,
            "data_source": printable(record.data_source, 200),
        }
    if isinstance(held_out := evidence.held_out_or_error, HeldOut):
        figures |= {"held_out_accuracy": held_out.accuracy, "held_out_images": held_out.images}
    return RunSummary(**figures)
