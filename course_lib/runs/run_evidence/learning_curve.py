"""``learning_curve.csv``: one row per epoch, after a row of zeros.

Any CSV with at least ``time,val_accuracy`` is read, since the multi-GPU tutorial wrote just those two; the other columns
of the labs' own files are checked where they exist.
"""

import csv
import io
import math
import re
from dataclasses import dataclass

from course_lib.runs.run_evidence.errors import EvidenceError
from course_lib.runs.run_evidence.quoting import quote

__all__ = ["COLUMNS", "MAX_BYTES", "CurveRow", "LearningCurve", "parse_learning_curve"]

COLUMNS = ("epoch", "time", "images_per_sec", "train_loss", "train_accuracy", "val_loss", "val_accuracy", "lr")
MAX_BYTES = 2 * 1024 * 1024
MAX_EPOCHS = 10_000
# float() would also take "1_0", "infinity" and other scripts' digits
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", re.ASCII)


@dataclass(frozen=True)
class CurveRow:
    """One row. `line` is its line in the file; a field that the file leaves out or empty is None."""

    line: int
    epoch: int
    time: float
    val_accuracy: float
    images_per_sec: float | None = None
    train_loss: float | None = None
    train_accuracy: float | None = None
    val_loss: float | None = None
    lr: float | None = None


@dataclass(frozen=True)
class LearningCurve:
    """A parsed file.

    Attributes
    ----------
    rows : tuple of CurveRow
        The first is the row of zeros, where the file has it.
    columns : tuple of str
        The file's header.
    problems : tuple of str
        What breaks the schema without making times and accuracies unusable, one line each.
    """

    rows: tuple[CurveRow, ...]
    columns: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def epochs(self) -> tuple[CurveRow, ...]:
        """The rows of trained epochs: all but the row of zeros."""
        return self.rows[1:] if self.rows[0].epoch == 0 else self.rows

    @property
    def accuracies(self) -> tuple[float, ...]:
        """Validation accuracy of each trained epoch."""
        return tuple(row.val_accuracy for row in self.epochs)


def parse_learning_curve(text: str) -> LearningCurve:
    """Read ``learning_curve.csv``.

    Raises
    ------
    EvidenceError
        No usable times and accuracies: not a CSV, a column missing, a row cut short, a value that is no finite number,
        an accuracy outside 0...1, no epoch at all. Names the line.
    """
    try:
        lines = csv.reader(io.StringIO(text, newline=""), strict=True)
        header = tuple(next(lines, ()))
        _check_header(header)
        rows: list[CurveRow] = []
        problems: list[str] = []
        for fields in lines:
            if len(rows) > MAX_EPOCHS:
                raise _bad(lines.line_num, f"more than {MAX_EPOCHS:,} rows", "hand in the file of one run")
            rows.append(_parse_row(header, fields, lines.line_num, len(rows), problems))
    except csv.Error as error:
        raise _bad(lines.line_num, f"not a CSV ({quote(str(error))})", "hand in the file as the lab wrote it") from None
    if not rows:
        raise EvidenceError("learning_curve.csv has no rows after its header: run the lab to its end")
    first = rows[0]
    if (first.epoch, first.time, first.val_accuracy) != (0, 0.0, 0.0):
        found = f"epoch {first.epoch}, time {first.time:g}, val_accuracy {first.val_accuracy:g}"
        expected = "expected epoch 0, time 0.0, val_accuracy 0.0"
        problems.insert(0, f"learning_curve.csv line {first.line}: the first row is {found}; {expected}")
    curve = LearningCurve(tuple(rows), header, tuple(problems[:5]))
    if not curve.epochs:
        raise EvidenceError("learning_curve.csv has no epoch after its row of zeros: run the lab to its end")
    return curve


def _check_header(header: tuple[str, ...]) -> None:
    for name in ("time", "val_accuracy"):
        if header.count(name) != 1:
            trouble = "is there twice" if name in header else "is missing"
            raise _bad(1, f"column {name} {trouble}; found {quote(','.join(header))}", f"expected {','.join(COLUMNS)}")
    if len(set(header)) != len(header):
        raise _bad(1, "a column is there twice", f"expected {','.join(COLUMNS)}")


def _parse_row(header: tuple[str, ...], fields: list[str], line: int, index: int, problems: list[str]) -> CurveRow:
    if len(fields) != len(header):
        what = f"{len(fields)} fields, the header has {len(header)}"
        raise _bad(line, what, "the file was cut short; run the lab to its end")
    values: dict[str, float | None] = {}
    for name, field in zip(header, fields, strict=True):
        if name not in COLUMNS:
            continue
        essential = name in ("epoch", "time", "val_accuracy")
        if field == "" and index == 0 and not essential:
            values[name] = None  # nothing was trained yet
            continue
        trouble = _trouble(name, field)
        if trouble is None:
            values[name] = float(field)
        elif essential:
            raise _bad(line, trouble, "run the lab again and hand in the file as it wrote it")
        else:
            values[name] = None
            problems.append(f"learning_curve.csv line {line}: {trouble}: run the lab again")
    # The multi-GPU tutorial's two columns count the epochs by their position.
    values["epoch"] = int(values.get("epoch", index))
    return CurveRow(line=line, **values)


def _trouble(name: str, field: str) -> str | None:
    # The length bound keeps float() off numbers of a million digits.
    if len(field) > 40 or not _NUMBER.fullmatch(field) or not math.isfinite(float(field)):
        return f"{name} is {quote(field, 30)}, a finite number was expected"
    value = float(field)
    if name.endswith("accuracy") and not 0.0 <= value <= 1.0:
        return f"{name} is {value:g}, a fraction in 0...1 was expected"
    if name == "epoch" and (value != int(value) or not 0 <= value <= MAX_EPOCHS):
        return f"epoch is {value:g}, a whole number was expected"
    if name == "time" and value < 0:
        return f"time is {value:g}, seconds since the start were expected"
    return None


def _bad(line: int, what: str, remedy: str) -> EvidenceError:
    return EvidenceError(f"learning_curve.csv line {line}: {what}: {remedy}")
