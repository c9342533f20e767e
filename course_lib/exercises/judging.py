"""From observations to findings: each part against the reference, the known mistakes, or its judge."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from course_lib.exercises.comparing import equal, is_number, kind_of, picked, plain
from course_lib.exercises.description import Answers, Cases, Exercise, Finding, Part

__all__ = ["Expectation", "Raised", "judge", "observe_here"]

FAILED = "(failed)"  # in the place of what a mistake that raises would be observed to do
_ODD = (TypeError, ValueError, AttributeError, KeyError, IndexError, ArithmeticError, RuntimeError)


class Raised(str):
    """In the place of a kind's observations: why there are none."""


@dataclass
class Expectation:
    """What answers would be observed to do on given cases.

    Attributes
    ----------
    cases : mapping of str to sequence
    right : mapping of str to list
        The reference's observations by kind; an empty one if there is no reference.
    diagnoses : mapping of str to str
        Of each mistake.
    mistaken : callable
        ``mistaken(mistake, kind)``: its observations, `FAILED` for one that raises; None if it is not tried.
    """

    cases: Cases
    right: Mapping[str, Sequence[Any]]
    diagnoses: Mapping[str, str]
    mistaken: Callable[[str, str], Sequence[Any] | None]
    _known: dict[tuple[str, str], Sequence[Any] | None] = field(default_factory=dict)

    @classmethod
    def of(cls, exercise: Exercise, answers: Answers, cases: Cases) -> Expectation:
        """By observing the answers here, each mistake when it is asked for."""
        right = {}
        if answers.reference:
            right = {
                kind: [observe_here(exercise, case, answers.reference) for case in some] for kind, some in cases.items()
            }

        def mistaken(name: str, kind: str) -> list[Any] | None:
            if kind in exercise.guarded.split():
                return None
            functions = answers.mistakes[name].functions
            functions = [mine or theirs for mine, theirs in zip(functions, answers.reference or functions, strict=True)]
            return [_or_failed(exercise, case, functions) for case in cases[kind]]

        return cls(cases, right, {name: each.diagnosis for name, each in answers.mistakes.items()}, mistaken)

    def seen_with(self, mistake: str, kind: str) -> Sequence[Any] | None:
        """`mistaken`, computed once."""
        key = mistake, kind
        if key not in self._known:
            self._known[key] = self.mistaken(mistake, kind)
        return self._known[key]


def observe_here(exercise: Exercise, case: Any, functions: Sequence[Callable[..., Any]]) -> Any:
    """Observe functions on a case in this process, or where the exercise's transport starts ranks."""
    if exercise.transport is not None:
        return plain(exercise.transport(exercise, case, functions))
    if exercise.watch is None:
        return plain(exercise.observe(case, *functions))
    watch = exercise.watch(case)
    seen = exercise.observe(
        exercise.share(case, 0), lambda name, *args: watch.answer(name, 0, *map(plain, args)), *functions
    )
    return plain(seen) | watch.evidence()


def _or_failed(exercise: Exercise, case: Any, functions: Sequence[Callable[..., Any]]) -> Any:
    """As `observe_here`, without warnings. `FAILED` where the functions raise: a known mistake may stop at this case."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning about a mistake of ours would puzzle who did not make it
            return observe_here(exercise, case, functions)
    except Exception:
        return FAILED


def judge(exercise: Exercise, expected: Expectation, found: Callable[[str], Any]) -> dict[str, Finding]:
    """Judge every part.

    Parameters
    ----------
    found : callable
        ``found(kind)``: the observations of that kind's cases, in their order, or `Raised`; whatever else it returns
        is wrong.
    """
    findings: dict[str, Finding] = {}
    for name, part in exercise.parts.items():
        lacking = next((other for other in part.needs.split() if not findings[other].passed), None)
        findings[name] = (
            findings[lacking]
            if lacking
            else _judged(part, part.hint or exercise.hint, part.cases or _kind(name, expected.cases), expected, found)
        )
    return findings


def _kind(part: str, cases: Cases) -> str:
    return next(iter(cases)) if len(cases) == 1 else part


def _judged(part: Part, hint: str, kinds: str, expected: Expectation, found: Callable[[str], Any]) -> Finding:
    wrong: list[tuple[str, int, Any]] = []
    reason = odd = ""
    for kind in kinds.split():
        cases, seen = expected.cases[kind], found(kind)
        reason = reason or (str(seen) if isinstance(seen, Raised) else "")
        if not isinstance(seen, list) or len(seen) != len(cases):
            seen = [None] * len(cases)
        for place, (case, one) in enumerate(zip(cases, seen, strict=True)):
            right = expected.right[kind][place] if expected.right else None
            if part.judge is not None:
                fault = _fault(part, case, one, right)
                reason = reason or fault
            elif fault := not (_right(part, one, right) or _forgiven(part, expected, kind, place, one)):
                odd = odd or _odd(picked(one, part.keys), picked(right, part.keys))
            if fault:
                wrong.append((kind, place, one))
    if not wrong:
        return Finding(True, f"right: {part.about[:1].lower()}{part.about[1:]}")
    reason = reason or _diagnosis(part, expected, wrong) or odd or part.wrong
    return Finding(False, reason, hint, *wrong[0][:2])


def _fault(part: Part, case: Any, seen: Any, right: Any) -> str:
    try:
        return part.judge(case, seen, right)
    except _ODD:
        return part.wrong


def _right(part: Part, seen: Any, right: Any) -> bool:
    a, b = picked(seen, part.keys), picked(right, part.keys)
    try:
        return part.same(a, b) if part.same is not None else equal(a, b, part.tolerance)
    except _ODD:
        return False


def _forgiven(part: Part, expected: Expectation, kind: str, place: int, seen: Any) -> bool:
    return any(_makes(part, expected, mistake, kind, place, seen) for mistake in part.forgives.split(", ") if mistake)


def _makes(part: Part, expected: Expectation, mistake: str, kind: str, place: int, seen: Any) -> bool:
    theirs = expected.seen_with(mistake, kind)
    return theirs is not None and not _is_failed(theirs[place]) and _right(part, seen, theirs[place])


def _is_failed(observation: Any) -> bool:
    return isinstance(observation, str) and observation == FAILED


def _diagnosis(part: Part, expected: Expectation, wrong: Sequence[tuple[str, int, Any]]) -> str:
    for mistake, diagnosis in expected.diagnoses.items():
        if all(_makes(part, expected, mistake, *each) for each in wrong):
            return diagnosis
    return ""


def _odd(seen: Any, right: Any) -> str:
    """Where it is of another type than the reference's: what it is. Shapes are the case's."""
    if isinstance(right, torch.Tensor) and isinstance(seen, torch.Tensor):
        return "it returned a tensor of another shape than the docstring says" if seen.shape != right.shape else ""
    number = is_number(right) and not is_number(seen)
    sequence = isinstance(right, list | tuple) and not isinstance(seen, list | tuple)
    wanted = f"a {type(right).__name__}" if sequence else kind_of(right)  # a list's length is the case's
    wanted = "a tensor" if isinstance(right, torch.Tensor) else wanted if number or sequence else ""
    return f"should return {wanted}, it returned {kind_of(seen)}" if wanted else ""
