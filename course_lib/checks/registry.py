"""Finding a check by its exercise's id."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["CheckFailed", "check"]

LABS = ("lab01", "lab02", "lab03", "lab04", "lab05", "lab06", "lab07", "lab08", "lab09", "lab10", "lab11", "lab12")


class CheckFailed(AssertionError):
    """The answer is not right yet; the message says what was expected, what came, and the likeliest reason."""


def check(exercise: str, answer: Any, **context: Any) -> float | None:
    """Check an exercise's answer.

    Parameters
    ----------
    exercise : str
        ``lab01.train-step``: the lab and the exercise's id.
    answer
        The student's function, or the run folder.

    Returns
    -------
    float or None
        Points for an exercise with partial credit, else None.

    Raises
    ------
    CheckFailed
    KeyError
        No such exercise.
    """
    lab, _, name = exercise.partition(".")
    if lab not in LABS:
        raise KeyError(f"no checks for {lab!r}; there are {', '.join(LABS)}")
    checks = importlib.import_module(f"course_lib.checks.{lab}").CHECKS
    if name not in checks:
        raise KeyError(f"{lab} has no exercise {name!r}; it has {', '.join(checks)}")
    return checks[name](answer, **context)
