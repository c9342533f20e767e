"""The table that ``nbgrader export`` writes, of one lab: for those who already read that format.

Columns, order of rows and notation of numbers are those of nbgrader's ``CsvExportPlugin``, which also gives a student
without a submission an empty timestamp and the score 0.0. It differs in what that plugin leaves open: cells are quoted
where they need it, and no name, address or id is taken for a formula.
"""

from __future__ import annotations

import csv
import io

from autograde.reports.export.cells import neutral
from autograde.reports.export.scores import LabScores

__all__ = ["nbgrader_csv"]

COLUMNS = (
    "assignment",
    "duedate",
    "timestamp",
    "student_id",
    "last_name",
    "first_name",
    "email",
    "raw_score",
    "late_submission_penalty",
    "score",
    "max_score",
)


def nbgrader_csv(scores: LabScores, final_only: bool = False) -> bytes:
    """A lab's scores in nbgrader's own format.

    Parameters
    ----------
    scores : LabScores
    final_only : bool
        Leave out the rows of students who still need hand grading.

    Returns
    -------
    bytes
        UTF-8, lines ending in ``\\n``.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for student in scores.students:
        if final_only and student.needs_hand_grading:
            continue
        writer.writerow(
            [
                scores.lab,
                "" if scores.duedate is None else scores.duedate,
                "" if student.timestamp is None else student.timestamp,
                *(neutral(value or "") for value in _person(student)),
                student.raw,
                student.penalty,
                student.score,
                scores.max_score,
            ]
        )
    return text.getvalue().encode(errors="replace")


def _person(student) -> tuple[str | None, ...]:
    return student.student, student.last_name, student.first_name, student.email
