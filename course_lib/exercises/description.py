"""What a description of an exercise consists of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

__all__ = ["Answers", "Cases", "Exercise", "Finding", "Mistake", "Part", "Watch"]

Cases = Mapping[str, Sequence[Any]]
"""Cases by kind. A case is plain data: numbers, strings, None, lists, tuples, dicts, tensors."""


@dataclass(frozen=True)
class Part:
    """What earns points by itself.

    A part is right where every observation of its cases equals the reference's, or where `judge` finds no fault.

    Attributes
    ----------
    about : str
        In the student's words. Empty for a part that earns nothing itself and that others need.
    wrong : str
        The reason where it is wrong and neither a mistake nor the judge explains it.
    hint : str
        How the student can see it; the exercise's if empty.
    cases : str
        Kinds of cases, separated by spaces. If empty, the only kind that there is, or else that of the part's own name.
    keys : str
        Entries of the observation that count, where that is a dict; all if empty.
    needs : str
        Parts without which this one is lost, for their reason.
    forgives : str
        Mistakes, separated by a comma and a space, that do not count here: an observation may equal theirs instead of the reference's.
    tolerance : float
        Of a number or an entry of a tensor: ``|a − b| ≤ tolerance · |b| + 1e-12`` for a number,
        ``|a − b| ≤ tolerance · (1 + |b|)`` for an entry.
    same : callable, optional
        ``same(observation, reference's) -> bool``, in the place of comparing within `tolerance`.
    words : callable, optional
        ``words(observation, reference's) -> str``: where the entries that count first differ, by their names in the
        exercise and with both values. For the visible check, in the place of the observation's own names and places.
    judge : callable, optional
        ``judge(case, observation, reference's) -> str``: why it is wrong, or the empty string, for what has no single
        right answer. The reason must not tell the case. The reference's observation is None if there is no reference.
        An observation comes from the student's process: where a judge raises for an odd one, the part is wrong.
    """

    about: str
    wrong: str = "what it returned or left behind is not what the docstring asks for"
    hint: str = ""
    cases: str = ""
    keys: str = ""
    needs: str = ""
    forgives: str = ""
    tolerance: float = 1e-4
    same: Callable[[Any, Any], bool] | None = None
    words: Callable[[Any, Any], str] | None = None
    judge: Callable[[Any, Any, Any], str] | None = None


class Watch(Protocol):
    """Counts, times or delivers beside an observation, where the student's code cannot reach it."""

    def answer(self, name: str, rank: int, *args: Any) -> Any:
        """The reply to ``outside(name, *args)``, in plain data. It must not wait."""

    def evidence(self) -> dict[str, Any]:
        """Entries for the observation, in the place of what the student's process says under the same keys."""


@dataclass(frozen=True)
class Exercise:
    """One exercise, without its answers.

    Attributes
    ----------
    functions : tuple of str
        Names of the functions that the student writes.
    draw : callable
        ``draw(numpy.random.Generator) -> {kind: [case, …]}``.
    observe : callable
        ``observe(case, *functions)`` returns plain data; with `watch`, ``observe(case, outside, *functions)``, where
        ``outside(name, *args)`` asks the watch. It is a function at the top level of its module, and its source is sent
        beside the student's code, with what it refers to; it knows no answer. It gives the functions copies, and reads
        what they left behind. What it raises counts as raised by the answer, and loses every part.
    parts : mapping of str to Part
        In the order in which the visible check reports them.
    hint : str
        How the student can see what is wrong.
    show : str or callable
        A case in words: a format of a tuple's items (``{0}``) or a dict's (``{name}``), or
        ``show(case, observation) -> str``, which may say what was counted.
    watch : callable, optional
        ``watch(case) -> Watch``: a fresh one for each observation. An observation must then be a dict.
    guarded : str
        Kinds that may take memory or time without bound, or may raise. They are observed last; a limit or an error
        there costs the parts about them alone; and no mistake is ever tried on them.
    in_sandbox : callable, optional
        ``in_sandbox(cases) -> cases``: what the hidden check asks more than the visible one, because limits hold there.
    ranks : int
        Processes. With several, `observe` is called on each as ``observe(case, rank, outside, *functions)``, and an
        observation is ``{"ranks": [what each returned], **evidence}``.
    world : callable, optional
        ``world(case) -> int``: how many of the ranks take part in a case; all of them by default.
    share : callable, optional
        ``share(case, rank)``: what `observe` is given in the place of the case where there is a watch; without several
        ranks the rank is 0. It must have nothing that is to come by messages or from the watch.
    transport : callable, optional
        ``transport(exercise, case, functions) -> observation``: how the visible check observes a case on several ranks.
    network : bool
        Whether the hidden check's ranks have a network.
    seconds : float
        Limit on the hidden check's calls, if less than the rubric's.
    """

    functions: tuple[str, ...]
    draw: Callable[[np.random.Generator], Cases]
    observe: Callable[..., Any]
    parts: Mapping[str, Part]
    hint: str
    show: str | Callable[[Any, Any], str] = "{about}"
    watch: Callable[[Any], Watch] | None = None
    guarded: str = ""
    in_sandbox: Callable[[Cases], Cases] | None = None
    ranks: int = 1
    world: Callable[[Any], int] | None = None
    share: Callable[[Any, int], Any] = lambda case, rank: case
    transport: Callable[[Exercise, Any, Sequence[Callable[..., Any]]], Any] | None = None
    network: bool = False
    seconds: float = math.inf


class Mistake:
    """A mistake that has a name: its diagnosis, and functions that make it, None for one that is as the reference's.

    The diagnosis is a clause that the student reads, without a full stop. It is given where every wrong observation of
    a part equals the mistake's.
    """

    def __init__(self, diagnosis: str, *functions: Callable[..., Any] | None) -> None:
        self.diagnosis, self.functions = diagnosis, functions


@dataclass(frozen=True)
class Answers:
    """What is right and what is known to be wrong: never in a student's wheel, never in a sandbox.

    Attributes
    ----------
    reference : tuple of callable
        The right functions; empty if every part has a judge that asks for none.
    mistakes : mapping of str to Mistake
    """

    reference: tuple[Callable[..., Any], ...] = ()
    mistakes: Mapping[str, Mistake] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """The verdict on one part; `kind` and `place` are the first wrong case's, for the visible check."""

    passed: bool
    reason: str
    hint: str = ""
    kind: str = ""
    place: int = -1
