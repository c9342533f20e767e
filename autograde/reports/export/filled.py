"""A filled file, and what the instructor should know of it, one line each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from autograde.reports.export.matching import Match
from autograde.submission.quoting import quote

__all__ = ["Filled", "listed", "match_lines"]

_SHOWN = 10


@dataclass(frozen=True)
class Filled:
    """The file to hand to the platform, and lines about it."""

    content: bytes
    lines: list[str]


def listed(names: Iterable[str]) -> str:
    """Names from a file in one line, the first ten in quotes.

    Parameters
    ----------
    names : iterable of str

    Returns
    -------
    str
    """
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(quote(name) for name in names[:_SHOWN]) + more


def match_lines(match: Match, rows: Collection[int], grades: Mapping[str, float]) -> list[str]:
    """Who could not be given a score, on either side.

    Parameters
    ----------
    match : Match
    rows : collection of int
        The rows of students.
    grades : mapping of str to float
        The scores to be written, by our student ids.

    Returns
    -------
    list of str
        No line where there is nobody to name.
    """
    lines = []
    if doubtful := [student for student in match.ambiguous if student in grades]:
        lines.append(f"more than one could be meant, left out: {listed(doubtful)}; fill these by hand")
    found = {*match.students.values(), *match.ambiguous}
    if absent := [student for student in grades if student not in found]:
        lines.append(f"not in the file: {listed(absent)}")
    if without := [row for row in rows if match.students.get(row) not in grades]:
        lines.append(f"no score for {len(without)} in the file: {listed(match.ids.get(row, '') for row in without)}")
    return lines
