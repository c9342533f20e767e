"""Hidden checks of lab 06's cost model: the fit, the predictions, the bus bandwidth."""

from __future__ import annotations

import math
from typing import Any

from ..criteria import Finding
from .compare import is_number, number
from .registry import Ask, Findings, shape_of

__all__ = ["cost", "fit"]

SIZES = [2**k for k in range(8, 25)]
DENSE = [round(256 * 2 ** (k / 24)) for k in range(385)]  # so many that a fit to all of them beats one to a few


def _near(value: Any, expected: float, relative: float) -> bool:
    return is_number(value) and math.isclose(number(value), expected, rel_tol=relative)


def _two_points(sizes: list[int], seconds: list[float]) -> float:
    """β from the first and the last time alone."""
    return (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])


def _pair(value: Any) -> tuple[Any, Any]:
    return (value[0], value[1]) if isinstance(value, tuple | list) and len(value) == 2 else (None, None)


def fit(ask: Ask) -> Findings:
    """Times that lie on a line, and times that are off by a tenth, from links of every kind."""
    look = "make times from an α and a β of your own, fit them, and compare; then multiply each by 1 ± 0.1"
    links = [(10 ** ask.random.uniform(-5.5, -4), 10 ** ask.random.uniform(-10, -8.5)) for _ in range(6)]
    exact = [(SIZES, [a + b * n for n in SIZES]) for a, b in links]
    noisy = [(DENSE, [(a + b * n) * (1 + 0.1 * ask.random.uniform(-1, 1)) for n in DENSE]) for a, b in links]
    found = ask.call("fit", exact + noisy)
    pairs = [_pair(one) for one in found] if isinstance(found, list) and len(found) == 12 else [(None, None)] * 12
    on_line = all(_near(p[0], a, 0.01) and _near(p[1], b, 0.01) for p, (a, b) in zip(pairs, links, strict=False))
    line = Finding(on_line, "exact where the times lie on a line", look)
    if not on_line:
        reason = "where the times lie on a line, it does not find that line"
        if not all(is_number(part) for pair in pairs for part in pair):
            reason = (
                f"should return the pair (alpha, beta) of numbers, it returned {shape_of(found[0] if found else found)}"
            )
        elif all(_near(p[1], a, 0.01) and _near(p[0], b, 0.01) for p, (a, b) in zip(pairs, links, strict=False)):
            reason = "it returns (beta, alpha); (alpha, beta) was asked for"
        line = Finding(False, reason, look)
    few = "with times that are off by a tenth it errs as the line through two of them does: let all of them count"
    by_two = all(_near(p[1], _two_points(*one), 1e-3) for p, one in zip(pairs[6:], noisy, strict=True))
    # α shows in the short messages, whose times are a thousandth of the long ones'.
    tenth = [abs(number(p[0]) / a - 1) for p, (a, _) in zip(pairs[6:], links, strict=True)]
    good = on_line and all(off < 0.05 for off in tenth)
    latency = Finding(good, "the latency is right to a few per cent in spite of noise", look)
    if not good:
        reason = "with times that are off by a tenth, the latency is lost: the long messages decide the fit"
        reason = few if by_two else reason
        latency = Finding(
            False, reason if on_line else line.reason, "divide each equation by its time before you solve"
        )
    slopes = [abs(number(p[1]) / b - 1) for p, (_, b) in zip(pairs[6:], links, strict=True)]
    good = on_line and all(off < 0.05 for off in slopes)
    bandwidth = Finding(good, "the bandwidth is right to a few per cent in spite of noise", look)
    if not good:
        reason = few if by_two else "with times that are off by a tenth, β is off by more than a twentieth"
        bandwidth = Finding(False, reason if on_line else line.reason, look)
    return {"line": line, "latency": latency, "bandwidth": bandwidth}


def cost(ask: Ask) -> Findings:
    """Predictions for rings and trees, and the bus bandwidth, for numbers drawn anew."""
    random = ask.random
    drawn = [
        (int(random.integers(10**3, 10**8)), int(ranks), float(random.uniform(1e-6, 1e-4)), float(random.uniform(1e-10, 1e-8)))
        for ranks in random.permutation([2, 3, 5, 8, 12, 64, 100, 2048])
    ]  # fmt: skip
    ring = ask.call("predict", [("ring", *one) for one in drawn])
    tree = ask.call("predict", [("tree", *one) for one in drawn])
    times = [(n, float(random.uniform(1e-3, 1)), ranks) for n, ranks, _, _ in drawn]
    moved = ask.call("bandwidth", times)
    hand = "write down the messages of 4 ranks by hand: how many follow one another, how many bytes has each?"
    return {
        "ring": _numbers(
            ring,
            [2 * (r - 1) * (a + b * n / r) for n, r, a, b in drawn],
            {
                "it has N − 1 rounds; reduce-scatter and all-gather are 2(N − 1)": [(r - 1) * (a + b * n / r) for n, r, a, b in drawn],
                "its messages carry the whole tensor; a ring's carry one chunk of N": [2 * (r - 1) * (a + b * n) for n, r, a, b in drawn],
                "it counts the latency once; each of the 2(N − 1) messages has it": [a + 2 * (r - 1) * b * n / r for n, r, a, b in drawn],
            },
            "the ring's time: 2(N − 1) messages of n/N bytes",
            hand,
        ),
        "tree": _numbers(
            tree,
            [2 * math.ceil(math.log2(r)) * (a + b * n) for n, r, a, b in drawn],
            {
                "it has ⌈log₂ N⌉ rounds; the sum goes up the tree and down again": [math.ceil(math.log2(r)) * (a + b * n) for n, r, a, b in drawn],
                "the number of rounds is not rounded up to a whole one": [2 * math.log2(r) * (a + b * n) for n, r, a, b in drawn],
            },
            "the tree's time: 2⌈log₂ N⌉ messages of n bytes",
            hand,
        ),
        "bus": _numbers(
            moved,
            [2 * (r - 1) / r * n / t for n, t, r in times],
            {
                "it is n/t, which falls with the number of ranks even on a perfect ring": [n / t for n, t, r in times],
                "it is half of it: a rank sends in the reduce-scatter and in the all-gather": [(r - 1) / r * n / t for n, t, r in times],
            },
            "the bus bandwidth: 2(N − 1)/N · n/t",
            hand,
        ),
    }  # fmt: skip


def _numbers(found: Any, expected: list[float], mistakes: dict[str, list[float]], right: str, look: str) -> Finding:
    answers = found if isinstance(found, list) and len(found) == len(expected) else [None] * len(expected)

    def agree(others: list[float]) -> bool:
        return all(
            is_number(a) and math.isclose(number(a), b, rel_tol=1e-6) for a, b in zip(answers, others, strict=True)
        )

    if agree(expected):
        return Finding(True, right)
    for reason, others in mistakes.items():
        if agree(others):
            return Finding(False, reason, look)
    if not all(is_number(one) for one in answers):
        return Finding(False, f"should return a number, it returned {shape_of(answers[0])}", look)
    return Finding(False, "the number is another than the formula's", look)
