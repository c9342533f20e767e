"""The table that ``nbgrader export`` writes, of one lab: for those who already read that format.

Columns, order of rows and notation of numbers are those of nbgrader's ``CsvExportPlugin``, which also gives a student
without a submission an empty timestamp and the score 0.0. It differs in what that plugin leaves open: cells are quoted
where they need it, and no name, address or id is taken for a formula.
"""

from __future__ import annotations

import csv
import io

from autograde.reports.export.csv_file import neutral
from autograde.reports.export.scores import LabScores

__all__ = ["nbgrader_csv"]

PERSON = ("student_id", "last_name", "first_name", "email")
POINTS = ("raw_score", "late_submission_penalty", "score", "max_score")


def nbgrader_csv(scores: LabScores, final_only: bool = False) -> bytes:
    """A lab's scores in nbgrader's own format.

    Parameters
    ----------
    final_only : bool
        Leave out the rows of students who still need hand grading.

    Returns UTF-8, lines ending in ``\\n``.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")  # None is an empty cell
    writer.writerow(["assignment", "duedate", "timestamp", *PERSON, *POINTS])
    for each in scores.students:
        if final_only and each.needs_hand_grading:
            continue
        person = [neutral(value or "") for value in (each.student, each.last_name, each.first_name, each.email)]
        points = [each.raw, each.penalty, each.score, scores.max_score]
        writer.writerow([scores.lab, scores.duedate, each.timestamp, *person, *points])
    return text.getvalue().encode(errors="replace")
