"""Lab 11's visible checks: the reference passes, and typical mistakes are told apart."""

import math

import numpy as np
import pytest
import torch
from notebook_answers import answers

from course_lib.checks import CheckFailed, check

REFERENCE = answers("11_scaling_study")
ANSWERS = {
    "throughput": REFERENCE["steady_throughput"],
    "scaling": REFERENCE["scaling"],
    "laws": (REFERENCE["amdahl"], REFERENCE["gustafson"], REFERENCE["serial_share"]),
    "bytes": REFERENCE["busiest_sends"],
    "model": (REFERENCE["fit_step"], REFERENCE["ranks_worth"]),
}


@pytest.mark.parametrize("exercise", ANSWERS)
def test_the_reference_passes_and_says_so(exercise, capsys):
    assert check(f"lab11.{exercise}", ANSWERS[exercise]) is None
    told = capsys.readouterr()
    assert told.out.count("\n") == 1 and not told.err


def refused(exercise, answer, *words):
    with pytest.raises(CheckFailed) as raised:
        check(f"lab11.{exercise}", answer)
    assert all(word in str(raised.value) for word in words), str(raised.value)


def rate(pick=max, epochs=lambda s: s[1:], middle=np.median, factor=1):
    return lambda images, seconds: (
        factor * images / middle(epochs([pick(epoch) for epoch in zip(*seconds, strict=True)]))
    )


@pytest.mark.parametrize(
    "answer, words",
    [
        (rate(epochs=lambda s: s), ("the first epoch is in it",)),
        (rate(epochs=lambda s: s, middle=np.mean), ("the first epoch is in it", "mean")),
        (rate(middle=np.mean), ("take the median",)),
        (rate(pick=lambda epoch: epoch[0]), ("rank 0's own",)),
        (rate(pick=min), ("fastest rank's",)),
        (lambda images, seconds: images * len(seconds) / rate()(1, seconds) ** -1, ("do not multiply by the ranks",)),
        (
            lambda images, seconds: images / np.median([s for one in seconds for s in one[1:]]),
            ("over all ranks' epochs",),
        ),
        (lambda images, seconds: images / max(np.median(one[1:]) for one in seconds), ("each rank's median first",)),
        (lambda images, seconds: images / rate()(images, seconds), ("not images a second",)),
        (lambda images, seconds: None, ("nothing (None)",)),
        (lambda images, seconds: math.nan, ("a number is asked for",)),
        (lambda images, seconds: True, ("a number is asked for",)),
    ],
)
def test_throughput_mistakes(answer, words):
    refused("throughput", answer, *words)


def table(sequential, times, kind, base=None, share=lambda gain, n: gain / n, up=lambda a, b: a / b, weak=True):
    gains = {
        n: up(base(times) if base else sequential, t) * (n if kind == "weak" and weak else 1) for n, t in times.items()
    }
    return {n: (gain, share(gain, n)) for n, gain in gains.items()}


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"base": lambda times: times.get(1, 10.0)}, ("strong", "the baseline is the sequential program")),
        ({"base": lambda times: times[min(times)]}, ("the baseline is the sequential program",)),
        ({"share": lambda gain, n: gain}, ("the efficiency", "divide it by the ranks")),
        ({"up": lambda a, b: b / a}, ("upside down",)),
        ({"weak": False}, ("weak", "N times the work")),
    ],
)
def test_scaling_mistakes(wrong, words):
    refused("scaling", lambda *given: table(*given, **wrong), *words)
    check("lab11.scaling", table)


def test_scaling_returns_a_table():
    refused("scaling", lambda *given: None, "nothing (None)")
    refused("scaling", lambda sequential, times, kind: {n: (1.0, None) for n in times}, "two numbers")
    refused("scaling", lambda sequential, times, kind: {1: (1.0, 1.0)}, "the keys [1, 2, 4]")
    refused("scaling", lambda sequential, times, kind: {n: (math.nan, 1.0) for n in times}, "two numbers")
    refused(
        "scaling",
        lambda s, times, kind: table(s, times, kind) if kind == "strong" else table(s, times, "strong"),
        "weak",
    )


AMDAHL, GUSTAFSON, SHARE = ANSWERS["laws"]


