"""What a hidden check is, what it may ask, and where it is found."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import course_lib
from autograde.rubric.criteria import Finding
from autograde.sandbox.inside.wire import Opaque
from course_lib.runs.run_evidence.quoting import quote

__all__ = [
    "AnswerError",
    "Ask",
    "Findings",
    "HiddenCheck",
    "driver_source",
    "find_check",
    "known_checks",
    "shape_of",
]

_HERE = Path(__file__).parent
_GROUP = Path(course_lib.__file__).parent / "exercises" / "ranks" / "broker_process_group.py"  # beside every driver

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
        """Call a function of the lab's driver in the sandbox.

        Parameters
        ----------
        function : str
            Called as ``function(student, given, outside)``.
        given : object
            Plain data: numbers, strings, lists, dicts, arrays, tensors. With several ranks, a list of one item each.
        answers : mapping of str to callable
            What the driver may ask by ``outside(name, *args)``; called in the grader as ``answer(rank, *args)``. It
            must not wait, which would hold up all ranks: the sandbox's `DelayedReply` is an answer that comes later.

        Returns
        -------
        object
            What it returned, as plain data; with several ranks, the list of what each returned. Not to be believed:
            whatever is no plain data is an `Opaque`.

        Raises
        ------
        AnswerError
            The student's function raised, is missing, or reached a limit.
        """

    def bytes_on_loopback(self) -> int | None:
        """Bytes that ranks have sent each other so far, by the kernel's count; None without a sandbox."""


@dataclass(frozen=True)
class HiddenCheck:
    """One check.

    Attributes
    ----------
    judge : callable
        ``judge(ask) -> Findings``, one `Finding` for each part.
    parts : mapping of str to str
        What each part is about, in the student's words. Points are the rubric's.
    ranks : int
        Processes to start.
    process_group : bool
        Whether the driver finds a Gloo process group up, when there are several ranks.
    network : bool
        Whether several ranks have a loopback device together; without it, they reach each other through the grader only.
    seconds : float
        Limit on the calls, where it is less than what the rubric leaves: ranks that wait for each other, wait for ever.
    """

    judge: Callable[[Ask], Findings]
    parts: Mapping[str, str]
    ranks: int = 1
    process_group: bool = True
    network: bool = True
    seconds: float = math.inf


def known_checks() -> list[str]:
    """Ids of all checks, as rubrics name them: ``lab01.train-step``."""
    from autograde.checks.described import described_checks

    labs = sorted(path.stem for path in _HERE.glob("lab[0-9][0-9].py"))
    return sorted([f"{lab}.{name}" for lab in labs for name in _checks_of(lab)] + described_checks())


def find_check(name: str) -> HiddenCheck | None:
    """The check of that id, or None."""
    from autograde.checks.described import described_check

    if (described := described_check(name)) is not None:
        return described
    lab, _, rest = name.partition(".")
    if not (_HERE / f"{lab}.py").is_file() or not lab.startswith("lab"):
        return None
    return _checks_of(lab).get(rest)


@cache
def driver_source(name: str, function: str | None = None) -> str:
    """Source text of the driver that belongs to a check's id: one of its own (``lab12_worker.py``), else the lab's.

    With `function`, of that function and what it refers to alone: what stands in for another exercise's answer is not
    beside the code of a student who is asked for it.
    """
    from autograde.checks.described import described_check, observer_source, sliced

    if described_check(name) is not None:
        return observer_source(name)
    folder = _HERE / "drivers"
    own = folder / f"{name.replace('.', '_').replace('-', '_')}.py"
    driver = own if own.is_file() else folder / f"{name.partition('.')[0]}.py"
    texts = [path.read_text(encoding="utf-8") for path in (folder / "prelude.py", _GROUP, driver)]
    return "\n\n".join(texts) if function is None else sliced("\n\n".join(texts), function)


def shape_of(value: Any) -> str:
    """What a value is, for a reason: its type, and a tensor's shape."""
    if value is None:
        return "nothing (None): is there a return?"
    if isinstance(value, Opaque):
        return f"an object of type {quote(value.type_name)}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a {type(value).__name__} of {len(value)}"
    if hasattr(value, "shape"):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def _checks_of(lab: str) -> Mapping[str, HiddenCheck]:
    return importlib.import_module(f".{lab}", __package__).CHECKS
