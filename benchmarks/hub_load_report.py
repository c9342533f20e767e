"""Report of a loaded hub: a table, port collisions, and what classes of other sizes need, by proportion."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

SPARE = 0.25  # of the memory, for what a measurement of one lab does not show
_IN_USE = re.compile(r"address (is )?already in use|EADDRINUSE|port \d+ is (already )?in use", re.IGNORECASE)


def collisions(lines: Iterable[str]) -> list[str]:
    """The lines that report a port in use."""
    return [line.strip() for line in lines if _IN_USE.search(line)]


def memory_for(students: int, fixed_gib: float, student_gib: float, spare: float = SPARE) -> int:
    """GiB that so many students at once need, rounded up; `spare` of it stays free."""
    return math.ceil((fixed_gib + students * student_gib) / (1 - spare))


def students_in(memory_gib: float, fixed_gib: float, student_gib: float, spare: float = SPARE) -> int:
    """How many students at once fit into a machine's memory: the inverse of `memory_for`."""
    return max(0, math.floor((memory_gib * (1 - spare) - fixed_gib) / student_gib))


def cores_for(students: int, start_seconds: float, within: float = 60.0) -> int:
    """Cores on which everybody has a server after `within` seconds when all open the hub at once.

    `start_seconds`: processor seconds of one server's start.
    """
    return max(1, math.ceil(students * start_seconds / within))


def sizing(
    classes: Sequence[int], fixed_gib: float, student_gib: float, start_seconds: float
) -> list[dict[str, float | int]]:
    """A row for each size of class, by proportion from one measurement."""
    needs = ((count, memory_for(count, fixed_gib, student_gib), cores_for(count, start_seconds)) for count in classes)
    return [dict(zip(("students", "memory GiB", "cores"), need, strict=True)) for need in needs]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows under their names."""
    return pd.DataFrame(rows).to_string(index=False, float_format="%.1f", na_rep="-") if rows else "(nothing)"
