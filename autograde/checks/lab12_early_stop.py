"""Hidden check of lab 12's stopping rule."""

from __future__ import annotations

from typing import Any

from autograde.checks.registry import AnswerError, Ask, Findings
from autograde.rubric.criteria import Finding

__all__ = ["early_stop"]


def _each(ask: Ask, *calls: tuple[str, Any]) -> list[Any]:
    """What each call returned, or the error that it ended with; where all raised, the first error is raised."""
    found: list[Any] = []
    for function, given in calls:
        try:
            found.append(ask.call(function, given))
        except AnswerError as error:
            found.append(error)
    if all(isinstance(value, AnswerError) for value in found):
        raise found[0]
    return found


def _raised(error: AnswerError) -> Finding:
    return Finding(False, str(error), error.remedy)


def early_stop(ask: Ask) -> Findings:
    """On histories that end well and badly, and on those at the edges of the rule."""
    random = ask.random
    target = float(random.uniform(0.3, 0.9))
    rule, edges = [], []
    for _ in range(40):
        patience = int(random.integers(1, 6))
        history = random.uniform(target - 0.2, target - 1e-3, patience + int(random.integers(0, 5))).tolist()
        good = random.random(len(history)) < 0.5
        if random.random() < 0.5:
            good[-patience:] = True
        else:
            good[len(good) - 1 - int(random.integers(0, patience))] = False
        history = [
            target + 0.09 * float(random.random()) + 1e-3 if g else a for a, g in zip(history, good, strict=True)
        ]
        rule.append((history, target, patience))
        edges.append(([target] * patience, target, patience))
        edges.append(([target + 0.05] * int(random.integers(0, patience)), target, patience))
    edges.append(([], target, 1))
    on_rule, on_edges = _each(ask, ("early_stop", rule), ("early_stop", edges))
    look = "write down five accuracies, the target and the patience, and decide by hand for each epoch"
    return {
        "rule": _decisions(on_rule, [min(h[-p:]) >= t for h, t, p in rule], "right on histories drawn anew", look),
        "edges": _edges(on_edges, [len(h) >= p for h, _, p in edges], look),
    }


def _decisions(found: Any, expected: list[bool], right: str, look: str) -> Finding:
    if isinstance(found, AnswerError):
        return _raised(found)
    answers = found if isinstance(found, list) and len(found) == len(expected) else [None] * len(expected)
    late = sum(a is not True for a, b in zip(answers, expected, strict=True) if b)
    early = sum(a is not False for a, b in zip(answers, expected, strict=True) if not b)
    if late == early == 0:
        return Finding(True, right)
    if late and early:
        return Finding(False, "it stops where it should not, and goes on where it should stop", look)
    return Finding(False, "it goes on where it should stop" if late else "it stops where it should not", look)


def _edges(found: Any, expected: list[bool], look: str) -> Finding:
    finding = _decisions(found, expected, "an accuracy equal to the target counts; a short history does not stop", look)
    if finding.passed or isinstance(found, AnswerError):
        return finding
    if "should not" in finding.reason:
        return Finding(False, "it stops after fewer epochs than patience asks for", look)
    return Finding(False, "an accuracy that equals the target does not count, but should", look)
