"""Hidden checks of lab 11: rates and speed-ups here; laws, bytes and the model in modules of their own."""

from __future__ import annotations

import statistics
from typing import Any

from ..criteria import Finding
from .compare import close, is_int, is_number
from .lab11_laws import laws, sent_bytes
from .lab11_model import model
from .registry import Ask, Findings, HiddenCheck, shape_of

__all__ = ["CHECKS"]


def throughput(ask: Ask) -> Findings:
    """Epochs of drawn seconds: the first slow or not, one of them disturbed, the slowest rank seldom the same."""
    random = ask.random

    def drawn(ranks: int, epochs: int) -> list[list[float]]:
        return [[float(s) for s in random.uniform(1, 4, epochs)] for _ in range(ranks)]

    # Two epochs are left where the median is not asked for; the first one is the median of the others where it is not.
    first = [[[float(begin), *one[1:]] for one in drawn(1, 3)] for begin in (9, 10, 0.1)]
    slowest = [drawn(int(n), 3) for n in random.integers(3, 6, 4)]
    median = [[[0.0, *(float(s) for s in random.uniform(1, 1.2, 3)), 40.0]] for _ in range(3)]
    for seconds in [*slowest, *median]:
        middle = statistics.median([max(epoch) for epoch in zip(*seconds, strict=True)][1:])
        for one in seconds:
            one[0] = middle
    groups = {"first": first, "slowest": slowest, "median": median}
    cases = [(int(random.integers(500, 50_000)), seconds) for group in groups.values() for seconds in group]
    found = ask.call("throughput", cases)
    found = found if isinstance(found, list) and len(found) == len(cases) else [None] * len(cases)
    rows = [[max(epoch) for epoch in zip(*seconds, strict=True)] for _, seconds in cases]
    right = [images / statistics.median(row[1:]) for (images, _), row in zip(cases, rows, strict=True)]
    whole = [images / statistics.median(row) for (images, _), row in zip(cases, rows, strict=True)]
    good = [close(a, b) for a, b in zip(found, right, strict=True)]
    look = "take ranks with epochs of 9, 2, 3, 2 s and 5, 2.5, 2, 4 s, and write each step down by hand"
    if not all(is_number(one) for one in found):
        wrong = f"should return a number, it returned {shape_of(next(a for a in found if not is_number(a)))}"
        return {part: Finding(False, wrong, look) for part in groups}
    told, at = {}, 0
    reasons = {
        "first": ("the first epoch is left out", "with one rank, the rate is not that of the epochs after the first"),
        "slowest": ("an epoch lasts as long as its slowest rank's", "with several ranks, the rate is not that of each epoch's slowest rank"),
        "median": ("one disturbed epoch does not move it", "one disturbed epoch moves the rate: the median of the epochs was asked for"),
    }  # fmt: skip
    for part, group in groups.items():
        passed = all(good[at : at + len(group)])
        reason = reasons[part][0 if passed else 1]
        if not passed and all(close(a, b) for a, b in zip(found, whole, strict=True)):
            reason = "the first epoch is in it; it is to be left out"
        told[part] = Finding(passed, reason, look)
        at += len(group)
    return told


def scaling(ask: Ask) -> Findings:
    """Tables of drawn times, with one rank of the parallel program among them and without."""
    random, cases = ask.random, []
    for kind in ("strong", "weak"):
        for ranks in ([2, 4], [3, 8, 16], [1, 2, 8], [1, 5]):
            sequential = float(random.uniform(5, 20))
            times = [[n, float(sequential * random.uniform(1.05, 1.5) / (n if kind == "strong" else 1))] for n in ranks]
            cases.append((sequential, times, kind))
    found = ask.call("scaling", cases)
    found = found if isinstance(found, list) and len(found) == len(cases) else [None] * len(cases)
    good = {"strong": True, "weak": True, "baseline": True}
    for (sequential, times, kind), told in zip(cases, found, strict=True):
        rows = _rows(told)
        right = len(rows) == len(times)
        for ranks, seconds in times:
            pair = next((value for key, value in rows if is_int(key, ranks)), None)
            gain = (ranks if kind == "weak" else 1) * sequential / seconds
            right = right and isinstance(pair, tuple | list) and len(pair) == 2
            right = right and close(pair[0], gain) and close(pair[1], gain / ranks)
        part = "baseline" if times[0][0] == 1 else kind
        good[part] = good[part] and right
    look = "take 10 s in sequence, {1: 11.0, 2: 6.0} in parallel, and write the table down by hand"
    if not any(isinstance(one, list) for one in found):
        wrong = f"should return a dictionary, it returned {shape_of(found[0])}"
        return {part: Finding(False, wrong, look) for part in good}
    # The baseline is judged where the kind is right: who has one of them wrong loses it once.
    strong, weak = good["strong"], good["weak"]
    baseline = good["baseline"] and strong and weak
    return {
        "strong": Finding(strong, "T_seq / T(N), and that per rank" if strong else
                          "for the same work, speed-up or efficiency is not right", look),
        "weak": Finding(weak, "N · T_seq / T(N), and that per rank" if weak else
                        "for N times the work, speed-up or efficiency is not right", look),
        "baseline": Finding(baseline, "against the sequential program, also where there is a time for 1 rank" if baseline else
                            "where the parallel program was run on 1 rank too, the table is not against the sequential program"
                            if strong and weak else "speed-ups are not right yet, whatever the baseline", look),
    }  # fmt: skip


def _rows(told: Any) -> list[tuple[Any, Any]]:
    return [(row[0], row[1]) for row in told if isinstance(row, list | tuple) and len(row) == 2] if isinstance(told, list) else []  # fmt: skip


CHECKS = {
    "throughput": HiddenCheck(
        throughput,
        {
            "first": "Leaves the first epoch out",
            "slowest": "Takes each epoch's slowest rank",
            "median": "Takes the median of the epochs",
        },
    ),
    "scaling": HiddenCheck(
        scaling,
        {
            "strong": "Strong scaling",
            "weak": "Weak scaling",
            "baseline": "Against the sequential program",
        },
    ),
    "laws": HiddenCheck(
        laws,
        {
            "amdahl": "Amdahl's law",
            "gustafson": "Gustafson's law",
            "single": "The share from one number of ranks",
            "fit": "The share from several, by least squares",
        },
    ),
    "bytes": HiddenCheck(
        sent_bytes,
        {
            "ring": "What a rank of a ring sends",
            "server": "What the one server sends",
            "sharded": "What the busiest of several servers sends",
        },
    ),
    "model": HiddenCheck(
        model,
        {
            "line": "Finds the four numbers that made the times",
            "noise": "Finds them among noisy times, long and short",
            "worth": "How many ranks are worth it",
        },
    ),
}
