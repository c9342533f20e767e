"""Canvas: one assignment's column of the gradebook export, filled.

The format is that of Canvas's own ``lib/gradebook_exporter.rb`` and ``lib/gradebook_importer.rb``: a header row with
``Student`` (or ``LastName, FirstName``), ``ID``, ``SIS User ID``, ``SIS Login ID``, ``Section``, then a column
``Title (number)`` per assignment and computed columns; perhaps a row of ``Manual Posting``; the row ``Points Possible``,
which the importer *applies*, so it is never changed; then the students, ``Student, Test`` last. ``EX`` (excused) and
``N/A`` (not assigned) are states, not scores: they stay.

Formulas. Names in the file are the students' own choice and are shown by every spreadsheet, so in ``Student``,
``LastName`` and ``FirstName`` a formula gets an apostrophe, though the name is only passed through. The importer finds
a student by ``ID`` first, then by the SIS columns, and looks at names only where those fail: an apostrophe there is
harmless. One in an id would make the importer miss the student, so ``ID``, ``SIS User ID``, ``SIS Login ID`` and
``Integration ID``, which the institution gives out, keep their text, and so does all else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from autograde.reports.export.csv_file import CsvFile, ExportError
from autograde.reports.export.fill import Filled, fill_scores, listed, naming
from autograde.reports.export.scores import Grades

__all__ = ["fill_canvas"]

NAMES = ("Student", "LastName", "FirstName")
IDS = ("SIS Login ID", "SIS User ID", "ID")
_PEOPLE = {name.casefold() for name in (*NAMES, *IDS, "Section", "Integration ID", "Root Account")}
# Canvas takes no column with one of these in its heading for an assignment.
_COMPUTED = re.compile("(Current|Final) (Score|Points|Grade)|Override (Score|Grade|Status)")
_NUMBER = re.compile(r"\s*\([0-9]+\)\s*$")
_STATE = re.compile(r"\s*(Muted|Manual Posting.*)?\s*", re.IGNORECASE | re.DOTALL)


def fill_canvas(path: Path, grades: Grades, titles: Sequence[str], column: str | None = None) -> Filled:
    """Fill a lab's column of a Canvas gradebook export.

    Parameters
    ----------
    titles : sequence of str
        What the column's heading may begin with.
    column : str, optional
        The heading itself, with or without its number; then `titles` does not matter.

    Raises `ExportError`: the file is no Canvas gradebook, not one column is meant, Canvas computes it, or nobody is
    found.
    """
    file = CsvFile(path, [*NAMES, *IDS, "Section"])
    if file.column("ID") is None or all(file.column(name) is None for name in NAMES):
        raise ExportError(f"{path}: row 1 has no Student and ID; give the file that Canvas's gradebook exports")
    target = _target(file, titles, column)
    heading = file.header[target]
    rows, points = _students_and_points(file)
    possible = "" if points is None else file.get(points, target)
    if "read only" in possible:
        raise ExportError(f"{path}: column {heading!a} is computed by Canvas; name an assignment's with --column")

    def locked(row: int) -> bool:
        return file.get(row, target).strip().upper() in ("EX", "N/A")

    maximum = f"Points Possible of {heading!a}", possible
    written, students, lines = fill_scores(file, target, rows, IDS, grades, maximum, locked)
    kept = (student for row, student in students.items() if row not in written)
    lines += naming("excused (EX) or not assigned (N/A) in Canvas, left so", kept)
    file.neutralise(NAMES)
    return Filled(file.to_bytes(), lines)


def _target(file: CsvFile, titles: Sequence[str], column: str | None) -> int:
    assignments = {
        index: heading
        for index, heading in enumerate(file.header)
        if heading and heading.casefold() not in _PEOPLE and not _COMPUTED.search(heading)
    }
    if column is not None:
        wanted = column.strip()
        matching = [index for index, heading in assignments.items() if heading == wanted]
        matching = matching or [index for index, heading in assignments.items() if _NUMBER.sub("", heading) == wanted]
        asked = f"named {wanted!a}"
    else:
        matching = [index for index, heading in assignments.items() if _begins(heading, titles)]
        asked = f"beginning with {' or '.join(map(repr, titles))}"
    if len(matching) == 1:
        return matching[0]
    candidates = listed(assignments[index] for index in matching or assignments) or "none"
    raise ExportError(
        f"{file.path}: row 1 has {len(matching) or 'no'} column{'s' * (len(matching) > 1)} {asked}; "
        f"choose with --column from {candidates}"
    )


def _begins(heading: str, titles: Sequence[str]) -> bool:
    # As whole words: 'Lab 1' is not the beginning of 'Lab 10'.
    return any(re.match(rf"{re.escape(title)}(?!\w)", heading, re.IGNORECASE) for title in titles)


def _students_and_points(file: CsvFile) -> tuple[list[int], int | None]:
    rows, points = [], None
    for row, cells in enumerate(file.rows[1:], 1):
        if "Points Possible" in file.get(row, 0):
            points = row if points is None else points
        elif not all(_STATE.fullmatch(cell) for cell in cells) and not _is_test_student(file, row):
            rows.append(row)
    return rows, points


def _is_test_student(file: CsvFile, row: int) -> bool:
    columns = [column for name in NAMES if (column := file.column(name)) is not None]
    return ", ".join(file.get(row, column).strip() for column in columns) == "Student, Test"
