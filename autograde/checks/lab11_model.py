"""Hidden check of lab 11's model of a step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..criteria import Finding
from .compare import is_int, is_number, number
from .registry import Ask, Findings, shape_of

__all__ = ["model"]

Rows = list[tuple[int, int, int, float]]


def _row(ranks: int, batch: int, nbytes: float) -> list[float]:
    return [1.0, batch, 2 * (ranks - 1), 2 * (ranks - 1) * nbytes / ranks]


def _solved(rows: Rows, relative: bool = True) -> list[float]:
    matrix, times = np.array([_row(*row[:3]) for row in rows]), np.array([row[3] for row in rows])
    weight = 1 / times if relative else np.ones_like(times)
    matrix = matrix * weight[:, None]
    scale = np.linalg.norm(matrix, axis=0)
    return (np.linalg.lstsq(matrix / scale, times * weight, rcond=None)[0] / scale).tolist()


def _same(found: Any, wanted: list[float]) -> bool:
    return (
        isinstance(found, list | tuple)
        and len(found) == 4
        and all(is_number(a) and math.isclose(number(a), b, rel_tol=1e-3, abs_tol=1e-14) for a, b in zip(found, wanted, strict=True))
    )  # fmt: skip


def _fit(ask: Ask) -> Findings:
    random = ask.random
    fours = [
        (10 ** random.uniform(-3.5, -2), 10 ** random.uniform(-4.5, -2.5), 10 ** random.uniform(-5, -3.5), 10 ** random.uniform(-9.8, -8.5))
        for _ in range(6)
    ]  # fmt: skip
    exact, noisy = [], []
    for four in fours:
        points = [(1, b, 100_000) for b in (4, 32, 512)]
        points += [(n, b, size) for n in (2, 4, 8) for b in (4, 128, 1024) for size in (100_000, 4_000_000, 50_000_000)]
        rows = [(n, b, size, float(np.dot(_row(n, b, size), four))) for n, b, size in points]
        exact.append(rows)
        noisy.append([(n, b, size, t * (1 + 0.08 * float(random.uniform(-1, 1)))) for n, b, size, t in rows])
    found = ask.call("fit", exact + noisy)
    found = found if isinstance(found, list) and len(found) == 12 else [None] * 12
    look = "make times from four numbers of your own, fit them, and compare; then multiply each by 1 ± 0.05"
    on_line = all(_same(one, _solved(rows)) for one, rows in zip(found[:6], exact, strict=True))
    line = Finding(on_line, "exact where the times are the model's", look)
    if not on_line:
        first = found[0]
        if not (isinstance(first, list | tuple) and len(first) == 4):
            reason = f"should return four numbers (t0, c, alpha, beta), it returned {shape_of(first)}"
        elif not all(is_number(one) for one in first):
            reason = "should return four finite numbers (t0, c, alpha, beta)"
        elif np.allclose(sorted(map(number, first)), sorted(fours[0]), rtol=1e-2, atol=0):
            reason = "the four numbers are in another order than (t0, c, alpha, beta)"
        else:
            reason = "where the times are the model's, it does not find the numbers that made them"
        return {"line": Finding(False, reason, look), "noise": Finding(False, reason, look)}
    right = all(_same(one, _solved(rows)) for one, rows in zip(found[6:], noisy, strict=True))
    noise = Finding(right, "the errors count relative to the times", look)
    if not right:
        reason = "with times that are off by 8 %, the four numbers are not the best ones"
        if all(_same(one, _solved(rows, relative=False)) for one, rows in zip(found[6:], noisy, strict=True)):
            reason = "with times that are off by 8 %, the long steps decide the fit"
        noise = Finding(False, reason, "divide each row, and its right-hand side, by its seconds")
    return {"line": line, "noise": noise}


def _worth(ask: Ask) -> Finding:
    random, cases, right = ask.random, [], []
    while len(cases) < 8:
        four = (
            10 ** random.uniform(-4, -2.5),
            10 ** random.uniform(-4.5, -2.5),
            10 ** random.uniform(-6, -4),
            10 ** random.uniform(-10, -9),
        )
        batch, nbytes, least = (
            int(random.integers(8, 256)),
            int(random.integers(10**5, 10**7)),
            float(random.uniform(0.3, 0.95)),
        )
        most = [4096, 64][len(cases) % 2]
        shares = [
            float(np.dot(_row(1, batch, nbytes), four) / np.dot(_row(n, batch, nbytes), four))
            for n in range(1, most + 1)
        ]
        if min(abs(share - least) for share in shares) > 1e-7:  # rounding decides nothing
            cases.append((four, batch, nbytes, least, most))
            right.append(max(n for n, share in enumerate(shares, 1) if share >= least))
    free = ((1e-3, 1e-3, 0.0, 1e-12), 64, 1000, 0.9, 300)
    found = ask.call("worth", [*cases, free])
    found = found if isinstance(found, list) and len(found) == 9 else [None] * 9
    right.append(300)
    look = "t0 = 0, c = 2.57 ms, α = 20 µs, β = 0.1 ns, 32 images, 102 MB, 0.5: it is 1,547 ranks"
    if all(is_int(a, b) for a, b in zip(found, right, strict=True)):
        return Finding(True, "the largest number of ranks whose efficiency is enough")
    if not all(type(one) is int for one in found):
        return Finding(
            False,
            f"should return an int, it returned {shape_of(next(one for one in found if type(one) is not int))}",
            look,
        )
    if all(a in (b, b + 1) for a, b in zip(found, right, strict=True)):
        return Finding(False, "it is one rank too many: the first whose efficiency is not enough", look)
    if all(is_int(a, b) for a, b, (*_, most) in zip(found, right, [*cases, free], strict=True) if most == 4096):
        return Finding(False, "it does not stop at `most`", look)
    return Finding(False, "it is not the largest number of ranks whose T(1)/T(N) is enough", look)


def model(ask: Ask) -> Findings:
    """Fits of the model's own times and of noisy ones; the ranks that are worth it for drawn numbers."""
    return {**_fit(ask), "worth": _worth(ask)}
