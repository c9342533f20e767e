"""The visible check of a described exercise: fixed cases, in the student's process, with everything shown."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache
from typing import Any

from course_lib.exercises.comparing import contrast, picked
from course_lib.exercises.description import Exercise, Finding
from course_lib.exercises.expected import expectation_of
from course_lib.exercises.judging import Expectation, Raised, judge, observe_here
from course_lib.live_view.check_failed import CheckFailed

__all__ = ["check_described"]


def check_described(lab: str, name: str, exercise: Exercise, answer: Any) -> None:
    """Check an answer: print one line if it is right.

    Parameters
    ----------
    answer : callable or tuple of callable
        The student's function, or all of them in the order of `Exercise.functions`.

    Raises
    ------
    CheckFailed
        With the first wrong part's first wrong case, what was expected, what came, and the likeliest reason.
    Exception
        What the answer raised; a note names the case.
    """
    functions: tuple[Callable[..., Any], ...] = answer if isinstance(answer, tuple) else (answer,)
    if len(functions) != len(exercise.functions):
        both = "both functions" if len(exercise.functions) == 2 else "all functions"
        raise CheckFailed(f"give the check {both}: ({', '.join(exercise.functions)})")
    expected = expectation_of(lab, name)

    raised: list[Exception] = []  # the first that was raised; the cases after it are not tried

    @cache
    def found(kind: str) -> list[Any] | Raised:
        if not raised:
            try:
                return [_observed(exercise, case, functions) for case in expected.cases[kind]]
            except Exception as error:
                raised.append(error)
        return Raised(raised[0])

    for part, finding in judge(exercise, expected, found).items():
        if not finding.passed:
            if isinstance(found(finding.kind), Raised):
                raise raised[0]
            raise CheckFailed(_message(exercise, expected, part, finding, found))
    right = "; ".join(part.about[:1].lower() + part.about[1:] for part in exercise.parts.values() if part.about)
    print(f"{', '.join(exercise.functions)}: right ({right})")


def _observed(exercise: Exercise, case: Any, functions: tuple[Callable[..., Any], ...]) -> Any:
    """As `observe_here`; what the answer raises gets a note that names the case."""
    try:
        return observe_here(exercise, case, functions)
    except CheckFailed:
        raise
    except Exception as error:
        with contextlib.suppress(Exception):  # words that need an observation, which there is none of
            error.add_note(f"raised for this case: {_shown(exercise.show, case, None)}")
        raise


def _message(
    exercise: Exercise, expected: Expectation, name: str, finding: Finding, found: Callable[[str], Any]
) -> str:
    case, seen = expected.cases[finding.kind][finding.place], found(finding.kind)[finding.place]
    shown = _shown(exercise.show, case, seen)
    part, values = exercise.parts[name], ""
    right = expected.right[finding.kind][finding.place] if expected.right else None
    if isinstance(seen, str) and not isinstance(right, str):  # the observation says in words why there is none
        values = f" {seen}."
    elif part.judge is None:
        mine, theirs = (_counted(observation, part.keys) for observation in (seen, right))
        values = (part.words(mine, theirs) if part.words else "") or contrast(mine, theirs, part.tolerance)
        values = f" {values}{'' if values.endswith('?') else '.'}"
    reason, hint = (_sentence(text) for text in (finding.reason, finding.hint))
    return f"{shown}:{values} {reason}{'' if reason.endswith('?') else '.'} {hint}"


def _sentence(text: str) -> str:
    """With a capital letter, unless it begins with a name from a program."""
    first = text.split(" ", 1)[0]
    return text if set("_(.") & set(first) else text[:1].upper() + text[1:]


def _shown(show: str | Callable[[Any, Any], str], case: Any, seen: Any) -> str:
    if callable(show):
        return show(case, seen)
    return show.format(**case) if isinstance(case, dict) else show.format(*case)


def _counted(observation: Any, keys: str) -> Any:
    """The entries that count, under their names."""
    return {key: picked(observation, key) for key in keys.split()} if keys else observation
