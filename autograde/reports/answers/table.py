"""The table of answers and marks (CSV): written for a person with a spreadsheet, and read back row by row.

`row` ties a line to a student's answer, to the mark that was there when the table was written, and to the submission.
So a table cannot overwrite a mark that somebody gave in formgrader meanwhile, nor mark an answer that has been
replaced, nor give the marks of rows that were sorted apart to another student. Points that wait for a second look are
confirmed by a table that was written while they waited, with the newest submission. A table that is read twice changes
nothing the second time.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path

from autograde.gradebook.hand_marks import HandMark
from autograde.reports.answers import Answer, Question
from autograde.reports.export.csv_file import CsvFile, neutral, plain
from course_lib.runs.run_evidence.quoting import quote

__all__ = ["read_table", "table"]

COLUMNS = ("student", "question", "max_points", "automatic", "points", "comment", "answer", "row")
READ = ("student", "question", "points", "comment", "row")
LONGEST = 30_000  # characters of an answer: a cell of a spreadsheet holds 32,767
LONGEST_COMMENT = 10_000
_NUMBER = re.compile(r"-?[0-9]{1,9}(?:[.,][0-9]{1,9})?", re.ASCII)


def table(questions: Sequence[Question]) -> bytes:
    """All answers with their marks: UTF-8 with the mark by which spreadsheets know it, lines ending in ``\\n``."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for answer in (answer for question in questions for answer in question.answers):
        mark = answer.mark
        cells = (mark.student, mark.question, _number(mark.max_points), _number(mark.automatic), _number(mark.points))
        words = (mark.comment, answer.text[:LONGEST] + (" …" if len(answer.text) > LONGEST else ""))
        writer.writerow([neutral(each) for each in (*cells, *words)] + ["-".join(_row(answer))])
    return text.getvalue().encode("utf-8-sig", errors="replace")


def read_table(path: Path, questions: Sequence[Question]) -> tuple[list[tuple[HandMark, HandMark]], list[str]]:
    """The marks that a table changes, and a line for each row that cannot be used.

    Parameters
    ----------
    questions : sequence of Question
        What is there now.

    Returns (mark that is there, new mark) of each row that changes something, and the lines.

    Raises `ExportError`: the file is no such table.
    """
    file = CsvFile(path, COLUMNS)
    columns = {name: file.column(name) for name in READ}
    if missing := [name for name, column in columns.items() if column is None]:
        return [], [f"{path}: row 1 has no column {missing[0]}; edit the table that `lab answers` writes"]
    answers = {_row(answer)[0]: answer for question in questions for answer in question.answers}
    changes, problems, seen = [], [], set()
    for number, cells in enumerate(file.rows[1:], 2):
        if not any(cell.strip() for cell in cells):
            continue
        values = {name: file.get(number - 1, column) for name, column in columns.items()}
        key, version, look = [*values["row"].strip().split("-", 2), "", ""][:3]
        try:
            if key in seen:
                raise ValueError("the row is there twice")
            seen.add(key)
            answer = answers.get(key)
            if answer is None:
                raise ValueError(
                    "no such answer: it was handed in again, or row is not as it was; write the table anew"
                )
            change = _change(answer, values, version, look)
        except ValueError as error:
            problems.append(f"{path}, row {number} ({quote(values['student'])}, {quote(values['question'])}): {error}")
            continue
        if change is not None:
            changes.append((answer.mark, change))
    return changes, problems


def _change(answer: Answer, values: dict[str, str], version: str, look: str) -> HandMark | None:
    """The new mark, None where nothing changes. Raises `ValueError`: the row cannot be used."""
    mark = answer.mark
    for name in ("student", "question"):
        if _bare(values[name]) != _bare(getattr(mark, name)):
            raise ValueError(f"{name} is {quote(getattr(mark, name))} in this row's answer; were columns sorted apart?")
    points, comment = _points(values["points"], mark), _lines(values["comment"])
    # An unchanged cell may look like one that a formula was taken out of: it is compared as it was written.
    comment = mark.comment if comment == _lines(neutral(mark.comment)) else plain(comment)
    if len(comment) > LONGEST_COMMENT:
        raise ValueError(f"the comment has {len(comment):,} characters, at most {LONGEST_COMMENT:,} are kept")
    if _number(points) == _number(mark.points):
        points = mark.points
    _, version_now, look_now = _row(answer)
    confirmed = points is not None and (version, look) == (version_now, look_now)
    new = mark.with_mark(points, comment, confirmed)
    if new == mark:
        return None
    if version != version_now:
        raise ValueError("the mark in the gradebook was changed after the table was written; write the table anew")
    return new


def _points(text: str, mark: HandMark) -> float | None:
    text = text.strip().removeprefix("'")
    if not text:
        return None
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"points {quote(text)} is not a number")
    points = float(text.replace(",", "."))
    if not (math.isfinite(points) and 0 <= points <= mark.max_points):
        raise ValueError(f"points {quote(text)} is not between 0 and {mark.max_points:g}")
    return points


def _row(answer: Answer) -> tuple[str, str, str]:
    """Names of the answer, of its mark, and of what waits. The letters keep a spreadsheet from reading a number."""
    mark = answer.mark
    return (
        "a" + _digest(mark.student, mark.question, answer.text)[:12],
        "m" + _digest(_number(mark.points), mark.comment)[:8],
        "w" + _digest(str(mark.waits), mark.handed_in)[:8],
    )


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "replace")).hexdigest()


def _number(value: float | None) -> str:
    return "" if value is None else format(value, ".10g")


def _bare(text: str) -> str:
    # A spreadsheet drops the zeros before a number.
    return text.strip().lstrip("'0")


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").rstrip()
