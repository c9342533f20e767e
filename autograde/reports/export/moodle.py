"""Moodle: the offline grading worksheet of one assignment, filled.

The format is that of Moodle's own ``mod/assign/gradingtable.php`` and ``mod/assign/feedback/offline``: ``Identifier``
("Participant 123"), ``Full name``, columns of identity as the site shows them (``Email address``, ``ID number``,
``Username``), ``Status``, ``Grade``, ``Maximum Grade``, ``Grade can be changed``, ``Last modified (submission)``,
``Last modified (grade)``, ``Feedback comments``. The importer takes a row by ``Identifier``, ignores it where the grade
in Moodle is newer than ``Last modified (grade)`` says, and silently ignores a grade above the maximum. It reads
grades in the language's notation, so the decimal mark of ``Maximum Grade`` is kept.

Comments. The importer stores ``Feedback comments`` as HTML, so the plain reasons are written escaped, a ``<br>`` at the
end of each line. A comment that somebody has written in Moodle stays.

Formulas. In ``Full name``, ``Email address`` and ``Online text`` a formula gets an apostrophe, though the text is only
passed through: the importer reads none of them back. ``Identifier`` keeps its text, or the importer would miss the
student, and so do ``ID number`` and ``Username``, which the institution gives out, and all else.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path

from autograde.reports.export.csv_file import CsvFile, ExportError, neutral
from autograde.reports.export.fill import Filled, fill_scores, listed, naming, parse_number
from autograde.reports.export.reasons import OPENING, plain_reasons
from autograde.reports.export.scores import Grades, LabScores

__all__ = ["fill_moodle"]

IDS = ("Username", "ID number", "Email address")
SHOWN = ("Full name", "Email address", "Online text")
# Without one of these Moodle refuses the file, or we do not know what may be changed.
NEEDED = ("Identifier", "Grade", "Grade can be changed", "Last modified (grade)")
COMMENTS = "Feedback comments"


def fill_moodle(path: Path, grades: Grades, feedback: Path | None = None) -> Filled:
    """Fill the grades of a Moodle offline grading worksheet.

    Parameters
    ----------
    feedback : Path, optional
        The course folder whose saved verdicts give the comments; without it comments stay.

    Raises `ExportError`: the file is no such worksheet, is graded on a scale, has no column for the comments asked for,
    or has nobody of the gradebook.
    """
    file = CsvFile(path, [*NEEDED, *SHOWN, *IDS, "Status"])
    if missing := [name for name in NEEDED if file.column(name) is None]:
        raise ExportError(
            f"{path}: row 1 has no column {listed(missing)}; download the grading worksheet with Moodle in English"
        )
    if file.column("Scale") is not None:
        raise ExportError(f"{path}: the assignment is graded on a scale; set its grade type to points in Moodle")
    if feedback is not None and file.column(COMMENTS) is None:
        raise ExportError(f"{path}: row 1 has no column '{COMMENTS}'; switch that feedback type on in the assignment")
    rows = [row for row, cells in enumerate(file.rows) if row and any(cells)]
    target, changeable = file.column("Grade"), file.column("Grade can be changed")
    maximum = _maximum(file, rows)

    def locked(row: int) -> bool:
        return file.get(row, changeable).strip().casefold() != "yes"

    written, students, lines = fill_scores(file, target, rows, IDS, grades, ("Maximum Grade", maximum), locked)
    most = parse_number(maximum)
    above = (students[row] for row, score in written.items() if most is not None and round(score, 2) > most)
    lines += naming("warning: above Maximum Grade, which Moodle leaves out on import", above)
    left = (student for row, student in students.items() if row not in written)
    lines += naming("grade cannot be changed in Moodle, left as it is", left)
    if feedback is not None:
        lines += _comment(file, {row: students[row] for row in written}, grades.lab, feedback)
    file.neutralise(SHOWN)
    return Filled(file.to_bytes(), lines)


def _maximum(file: CsvFile, rows: list[int]) -> str:
    """The text of Maximum Grade, which is the same in every row; empty where the file has none."""
    column = file.column("Maximum Grade")
    texts = sorted({text for row in rows if column is not None and (text := file.get(row, column).strip())})
    if len(texts) > 1 or any(parse_number(text) is None for text in texts):
        raise ExportError(
            f"{file.path}: column Maximum Grade has {listed(texts)}, one number is expected; "
            "download the worksheet of this assignment again"
        )
    return "".join(texts)


def _comment(file: CsvFile, students: Mapping[int, str], scores: LabScores, course: Path) -> list[str]:
    """Write the reasons of the saved verdicts; a line about those whose comment could not be written."""
    column, by_student = file.column(COMMENTS), {score.student: score for score in scores.students}
    commented, without = [], []
    for row, student in students.items():
        if (present := file.get(row, column).strip()) and not present.startswith(OPENING):
            commented.append(student)
        elif (reasons := plain_reasons(course, by_student[student], scores.lab)) is None:
            without.append(student)
        else:
            lines = [html.escape(line, quote=False) for line in reasons]
            file.set(row, column, neutral("<br>\n".join(lines)))
    return [
        *naming("a comment is there already, left as it is", commented),
        *naming("no readable verdict, so no comment", without),
    ]
