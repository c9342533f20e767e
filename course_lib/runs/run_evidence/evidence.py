"""The evidence of a run folder: its three text files, each parsed, or the error that says why not."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from course_lib.runs.run_evidence.errors import EvidenceError
from course_lib.runs.run_evidence.learning_curve import LearningCurve, parse_learning_curve
from course_lib.runs.run_evidence.run_record import RunRecord, parse_run_record
from course_lib.runs.run_evidence.transcript import Transcript, parse_transcript

__all__ = ["Evidence", "HeldOut", "RunFiles", "parse_evidence"]

T = TypeVar("T")
RunFiles = dict[str, "bytes | EvidenceError"]


@dataclass(frozen=True)
class HeldOut:
    """The score of submitted weights: `correct` of `images`, on the data set `data` of that provenance.

    Of a text, `images` counts characters, and `unit` says so.

    `borrowed` names a part of the network that the student did not write, where the student's program makes it.
    """

    correct: int
    images: int
    data: str
    provenance: str
    borrowed: str = ""
    unit: str = "images"

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
    """The files of a run folder, each parsed, or the error that says why not; and the score of its weights."""

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
        """The score of the weights; raises `EvidenceError` where they were not tried."""
        if self.held_out_or_error is None:
            raise EvidenceError("the submitted weights were not tested")
        return _unwrap(self.held_out_or_error)


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
        except Exception as error:  # fails closed: an unforeseen error earns no points and stops no grading
            what = type(error).__name__
            return EvidenceError(f"{name} could not be read ({what}): hand in the file as the lab wrote it")

    return Evidence(
        lab,
        attempt("run.json", parse_run_record),
        attempt("learning_curve.csv", parse_learning_curve),
        attempt("assessment.out", parse_transcript),
    )


def _unwrap(value: T | EvidenceError) -> T:
    if isinstance(value, EvidenceError):
        raise value
    return value
