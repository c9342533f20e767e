"""Hidden checks of lab 03."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import torch

from ..criteria import Finding
from .compare import close
from .registry import Ask, Findings, HiddenCheck, shape_of

__all__ = ["CHECKS"]


def _rows(found: Any, count: int, width: int) -> list[tuple[Any, ...]]:
    """What came back, as `count` tuples of `width`; None stands for what is none."""
    rows = found if isinstance(found, list) and len(found) == count else [None] * count
    return [tuple(row) if isinstance(row, tuple | list) and len(row) == width else (None,) * width for row in rows]


def _kind(found: Any, wanted: str) -> str:
    """Why nothing could be judged: what the first answer was, and what it should be."""
    first = found[0] if isinstance(found, list) and found else None
    return f"should return {wanted}, it returned {shape_of(first)}"


def batch_and_steps(ask: Ask) -> Findings:
    questions = []
    for _ in range(6):
        batch, ranks, epochs = (int(n) for n in ask.random.integers([5, 2, 2], [200, 9, 30]))
        # A remainder on each rank, so that rounding up, or once for all, is seen.
        left_on_rank, left = int(ask.random.integers(1, batch)), int(ask.random.integers(1, ranks))
        images = (int(ask.random.integers(3, 60)) * batch + left_on_rank) * ranks + left
        questions.append((batch, ranks, images, epochs))
    found = ask.call("batch_and_steps", questions)
    rows = _rows(found, len(questions), 2)
    effective = all(close(row[0], b * n) for row, (b, n, _, _) in zip(rows, questions, strict=True))
    steps = all(close(row[1], e * (m // n // b)) for row, (b, n, m, e) in zip(rows, questions, strict=True))
    wrong = "is wrong" if rows[0] != (None, None) else _kind(found, "a pair")
    return {
        "effective": Finding(effective, "right for cases drawn anew" if effective else wrong,
                             "two ranks with 32 images each: how many images does one update see?"),
        "steps": Finding(steps, "right for cases drawn anew" if steps else wrong,
                         "deal 100 images to 3 ranks by hand, in batches of 7; count the full batches of a rank, then the epochs"),
    }  # fmt: skip


def scaled_lr(ask: Ask) -> Findings:
    def value(base: float, batch: int, reference: int, rule: str) -> float:
        factor = batch / reference
        return base * {"none": 1.0, "linear": factor, "sqrt": math.sqrt(factor)}[rule]

    whole, parts = [], []
    for rule in ("none", "linear", "sqrt"):
        for _ in range(4):
            reference, factor = (int(n) for n in ask.random.integers([8, 3], [100, 40]))
            base = float(ask.random.uniform(0.01, 0.5))
            whole.append((base, reference * factor, reference, rule))
            below = int(ask.random.integers(2, reference))
            parts.append((base, reference * factor + below, reference, rule))
            parts.append((base, below, reference, rule))
    asked = whole + parts
    found = ask.call("scaled_lr", asked)
    values = found if isinstance(found, list) and len(found) == len(asked) else [None] * len(asked)
    right = {question: close(got, value(*question)) for got, question in zip(values, asked, strict=True)}
    good = {rule: all(right[q] for q in whole if q[3] == rule) for rule in ("none", "linear", "sqrt")}
    scaling = [rule for rule in ("linear", "sqrt") if good[rule]]
    fraction = bool(scaling) and all(right[q] for q in parts if q[3] in scaling)
    plain = good["none"] and all(right[q] for q in parts if q[3] == "none")
    wrong = "is wrong" if isinstance(values[0], int | float | torch.Tensor) else _kind(found, "a number")
    look = "write down the rate for a batch 4 times the reference batch, by hand"
    return {
        "linear": Finding(good["linear"], "right for cases drawn anew" if good["linear"] else wrong, look),
        "sqrt": Finding(good["sqrt"], "right for cases drawn anew" if good["sqrt"] else wrong, look),
        "none": Finding(plain, "leaves the rate as it is" if plain else wrong, "rule 'none' is the constant learning rate"),
        "fraction": Finding(
            fraction,
            "right for factors that are no whole number" if fraction else
            "is wrong where the factor is no whole number, or below 1" if scaling else "no scaling rule is right yet",
            "a batch of 48 against a reference of 32; one of 16",
        ),
    }  # fmt: skip


def noise_or_not(ask: Ask) -> Findings:
    values = [[float(v) for v in ask.random.uniform(0.3, 0.95, int(n))] for n in ask.random.integers(3, 9, 5)]
    pairs, noise = _comparisons(ask.random)
    found = ask.call("noise_or_not", {"values": values, "pairs": pairs})
    found = found if isinstance(found, dict) else {}
    rows = _rows(found.get("summaries"), len(values), 3)
    means = all(close(row[0], statistics.mean(v)) for row, v in zip(rows, values, strict=True))
    spreads = all(close(row[1], statistics.stdev(v)) for row, v in zip(rows, values, strict=True))
    errors = all(close(row[2], statistics.stdev(v) / math.sqrt(len(v))) for row, v in zip(rows, values, strict=True))
    # The error is judged against the spread that was given: n for n − 1 is the spread's mistake alone.
    errors = errors or (
        means
        and all(
            isinstance(row[1], int | float) and row[1] > 0 and close(row[2], row[1] / math.sqrt(len(v)))
            for row, v in zip(rows, values, strict=True)
        )
    )
    verdicts = found.get("verdicts")
    verdicts = verdicts if isinstance(verdicts, list) and len(verdicts) == len(pairs) else [None] * len(pairs)
    decided = all(_truth(verdict) is wanted for verdict, wanted in zip(verdicts, noise, strict=True))
    wrong = "is wrong" if rows[0] != (None,) * 3 else _kind(found.get("summaries"), "three numbers")
    return {
        "mean": Finding(means, "right for runs drawn anew" if means else wrong, "add the values up by hand"),
        "spread": Finding(spreads, "right for runs drawn anew" if spreads else wrong,
                          "three values 1, 2, 3 have a spread of exactly 1"),
        "error": Finding(errors, "right for runs drawn anew" if errors else wrong,
                         "how much less does the mean of four runs wobble than one run?"),
        "decision": Finding(decided, "tells noise from a difference" if decided else "some comparisons are decided wrongly",
                            "write the difference of the means and 2·√(e₁² + e₂²) side by side, for both orders"),
    }  # fmt: skip


def _comparisons(random: np.random.Generator) -> tuple[list[tuple[list[float], list[float]]], list[bool]]:
    """Pairs of runs whose means lie a chosen number of combined standard errors apart; and whether that is noise."""
    pairs, noise = [], []
    for ratio in (0.5, 1.6, 1.85, 2.15, 2.5, 4.0):
        for sign in (1, -1):
            runs = [random.normal(0, random.uniform(0.004, 0.03), int(n)) for n in random.integers(3, 8, 2)]
            runs = [run - run.mean() for run in runs]
            combined = math.sqrt(sum(run.var(ddof=1) / len(run) for run in runs))
            first, second = runs[0] + 0.7, runs[1] + 0.7 + sign * ratio * combined
            pairs.append(([float(v) for v in first], [float(v) for v in second]))
            noise.append(ratio < 2)
    return pairs, noise


def _truth(value: Any) -> bool | None:
    """A truth value, also PyTorch's and numpy's, which arrives as 0 or 1; None for anything else."""
    if isinstance(value, torch.Tensor):
        return bool(value.item()) if value.dim() == 0 and value.dtype is torch.bool else None
    return bool(value) if isinstance(value, int) and value in (0, 1) else None


def noise_scale(ask: Ask) -> Findings:
    questions = []
    for _ in range(5):
        small, factor = (int(n) for n in ask.random.integers([4, 3], [64, 40]))
        signal, noise = float(ask.random.uniform(0.5, 5)), float(ask.random.uniform(50, 500))
        wobble = ask.random.uniform(0.9, 1.1, (2, 6))
        big = small * factor
        small_norms = [float(v) for v in (signal + noise / small) * wobble[0]]
        big_norms = [float(v) for v in (signal + noise / big) * wobble[1]]
        questions.append((small, big, small_norms, big_norms))
    # The last one's gradient is lost in the noise: |G|² comes out below zero.
    small, big = questions[0][:2]
    small_norm = float(ask.random.uniform(5, 50))
    questions.append((small, big, [small_norm], [small_norm * small / big * float(ask.random.uniform(0.3, 0.8))]))
    found = ask.call("noise_scale", questions)
    rows = _rows(found, len(questions), 3)
    signals, noises, scales, quotients = [], [], [], []
    for row, (small, big, small_norms, big_norms) in zip(rows[:-1], questions[:-1], strict=True):
        mean_small, mean_big = statistics.mean(small_norms), statistics.mean(big_norms)
        signal = (big * mean_big - small * mean_small) / (big - small)
        noise = (mean_small - mean_big) / (1 / small - 1 / big)
        signals.append(close(row[0], signal))
        noises.append(close(row[1], noise))
        given = [float(v) if isinstance(v, int | float) and v else math.nan for v in row[:2]]
        quotients.append(noise / signal)
        scales.append(_quotient(row[2], *given))
    lost = isinstance(rows[-1][2], float) and rows[-1][2] == math.inf
    wrong = "is wrong" if rows[0] != (None,) * 3 else _kind(found, "three numbers")
    exact = all(close(row[2], q) for row, q in zip(rows[:-1], quotients, strict=True))
    ratio = exact or (all(scales) and (all(signals) or all(noises)))
    return {
        "signal": Finding(all(signals), "right for norms drawn anew" if all(signals) else wrong,
                          "insert |G_b|² = |G|² + tr Σ/b and |G_B|² = |G|² + tr Σ/B into your formula: is |G|² left?"),
        "noise": Finding(all(noises), "right for norms drawn anew" if all(noises) else wrong,
                         "insert |G_b|² = |G|² + tr Σ/b and |G_B|² = |G|² + tr Σ/B into your formula: is tr Σ left?"),
        "scale": Finding(ratio, "the quotient of the two averages" if ratio else "is not the quotient of the two averages",
                         "for two measurements write down the mean of the quotients and the quotient of the means"),
        "lost": Finding(lost, "infinite where |G|² is not positive" if lost else
                        "is not infinite where the estimate of |G|² is below 0",
                        "try squared norms 10.0 at batch 16 and 1.0 at batch 64"),
    }  # fmt: skip


def _quotient(scale: Any, signal: float, noise: float) -> bool:
    """Whether the scale is the quotient of the two numbers given beside it: their mistake is not this part's."""
    return math.isfinite(signal) and math.isfinite(noise) and signal > 0 and close(scale, noise / signal)


