"""Every known mistake of one process against its hidden check, in this process and over many draws.

`lost_over` runs a check without a sandbox: what it is given here is our own.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import cloudpickle
import nbformat
import numpy as np
import torch.distributed as dist
from fake_runs import REPOSITORY

from autograde.checks.compare import _driver
from autograde.checks.registry import AnswerError, find_check
from autograde.rubric.schema import find_rubric
from autograde.sandbox.rank_channel import DelayedReply
from course_lib.distributed import launch

sys.path.append(str(Path(__file__).parents[1] / "course_lib"))  # the visible checks' tests
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # for the ranks


class _Student:
    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace

    def __call__(self, name: str) -> Any:
        return self.namespace[name]


class _Here:
    """`autograde.checks.registry.Ask` without a sandbox."""

    def __init__(self, check: str, namespace: dict[str, Any], seed: int) -> None:
        self.check, self.namespace = check, namespace
        self.random = np.random.default_rng([seed, *check.encode()])

    def call(self, function: str, given: Any, answers: dict[str, Callable[..., Any]] | None = None) -> Any:
        def outside(name: str, *arguments: Any) -> Any:
            answer = answers[name](0, *arguments)
            if isinstance(answer, DelayedReply):
                time.sleep(answer.seconds)
                return answer.value
            return answer

        try:
            return _driver(self.check)[function](_Student(self.namespace), given, outside)
        except Exception as error:
            raise AnswerError(f"{type(error).__name__}: {error}") from None


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


def mistakes(lab: str) -> Iterator[tuple[str, str, str, frozenset[str]]]:
    """(name, exercise, source, parts that the lab's table says it loses), of edits of the solution."""
    table = importlib.import_module(f"test_hidden_checks_lab{lab[:2]}").WRONG
    if isinstance(table, list):
        table = {f"{exercise} {edits[1]}": (exercise, *edits, lost, reason) for exercise, edits, lost, reason in table}
    answers = {cell.id: cell.source for cell in _notebook(lab).cells}
    for name, (exercise, *edits, lost, _) in table.items():
        source = answers[f"ex-{exercise}"]
        if any(old not in source for old in edits[::2]):
            continue
        for old, new in zip(edits[::2], edits[1::2], strict=True):
            source = source.replace(old, new)
        yield name, exercise, source, frozenset(lost.split())


def names_of(lab: str) -> dict[str, list[str]]:
    """By exercise, the names that its visible check is given."""
    names = {}
    for cell in _notebook(lab).cells:
        if cell.id.startswith("check-"):
            calls = [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call)]
            call = next(call for call in calls if ast.unparse(call.func) == "check")
            answer = call.args[1].elts if isinstance(call.args[1], ast.Tuple) else [call.args[1]]
            names[call.args[0].value.partition(".")[2]] = [getattr(name, "id", "") for name in answer]
    return names


def refused_by_the_visible_check(lab: str) -> list[tuple[str, str, dict[str, Any]]]:
    """(name, exercise, what it defines) of each answer that the visible check's own tests see refused."""
    tests, found = importlib.import_module(f"test_checks_lab{lab[:2]}"), []
    names, named = names_of(lab), []

    def refused(exercise: str, answer: Any, *words: str, **context: Any) -> None:
        several = isinstance(answer, tuple) and len(names[exercise]) > 1
        defined = dict(zip(names[exercise], answer if several else [answer], strict=True))
        found.append((f"{named[-1]} {len(found)}", exercise, defined))

    with mock.patch.multiple(tests, refused=refused, check=lambda *given, **context: None):
        for name, test in [pair for pair in vars(tests).items() if pair[0].startswith("test_")]:
            marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
            parameters = [word.strip() for word in marks[0].args[0].split(",")] if marks else []
            if len(marks) > 1 or set(inspect.signature(test).parameters) - set(parameters):
                continue
            if "refused" not in test.__code__.co_names:  # no answer of its is refused, and it may train or launch ranks
                continue
            named.append(name)
            for values in marks[0].args[1] if marks else [()]:
                with contextlib.suppress(AssertionError, KeyError):
                    test(**dict(zip(parameters, values if len(parameters) != 1 else [values], strict=True)))
    return found


def _notebook(lab: str) -> nbformat.NotebookNode:
    return nbformat.read(REPOSITORY / "labs" / lab / f"{lab}.ipynb", as_version=4)


def reasons(lab: str, exercise: str, namespace: dict[str, Any], seed: int, here: type = _Here) -> dict[str, str]:
    """The parts that an answer loses, and why."""
    name = f"lab{lab[:2]}.{exercise}"
    check = find_check(name)
    try:
        findings = check.judge(here(name, namespace, seed))
    except AnswerError as error:
        return dict.fromkeys(check.parts, str(error))
    return {part: finding.reason for part, finding in findings.items() if not finding.passed}


def lost_over(
    lab: str, exercise: str, namespace: dict[str, Any], seeds: range, here: type = _Here
) -> Counter[frozenset[str]]:
    """How often an answer loses which parts."""
    return Counter(frozenset(reasons(lab, exercise, namespace, seed, here)) for seed in seeds)


class _OnRanks(_Here):
    """`_Here` on one of several ranks: each judges what all of them found, so that all come to the same verdict."""

    def call(self, function: str, given: Any, answers: dict[str, Callable[..., Any]] | None = None) -> Any:
        found: list[Any] = [None] * dist.get_world_size()
        try:
            mine = super().call(function, given[dist.get_rank()])
        except AnswerError as error:
            mine = error
        dist.all_gather_object(found, mine)
        for one in found:
            if isinstance(one, AnswerError):
                raise one
        return found

    def bytes_on_loopback(self) -> None:
        return None


def lost_on_ranks(lab: str, answers: list[tuple[str, str]], seeds: range) -> list[Counter[frozenset[str]]]:
    """`lost_over` for answers (exercise, source) to checks of equally many ranks, whose every rank calls as often as the others."""

    def judge_all() -> list[Counter[frozenset[str]]]:
        return [
            lost_over(lab, exercise, namespace_of(lab, exercise, source), seeds, _OnRanks)
            for exercise, source in answers
        ]

    return launch(judge_all, find_check(f"lab{lab[:2]}.{answers[0][0]}").ranks, backend="gloo", timeout=300)[0]
