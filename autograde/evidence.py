"""All the evidence of one submission, read once; what could not be read is kept as its one-line reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from . import learning_curve, run_record, transcript
from .learning_curve import LearningCurve, parse_learning_curve
from .quoting import printable
from .run_folder import EvidenceError, RunFolder
from .run_record import RunRecord, parse_run_record
from .transcript import Transcript, parse_transcript
from .verdict import RunSummary

__all__ = [
    "LIMITS",
    "Evidence",
    "HeldOut",
    "RunFiles",
    "parse_evidence",
    "read_evidence",
    "read_run_files",
    "summarise",
]

T = TypeVar("T")
RunFiles = dict[str, "bytes | EvidenceError"]

WEIGHTS = "model.safetensors"
# Every file that is read of a run folder, and the most bytes of it.
LIMITS = {
    "run.json": run_record.MAX_BYTES,
    "learning_curve.csv": learning_curve.MAX_BYTES,
    "assessment.out": transcript.MAX_BYTES,
    WEIGHTS: 256 << 20,  # several times the largest network of the labs; a worker holds a few copies
}
WEIGHTS_OF_SEVERAL = 128 << 20  # a worker holds those of all runs


@dataclass(frozen=True)
class HeldOut:
    """What submitted weights scored: `correct` of `images`, on the data set `data` of that provenance."""

    correct: int
    images: int
    data: str
    provenance: str

    @property
    def accuracy(self) -> float:
        """0…1."""
        return self.correct / self.images

    @property
    def uncertainty(self) -> float:
        """Two standard errors of the accuracy, from the number of images."""
        share = min(max(self.accuracy, 1 / self.images), 1 - 1 / self.images)
        return 2 * math.sqrt(share * (1 - share) / self.images)


@dataclass(frozen=True)
class Evidence:
    """The files of a run folder, each parsed or the error that says why not, and what its weights scored."""

    lab: str
    record_or_error: RunRecord | EvidenceError
    curve_or_error: LearningCurve | EvidenceError
    transcript_or_error: Transcript | EvidenceError
    held_out_or_error: HeldOut | EvidenceError | None = None

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

    @property
    def held_out(self) -> HeldOut:
        """What the weights scored; raises `EvidenceError` where they were not tried."""
        if self.held_out_or_error is None:
            raise EvidenceError("the submitted weights were not tried")
        return _unwrap(self.held_out_or_error)


def read_run_files(submission: Path, lab: str, folder: str = "", writer: str = "") -> RunFiles:
    """Read one of a submission's run folders, as bytes.

    Parameters
    ----------
    submission : Path
        ``submitted/STUDENT/LAB``.
    lab : str
        The lab's full name.
    folder, writer : str
        Of a run among several: see `autograde.run_folder.RunFolder`.

    Returns
    -------
    dict
        Name of the file to its bytes, or to the error that says why there are none. Never raises for what a student
        handed in.
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


def parse_evidence(lab: str, files: RunFiles) -> Evidence:
    """Parse the files of a run folder; what cannot be parsed is kept as its one-line reason."""

    def attempt(name: str, parse: Callable[[str], T]) -> T | EvidenceError:
        content = files[name]
        if isinstance(content, EvidenceError):
            return content
        try:
            return parse(content.decode("utf-8"))
        except EvidenceError as error:
            return error
        except UnicodeDecodeError as error:
            where = f"{name} is not UTF-8 text (byte {error.start})"
            return EvidenceError(f"{where}: hand in the file as the lab wrote it")
        except Exception as error:  # fails closed: what we did not think of earns nothing and stops nothing
            what = type(error).__name__
            return EvidenceError(f"{name} could not be read ({what}): hand in the file as the lab wrote it")

    return Evidence(
        lab,
        attempt("run.json", parse_run_record),
        attempt("learning_curve.csv", parse_learning_curve),
        attempt("assessment.out", parse_transcript),
    )


def read_evidence(submission: Path, lab: str) -> Evidence:
    """The evidence in a submission's run folder; never raises for what a student handed in."""
    return parse_evidence(lab, read_run_files(submission, lab))


def summarise(evidence: Evidence, **known: Any) -> RunSummary:
    """The run's figures, with None for what could not be read, and fields of the summary that are `known` already."""
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


def _unwrap(value: T | EvidenceError) -> T:
    if isinstance(value, EvidenceError):
        raise value
    return value
