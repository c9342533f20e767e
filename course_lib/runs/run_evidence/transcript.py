"""``assessment.out``: what `assessment_print` wrote, in the multi-GPU tutorial's format and no other.

A line is parsed, formatted again by the multi-GPU tutorial's own format string, and compared. So "exactly" means what
the tutorial's program would have printed, padding included. The comparison with the CSV finds rewritten figures.

`assessment_print` appends: a file may hold several runs, each of which begins at epoch 1. The last one counts.
"""

import math
import re
from dataclasses import dataclass

from course_lib.runs.run_evidence.errors import EvidenceError
from course_lib.runs.run_evidence.learning_curve import LearningCurve
from course_lib.runs.run_evidence.quoting import quote

__all__ = ["EPOCH_FORMAT", "STOP_FORMAT", "Transcript", "TranscriptRow", "disagreement", "parse_transcript"]

EPOCH_FORMAT = (
    "Epoch = {:2d}: Cumulative Time = {:5.3f}, Epoch Time = {:5.3f}, Images/sec = {}, "
    "Training Accuracy = {:5.3f}, Validation Loss = {:5.3f}, Validation Accuracy = {:5.3f}"
)
STOP_FORMAT = "Early stopping after epoch {}"
MAX_BYTES = 4 * 1024 * 1024
SIX_DIGITS = 5e-6  # relative: half a unit of the sixth significant digit
TENSOR_DIGITS = 1e-4  # relative: tensor(1.2346e+05) shows five digits, tensor(1234.5677) four places

_FIXED = r" *-?(?:[0-9]{1,15}\.[0-9]{3}|nan|inf)"
_FLOAT = r"-?(?:[0-9]{1,15}\.?[0-9]{0,20}(?:e[+-]?[0-9]{1,3})?|nan|inf)"
# A 0-dim tensor formats as its number today; old PyTorch wrote tensor(...), the device and dtype inside.
_INSIDE = r"(?:, (?:device='[a-z]+(?::[0-9]+)?'|dtype=torch\.[a-z0-9]+))*"
_SPEED = rf"(?P<speed>{_FLOAT})|tensor\((?P<tensor>{_FLOAT}){_INSIDE}\)"
_EPOCH = re.compile(
    rf"Epoch = (?P<epoch> *[0-9]{{1,6}}): Cumulative Time = (?P<time>{_FIXED}), Epoch Time = (?P<epoch_time>{_FIXED}), "
    rf"Images/sec = (?P<images>{_SPEED}), Training Accuracy = (?P<train_accuracy>{_FIXED}), "
    rf"Validation Loss = (?P<val_loss>{_FIXED}), Validation Accuracy = (?P<val_accuracy>{_FIXED})",
    re.ASCII,
)
_STOP = re.compile(r"Early stopping after epoch ([0-9]{1,6})", re.ASCII)


@dataclass(frozen=True)
class TranscriptRow:
    """One epoch's line; `line` is its number in the file, times are seconds, accuracies in 0...1."""

    line: int
    epoch: int
    time: float
    epoch_time: float
    images_per_sec: float
    train_accuracy: float
    val_loss: float
    val_accuracy: float


@dataclass(frozen=True)
class Transcript:
    """The last run in the file; `stopped_after` is the early-stopping line's epoch, None without that line."""

    rows: tuple[TranscriptRow, ...]
    stopped_after: int | None


