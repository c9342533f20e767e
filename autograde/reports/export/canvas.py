"""Canvas: one assignment's column of the gradebook export, filled.

The format is that of Canvas's own ``lib/gradebook_exporter.rb`` and ``lib/gradebook_importer.rb``: a header row with
``Student`` (or ``LastName, FirstName``), ``ID``, ``SIS User ID``, ``SIS Login ID``, ``Section``, then a column
``Title (number)`` per assignment and computed columns; perhaps a row of ``Manual Posting``; the row ``Points Possible``,
which the importer *applies*, so it is never changed; then the students, ``Student, Test`` last. ``EX`` (excused) and
``N/A`` (not assigned) are states and no scores: they stay.

Formulas. Names in the file are the students' own choice and are shown by every spreadsheet, so in ``Student``,
``LastName`` and ``FirstName`` a formula gets an apostrophe, though the name is only passed through. The importer finds
a student by ``ID`` first, then by the SIS columns, and looks at names only where those fail: an apostrophe there is
harmless. One in an id would make the importer miss the student, so ``ID``, ``SIS User ID``, ``SIS Login ID`` and
``Integration ID``, which the institution gives out, keep their text, and so does all else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from autograde.reports.export.cells import number, parse_number
from autograde.reports.export.filled import Filled, listed, match_lines
from autograde.reports.export.matching import match_students
from autograde.reports.export.maximum import scale_factor
from autograde.reports.export.scores import LabScores
from autograde.reports.export.template import ExportError, Template

__all__ = ["fill_canvas"]

NAMES = ("Student", "LastName", "FirstName")
IDS = ("SIS Login ID", "SIS User ID", "ID")
_PEOPLE = {name.casefold() for name in (*NAMES, *IDS, "Section", "Integration ID", "Root Account")}
# Canvas takes no column with one of these in its heading for an assignment.
_COMPUTED = re.compile("(Current|Final) (Score|Points|Grade)|Override (Score|Grade|Status)")
_NUMBER = re.compile(r"\s*\([0-9]+\)\s*$")
_STATE = re.compile(r"\s*(Muted|Manual Posting.*)?\s*", re.IGNORECASE | re.DOTALL)


def fill_canvas(
    path: Path,
    scores: LabScores,
    grades: Mapping[str, float],
    titles: Sequence[str],
    column: str | None = None,
    scale: bool = False,
) -> Filled:
    """Fill a lab's column of a Canvas gradebook export.

    Parameters
    ----------
    path : Path
        The export; it is read only.
    scores : LabScores
    grades : mapping of str to float
        The scores to write, by student id (see `LabScores.grades`).
    titles : sequence of str
        What the column's heading may begin with.
    column : str, optional
        The heading itself, with or without its number; then `titles` does not matter.
    scale : bool
        Scale the scores to Points Possible.

    Returns
    -------
    Filled

    Raises
    ------
    ExportError
        The file is no Canvas gradebook, not one column is meant, Canvas computes it, or nobody is found.
    """
    template = Template(path, [*NAMES, *IDS, "Section"])
    if template.column("ID") is None or all(template.column(name) is None for name in NAMES):
        raise ExportError(f"{path}: row 1 has no Student and ID; give the file that Canvas's gradebook exports")
    target = _target(template, titles, column)
    heading = template.header[target]
    rows, points = _students_and_points(template)
    possible = "" if points is None else template.get(points, target)
    if "read only" in possible:
        raise ExportError(f"{path}: column {heading!a} is computed by Canvas; name an assignment's with --column")
    factor, lines = scale_factor(
        path, f"Points Possible of {heading!a}", parse_number(possible), scores.max_score, scale
    )
    match = match_students(template, rows, IDS, scores.students)
    mark = "," if "," in possible else "."
    kept = []
    filled = 0
    for row, student in match.students.items():
        if student not in grades:
            continue
        if template.get(row, target).strip().upper() in ("EX", "N/A"):
            kept.append(student)
            continue
        template.set(row, target, number(grades[student] * factor, mark))
        filled += 1
    template.neutralise(NAMES)
    lines.append(f"{filled} filled in column {heading!a}, students found by {match.column}")
    if kept:
        lines.append(f"excused (EX) or not assigned (N/A) in Canvas, left so: {listed(kept)}")
    return Filled(template.to_bytes(), lines + match_lines(match, rows, grades))


def _target(template: Template, titles: Sequence[str], column: str | None) -> int:
    assignments = {
        index: heading
        for index, heading in enumerate(template.header)
        if heading and heading.casefold() not in _PEOPLE and not _COMPUTED.search(heading)
    }
    if column is not None:
        wanted = column.strip()
        found = [index for index, heading in assignments.items() if heading == wanted]
        found = found or [index for index, heading in assignments.items() if _NUMBER.sub("", heading) == wanted]
        asked = f"named {wanted!a}"
    else:
        found = [index for index, heading in assignments.items() if _begins(heading, titles)]
        asked = f"beginning with {' or '.join(map(repr, titles))}"
    if len(found) == 1:
        return found[0]
    candidates = listed(assignments[index] for index in found or assignments) or "none"
    raise ExportError(
        f"{template.path}: row 1 has {len(found) or 'no'} column{'s' * (len(found) > 1)} {asked}; "
        f"choose with --column from {candidates}"
    )


def _begins(heading: str, titles: Sequence[str]) -> bool:
    # As whole words: 'Lab 1' is not the beginning of 'Lab 10'.
    return any(re.match(rf"{re.escape(title)}(?!\w)", heading, re.IGNORECASE) for title in titles)


def _students_and_points(template: Template) -> tuple[list[int], int | None]:
    rows, points = [], None
    for row, cells in enumerate(template.rows[1:], 1):
        if "Points Possible" in template.get(row, 0):
            points = row if points is None else points
        elif not all(_STATE.fullmatch(cell) for cell in cells) and not _is_test_student(template, row):
            rows.append(row)
    return rows, points


def _is_test_student(template: Template, row: int) -> bool:
    columns = [column for name in NAMES if (column := template.column(name)) is not None]
    return ", ".join(template.get(row, column).strip() for column in columns) == "Student, Test"
