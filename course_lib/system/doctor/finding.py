"""Result of one check."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "absent", "fine", "judged", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes
    ----------
    check : str
        What was examined: ``gpu``, ``/dev/shm``…
    state : str
        ``fine``; ``absent``: not there, and no lab stops for it; ``problem``: a lab will fail or mislead.
    found : str
        What was seen, in one line.
    remedy : str
        What to do about a problem, or what one misses where something is absent; empty where all is fine.
    """

    check: str
    state: Literal["fine", "absent", "problem"]
    found: str
    remedy: str = ""


def fine(check: str, found: str, remedy: str = "") -> Finding:
    """All is well; `remedy` may say what nevertheless cannot show here."""
    return Finding(check, "fine", found, remedy)


def absent(check: str, found: str, remedy: str) -> Finding:
    """Something is not there, and no lab stops for it; `remedy` says what one misses."""
    return Finding(check, "absent", found, remedy)


def problem(check: str, found: str, remedy: str) -> Finding:
    """A lab will fail or mislead."""
    return Finding(check, "problem", found, remedy)


def judged(check: str, found: str, bad: bool, remedy: str) -> Finding:
    """A `problem` where it is bad, else `fine`."""
    return problem(check, found, remedy) if bad else fine(check, found)
