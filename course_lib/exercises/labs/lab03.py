"""Lab 03: batch-size scaling. The effective batch, learning rates, spreads, the noise scale, predicted steps."""

from __future__ import annotations

import numpy as np
import torch

from course_lib.exercises.comparing import equal, finite
from course_lib.exercises.description import Exercise, Part

__all__ = ["EXERCISES"]


def by_name(found, *names):
    """The items of what an answer returned; one and the same text for each where they are not so many."""
    right = isinstance(found, tuple | list) and len(found) == len(names)
    return dict(zip(names, found if right else [f"not {len(names)} values"] * len(names), strict=True))


def _draw_jobs(random):
    jobs = random.integers([5, 2, 2, 3], [200, 9, 30, 60], (6, 4)).tolist()
    # Each rank has most of another batch left over: rounding up, or once over all epochs, gives other steps.
    return {"jobs": [(batch, n, (full * batch + 2 * batch // 3) * n + 1, epochs) for batch, n, epochs, full in jobs]}


def observe_steps(case, batch_and_steps):
    return by_name(batch_and_steps(*case), "effective", "steps")


def _draw_batches(random):
    bases = random.uniform(0.01, 0.5, 4).round(4).tolist()
    sizes = random.integers([8, 3], [100, 40], (4, 2)).tolist()
    return {"batches": [(lr, b, b * k, b * k + b // 3, b // 2) for lr, (b, k) in zip(bases, sizes, strict=True)]}


def observe_rates(case, scaled_lr):
    (base, reference, whole, *others), rates = case, {}
    for rule in ("linear", "sqrt", "none"):
        rates[rule] = scaled_lr(base, whole, reference, rule)
        rates[f"{rule}-others"] = [scaled_lr(base, batch, reference, rule) for batch in others]
    return rates


def _same_fractions(seen, right):
    """Where factors are no whole number or below 1, of the scaling rules that are right for whole ones."""
    two_rules = not equal(right[0], right[2])  # a mistake that makes one of both explains nothing here
    scaling = [n for n in (0, 2) if two_rules and equal(seen[n], right[n])]
    return bool(scaling) and all(equal(seen[n + 1], right[n + 1]) for n in scaling)


# Standard errors of the difference between two means. Between two of them is the limit of a known mistake: one error
# where two are asked for, the error of one mean alone, n for n − 1, the sum of both errors, the spreads of single runs.
APART = (0.5, 1.1, 1.64, 1.9, 2.15, 2.5, 3.3, 6.0)
ODD_ONE = np.array([5.0, -1.0, -1.0, -1.0, -1.0, -1.0])  # the largest of six runs says little about their mean


def _draw_runs(random):
    def pair(apart, sign, *shapes):
        errors = np.array([1, random.uniform(0.8, 1.25)]) * (0.003 if sign > 0 else 0.016)  # no fixed limit serves both
        means = 0.7, 0.7 + sign * apart * np.hypot(*errors)
        return *(
            (mean + error * len(shape) ** 0.5 * (shape - shape.mean()) / shape.std(ddof=1)).round(5).tolist()
            for shape, error, mean in zip(shapes, errors, means, strict=True)
        ), apart

    sizes = [(apart, sign, random.integers(4, 7, 2)) for apart in APART for sign in (1, -1)]
    pairs = [pair(apart, sign, *(random.normal(0, 1, int(n)) for n in some)) for apart, sign, some in sizes]
    return {"pairs": [*pairs, pair(0.5, -1, ODD_ONE, -ODD_ONE)]}


def observe_runs(case, summarise, is_noise):
    first, second, _ = case
    verdict = is_noise(list(first), list(second))
    verdict = verdict.tolist() if isinstance(verdict, np.bool_ | torch.Tensor) else verdict
    return by_name(summarise(list(first)), "mean", "spread", "error") | {"decision": verdict}


def _same_error(seen, right):
    """The standard error, or that of the spread beside it: n for n − 1 is the spread's mistake alone."""
    return equal(seen[2], right[2]) or (
        equal(seen[0], right[0]) and finite(seen[1]) > 0 and equal(seen[2], right[2] * finite(seen[1]) / right[1])
    )


def _draw_norms(random):
    def question():
        small, factor = (int(n) for n in random.integers([4, 3], [64, 40]))
        signal, noise = random.uniform([0.5, 50], [5, 500])
        wobble = random.uniform(0.9, 1.1, (2, 6))
        wobble /= wobble.mean(1, keepdims=True)  # single estimates of |G|² may be negative, their mean is not
        norms = [signal + noise / small], [signal + noise / (small * factor)]
        lost = random.uniform(5, 50) / np.array([[1], [factor * random.uniform(1.25, 3)]])
        return small, small * factor, *(norms * wobble).round(4).tolist(), *lost.round(4).tolist()

    return {"norms": [question() for _ in range(5)]}


def observe_noise(case, noise_scale):
    small, big, *norms = case
    some, lost = (noise_scale(small, big, list(norms[n]), list(norms[n + 1])) for n in (0, 2))
    return by_name(some, "signal", "noise", "scale") | {"lost": by_name(lost, 0, 1, 2)[2]}


def _same_quotient(seen, right):
    """B_noise, or the quotient of the two numbers beside it if one is right: their mistake is not this part's."""
    if equal(seen[2], right[2]):
        return True
    one_right = equal(seen[0], right[0]) or equal(seen[1], right[1])
    return one_right and finite(seen[0]) > 0 and equal(seen[2], finite(seen[1]) / finite(seen[0]))


def _draw_predictions(random):
    known = random.integers([4, 4, 100], [5000, 500, 9000], (6, 3)).tolist()
    other = random.uniform([50, 0.1], [3000, 4], (6, 2)).round(2).tolist()
    return {"questions": [(*some, *more) for some, more in zip(known, other, strict=True)]}


def observe_prediction(case, predicted_steps, useful_batch):
    batch, known_batch, known_steps, scale, extra = case
    return {"steps": predicted_steps(batch, scale, known_batch, known_steps), "batch": useful_batch(scale, extra)}


_INSERT = "insert |G_b|² = |G|² + tr Σ/b and |G_B|² = |G|² + tr Σ/B into your formula: is {} left?"

EXERCISES = {
    "batch-and-steps": Exercise(("batch_and_steps",), _draw_jobs, observe_steps, {
        "effective": Part("Effective batch", "the effective batch is wrong",
            "two ranks with 32 images each: how many images does one update see?", keys="effective"),
        "steps": Part("Steps of all epochs, incomplete batches dropped", "the number of steps is wrong",
            "deal 100 images to 3 ranks in batches of 7; count a rank's full batches, then the epochs", keys="steps"),
    }, "", "{1} ranks × {0} images, {2:,} training images, {3} epochs"),
    "scaled-lr": Exercise(("scaled_lr",), _draw_batches, observe_rates, {
        "linear": Part("Linear scaling", "rule 'linear' is wrong", keys="linear"),
        "sqrt": Part("Square-root scaling", "rule 'sqrt' is wrong", keys="sqrt"),
        "none": Part("The constant learning rate", "rule 'none' is wrong",
            "rule 'none' is the constant learning rate", keys="none none-others"),
        "fraction": Part("Factors that are no whole number, and below 1",
            "wrong where the factor is no whole number, or below 1", "a batch of 48 for a reference of 32; one of 16",
            keys="linear linear-others sqrt sqrt-others", same=_same_fractions),
    }, "write down the rate for a batch 4 times the reference batch, by hand",
        "base_lr {0}, reference batch {1}, batches of {2}, and of {3} and {4}"),
    "noise-or-not": Exercise(("summarise", "is_noise"), _draw_runs, observe_runs, {
        "mean": Part("Mean", "the mean is wrong", "add the values up by hand", keys="mean"),
        "spread": Part("Spread of single runs (n − 1)", "it is √(the sum of squared distances from the mean / (n − 1))",
            "three values 1, 2, 3 have a spread of exactly 1", keys="spread"),
        "error": Part("Standard error of the mean", "the mean of n runs spreads √n times less than one run",
            "how much does the mean of 4 runs wobble, how much one run?", keys="mean spread error", same=_same_error),
        "decision": Part("Tells noise from a difference", "some comparisons are decided wrongly",
            "write the difference of the means and 2·√(e₁² + e₂²) side by side, for both orders", keys="decision",
            same=lambda seen, right: type(seen) in (bool, int) and seen == right),
    }, "", "{0} against {1}, {2} standard errors of the difference apart"),
    "noise-scale": Exercise(("noise_scale",), _draw_norms, observe_noise, {
        "signal": Part("|G|², free of bias", "|G|² is wrong", _INSERT.format("|G|²"), keys="signal"),
        "noise": Part("tr Σ, free of bias", "tr Σ is wrong", _INSERT.format("tr Σ"), keys="noise"),
        "scale": Part("The noise scale from averages", "B_noise is not the quotient of the two averages",
            "of two measurements, write down the mean of the quotients and the quotient of the means",
            keys="signal noise scale", same=_same_quotient),
        "lost": Part("A gradient lost in noise", "B_noise is not infinite where the estimate of |G|² is not positive",
            "try squared norms 10.0 at batch 16 and 1.0 at batch 64", keys="lost"),
    }, "", "batches of {0} and {1}, squared norms {2} and {3}; lost in noise: {4} and {5}"),
    "prediction": Exercise(("predicted_steps", "useful_batch"), _draw_predictions, observe_prediction, {
        "steps": Part("Steps at another batch", "first S_min from the known point, then S_min (1 + B_noise/B)",
            "at the known batch it must give the known steps; at the noise scale twice S_min", keys="steps"),
        "batch": Part("The useful batch", "the images are S·B = E_min (1 + B/B_noise): the part on top is B/B_noise",
            "at which batch is B/B_noise the part that may be spent on top?", keys="batch"),
    }, "", "batch {0}, noise scale {3}, known: {2:,} steps with batches of {1}; {4} times the fewest images on top"),
}  # fmt: skip
