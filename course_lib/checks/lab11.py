"""Checks of lab 11: rates, laws, bytes, and the model of a step."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from course_lib.checks.lab11_model import model
from course_lib.checks.lab11_numbers import as_number, shown
from course_lib.checks.registry import CheckFailed
from course_lib.checks.run_evidence import check_run
from course_lib.metrics import steady_throughput
from course_lib.scaling_model import amdahl_speedup, fit_serial_share, gustafson_speedup

__all__ = ["CHECKS"]


def throughput(answer: Callable[..., Any]) -> None:
    cases = [
        (600, [[9.0, 2.0, 3.0, 2.2], [5.0, 2.5, 2.0, 4.0]]),
        (1000, [[4.0, 2.0]]),
        (960, [[8.0, 1.0, 5.0, 1.2, 1.1]]),
        (120, [[1.0, 3.0, 3.0], [9.0, 2.0, 2.0], [1.0, 1.0, 4.0]]),
    ]
    for images, seconds in cases:
        found = as_number(answer(images, [list(one) for one in seconds]))
        expected = steady_throughput(images, seconds)
        if found is None:
            raise CheckFailed(
                f"{images} images: a number is asked for, yours returned {shown(answer(images, seconds))}"
            )
        if math.isclose(found, expected, rel_tol=1e-6):
            continue
        raise CheckFailed(
            f"{images} images an epoch, ranks with epochs of {seconds} s: the rate is {expected:.4g} images/s, yours "
            f"{found:.4g}: {_likely_rate(found, images, seconds)}"
        )
    print("steady_throughput: right for 1, 2 and 3 ranks, with a slow first epoch and with one that was disturbed")


def _likely_rate(found: float, images: int, seconds: list[list[float]]) -> str:
    slowest = [max(epoch) for epoch in zip(*seconds, strict=True)]
    for reason, wrong in {
        "the first epoch is in it; leave it out": images / statistics.median(slowest),
        "the first epoch is in it, and the mean is not the median": images / statistics.fmean(slowest),
        "that is the mean of the epochs; one disturbed epoch moves it, so take the median": images / statistics.fmean(slowest[1:]),
        "that is rank 0's own; an epoch ends when the slowest rank has finished": images / statistics.median(seconds[0][1:]),
        "that is the median over all ranks' epochs; first find each epoch's slowest rank": images / statistics.median([s for one in seconds for s in one[1:]]),
        "that is the fastest rank's; an epoch ends when the slowest has finished": images / statistics.median([min(e) for e in zip(*seconds, strict=True)][1:]),
        "the images are those of all ranks together already; do not multiply by the ranks": len(seconds) * images / statistics.median(slowest[1:]),
        "that is the seconds, not images a second": statistics.median(slowest[1:]),
        "you took each rank's median first; the slowest rank of an epoch may be another one each time": images / max(statistics.median(one[1:]) for one in seconds),
    }.items():  # fmt: skip
        if math.isclose(found, wrong, rel_tol=1e-6):
            return reason
    return "images over the median of the slowest rank's seconds, from the second epoch on"


def scaling(answer: Callable[..., Any]) -> None:
    sequential = 10.0
    for kind, times in (
        ("strong", {1: 11.0, 2: 6.0, 4: 4.0}),
        ("weak", {1: 11.0, 2: 12.5, 8: 16.0}),
        ("strong", {4: 2.5, 16: 1.25}),
    ):
        found = answer(sequential, dict(times), kind)
        if not isinstance(found, dict) or set(found) != set(times):
            raise CheckFailed(
                f"scaling returns a dictionary with the keys {list(times)}; yours returned {shown(found)}"
            )
        for ranks, seconds in times.items():
            pair = found[ranks]
            if not isinstance(pair, tuple | list) or len(pair) != 2 or None in map(as_number, pair):
                raise CheckFailed(
                    f"{ranks} ranks: two numbers are asked for, (speed-up, efficiency); yours: {shown(pair)}"
                )
            gain = (ranks if kind == "weak" else 1) * sequential / seconds
            for name, value, wanted in zip(
                ("speed-up", "efficiency"), map(as_number, pair), (gain, gain / ranks), strict=True
            ):
                if not math.isclose(value, wanted, rel_tol=1e-6):
                    raise CheckFailed(
                        f"{kind} scaling, sequential {sequential:g} s, {ranks} rank(s) {seconds:g} s: the {name} is "
                        f"{wanted:.4g}, yours {value:.4g}: {_likely_scaling(name, value, kind, ranks, times, sequential, pair)}"
                    )  # fmt: skip
    print("scaling: strong and weak, against the sequential program")


def _likely_scaling(name, value, kind, ranks, times, sequential, pair) -> str:
    weak = ranks if kind == "weak" else 1
    first = times.get(1, math.nan)
    if name == "efficiency":
        if math.isclose(value, as_number(pair[0]), rel_tol=1e-6):
            return "that is the speed-up again; divide it by the ranks"
        return "the speed-up divided by the ranks"
    for reason, wrong in {
        "you divide by the parallel program's time on 1 rank; the baseline is the sequential program": weak * first / times[ranks],
        "upside down: the sequential time over the parallel one": weak * times[ranks] / sequential,
        "that is weak scaling's; here the work is the same, so N is not in it": ranks * sequential / times[ranks],
        "each rank has done as much as the sequential program, N times the work in all": sequential / times[ranks],
        "the baseline is the sequential program, not the smallest number of ranks": weak * times[min(times)] / times[ranks],
    }.items():  # fmt: skip
        if math.isclose(value, wrong, rel_tol=1e-6):
            return reason
    return "N · T_seq / T(N)" if kind == "weak" else "T_seq / T(N)"


def laws(answer: tuple[Callable[..., Any], ...]) -> None:
    amdahl, gustafson, serial_share = answer
    for ranks, serial in ((16, 0.05), (2, 0.25), (2048, 0.0), (64, 1.0)):
        for name, mine, right, formula in (
            ("amdahl", amdahl, amdahl_speedup, "1 / (s + (1 − s)/N)"),
            ("gustafson", gustafson, gustafson_speedup, "s + (1 − s)·N"),
        ):
            found, expected = as_number(mine(ranks, serial)), right(ranks, serial)
            if found is None or not math.isclose(found, expected, rel_tol=1e-6):
                other = (amdahl_speedup if name == "gustafson" else gustafson_speedup)(ranks, serial)
                likely = formula
                if found is not None and math.isclose(found, other, rel_tol=1e-6):
                    likely = f"that is the other law; this is {formula}"
                elif found is not None and math.isclose(found, right(ranks, 1 - serial), rel_tol=1e-6):
                    likely = f"`serial` is the share that does not divide: {formula}"
                raise CheckFailed(
                    f"{name}({ranks}, {serial:g}) is {expected:.4g}, yours {shown(mine(ranks, serial))}: {likely}"
                )
    for speedups in (
        {2: 1.6},
        {1: 1.0, 2: 1.6},
        {1: 1.0, 2: 1.9, 4: 3.2, 8: 5.6, 16: 7.5},
        {2: 2.2, 4: 4.1},
        {3: 2.0, 32: 25.0},
    ):
        found, (expected, _) = serial_share(dict(speedups)), fit_serial_share(speedups)
        value = as_number(found)
        if value is None or not math.isclose(value, expected, rel_tol=1e-6, abs_tol=1e-9):
            raise CheckFailed(
                f"speed-ups {speedups}: the share is {expected:.4g}, yours {shown(found)}: {_likely_share(value, speedups)}"
            )
    print("laws: both agree with their formulas; the share is the least-squares slope, also where it is negative")


def _likely_share(value: float | None, speedups: dict[int, float]) -> str:
    points = [(1 - 1 / n, 1 / s - 1 / n) for n, s in speedups.items() if n > 1]
    x, y = (np.array(each) for each in zip(*points, strict=True))
    wrong = {
        "that is the mean of the single shares y/x; Σxy / Σx² lets large N count more": float((y / x).mean()),
        "that is Σy / Σx; the least-squares slope is Σxy / Σx²": float(y.sum() / x.sum()),
        "it is cut off at 0; a negative share tells that the baseline is wrong": max(0.0, float(x @ y / (x @ x))),
        "that is the share of the largest number of ranks alone": float(y[-1] / x[-1]),
        "that is the parallel share, 1 − s": 1 - float(x @ y / (x @ x)),
        "the line has an intercept; this one goes through the origin": float(np.polyfit(x, y, 1)[0])
        if len(x) > 1
        else math.nan,
    }
    for reason, other in wrong.items():
        if value is not None and math.isclose(value, other, rel_tol=1e-6, abs_tol=1e-12):
            return reason
    return "Σxy / Σx² with y = 1/S − 1/N and x = 1 − 1/N"


def sent_bytes(answer: Callable[..., Any]) -> None:
    for way, nbytes, ranks, servers in (
        ("ring", 12e6, 4, 1),
        ("ring", 12e6, 4, 3),
        ("parameter server", 12e6, 4, 1),
        ("parameter server", 12e6, 4, 2),
        ("parameter server", 12e6, 4, 4),
        ("ring", 1e6, 1, 1),
        ("parameter server", 1e6, 1, 1),
        ("parameter server", 102e6, 16, 1),
    ):
        part = nbytes / servers
        expected = 2 * (ranks - 1) / ranks * nbytes if way == "ring" else (ranks + servers - 2) * part
        given = (way, nbytes, ranks) if servers == 1 else (way, nbytes, ranks, servers)
        returned = answer(*given)
        found = as_number(returned)
        if found is not None and math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-6):
            continue
        told = f"{way}, {ranks} rank(s), {nbytes / 1e6:g} MB" + (f", {servers} servers" if servers > 1 else "")
        likely = f"a rank sends {expected / nbytes:.4g} times the gradient"
        for reason, wrong in {
            "a server sends to the N − 1 others; to itself nothing is sent": ranks * part + (servers - 1) * part,
            "a server is a worker too: it sends the other servers' parts of its own gradient": (ranks - 1) * part,
            "a server sends its own part only, n/k bytes": (ranks - 1) * nbytes + (servers - 1) * part,
            "that is what a worker sends; the server sends more": nbytes * (1 if servers == 1 else (servers - 1) / servers),
            "that counts what the server receives besides; asked is what it sends": 2 * (ranks - 1) * nbytes,
            "that is the reduce-scatter alone; the all-gather sends as much again": (ranks - 1) / ranks * nbytes,
            "what it is the server of itself, a worker keeps": (ranks - 1) * part + nbytes,
        }.items():  # fmt: skip
            if (
                found is not None
                and math.isclose(found, wrong, rel_tol=1e-6)
                and not (way == "ring" and "server" in reason)
            ):
                likely = reason
                break
        raise CheckFailed(f"{told}: the busiest rank sends {expected / 1e6:.4g} MB, yours says {_megabytes(found, returned)}: {likely}")  # fmt: skip
    print("busiest_sends: ring, one server, several, and one on every rank, which sends what the ring does")


def _megabytes(found: float | None, returned: Any) -> str:
    return shown(returned) if found is None else f"{found / 1e6:.4g} MB"


CHECKS = {
    "throughput": throughput,
    "scaling": scaling,
    "laws": laws,
    "bytes": sent_bytes,
    "model": model,
    "run": lambda folder: check_run(folder, "11_scaling_study"),
}
