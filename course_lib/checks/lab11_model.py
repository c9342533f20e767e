"""Check of lab 11's fifth exercise: the fit of a step, and the ranks that are worth having."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from course_lib.checks.lab11_numbers import as_number, shown
from course_lib.checks.registry import CheckFailed

__all__ = ["model"]

NAMES = ("t0", "c", "alpha", "beta")
LOOK = "the row is [1, b, 2(N − 1), 2(N − 1)·n/N]"
WOBBLE = (1.05, 0.95, 0.96, 1.04, 1.02, 0.97, 1.03, 0.94, 1.06, 1.01, 0.98, 0.95, 1.05, 0.99)


def _row(ranks: int, batch: int, nbytes: float) -> list[float]:
    return [1.0, batch, 2 * (ranks - 1), 2 * (ranks - 1) * nbytes / ranks]


def _rows(four: tuple[float, ...], noisy: bool) -> list[tuple[int, int, int, float]]:
    points = [(1, b, 140_000) for b in (4, 64, 1024)] + [
        (n, b, size)
        for n in (2, 3, 8)
        for b, size in ((4, 140_000), (64, 4_000_000), (1024, 140_000), (16, 32_000_000))
    ]
    rows = []
    for index, (ranks, batch, nbytes) in enumerate(points):
        seconds = float(np.dot(_row(ranks, batch, nbytes), four))
        rows.append((ranks, batch, nbytes, seconds * (WOBBLE[index % len(WOBBLE)] if noisy else 1)))
    return rows


def _solved(rows: list[tuple[int, int, int, float]], relative: bool) -> list[float]:
    matrix = np.array([_row(*row[:3]) for row in rows])
    times = np.array([row[3] for row in rows])
    weight = 1 / times if relative else np.ones_like(times)
    return np.linalg.lstsq(matrix * weight[:, None], times * weight, rcond=None)[0].tolist()


def model(answer: tuple[Callable[..., Any], Callable[..., Any]]) -> None:
    fit_step, ranks_worth = answer
    for noisy in (False, True):
        for four in ((1e-3, 80e-6, 400e-6, 5e-10), (5e-3, 2.5e-3, 20e-6, 1e-10)):
            rows = _rows(four, noisy)
            _check_fit(fit_step(list(rows)), four, rows, noisy)
    for four, batch, nbytes, least in (
        ((1e-3, 80e-6, 20e-6, 1e-9), 64, 140_000, 0.9),
        ((0.0, 2.57e-3, 20e-6, 1e-10), 32, 102_000_000, 0.5),
        ((1e-3, 80e-6, 1e-3, 0.0), 64, 140_000, 0.9),
        ((1e-3, 1e-3, 0.0, 1e-12), 64, 1000, 0.9),
    ):
        _check_worth(ranks_worth(four, batch, nbytes, least), four, batch, nbytes, least)
    found = ranks_worth((1e-3, 1e-3, 0.0, 1e-12), 64, 1000, 0.9, 16)
    if found != 16:
        raise CheckFailed(
            f"with most = 16 and a link that costs next to nothing all 16 are worth it; yours says {shown(found)}"
        )
    print("model: exact without noise, right with 6 % of it; the ranks that are worth it agree with the formula")


def _check_fit(returned: Any, four: tuple[float, ...], rows: list, noisy: bool) -> None:
    if isinstance(returned, np.ndarray | torch.Tensor) and returned.ndim == 1:
        returned = returned.tolist()
    if not isinstance(returned, tuple | list) or len(returned) != 4:
        raise CheckFailed(f"fit_step returns four numbers, (t0, c, alpha, beta); yours returned {shown(returned)}")
    found = [as_number(one) for one in returned]
    if None in found:
        raise CheckFailed(f"fit_step returns four numbers; yours returned {shown(returned)}")
    told = f"steps made from t0 = {four[0]:g}, c = {four[1]:g}, α = {four[2]:g}, β = {four[3]:g}" + (
        ", each off by up to 6 %" if noisy else ""
    )
    wanted = _solved(rows, True)
    for name, value, right in zip(NAMES, found, wanted, strict=True):
        if math.isclose(value, right, rel_tol=1e-3, abs_tol=1e-14):
            continue
        if noisy and np.allclose(found, _solved(rows, False), rtol=1e-3, atol=1e-14):
            raise CheckFailed(
                f"{told}: your {name} is {value:.4g} where {right:.4g} fits best. The long steps decide your fit: divide each "
                "row, and its right-hand side, by its seconds"
            )
        raise CheckFailed(f"{told}: your {name} is {value:.4g}, it is {right:.4g}: {_likely_fit(found, four, name)}")


def _likely_fit(found: list[float], four: tuple[float, ...], name: str) -> str:
    if np.allclose(sorted(found), sorted(four), rtol=1e-2, atol=0):
        return "the order is (t0, c, alpha, beta)"
    index = NAMES.index(name)
    if math.isclose(found[index], 2 * four[index], rel_tol=0.05):
        return f"twice too large: a ring has 2(N − 1) messages, N − 1 twice; {LOOK}"
    if name in ("alpha", "beta"):
        return f"what does a ring send? {LOOK}"
    return LOOK


def _check_worth(returned: Any, four: tuple[float, ...], batch: int, nbytes: int, least: float) -> None:
    def share(ranks: int) -> float:
        return float(np.dot(_row(1, batch, nbytes), four) / np.dot(_row(ranks, batch, nbytes), four))

    expected = max(n for n in range(1, 4097) if share(n) >= least)
    if not isinstance(returned, int | np.integer) or isinstance(returned, bool):
        raise CheckFailed(f"ranks_worth returns an int; yours returned {shown(returned)}")
    if returned == expected:
        return
    told = (
        f"t0 = {four[0]:g}, c = {four[1]:g}, α = {four[2]:g}, β = {four[3]:g}, {batch} images a rank, {nbytes:,} bytes"
    )
    likely = (
        "T(1) has no messages, T(N) has 2(N − 1) of n/N bytes; look for the largest N whose T(1)/T(N) is at least that"
    )
    if returned == expected + 1:
        likely = "that is the first number of ranks that is not worth it any more"
    elif returned == 4096:
        likely = "you ran to the end; is what is sent in T(N)?"
    elif returned < 1:
        likely = "one rank is always worth it: nothing is sent there"
    raise CheckFailed(
        f"{told}: an efficiency of {least:.0%} holds up to {expected} ranks ({share(expected):.4f} there, "
        f"{share(expected + 1):.4f} with one more), yours says {returned}: {likely}"
    )
