"""What a hidden check is, and what it may ask."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from course_lib.runs.run_evidence.criteria import Finding

__all__ = ["AnswerError", "Ask", "Findings", "HiddenCheck"]

Findings = dict[str, Finding]


class AnswerError(Exception):
    """The student's function could not be judged further: it is missing, it raised, or it ended at a limit.

    The message is one line for the student; `flag` is the kind of flag that it is worth, or None.
    """

    def __init__(self, reason: str, remedy: str = "", flag: str | None = None) -> None:
        super().__init__(reason)
        self.remedy, self.flag = remedy, flag


class Ask(Protocol):
    """What a check is given."""

    random: np.random.Generator
    """The grading's own random numbers."""

    def call(self, function: str, given: Any, answers: Mapping[str, Callable[..., Any]] | None = None) -> Any:
        """Call a function in the sandbox, beside the student's code.

        Parameters
        ----------
        function : str
            Called as ``function(student, given, outside)``; of the source that is sent for the check.
        given : object
            Plain data: numbers, strings, lists, dicts, arrays, tensors. With several ranks, a list of one item each.
        answers : mapping of str to callable
            What it may ask by ``outside(name, *args)``; called in the grader as ``answer(rank, *args)``. It
            must not wait, which would hold up all ranks.

        Returns what it returned, as plain data; with several ranks, the list of what each returned. Not to be believed:
        whatever is no plain data is an `Opaque`.

        Raises `AnswerError`: the student's function raised, is missing, or reached a limit.
        """


@dataclass(frozen=True)
class HiddenCheck:
    """One check."""

    judge: Callable[[Ask], Findings]  # ``judge(ask) -> Findings``, one `Finding` for each part
    # What each part is about, in the student's words. Points are the rubric's.
    parts: Mapping[str, str]
    ranks: int = 1
    # Whether several ranks have a loopback device together; without it, they reach each other through the grader only
    network: bool = False
    # Limit on the calls, where it is less than what the rubric leaves: ranks that wait for each other, wait for ever
    seconds: float = math.inf
