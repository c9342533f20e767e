"""All the evidence of one submission, read once; what could not be read is kept as its one-line reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from . import learning_curve, run_record, transcript
from .learning_curve import LearningCurve, parse_learning_curve
from .quoting import printable
from .run_folder import EvidenceError, RunFolder
from .run_record import RunRecord, parse_run_record
from .transcript import Transcript, parse_transcript
from .verdict import RunSummary

__all__ = ["Evidence", "read_evidence", "summarise"]

T = TypeVar("T")


@dataclass(frozen=True)
class Evidence:
    """The three files of a run folder, each parsed or the error that says why not."""

    lab: str
    record_or_error: RunRecord | EvidenceError
    curve_or_error: LearningCurve | EvidenceError
    transcript_or_error: Transcript | EvidenceError

    @property
    def record(self) -> RunRecord:
        """``run.json``; raises `EvidenceError` where it cannot be used."""
        return _unwrap(self.record_or_error)

    @property
    def curve(self) -> LearningCurve:
        """``learning_curve.csv``; raises `EvidenceError` where it cannot be used."""
        return _unwrap(self.curve_or_error)

    @property
    def transcript(self) -> Transcript:
        """``assessment.out``; raises `EvidenceError` where it cannot be used."""
        return _unwrap(self.transcript_or_error)


def read_evidence(submission: Path, lab: str) -> Evidence:
    """Read a submission's run folder.

    Parameters
    ----------
    submission : Path
        ``submitted/STUDENT/LAB``.
    lab : str
        The lab's full name.

    Returns
    -------
    Evidence
        Never raises for what a student handed in.
    """
    try:
        with RunFolder(submission, lab) as folder:

            def attempt(name: str, limit: int, parse: Callable[[str], T]) -> T | EvidenceError:
                try:
                    return parse(folder.read_text(name, limit))
                except EvidenceError as error:
                    return error
                except Exception as error:  # fails closed: what we did not think of earns nothing and stops nothing
                    what = type(error).__name__
                    return EvidenceError(f"{name} could not be read ({what}): hand in the file as the lab wrote it")

            return Evidence(
                lab,
                attempt("run.json", run_record.MAX_BYTES, parse_run_record),
                attempt("learning_curve.csv", learning_curve.MAX_BYTES, parse_learning_curve),
                attempt("assessment.out", transcript.MAX_BYTES, parse_transcript),
            )
    except EvidenceError as error:
        return Evidence(lab, error, error, error)


def summarise(evidence: Evidence) -> RunSummary:
    """The run's figures, with None for what could not be read."""
    figures: dict = {}
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
    return RunSummary(**figures)


def _unwrap(value: T | EvidenceError) -> T:
    if isinstance(value, EvidenceError):
        raise value
    return value