@pytest.mark.parametrize(
    "three, words",
    [
        ((GUSTAFSON, GUSTAFSON, SHARE), ("amdahl(16, 0.05) is 9.143", "the other law")),
        ((AMDAHL, AMDAHL, SHARE), ("gustafson(16, 0.05)", "the other law")),
        ((lambda n, s: AMDAHL(n, 1 - s), GUSTAFSON, SHARE), ("the share that does not divide",)),
        ((AMDAHL, lambda n, s: None, SHARE), ("nothing (None)",)),
        ((AMDAHL, GUSTAFSON, lambda s: max(0.0, SHARE(s))), ("a negative share",)),
        ((AMDAHL, GUSTAFSON, lambda s: 1 - SHARE(s)), ("the parallel share",)),
        (
            (AMDAHL, GUSTAFSON, lambda s: np.mean([SHARE({n: g}) for n, g in s.items() if n > 1])),
            ("mean of the single shares",),
        ),
        ((AMDAHL, GUSTAFSON, lambda s: SHARE({max(s): s[max(s)]})), ("largest number of ranks alone",)),
        ((AMDAHL, GUSTAFSON, lambda s: math.nan), ("the share is 0.25",)),
    ],
)
def test_law_mistakes(three, words):
    refused("laws", three, *words)


def sends(way, nbytes, ranks, servers=1, ring=2, to_itself=0, own=1, whole=False, received=1):
    if way == "ring":
        return ring * (ranks - 1) / ranks * nbytes
    part = nbytes / servers
    return received * (ranks - 1 + to_itself) * (nbytes if whole else part) + own * (servers - 1) * part


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"ring": 1}, ("ring, 4 rank(s), 12 MB", "the reduce-scatter alone")),
        ({"to_itself": 1}, ("to itself nothing is sent",)),
        ({"own": 0}, ("2 servers", "a server is a worker too")),
        ({"whole": True}, ("its own part only",)),
        ({"received": 2, "own": 0}, ("receives besides",)),
    ],
)
def test_byte_mistakes(wrong, words):
    refused("bytes", lambda *given: sends(*given, **wrong), *words)
    refused("bytes", lambda *given: None, "nothing (None)")
    check("lab11.bytes", sends)


FIT, WORTH = ANSWERS["model"]


def solved(rows, relative=True, messages=2, order=(0, 1, 2, 3)):
    matrix = np.array([[1, b, messages * (n - 1), messages * (n - 1) * g / n] for n, b, g, _ in rows])
    times = np.array([row[3] for row in rows])
    weight = 1 / times if relative else np.ones(len(rows))
    found = np.linalg.lstsq(matrix * weight[:, None], times * weight, rcond=None)[0]
    return tuple(found[list(order)])


@pytest.mark.parametrize(
    "two, words",
    [
        ((lambda rows: solved(rows, relative=False), WORTH), ("up to 6 %", "The long steps decide your fit")),
        ((lambda rows: solved(rows, messages=1), WORTH), ("your alpha", "twice too large")),
        ((lambda rows: solved(rows, order=(2, 3, 0, 1)), WORTH), ("the order is (t0, c, alpha, beta)",)),
        ((lambda rows: None, WORTH), ("nothing (None)",)),
        ((lambda rows: (1.0, 2.0, 3.0, math.nan), WORTH), ("four numbers",)),
        ((lambda rows: (1.0, 2.0, 3.0), WORTH), ("four numbers",)),
        ((FIT, lambda *given: WORTH(*given) + 1), ("not worth it any more",)),
        ((FIT, lambda *given: 4096), ("is what is sent in T(N)?",)),
        ((FIT, lambda *given: 0), ("one rank is always worth it",)),
        ((FIT, lambda *given: float(WORTH(*given))), ("ranks_worth returns an int",)),
        ((FIT, lambda model, batch, nbytes, least, most=4096: WORTH(model, batch, nbytes, least)), ("most = 16",)),
    ],
)
def test_model_mistakes(two, words):
    refused("model", two, *words)


def test_numbers_of_every_kind_pass():
    check(
        "lab11.model",
        (lambda rows: torch.tensor(solved(rows), dtype=torch.float64), lambda *given: np.int64(WORTH(*given))),
    )
    check("lab11.throughput", lambda images, seconds: torch.tensor(rate()(images, seconds), dtype=torch.float64))
