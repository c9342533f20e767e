"""Which row of a learning platform's file is which of our students.

One column of the file decides for everybody: that in which most of our students are found. Were another consulted for
those whom it lacks, a platform's internal number could equal another student's id, and a grade go to the wrong person.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from autograde.reports.export.scores import StudentScore
from autograde.reports.export.template import ExportError, Template

__all__ = ["Match", "match_students"]


@dataclass(frozen=True)
class Match:
    """Who is where.

    Attributes
    ----------
    column : str
        Heading of the column that decided.
    ids : dict of int to str
        What the file has in it, by row.
    students : dict of int to str
        Our student ids, by row.
    ambiguous : tuple of str
        Our students whom several rows could mean, or who share a row with another of ours; they are not in `students`.
    """

    column: str
    ids: dict[int, str]
    students: dict[int, str]
    ambiguous: tuple[str, ...]


def match_students(
    template: Template, rows: Sequence[int], columns: Iterable[str], students: Sequence[StudentScore]
) -> Match:
    """Find our students in a file.

    A cell means a student if it is the id; else if it is the id or the gradebook's e-mail address but for capitals;
    else if one of the two is an e-mail address and the other its local part. All but the first count only where neither
    another row nor another student of ours would do.

    Parameters
    ----------
    template : Template
    rows : sequence of int
        The rows of students.
    columns : iterable of str
        Headings of columns that may hold the ids, the preferred first; of equally good ones the first is taken.
    students : sequence of StudentScore

    Returns
    -------
    Match

    Raises
    ------
    ExportError
        The file has none of the columns, or none of our students.
    """
    columns = list(columns)
    there = {name: column for name in columns if (column := template.column(name)) is not None}
    if not there:
        raise ExportError(f"{template.path}: row 1 has no column {' or '.join(map(repr, columns))} to find students by")
    matches = []
    for name, column in there.items():
        ids = {row: cell for row in rows if (cell := template.get(row, column).strip())}
        matches.append(Match(name, ids, *_pair(ids, students)))
    best = max(matches, key=lambda match: len(match.students))
    if not best.students:
        theirs = next((ascii(cell) for match in matches for cell in match.ids.values()), "nothing")
        ours = ascii(students[0].student) if students else "no students"
        raise ExportError(
            f"{template.path}: no student of the gradebook is in column {' or '.join(map(repr, there))} "
            f"(there {theirs}, in the gradebook {ours}); give the file of this course"
        )
    return best


def _pair(ids: dict[int, str], students: Sequence[StudentScore]) -> tuple[dict[int, str], tuple[str, ...]]:
    pairs: dict[int, str] = {}
    doubtful: set[str] = set()
    for their_key, our_keys in _KEYS:
        theirs, ours = defaultdict(set), defaultdict(set)
        for row, cell in ids.items():
            theirs[their_key(cell)].add(row)
        for student in students:
            for key in our_keys(student):
                ours[key].add(student.student)
        for key in [key for key in theirs if key in ours]:
            if len(theirs[key]) > 1 or len(ours[key]) > 1:
                doubtful |= ours[key]
                continue
            (row,), (student,) = theirs[key], ours[key]
            both = "@" in ids[row] and "@" in student and their_key is _local
            if not both and row not in pairs and student not in pairs.values():
                pairs[row] = student
    return dict(sorted(pairs.items())), tuple(sorted(doubtful - set(pairs.values())))


def _same(cell: str) -> str:
    # "ë" is one character to one system and two to another.
    return unicodedata.normalize("NFC", cell)


def _folded(cell: str) -> str:
    return _same(cell.casefold())


def _local(cell: str) -> str:
    return _folded(cell).split("@")[0]


_KEYS: tuple[tuple[Callable[[str], str], Callable[[StudentScore], set[str]]], ...] = (
    (_same, lambda student: {_same(student.student)}),
    (_folded, lambda student: {_folded(student.student), *([_folded(student.email)] if student.email else [])}),
    (_local, lambda student: {_local(student.student)}),
)
