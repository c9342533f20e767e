"""Moodle: the offline grading worksheet of one assignment, filled.

The format is that of Moodle's own ``mod/assign/gradingtable.php`` and ``mod/assign/feedback/offline``: ``Identifier``
("Participant 123"), ``Full name``, columns of identity as the site shows them (``Email address``, ``ID number``,
``Username``), ``Status``, ``Grade``, ``Maximum Grade``, ``Grade can be changed``, ``Last modified (submission)``,
``Last modified (grade)``, ``Feedback comments``. The importer takes a row by ``Identifier``, ignores it where the grade
in Moodle is newer than ``Last modified (grade)`` says, and leaves out without a word a grade above the maximum. It reads
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

from autograde.batch.grade_lab import is_student_id
from autograde.gradebook.late_penalties import how_late
from autograde.reports.export.cells import neutral, number, parse_number
from autograde.reports.export.filled import Filled, listed, match_lines
from autograde.reports.export.matching import match_students
from autograde.reports.export.maximum import scale_factor
from autograde.reports.export.scores import LabScores, StudentScore
from autograde.reports.export.template import ExportError, Template
from autograde.rubric.verdict import load_verdict, verdict_path

__all__ = ["fill_moodle"]

IDS = ("Username", "ID number", "Email address")
SHOWN = ("Full name", "Email address", "Online text")
# Without one of these Moodle refuses the file, or we cannot tell what may be changed.
NEEDED = ("Identifier", "Grade", "Grade can be changed", "Last modified (grade)")
COMMENTS = "Feedback comments"
_OURS = "Graded from the files handed in: "


def fill_moodle(
    path: Path,
    scores: LabScores,
    grades: Mapping[str, float],
    scale: bool = False,
    feedback: Path | None = None,
) -> Filled:
    """Fill the grades of a Moodle offline grading worksheet.

    Parameters
    ----------
    path : Path
        The worksheet; it is read only.
    scores : LabScores
    grades : mapping of str to float
        The scores to write, by student id (see `LabScores.grades`).
    scale : bool
        Scale the scores to Maximum Grade.
    feedback : Path, optional
        The course folder whose saved verdicts give the comments; without it comments stay.

    Returns
    -------
    Filled

    Raises
    ------
    ExportError
        The file is no such worksheet, is graded on a scale, has no column for the comments asked for, or has nobody of
        the gradebook.
    """
    template = Template(path, [*NEEDED, *SHOWN, *IDS, "Status"])
    columns = {name: template.column(name) for name in NEEDED}
    if missing := [name for name, column in columns.items() if column is None]:
        raise ExportError(
            f"{path}: row 1 has no column {listed(missing)}; download the grading worksheet with Moodle in English"
        )
    if template.column("Scale") is not None:
        raise ExportError(f"{path}: the assignment is graded on a scale; set its grade type to points in Moodle")
    comments = template.column(COMMENTS)
    if feedback is not None and comments is None:
        raise ExportError(f"{path}: row 1 has no column '{COMMENTS}'; switch that feedback type on in the assignment")
    rows = [row for row, cells in enumerate(template.rows) if row and any(cells)]
    maximum, mark = _maximum(template, rows)
    factor, lines = scale_factor(path, "Maximum Grade", maximum, scores.max_score, scale)
    match = match_students(template, rows, IDS, scores.students)
    late = {student.student: student for student in scores.students}
    filled, locked, above, without, commented = 0, [], [], [], []
    for row, student in match.students.items():
        if student not in grades:
            continue
        if template.get(row, columns["Grade can be changed"]).strip().casefold() != "yes":
            locked.append(student)
            continue
        grade = grades[student] * factor
        template.set(row, columns["Grade"], number(grade, mark))
        filled += 1
        if maximum is not None and round(grade, 2) > maximum:
            above.append(student)
        if feedback is None:
            continue
        if (there := template.get(row, comments).strip()) and not there.startswith(_OURS):
            commented.append(student)
        elif (reasons := _reasons(feedback, late[student], scores.lab)) is None:
            without.append(student)
        else:
            template.set(row, comments, neutral(reasons))
    template.neutralise(SHOWN)
    lines.append(f"{filled} filled, students found by {match.column}")
    told = (
        (above, "warning: above Maximum Grade, which Moodle leaves out on import"),
        (locked, "grade cannot be changed in Moodle, left as it is"),
        (commented, "a comment is there already, left as it is"),
        (without, "no readable verdict, so no comment"),
    )
    lines += [f"{what}: {listed(students)}" for students, what in told if students]
    return Filled(template.to_bytes(), lines + match_lines(match, rows, grades))


def _maximum(template: Template, rows: list[int]) -> tuple[float | None, str]:
    column = template.column("Maximum Grade")
    if column is None:
        return None, "."
    texts = {text for row in rows if (text := template.get(row, column).strip())}
    values = {parse_number(text) for text in texts}
    if len(values) > 1 or None in values:
        raise ExportError(
            f"{template.path}: column Maximum Grade has {listed(sorted(texts))}, one number is expected; "
            "download the worksheet of this assignment again"
        )
    return next(iter(values), None), "," if any("," in text for text in texts) else "."


def _reasons(course: Path, score: StudentScore, lab: str) -> str | None:
    # The id becomes a folder's name.
    if not is_student_id(score.student):
        return None
    path = verdict_path(course, score.student, lab)
    try:
        verdict = load_verdict(path)
    except ValueError:
        return None
    lines = [f"{_OURS}{verdict.score:g} of {verdict.max_score:g} points"]
    if score.seconds_late:
        lines.append(f"late by {how_late(score.seconds_late)}: a penalty of {score.penalty:g} points")
    for line, remedy in (each for cell in verdict.cells for each in verdict.reasons(cell)):
        lines += [line, f"how to look at it: {remedy}"] if remedy else [line]
    return "<br>\n".join(html.escape(" ".join(line.split()), quote=False) for line in lines)
