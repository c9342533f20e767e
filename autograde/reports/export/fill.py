"""What filling Canvas's and Moodle's files has in common: find the students, write their scores, say who got none.

One column of the file decides who is who for everybody: the one in which most students are found. If another column were
consulted for the rest, a platform's internal number could equal another student's id, and a grade go to the wrong person.

In that column a cell means a student if it is the id; else if it is the id or the gradebook's e-mail address but for
capitals; else if one of the two is an e-mail address and the other its local part. A rule counts only if exactly one
row and exactly one student fit.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from autograde.reports.export.csv_file import CsvFile, ExportError
from autograde.reports.export.scores import Grades, StudentScore
from course_lib.runs.run_evidence.quoting import quote

__all__ = ["Filled", "fill_scores", "listed", "naming", "parse_number"]

_SHOWN = 10
_NUMBER = re.compile(r"[0-9]{1,9}(?:[.,][0-9]{1,9})?", re.ASCII)


@dataclass(frozen=True)
class Filled:
    """The file to upload, and what the instructor should know of it, one line each."""

    content: bytes
    lines: list[str]


def fill_scores(
    file: CsvFile,
    column: int,
    rows: Sequence[int],
    ids: Sequence[str],
    grades: Grades,
    maximum: tuple[str, str],
    locked: Callable[[int], bool],
) -> tuple[dict[int, float], dict[int, str], list[str]]:
    """Write scores into a column, with the decimal mark of the platform's maximum.

    Parameters
    ----------
    ids : sequence of str
        Headings of columns that may hold student ids, the preferred first; of equally good ones the first is taken.
    maximum : tuple of str
        The platform's maximum score: where the file has it, and its text there, perhaps empty.
    locked : callable
        Whether the score of a row must stay as it is.

    Returns the written scores by row, the student ids of the rows for which there is a score, written or locked, and
    lines for the instructor.

    Raises `ExportError`: the file has none of the students, or scaling is asked for and one of the two maxima is
    missing or 0.
    """
    place, text = maximum
    theirs, ours = parse_number(text), grades.lab.max_score
    lines = []
    if grades.scale and not (theirs and ours):
        raise ExportError(
            f"{file.path}: cannot scale, {place} is {'missing' if theirs is None else f'{theirs:g}'} and the lab's "
            f"maximum {ours:g}; set both above 0 or leave out --scale"
        )
    if not grades.scale and theirs is not None and abs(theirs - ours) >= 0.005:  # both platforms show two decimals
        lines.append(f"warning: {place} is {theirs:g}, the lab is worth {ours:g}; change it there or give --scale")
    name, cells, matched, ambiguous = _match(file, rows, ids, grades.lab.students)
    students = {row: student for row, student in matched.items() if student in grades.scores}
    factor = theirs / ours if grades.scale else 1.0
    written = {row: grades.scores[student] * factor for row, student in students.items() if not locked(row)}
    for row, score in written.items():
        file.set(row, column, f"{score:.2f}".replace(".", "," if "," in text else "."))
    without = [cells.get(row, "") for row in rows if row not in students]
    absent = [student for student in grades.scores if student not in {*matched.values(), *ambiguous}]
    lines += [
        f"{len(written)} filled in column {file.header[column]!a}, students found by {name}",
        *naming("several match, fill by hand", filter(grades.scores.__contains__, ambiguous)),
        *naming("not in the file", absent),
        *naming(f"no score for {len(without)} in the file", without),
    ]
    return written, students, lines


def parse_number(text: str) -> float | None:
    """A number of points as Canvas and Moodle write it, with a decimal point or comma; None for anything else."""
    text = text.strip()
    return float(text.replace(",", ".")) if _NUMBER.fullmatch(text) else None


def listed(names: Iterable[str]) -> str:
    """Names from a file in one line, the first ten in quotes."""
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(quote(name) for name in names[:_SHOWN]) + more


def naming(what: str, names: Iterable[str]) -> list[str]:
    """A line that says `what` of some students; no line where there are none."""
    names = list(names)
    return [f"{what}: {listed(names)}"] if names else []


def _match(
    file: CsvFile, rows: Sequence[int], columns: Sequence[str], students: Sequence[StudentScore]
) -> tuple[str, dict[int, str], dict[int, str], list[str]]:
    """The column that decides, its cells, the student ids by row, and the ids of whom several rows could be meant."""
    present = {name: column for name in columns if (column := file.column(name)) is not None}
    if not present:
        raise ExportError(f"{file.path}: row 1 has no column {' or '.join(map(repr, columns))} to find students by")
    matches = []
    for name, column in present.items():
        cells = {row: cell for row in rows if (cell := file.get(row, column).strip())}
        matches.append((name, cells, *_pair(cells, students)))
    best = max(matches, key=lambda match: len(match[2]))
    if not best[2]:
        theirs = next((ascii(cell) for _, cells, *_ in matches for cell in cells.values()), "nothing")
        ours = ascii(students[0].student) if students else "no students"
        raise ExportError(
            f"{file.path}: no student of the gradebook is in column {' or '.join(map(repr, present))} "
            f"(there {theirs}, in the gradebook {ours}); give the file of this course"
        )
    return best


def _pair(cells: dict[int, str], students: Sequence[StudentScore]) -> tuple[dict[int, str], list[str]]:
    pairs: dict[int, str] = {}
    doubtful: set[str] = set()
    for row_key, student_keys in _KEYS:
        theirs, ours = defaultdict(set), defaultdict(set)
        for row, cell in cells.items():
            theirs[row_key(cell)].add(row)
        for student in students:
            for key in student_keys(student):
                ours[key].add(student.student)
        for key in [key for key in theirs if key in ours]:
            if len(theirs[key]) > 1 or len(ours[key]) > 1:
                doubtful |= ours[key]
                continue
            (row,), (student,) = theirs[key], ours[key]
            two_addresses = "@" in cells[row] and "@" in student and row_key is _local_part
            if not two_addresses and row not in pairs and student not in pairs.values():
                pairs[row] = student
    return dict(sorted(pairs.items())), sorted(doubtful - set(pairs.values()))


def _same(cell: str) -> str:
    # "ë" is one character to one system and two to another.
    return unicodedata.normalize("NFC", cell)


def _folded(cell: str) -> str:
    return _same(cell.casefold())


def _local_part(cell: str) -> str:
    return _folded(cell).split("@")[0]


# How a cell is compared, and with what of a student.
_KEYS = (
    (_same, lambda student: {_same(student.student)}),
    (_folded, lambda student: {_folded(student.student), *([_folded(student.email)] if student.email else [])}),
    (_local_part, lambda student: {_local_part(student.student)}),
)
