"""Hidden checks of lab 11's laws and bytes."""

from __future__ import annotations

from typing import Any

from ..criteria import Finding
from .compare import close, is_number
from .registry import Ask, Findings, shape_of

__all__ = ["laws", "sent_bytes"]


def _answers(found: Any, count: int) -> list[Any]:
    return found if isinstance(found, list) and len(found) == count else [None] * count


def _judged(
    found: Any, right: list[float], mistakes: dict[str, list[float]], good: str, wrong: str, look: str
) -> Finding:
    answers = _answers(found, len(right))
    if all(close(a, b, 1e-6) for a, b in zip(answers, right, strict=True)):
        return Finding(True, good)
    for reason, others in mistakes.items():
        if all(close(a, b, 1e-6) for a, b in zip(answers, others, strict=True)):
            return Finding(False, reason, look)
    if not all(is_number(one) for one in answers):
        odd = next(one for one in answers if not is_number(one))
        return Finding(False, f"should return a number, it returned {shape_of(odd)}", look)
    return Finding(False, wrong, look)


def laws(ask: Ask) -> Findings:
    """Both laws at drawn points, and shares of drawn speed-ups, some of them better than the ranks."""
    random = ask.random
    points = [
        (int(n), float(s)) for n, s in zip(random.integers(2, 4096, 6), random.uniform(0.001, 0.6, 6), strict=True)
    ]
    strong, weak = [1 / (s + (1 - s) / n) for n, s in points], [s + (1 - s) * n for n, s in points]
    gains = [random.uniform(1.05, 1.2), *random.uniform(0.4, 0.95, 3)]  # one is better than the ranks
    single = [[[int(n), float(n * gain)]] for n, gain in zip(random.integers(2, 9, 4), gains, strict=True)]
    single = [([[1, 1.0], *one] if index % 2 else one) for index, one in enumerate(single)]
    several = []
    for share in (0.02, 0.1, 0.3, -0.03):
        ranks = sorted(int(n) for n in random.choice(range(2, 17), 4, replace=False))
        gains = [[n, float(1 / (share + (1 - share) / n) * random.uniform(0.85, 1.15))] for n in ranks]
        several.append([[1, 1.0], *gains] if share > 0.05 else gains)

    def slope(speedups: list[list[Any]], way: str = "least squares") -> float:
        x, y = zip(*[(1 - 1 / n, 1 / s - 1 / n) for n, s in speedups if n > 1], strict=True)
        if way == "mean":
            return sum(b / a for a, b in zip(x, y, strict=True)) / len(x)
        if way == "sums":
            return sum(y) / sum(x)
        found = sum(a * b for a, b in zip(x, y, strict=True)) / sum(a * a for a in x)
        return max(0.0, found) if way == "clipped" else found

    look = "take N = 2 and a speed-up of 1.6: the share is 25 %"
    return {
        "amdahl": _judged(
            ask.call("laws", {"law": "amdahl", "points": points}), strong,
            {"it is Gustafson's law": weak, "`serial` is the share that does not divide": [1 / (1 - s + s / n) for n, s in points]},
            "1 / (s + (1 − s)/N)", "the speed-up is not Amdahl's", "16 ranks with 5 % are 9.1 times as fast",
        ),
        "gustafson": _judged(
            ask.call("laws", {"law": "gustafson", "points": points}), weak,
            {"it is Amdahl's law": strong, "`serial` is the share that does not divide": [1 - s + s * n for n, s in points]},
            "s + (1 − s)·N", "the speed-up is not Gustafson's", "2,048 ranks with 5 % do 1,946 times the work",
        ),
        "single": _judged(
            ask.call("shares", single), [slope(one) for one in single],
            {"a share below 0 is cut off; it tells that a baseline is wrong": [slope(one, "clipped") for one in single]},
            "(1/S − 1/N) / (1 − 1/N)", "from one number of ranks, the share is not right", look,
        ),
        "fit": _judged(
            ask.call("shares", several), [slope(one) for one in several],
            {
                "it is the mean of the single shares; least squares let large N count more": [slope(one, "mean") for one in several],
                "it is Σy / Σx; the least-squares slope is Σxy / Σx²": [slope(one, "sums") for one in several],
                "a share below 0 is cut off; it tells that a baseline is wrong": [slope(one, "clipped") for one in several],
            },
            "Σxy / Σx², also where it is negative", "from several numbers of ranks, the share is not the least-squares slope", look,
        ),
    }  # fmt: skip


def sent_bytes(ask: Ask) -> Findings:
    """Rings, single servers and several of them, up to one on every rank."""
    random = ask.random
    sizes = [float(random.integers(10**5, 10**8)) for _ in range(5)]
    ranks = [int(n) for n in random.choice(range(3, 40), 5, replace=False)]
    several = [2, *(int(random.integers(2, n)) for n in ranks[1:4]), ranks[4]]
    rings = [("ring", n, r) for n, r in zip(sizes, ranks, strict=True)] + [("ring", sizes[0], 1)]
    single = [("parameter server", n, r) for n, r in zip(sizes, ranks, strict=True)] + [
        ("parameter server", sizes[1], 1)
    ]
    sharded = [("parameter server", n, r, k) for n, r, k in zip(sizes, ranks, several, strict=True)]
    look = "take 4 ranks, 12 MB and 2 servers, and list what each rank sends to whom"
    return {
        "ring": _judged(
            ask.call("sent", rings), [2 * (r - 1) / r * n for _, n, r in rings],
            {
                "that is the reduce-scatter alone; the all-gather sends as much again": [(r - 1) / r * n for _, n, r in rings],
                "each message has one part of N, not the whole gradient": [2 * (r - 1) * n for _, n, r in rings],
            },
            "2(N − 1)/N of the gradient", "it is not what a rank of a ring sends", look,
        ),
        "server": _judged(
            ask.call("sent", single), [(r - 1) * n for _, n, r in single],
            {
                "a server sends nothing to itself": [r * n for _, n, r in single],
                "that counts what it receives, too": [2 * (r - 1) * n for _, n, r in single],
                "that is what a worker sends; the server sends more": [n for _, n, r in single],
            },
            "the server sends the sum to N − 1 others", "it is not what the server sends", look,
        ),
        "sharded": _judged(
            ask.call("sent", sharded), [(r - 1) * n / k + (k - 1) * n / k for _, n, r, k in sharded],
            {
                "the servers work as well, and send parts of their own gradients": [(r - 1) * n / k for _, n, r, k in sharded],
                "the number of servers makes no difference to it": [(r - 1) * n for _, n, r, k in sharded],
                "what it is the server of itself, a rank keeps": [(r - 1) * n / k + n for _, n, r, k in sharded],
            },
            "its part to N − 1 others, and its own gradient's other parts", "it is not what the busiest of several servers sends", look,
        ),
    }  # fmt: skip
