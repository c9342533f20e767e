"""Hidden checks of lab 09: shares, collisions and the reading of curves; the other two have a file of their own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from ..criteria import Finding
from .compare import close, is_number
from .lab09_updates import loop, sparse
from .registry import Ask, Findings, HiddenCheck, shape_of

__all__ = ["CHECKS"]


def share(ask: Ask) -> Findings:
    """All shares of several epochs, for numbers of samples that divide by the processes and that do not."""
    random = ask.random
    jobs = [(int(random.integers(3, 7)) * int(random.integers(20, 60)), 1)]
    for processes in (2, int(random.integers(3, 6))):
        whole = processes * int(random.integers(20, 60))
        jobs += [(whole, processes), (whole + int(random.integers(1, processes)), processes)]
    seed = int(random.integers(0, 10**6))
    questions = [
        (samples, processes, rank, epoch, seed)
        for samples, processes in jobs for epoch in range(3) for rank in range(processes)
    ]  # fmt: skip
    extra = [(jobs[1][0], jobs[1][1], 0, 1, seed + other) for other in (0, 0, 1)]
    found = ask.call("share", questions + extra)
    found = found if isinstance(found, dict) else {}
    untouched = found.get("untouched") is True
    answers = found.get("shares")
    answers = (
        answers if isinstance(answers, list) and len(answers) == len(questions) + 3 else [[]] * (len(questions) + 3)
    )
    answers = [answer if isinstance(answer, list) else [] for answer in answers]
    shares = dict(zip(questions, answers, strict=False))
    once = even = fresh = redealt = True
    steps: list[bool] = []
    for samples, processes in jobs:
        epochs = []
        for epoch in range(3):
            parts = [shares[(samples, processes, rank, epoch, seed)] for rank in range(processes)]
            dealt = [position for part in parts for position in part]
            once &= sorted(dealt, key=str) == sorted(range(samples), key=str)
            even &= max(map(len, parts)) - min(map(len, parts)) <= 1
            steps += [type(a) is type(b) is int and b > a for part in parts for a, b in itertools.pairwise(part)]
            epochs.append(parts)
        fresh &= epochs[0] != epochs[1] and epochs[1] != epochs[2]
        if processes > 1:
            members = [frozenset(map(str, parts[0])) for parts in epochs]
            redealt &= len(set(members)) > 1
    shuffled = 0.4 < sum(steps) / max(1, len(steps)) < 0.6  # a shuffled order goes up at half of its steps
    same, again, other = answers[len(questions) :]
    repeatable = same == again and same != other
    why = (
        "the same arguments do not give the same order, or other seeds do" if not repeatable
        else "the samples are not shuffled" if not shuffled
        else "two epochs have the same order" if not fresh
        else "a process takes the same samples in every epoch" if not redealt
        else "the global generator of torch or numpy, from which dropout draws, is changed"
    )  # fmt: skip
    order = once and fresh and redealt and shuffled and repeatable and untouched
    look = "print the shares of 11 samples on 3 processes, for two epochs"
    return {
        "once": Finding(once, "every sample is in one share of an epoch" if once else
                        "some sample is in no share of an epoch, or in more than one", look),
        "even": Finding(once and even, "the shares differ by one sample at most" if once and even else
                        "the shares differ by more than one sample" if once else "the shares do not hold every sample once", look),
        "order": Finding(order, "a new order in each epoch, the same for the same seed" if order else
                         why if once else "the shares do not hold every sample once", look),
    }  # fmt: skip


def collision(ask: Ask) -> Findings:
    """Two processes, several, and where nothing or everything collides."""
    random = ask.random

    def questions(processes: Sequence[int]) -> list[tuple[int, int, int]]:
        asked = []
        for others in processes:
            nonzeros = int(random.integers(2, 12))
            asked.append((nonzeros, int(nonzeros * random.integers(3, 40)), int(others)))
        return asked

    groups = {
        "two": [*questions([2] * 4), (20, int(random.integers(10**5, 10**6)), 2)],
        "many": questions(random.integers(3, 10, 4).tolist()),
        "edges": [(7, 7, 2), (5, 8, int(random.integers(3, 6))), (3, 40, 1)],
    }
    asked = [question for group in groups.values() for question in group]
    found = ask.call("collision", asked)
    answers = found if isinstance(found, list) and len(found) == len(asked) else [None] * len(asked)
    given = dict(zip(asked, answers, strict=True))
    right = {
        name: all(_is_probability(given[question], _collision(*question)) for question in group)
        for name, group in groups.items()
    }
    odd = next((answer for answer in answers if not is_number(answer)), None)
    wrong = f"should return a number, it returned {shape_of(odd)}" if not all(map(is_number, answers)) else None
    look = "count by hand: 2 of 4 features, two processes; of the six ways to choose the other's, one misses yours"
    return {
        "two": Finding(right["two"], "right for two processes" if right["two"] else wrong or "wrong for two processes", look),
        "many": Finding(right["many"], "right for several processes" if right["many"] else
                        wrong or "wrong for more than two processes", "with three processes, two others must both miss yours"),
        "edges": Finding(right["edges"] and right["two"], "right where everything collides, and where there is nobody to meet"
                         if right["edges"] and right["two"] else wrong or "wrong where updates must meet, or where there is one process"
                         if not right["edges"] else "for two processes it is not right yet",
                         "try as many nonzeros as features, more than half of them, and a single process"),
    }  # fmt: skip


def _collision(nonzeros: int, features: int, processes: int) -> float:
    apart = math.comb(features - nonzeros, nonzeros) / math.comb(features, nonzeros)
    return 1 - apart ** (processes - 1)


def _is_probability(found: Any, right: float) -> bool:
    return is_number(found) and math.isclose(float(found), right, rel_tol=1e-4, abs_tol=1e-12)


Curve = list[tuple[float, int, float]]


def reading(ask: Ask) -> Findings:
    """Curves drawn anew: some reach the target more than once, some never, some with other work than the serial run."""
    random = ask.random

    def curve(factor: int) -> Curve:
        points = int(random.integers(4, 9))
        seconds = random.uniform(1, 9, points).cumsum().round(3)
        accuracies = random.uniform(0.2, 0.9, points).round(3)
        return [
            (float(t), factor * 1000 * (i + 1), float(a))
            for i, (t, a) in enumerate(zip(seconds, accuracies, strict=True))
        ]

    curves = [curve(int(random.integers(1, 4))) for _ in range(6)]
    times = [(one, one[int(random.integers(0, len(one)))][2]) for one in curves]  # met exactly
    times += [(one, max(a for _, _, a in one)) for one in curves[:1]]  # nothing lies above
    times += [(one, round(max(a for _, _, a in one) - 0.001, 3)) for one in curves[:3]]
    times += [(one, 0.95) for one in curves[:2]]
    pairs = [(curves[i], curves[i + 1], min(max(a for _, _, a in one) for one in curves[i : i + 2])) for i in range(5)]
    pairs += [(curves[0], curves[1], 0.95)]
    low, high = sorted(curves[:2], key=lambda one: max(a for _, _, a in one))
    between = (max(a for _, _, a in low) + max(a for _, _, a in high)) / 2
    pairs += [(low, high, between), (high, low, between)]  # one of the two gets there
    found = ask.call("reading", {"times": times, "pairs": pairs})
    answers = found if isinstance(found, dict) else {}
    given = answers.get("times")
    given = given if isinstance(given, list) and len(given) == len(times) else [0.0] * len(times)
    time_right = all(_time(a, _reached(*question)) for a, question in zip(given, times, strict=True))
    told = answers.get("pairs")
    told = told if isinstance(told, list) and len(told) == len(pairs) else [None] * len(pairs)
    is_pair = all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in told)
    told = [pair if isinstance(pair, tuple | list) and len(pair) == 2 else (None, 0.0) for pair in told]
    rates = all(
        close(rate, _rate(other) / _rate(serial)) for (rate, _), (serial, other, _) in zip(told, pairs, strict=True)
    )
    speeds = all(
        _time(speed, _ratio(_reached(serial, target), _reached(other, target)))
        for (_, speed), (serial, other, target) in zip(told, pairs, strict=True)
    )
    wrong = None if is_pair else "speed_up should return a pair"
    return {
        "time": Finding(time_right, "the first point at or above the target, None where there is none" if time_right else
                        "wrong for some curve: one that meets the target exactly, reaches it more than once, or never does",
                        "write down four points, two of them at the target, and read them by hand"),
        "throughput": Finding(rates, "samples per second over samples per second" if rates else
                              wrong or "wrong where the two runs did different numbers of samples, or different times",
                              "double the samples of one run and nothing else: the number must double"),
        "accuracy": Finding(speeds and is_pair, "time to the target over time to the target" if speeds and is_pair else
                            wrong or "wrong for some pair of curves, or not None where a run never reaches the target",
                            "call it with the same curve twice: the answer is 1"),
    }  # fmt: skip


def _reached(curve: Curve, target: float) -> float | None:
    return next((seconds for seconds, _, accuracy in curve if accuracy >= target), None)


def _ratio(serial: float | None, other: float | None) -> float | None:
    return None if serial is None or other is None else serial / other


def _rate(curve: Curve) -> float:
    return curve[-1][1] / curve[-1][0]


def _time(found: Any, right: float | None) -> bool:
    return found is None if right is None else close(found, right)


CHECKS = {
    "share": HiddenCheck(
        share,
        {
            "once": "Every sample once an epoch, over all processes",
            "even": "Shares of equal size, to one sample",
            "order": "A new order in each epoch, the same for the same seed",
        },
    ),
    "loop": HiddenCheck(
        loop,
        {
            "steps": "Plain SGD's steps, and the number of samples",
            "lock": "The lock around the updates, and around nothing else",
            "memory": "Two processes on the same weights lose nothing under the lock",
        },
    ),
    "sparse": HiddenCheck(
        sparse,
        {
            "step": "The step on the batch's own features",
            "repeated": "Features that occur more than once",
            "memory": "Touches the memory of its own features only",
        },
    ),
    "collision": HiddenCheck(
        collision,
        {
            "two": "Two processes",
            "many": "More than two processes",
            "edges": "Dense updates, and a process alone",
        },
    ),
    "reading": HiddenCheck(
        reading,
        {
            "time": "Time to an accuracy",
            "throughput": "Speed-up of throughput",
            "accuracy": "Speed-up of time to accuracy",
        },
    ),
}
