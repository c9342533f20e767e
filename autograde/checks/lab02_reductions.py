"""Hidden checks of lab 02's reductions: what three ranks together did, told to each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autograde.checks.compare import close, is_number, number
from autograde.checks.registry import Ask, Findings, shape_of
from autograde.rubric.criteria import Finding

__all__ = ["everywhere", "metrics", "throughput"]

RANKS = 3
TOLERANCE = 2e-5  # float32 sums pass


def throughput(ask: Ask) -> Findings:
    """Rank 0 is neither the slowest nor the fastest, so that its own time is nobody's answer."""
    images = [int(n) for n in ask.random.integers(500, 5000, RANKS)]
    seconds = [float(s) for s in ask.random.uniform([3, 6, 1], [4, 9, 2])]
    found = ask.call("throughput", [{"images": n, "seconds": s} for n, s in zip(images, seconds, strict=True)])
    rates = [n / s for n, s in zip(images, seconds, strict=True)]
    mistakes = {
        "it adds the ranks' rates, which are over different times": sum(rates),
        "it is the mean of the ranks' rates": sum(rates) / RANKS,
        "it is a rank's own rate": rates[0],
        "it divides by the sum of the ranks' seconds": sum(images) / sum(seconds),
        "it divides by the mean of the ranks' seconds": RANKS * sum(images) / sum(seconds),
        "it divides by a rank's own seconds, not by the slowest rank's": sum(images) / seconds[0],
    }
    times = {
        "it is the mean of the ranks' seconds": sum(seconds) / RANKS,
        "it is the sum of the ranks' seconds": sum(seconds),
        "it is the fastest rank's": min(seconds),
        "it is a rank's own time": seconds[0],
    }
    look = "take two ranks, 1,000 images in 2 s and 600 in 4 s, and write the pair down by hand"
    pairs = [_pair(one) for one in found]
    # The rate is judged by the answer's own seconds: what is wrong with these is the seconds' business.
    own = number(pairs[0][1])
    rate = _told("rate", found, pairs, 0, sum(images) / (own if own > 0 else max(seconds)), mistakes, look)
    slowest = _told("number of seconds", found, pairs, 1, max(seconds), times, look)
    return {
        "rate": rate,
        "seconds": slowest,
        "everywhere": everywhere(pairs, rate.passed or slowest.passed),
    }


def metrics(ask: Ask) -> Findings:
    """Shares of very different sizes."""
    images = [int(n) for n in ask.random.permutation([40, 200, 900]) + ask.random.integers(0, 30, RANKS)]
    correct = [int(n * share) for n, share in zip(images, ask.random.permutation([0.2, 0.55, 0.9]), strict=True)]
    losses = [float(s) for s in ask.random.uniform(0.2, 2.5, RANKS) * images]
    rows = zip(losses, correct, images, strict=True)
    found = ask.call("metrics", [{"loss_sum": s, "correct": c, "images": n} for s, c, n in rows])
    wrong_loss = {
        "it is the mean of the ranks' mean losses": sum(s / n for s, n in zip(losses, images, strict=True)) / RANKS,
        "it is a rank's own loss": losses[0] / images[0],
        "it is a sum of losses, not the mean over images": sum(losses),
        "it is divided by a rank's own images": sum(losses) / images[0],
    }
    wrong_accuracy = {
        "it is the mean of the ranks' accuracies": sum(c / n for c, n in zip(correct, images, strict=True)) / RANKS,
        "it is a rank's own accuracy": correct[0] / images[0],
        "it is a count, not a share": sum(correct),
        "it is a percentage, not a share": 100 * sum(correct) / sum(images),
        "it is divided by a rank's own images": sum(correct) / images[0],
    }
    look = "take two ranks, 90 of 100 right and 6 of 20 right, and write the accuracy down by hand"
    loss, accuracy = sum(losses) / sum(images), sum(correct) / sum(images)
    pairs = [_pair(one) for one in found]
    accurate = _told("accuracy", found, pairs, 1, accuracy, wrong_accuracy, look)
    mean = _told("mean loss", found, pairs, 0, loss, wrong_loss, look)
    return {"accuracy": accurate, "loss": mean, "everywhere": everywhere(pairs, accurate.passed or mean.passed)}


def _pair(value: Any) -> tuple[Any, Any]:
    return tuple(value) if isinstance(value, tuple | list) and len(value) == 2 else (None, None)


def _told(
    what: str,
    found: list[Any],
    pairs: list[tuple[Any, Any]],
    which: int,
    right: float,
    wrong: Mapping[str, float],
    look: str,
) -> Finding:
    """On rank 0."""
    value = pairs[0][which]
    if close(value, right, TOLERANCE):
        return Finding(True, f"the {what} is that of the whole job")
    if pairs[0] == (None, None):
        return Finding(False, f"should return a pair, it returned {shape_of(found[0])}", look)
    if not is_number(value):
        return Finding(False, f"the {what} should be a number, it is {shape_of(value)}", look)
    reasons = [reason for reason, number in wrong.items() if close(value, number, TOLERANCE)]
    return Finding(False, f"the {what} is wrong" + (f": {reasons[0]}" if reasons else ""), look)


def everywhere(found: Sequence[Sequence[Any] | None], reduced: bool) -> Finding:
    """Every rank has rank 0's numbers; `reduced`: one of them at least is the whole job's."""
    look = "print what every rank returns"
    if not reduced:
        return Finding(False, "rank 0 has no number of the whole job, so no rank has", look)
    own = [
        one is not None and all(close(a, number(b), TOLERANCE) for a, b in zip(one, found[0], strict=True))
        for one in found
    ]
    if all(own):
        return Finding(True, "every rank has the same numbers")
    return Finding(False, f"rank {own.index(False)} does not have rank 0's numbers", look)
