"""A described exercise of one process against its hidden check, in this process and over many draws.

A check runs without a sandbox here: what it is given is our own.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import nbformat
import numpy as np
from fake_runs import REPOSITORY

from autograde.checks.described import find_check, observer_source
from autograde.checks.registry import AnswerError
from autograde.rubric.schema import find_rubric


class _Here:
    """`autograde.checks.registry.Ask` without a sandbox."""

    def __init__(self, check: str, namespace: dict[str, Any], seed: int) -> None:
        self.check, self.namespace = check, namespace
        self.random = np.random.default_rng([seed, *check.encode()])

    def call(self, function: str, given: Any, answers: dict[str, Callable[..., Any]] | None = None) -> Any:
        def outside(name: str, *arguments: Any) -> Any:
            return answers[name](0, *arguments)

        try:
            return _observer(self.check)[function](self.namespace.__getitem__, given, outside)
        except Exception as error:
            raise AnswerError(f"{type(error).__name__}: {error}") from None


@cache
def _observer(check: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "observer"}
    exec(compile(observer_source(check), f"<observer of {check}>", "exec"), names)
    return names


def namespace_of(lab: str, exercise: str, source: str | None = None) -> dict[str, Any]:
    """What the lab's own cells and answers define, with another answer to one exercise."""
    rubric = find_rubric(lab)
    notebook, namespace = _notebook(lab), {"__name__": "notebook"}
    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", []):
            exec(cell.source, namespace)
            namespace.update(rubric.execution.parameters)
        elif cell.id in rubric.execution.run or (cell.id.startswith("ex-") and cell.cell_type == "code"):
            own = source is not None and cell.id == f"ex-{exercise}"
            with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
                exec(source if own else cell.source, namespace)
    return namespace


def lost_over(lab: str, exercise: str, namespace: dict[str, Any], seeds: range) -> Counter[frozenset[str]]:
    """How often an answer loses which parts."""
    return Counter(frozenset(_lost(f"lab{lab[:2]}.{exercise}", namespace, seed)) for seed in seeds)


def _lost(name: str, namespace: dict[str, Any], seed: int) -> list[str]:
    check = find_check(name)
    try:
        findings = check.judge(_Here(name, namespace, seed))
    except AnswerError:
        return list(check.parts)
    return [part for part, finding in findings.items() if not finding.passed]


def _notebook(lab: str) -> nbformat.NotebookNode:
    return nbformat.read(REPOSITORY / "labs" / lab / f"{lab}.ipynb", as_version=4)
