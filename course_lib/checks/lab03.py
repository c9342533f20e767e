"""Checks of lab 03."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from course_lib.checks.registry import CheckFailed
from course_lib.checks.run_evidence import check_run

__all__ = ["CHECKS"]


def batch_and_steps(answer: Callable[..., Any]) -> None:
    for batch, ranks, images, epochs in ((32, 4, 12_000, 8), (64, 1, 1000, 1), (256, 2, 12_000, 3), (7, 3, 100, 5)):
        told = f"{ranks} rank(s) × {batch} images, {images:,} training images, {epochs} epoch(s)"
        effective, steps = _numbers(
            answer(batch, ranks, images, epochs), 2, "batch_and_steps", "(effective batch, steps)"
        )
        if effective != batch * ranks:
            likely = "the averaged gradient covers every rank's images: batch_size × num_ranks"
            if effective == batch:
                likely = "that is one rank's share; " + likely
            raise CheckFailed(f"{told}: the effective batch is {batch * ranks}, yours is {effective:g}: {likely}")
        expected = epochs * (images // ranks // batch)
        if steps == expected:
            continue
        likely = "an epoch has images // num_ranks // batch_size steps; an incomplete last batch is dropped"
        if steps == epochs * (images // batch):
            likely = "you counted the steps of one rank that sees all images; each rank has a share of them. " + likely
        elif epochs > 1 and steps == expected // epochs:
            likely = "that is one epoch; all of them are asked for"
        elif math.isclose(steps, epochs * images / ranks / batch):
            likely = "there is no part of a step: round down in each epoch. " + likely
        elif steps > expected:
            likely = "did you round up, or round once over all epochs? " + likely
        raise CheckFailed(f"{told}: {expected:,} steps in all, yours are {steps:g}: {likely}")
    print("batch_and_steps: right for 4 ways of dealing out the images")


def scaled_lr(answer: Callable[..., Any]) -> None:
    for base, batch, reference in ((0.02, 512, 32), (0.1, 64, 64), (0.3, 48, 32), (0.05, 16, 64)):
        factor = batch / reference
        expected = {"none": base, "linear": base * factor, "sqrt": base * math.sqrt(factor)}
        for rule, value in expected.items():
            found = _number(answer(base, batch, reference, rule), "scaled_lr")
            if math.isclose(found, value, rel_tol=1e-6):
                continue
            told = f"base_lr {base}, batch {batch}, reference batch {reference}, rule {rule!r}"
            likely = f"k is batch / reference_batch = {factor:g}"
            if math.isclose(found, base * batch) or math.isclose(found, base * math.sqrt(batch)):
                likely = "you scaled by the batch itself; base_lr belongs to the reference batch, and " + likely
            elif math.isclose(found, base / factor) or math.isclose(found, base / math.sqrt(factor)):
                likely = "you divided: the larger batch takes fewer steps, so each must be longer"
            elif batch % reference and any(
                math.isclose(found, base * f(batch // reference)) for f in (float, math.sqrt)
            ):
                likely += "; // cuts it to a whole number"
            elif any(math.isclose(found, other) for name, other in expected.items() if name != rule):
                name = next(name for name, other in expected.items() if name != rule and math.isclose(found, other))
                likely = f"that is rule {name!r}"
            raise CheckFailed(f"{told}: the learning rate is {value:.4g}, yours is {found:.4g}: {likely}")
    print("scaled_lr: three rules, right above, at and below the reference batch")


def noise_or_not(answer: tuple[Callable[..., Any], Callable[..., Any]]) -> None:
    summarise, is_noise = _two(answer, "summarise, is_noise")
    for values in ([0.80, 0.82, 0.84], [0.91, 0.79], [0.5, 0.5, 0.5, 0.5], [0.86, 0.84, 0.87, 0.85, 0.90]):
        mean, spread, error = _numbers(summarise(list(values)), 3, "summarise", "(mean, spread, standard error)")
        wanted = statistics.stdev(values)
        if not math.isclose(mean, statistics.mean(values), rel_tol=1e-6):
            raise CheckFailed(f"the mean of {values} is {statistics.mean(values):.4f}, yours is {mean:.4f}")
        if not math.isclose(spread, wanted, rel_tol=1e-6, abs_tol=1e-12):
            likely = "it is the root of the summed squared distances from the mean, divided by n − 1"
            if math.isclose(spread, statistics.pstdev(values), rel_tol=1e-6):
                likely = (
                    "you divided by n. The distances are taken from the values' own mean, which lies too close to them; "
                    "n − 1 makes up for it (numpy: ddof=1)"
                )
            elif math.isclose(spread, wanted**2, rel_tol=1e-6):
                likely = "that is the variance; take its root"
            elif math.isclose(spread, max(values) - min(values), rel_tol=1e-6):
                likely = "that is the range, which grows with the number of runs; " + likely
            raise CheckFailed(f"the spread of {values} is {wanted:.5f}, yours is {spread:.5f}: {likely}")
        if not math.isclose(error, wanted / math.sqrt(len(values)), rel_tol=1e-6, abs_tol=1e-12):
            likely = "the mean of n runs spreads √n times less than one run: spread / √n"
            if math.isclose(error, wanted / len(values), rel_tol=1e-6):
                likely = "you divided by n; " + likely
            elif math.isclose(error, wanted, rel_tol=1e-6):
                likely = "that is one run's spread; " + likely
            raise CheckFailed(
                f"the standard error of {values} is {wanted / math.sqrt(len(values)):.5f}, yours is {error:.5f}: {likely}"
            )
    for first, second, expected, why in (
        ([0.80, 0.82, 0.84], [0.81, 0.83, 0.85], True, "1 point apart, 2 standard errors of the difference are 3.3"),
        ([0.80, 0.82, 0.84], [0.86, 0.88, 0.90], False, "6 points apart, 2 standard errors of the difference are 3.3"),
        ([0.86, 0.88, 0.90], [0.80, 0.82, 0.84], False, "−6 points apart: the sign does not matter (abs)"),
        ([0.800, 0.801, 0.802], [0.806, 0.807, 0.808], False, "0.6 points apart, 2 standard errors are 0.16"),
        ([0.80, 0.82, 0.84], [0.827, 0.847, 0.867], True,
         "2.7 points apart, and both means are uncertain: 2·√(1.15² + 1.15²) is 3.3 points, not 2·1.15"),
        ([0.80, 0.82, 0.84], [0.84, 0.86, 0.88], False,
         "4 points apart; the errors add as squares, 2·√(1.15² + 1.15²) is 3.3 points; a sum, or the spreads, would be more"),
    ):  # fmt: skip
        found = is_noise(list(first), list(second))
        if found is None:
            raise CheckFailed("is_noise returned nothing (None): is there a return?")
        if bool(found) is not expected:
            raise CheckFailed(f"{first} against {second}: is_noise must be {expected}: {why}")
    print("summarise, is_noise: right on four sets of runs and six comparisons")


def noise_scale(answer: Callable[..., Any]) -> None:
    # Expected squared norms for |G|² = 2 and tr Σ = 300: E|G_B|² = |G|² + tr Σ / B, wobbling about it.
    small_norms, big_norms = [13.0, 9.75, 11.375], [2.0, 2.75, 2.125]  # b = 32: 2 + 300/32; B = 1024: 2 + 300/1024
    small, big = 32, 1024
    signal, noise, scale = _numbers(
        answer(small, big, list(small_norms), list(big_norms)), 3, "noise_scale", "(|G|², tr Σ, B_noise)"
    )
    mean_small, mean_big = statistics.mean(small_norms), statistics.mean(big_norms)
    true_signal = (big * mean_big - small * mean_small) / (big - small)
    true_noise = (mean_small - mean_big) / (1 / small - 1 / big)
    told = f"batches of {small} and {big}, mean squared norms {mean_small:.3f} and {mean_big:.3f}"
    if not math.isclose(signal, true_signal, rel_tol=1e-4):
        likely = "(B·|G_B|² − b·|G_b|²) / (B − b)"
        if math.isclose(signal, mean_big, rel_tol=1e-4):
            likely = "that is |G_B|² as measured, which still holds tr Σ / B of noise; " + likely
        elif math.isclose(signal, (small * mean_big - big * mean_small) / (small - big), rel_tol=1e-4):
            likely = "the batches are swapped: " + likely
        elif math.isclose(signal, math.sqrt(true_signal), rel_tol=1e-4):
            likely = "that is |G|; the squared length is asked for"
        raise CheckFailed(f"{told}: |G|² is {true_signal:.4f}, yours is {signal:.4f}: {likely}")
    if not math.isclose(noise, true_noise, rel_tol=1e-4):
        likely = "(|G_b|² − |G_B|²) / (1/b − 1/B)"
        if math.isclose(noise, -true_noise, rel_tol=1e-4):
            likely = "a variance is not negative; the signs are turned: " + likely
        elif math.isclose(noise, mean_small - mean_big, rel_tol=1e-4):
            likely = "that is how much the squared norms differ; divide by 1/b − 1/B"
        elif math.isclose(noise, small * (mean_small - true_signal), rel_tol=1e-2):
            likely = "close: " + likely
        raise CheckFailed(f"{told}: tr Σ is {true_noise:.2f}, yours is {noise:.2f}: {likely}")
    if not math.isclose(scale, true_noise / true_signal, rel_tol=1e-4):
        ratios = []
        for s, b in zip(small_norms, big_norms, strict=True):
            ratios.append((s - b) / (1 / small - 1 / big) / ((big * b - small * s) / (big - small)))
        likely = "it is tr Σ / |G|²"
        if math.isclose(scale, statistics.mean(ratios), rel_tol=1e-3):
            likely = "you averaged the measurements' quotients, which is biased upward; average |G|² and tr Σ first, then divide"
        elif math.isclose(scale, true_signal / true_noise, rel_tol=1e-4):
            likely = "the fraction is upside down; " + likely
        raise CheckFailed(f"{told}: B_noise is {true_noise / true_signal:.1f}, yours is {scale:.4g}: {likely}")
    try:
        drowned = answer(16, 64, [10.0], [1.0])
    except ZeroDivisionError:
        drowned = None
    if not isinstance(drowned, tuple | list) or len(drowned) != 3 or drowned[2] != math.inf:
        raise CheckFailed(
            "squared norms 10.0 at 16 and 1.0 at 64 give |G|² = −2: so few images cannot tell the gradient from 0. "
            "Return float('inf') for B_noise there, not a negative number of images"
        )
    print("noise_scale: |G|², tr Σ and B_noise are right, and a gradient lost in noise is told")


def prediction(answer: tuple[Callable[..., Any], Callable[..., Any]]) -> None:
    predicted_steps, useful_batch = _two(answer, "predicted_steps, useful_batch")
    for batch, scale, known_batch, known_steps in (
        (32, 300, 32, 3000), (300, 300, 32, 3000), (4096, 300, 32, 3000), (64, 1e9, 32, 3000), (1e9, 300, 100, 800),
    ):  # fmt: skip
        found = _number(predicted_steps(batch, scale, known_batch, known_steps), "predicted_steps")
        expected = known_steps * (1 + scale / batch) / (1 + scale / known_batch)
        if math.isclose(found, expected, rel_tol=1e-6):
            continue
        told = f"batch {batch:g}, noise scale {scale:g}, known: {known_steps:,} steps with batches of {known_batch}"
        likely = "first S_min from the known point, known_steps / (1 + B_noise/known_batch), then S_min (1 + B_noise/B)"
        if math.isclose(found, known_steps * (1 + scale / batch), rel_tol=1e-6):
            likely = "you took known_steps for S_min; " + likely
        elif abs(found - expected) <= 1 and found == round(found):
            likely = "do not round: a float is asked for"
        elif math.isclose(found, known_steps * known_batch / batch, rel_tol=1e-6):
            likely = "that is twice the batch, half the steps, for ever; it holds far below B_noise only. " + likely
        elif math.isclose(found, known_steps * (1 + scale / known_batch) / (1 + scale / batch), rel_tol=1e-6):
            likely = "upside down: larger batches need fewer steps"
        elif math.isclose(found, known_steps * (1 + batch / scale) / (1 + known_batch / scale), rel_tol=1e-6):
            likely = "that grows with the batch, as the images do, not the steps"
        raise CheckFailed(f"{told}: {expected:,.1f} steps, yours are {found:,.1f}: {likely}")
    for scale, extra in ((300, 1.0), (300, 0.25), (1200, 3)):
        found = _number(useful_batch(scale, extra), "useful_batch")
        if not math.isclose(found, extra * scale, rel_tol=1e-6):
            raise CheckFailed(
                f"noise scale {scale}, {extra:g} times the fewest images on top: the batch is {extra * scale:g}, yours is "
                f"{found:g}. The images are S·B = E_min (1 + B/B_noise): the part on top is B/B_noise"
            )
    print("predicted_steps, useful_batch: right far below, at and far above the noise scale")


def _two(answer: Any, names: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    if not isinstance(answer, tuple | list) or len(answer) != 2 or not all(callable(part) for part in answer):
        raise CheckFailed(f"give the check both functions: ({names})")
    return answer[0], answer[1]


def _number(value: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        missing = " (None): is there a return?" if value is None else f" a {type(value).__name__}"
        raise CheckFailed(f"{name} returns a number; yours returned{missing}") from None


def _numbers(values: Any, count: int, name: str, what: str) -> Sequence[float]:
    if not isinstance(values, tuple | list) or len(values) != count:
        came = "nothing (None): is there a return?" if values is None else f"{values!r}"
        raise CheckFailed(f"{name} returns {count} numbers, {what}; yours returned {came}")
    return [_number(value, name) for value in values]


CHECKS = {
    "batch-and-steps": batch_and_steps,
    "scaled-lr": scaled_lr,
    "noise-or-not": noise_or_not,
    "noise-scale": noise_scale,
    "prediction": prediction,
    "run": lambda folder: check_run(folder, "03_batch_size_scaling"),
}