def prediction(ask: Ask) -> Findings:
    steps, batches = [], []
    for _ in range(6):
        batch, known_batch, known_steps = (int(n) for n in ask.random.integers([4, 4, 100], [5000, 500, 9000]))
        steps.append((batch, float(ask.random.uniform(50, 3000)), known_batch, known_steps))
        batches.append((float(ask.random.uniform(50, 3000)), float(ask.random.uniform(0.1, 4))))
    found = ask.call("prediction", {"steps": steps, "batches": batches})
    found = found if isinstance(found, dict) else {}
    rows = {name: value if isinstance(value, list) and len(value) == 6 else [None] * 6
            for name, value in ((name, found.get(name)) for name in ("steps", "batches"))}  # fmt: skip
    predicted = all(
        close(got, n * (1 + scale / batch) / (1 + scale / known))
        for got, (batch, scale, known, n) in zip(rows["steps"], steps, strict=True)
    )
    useful = all(close(got, scale * extra) for got, (scale, extra) in zip(rows["batches"], batches, strict=True))
    reasons = {
        name: "is wrong" if isinstance(value[0], int | float | torch.Tensor) else _kind(found.get(name), "a number")
        for name, value in rows.items()
    }
    return {
        "steps": Finding(predicted, "right for cases drawn anew" if predicted else reasons["steps"],
                         "at the known batch it must give the known steps; at the noise scale twice S_min"),
        "batch": Finding(useful, "right for cases drawn anew" if useful else reasons["batches"],
                         "at which batch is B/B_noise the part that may be spent on top?"),
    }  # fmt: skip


CHECKS = {
    "batch-and-steps": HiddenCheck(
        batch_and_steps, {"effective": "Effective batch", "steps": "Steps of all epochs, incomplete batches dropped"}
    ),
    "scaled-lr": HiddenCheck(
        scaled_lr,
        {
            "linear": "Linear scaling",
            "sqrt": "Square-root scaling",
            "none": "The constant learning rate",
            "fraction": "Factors that are no whole number, and below 1",
        },
    ),
    "noise-or-not": HiddenCheck(
        noise_or_not,
        {
            "mean": "Mean",
            "spread": "Spread of single runs (n − 1)",
            "error": "Standard error of the mean",
            "decision": "Tells noise from a difference",
        },
    ),
    "noise-scale": HiddenCheck(
        noise_scale,
        {
            "signal": "|G|², free of bias",
            "noise": "tr Σ, free of bias",
            "scale": "B_noise from averages",
            "lost": "A gradient lost in noise",
        },
    ),
    "prediction": HiddenCheck(prediction, {"steps": "Steps at another batch", "batch": "The useful batch"}),
}
