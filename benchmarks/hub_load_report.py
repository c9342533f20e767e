"""What a loaded hub's figures say: a table, what went wrong, and what another class needs by arithmetic."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["collisions", "cores_for", "memory_for", "sizing", "students_in", "table", "to_csv"]

SPARE = 0.25  # of the memory, for what a measurement of one lab does not show
_IN_USE = re.compile(r"address (is )?already in use|EADDRINUSE|port \d+ is (already )?in use", re.IGNORECASE)


def collisions(lines: Iterable[str]) -> list[str]:
    """The lines that tell of a port which somebody else had."""
    return [line.strip() for line in lines if _IN_USE.search(line)]


def memory_for(students: int, fixed_gib: float, student_gib: float, spare: float = SPARE) -> int:
    """GiB that so many students at once need, rounded up; `spare` of it stays free."""
    return math.ceil((fixed_gib + students * student_gib) / (1 - spare))


def students_in(memory_gib: float, fixed_gib: float, student_gib: float, spare: float = SPARE) -> int:
    """How many students at once fit into a machine's memory: the inverse of `memory_for`."""
    return max(0, math.floor((memory_gib * (1 - spare) - fixed_gib) / student_gib))


def cores_for(students: int, start_seconds: float, patience: float = 60.0) -> int:
    """Cores on which everybody has a server after `patience` seconds when all open the hub at once.

    `start_seconds`: processor seconds of one server's start.
    """
    return max(1, math.ceil(students * start_seconds / patience))


def sizing(
    classes: Sequence[int], fixed_gib: float, student_gib: float, start_seconds: float
) -> list[dict[str, float | int]]:
    """A row for each size of class, by proportion from one measurement."""
    return [
        {
            "students": count,
            "memory GiB": memory_for(count, fixed_gib, student_gib),
            "cores": cores_for(count, start_seconds),
        }
        for count in classes
    ]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows under their names, numbers to the right."""
    if not rows:
        return "(nothing)"
    names = list(rows[0])
    cells = [[_text(row.get(name)) for name in names] for row in rows]
    widths = [max(len(name), *(len(row[column]) for row in cells)) for column, name in enumerate(names)]
    left = [isinstance(rows[0].get(name), str) for name in names]

    def line(texts: Sequence[str]) -> str:
        aligned = (text.ljust(width) if to_left else text.rjust(width)
                   for text, width, to_left in zip(texts, widths, left, strict=True))  # fmt: skip
        return "  ".join(aligned).rstrip()

    return "\n".join(line(texts) for texts in (names, *cells))


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """The same rows for a spreadsheet."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    return "-" if value is None else str(value)