def parse_transcript(text: str) -> Transcript:
    """Read ``assessment.out``.

    Raises
    ------
    EvidenceError
        A line is not in the multi-GPU tutorial's format, or out of place; gives its number, its text and the expected one.
    """
    rows: list[TranscriptRow] = []
    stopped_after: int | None = None
    for number, raw in enumerate(text.removesuffix("\n").split("\n") if text else (), start=1):
        line = raw.removesuffix("\r")
        if stop := _STOP.fullmatch(line):
            stopped_after_now = int(stop[1])
            if STOP_FORMAT.format(stopped_after_now) != line:
                raise _malformed(number, line, quote(STOP_FORMAT))
            if not rows or stopped_after is not None or rows[-1].epoch != stopped_after_now:
                last = f"epoch {rows[-1].epoch}" if rows else "no epoch"
                raise _malformed(number, line, f"that line once, and for the epoch just before it ({last})")
            stopped_after = stopped_after_now
            continue
        row = _parse_epoch(number, line)
        if row.epoch == 1:
            rows, stopped_after = [], None  # a later run begins
        elif stopped_after is not None or row.epoch != len(rows) + 1:
            wanted = "epoch 1, since the run had stopped" if stopped_after is not None else f"epoch {len(rows) + 1}"
            raise _malformed(number, line, wanted)
        rows.append(row)
    if not rows:
        raise EvidenceError("assessment.out holds no epoch: run the lab to its end; assessment_print writes the lines")
    return Transcript(tuple(rows), stopped_after)


def _parse_epoch(number: int, line: str) -> TranscriptRow:
    match = _EPOCH.fullmatch(line) if len(line) < 600 else None
    if match is None:
        raise _malformed(number, line, f"{quote(EPOCH_FORMAT, 300)} or {quote(STOP_FORMAT)}")
    speed = match["speed"] or match["tensor"]
    row = TranscriptRow(
        line=number,
        epoch=int(match["epoch"]),
        time=float(match["time"]),
        epoch_time=float(match["epoch_time"]),
        images_per_sec=float(speed),
        train_accuracy=float(match["train_accuracy"]),
        val_loss=float(match["val_loss"]),
        val_accuracy=float(match["val_accuracy"]),
    )
    again = EPOCH_FORMAT.format(
        row.epoch, row.time, row.epoch_time, match["images"], row.train_accuracy, row.val_loss, row.val_accuracy
    )
    if again != line:
        expected = f"the same figures printed by the multi-GPU tutorial's format, {quote(again, 300)}"
        raise _malformed(number, line, expected)
    for name, value in vars(row).items():
        if not math.isfinite(value):
            raise _malformed(number, line, f"a finite {name.replace('_', ' ')}")
    return row


def disagreement(transcript: Transcript, curve: LearningCurve) -> str | None:
    """The first place where transcript and learning curve disagree, or None.

    Figures may differ by half a unit of the format's last place and by what the CSV rounds away: the labs write six
    significant digits, the multi-GPU tutorial wrote seconds to one place and accuracies to four.
    """
    tutorial = "epoch" not in curve.columns
    seconds = 0.0506 if tutorial else 0.00101
    fraction = 0.00056
    if len(transcript.rows) != len(curve.epochs):
        return (
            f"assessment.out has {len(transcript.rows)} epochs in its last run, "
            f"learning_curve.csv has {len(curve.epochs)}: hand in both files from the same run"
        )
    earlier = 0.0
    for line, row in zip(transcript.rows, curve.epochs, strict=True):
        checks = [
            ("epoch", line.epoch, row.epoch, 0),
            ("cumulative time", line.time, row.time, seconds),
            ("epoch time", line.epoch_time, row.time - earlier, 2 * seconds + SIX_DIGITS * (row.time + earlier)),
            ("images/sec", line.images_per_sec, row.images_per_sec, TENSOR_DIGITS * abs(line.images_per_sec)),
            ("training accuracy", line.train_accuracy, row.train_accuracy, fraction),
            ("validation loss", line.val_loss, row.val_loss, fraction),
            ("validation accuracy", line.val_accuracy, row.val_accuracy, fraction),
        ]
        earlier = row.time
        for name, printed, written, tolerance in checks:
            if written is not None and abs(printed - written) > tolerance + SIX_DIGITS * abs(written):
                return (
                    f"epoch {line.epoch}: {name} is {printed:.6g} in assessment.out (line {line.line}) and "
                    f"{written:.6g} in learning_curve.csv (line {row.line}): hand in both files from the same run"
                )
    return None


def _malformed(number: int, line: str, expected: str) -> EvidenceError:
    return EvidenceError(f"assessment.out line {number}: {quote(line)}; expected {expected}")
