"""Lab 03's answers, right and wrong."""

from __future__ import annotations

import math
import statistics

from course_lib.exercises.description import Answers, Mistake
from course_lib.optim import gradient_noise_scale, linear_scaling, sqrt_scaling, steps_needed, useful_batch

__all__ = ["ANSWERS"]


def _rates(linear=linear_scaling, sqrt=sqrt_scaling, none=lambda base, k: base, k=lambda b, reference: b / reference):
    rules = {"linear": linear, "sqrt": sqrt, "none": none}
    return lambda base, batch, reference, rule: rules[rule](base, k(batch, reference))


def _runs(
    limit=lambda e, f, s, t: 2 * math.hypot(e, f), size=abs,
    mean=statistics.mean, spread=statistics.stdev, error=lambda spread, n: spread / math.sqrt(n),
):  # fmt: skip
    """Both functions; `limit` on the `size` of a difference is of the errors e, f and the spreads s, t."""

    def summarise(values):
        return mean(values), spread(values), error(spread(values), len(values))

    def is_noise(first, second):
        (a, s, e), (b, t, f) = summarise(first), summarise(second)
        return size(a - b) <= limit(e, f, s, t)

    return summarise, is_noise


def _norms(
    change=lambda G2, tr, *_: (G2, tr), scale=lambda G2, tr: tr / G2 if G2 > 0 else math.inf, mean=statistics.mean
):
    """`change` gives other |G|² and tr Σ, of the right ones, the batches b < B and the mean squared norms s, t."""

    def noise_scale(b, B, small, big):
        known = b, B, mean(small), mean(big)
        right = gradient_noise_scale(*known)
        found = change(right.squared_gradient, right.covariance_trace, *known)
        return *found, scale(*found)

    return noise_scale


def _mean_of_quotients(b, B, small, big):
    single = [gradient_noise_scale(b, B, s, t) for s, t in zip(small, big, strict=True)]
    mean = statistics.mean(one.covariance_trace / one.squared_gradient for one in single)
    return _norms(scale=lambda G2, tr: mean if G2 > 0 else math.inf)(b, B, small, big)


def _steps(batch, scale, known_batch, known_steps):
    return known_steps * steps_needed(batch, scale, 1) / steps_needed(known_batch, scale, 1)


_FLOORS = "an epoch has images // num_ranks // batch_size steps, an incomplete batch is dropped"
_MEANS = "the mean of n runs spreads √n times less than one run"
_SPREAD = f"that is one run's spread; {_MEANS}"
_LOST = "where |G|² comes out below 0, so few images cannot tell the gradient from 0: return float('inf') for B_noise"

# Of two mistakes with one decision, the one that decides fewer pairs wrongly is the first.
ANSWERS = {
    "batch-and-steps": Answers((lambda b, n, m, e: (float(b * n), float(e * (m // n // b))),), {
        "one number": Mistake("return the pair (effective batch, steps in all epochs)", lambda b, n, m, e: b * n),
        "one rank": Mistake("that is one rank's share; count every rank's", lambda b, n, m, e: (b, e * (m // n // b))),
        "all images": Mistake("each rank has a share of the images", lambda b, n, m, e: (b * n, e * (m // b))),
        "one epoch": Mistake("that is one epoch; all of them are asked for", lambda b, n, m, e: (b * n, m // n // b)),
        "not rounded": Mistake(f"there is no part of a step: {_FLOORS}", lambda b, n, m, e: (b * n, e * m / n / b)),
        "last batch kept": Mistake(f"rounded up: {_FLOORS}", lambda b, n, m, e: (b * n, e * math.ceil(m / n / b))),
        "rounded once": Mistake(f"rounded once for all: {_FLOORS}", lambda b, n, m, e: (b * n, e * m // n // b)),
    }),
    "scaled-lr": Answers((_rates(),), {
        "no reference": Mistake("the factor is batch / reference_batch", _rates(k=lambda b, reference: b)),
        "upside down": Mistake("that is divided: a larger batch takes fewer steps, so each must be longer",
            _rates(k=lambda b, reference: reference / b)),
        "linear by the root": Mistake("that is rule 'sqrt'", _rates(linear=sqrt_scaling)),
        "sqrt as linear": Mistake("that is rule 'linear'", _rates(sqrt=linear_scaling)),
        "none scales": Mistake("that is rule 'linear'", _rates(none=linear_scaling)),
        "whole factors": Mistake("the factor is batch / reference_batch; // cuts it to a whole number",
            _rates(lambda base, k: base * k, lambda base, k: base * k**0.5, k=lambda b, reference: b // reference)),
        "never below": Mistake("a smaller batch has a smaller rate", _rates(lambda base, k: base * max(k, 1))),
    }),
    "noise-or-not": Answers(_runs(), {
        "two numbers": Mistake("return (mean, spread, standard error)", lambda values: _runs()[0](values)[:2], None),
        "n": Mistake("that is divided by n. The distances are from the runs' own mean, which is too close to them; "
            "n − 1 makes up for it (numpy: ddof=1)", *_runs(spread=statistics.pstdev)),
        "variance": Mistake("that is the variance; take its root", _runs(spread=statistics.variance)[0], None),
        "range": Mistake("that is the range; it grows with n", _runs(spread=lambda x: max(x) - min(x))[0], None),
        "error over n": Mistake(f"that is divided by n; {_MEANS}", _runs(error=lambda s, n: s / n)[0], None),
        "median": Mistake("that is the median", _runs(mean=statistics.median)[0], None),
        "signed": Mistake("the sign of the difference does not matter (abs)", None, _runs(size=float)[1]),
        "sum": Mistake("the errors add as squares, √(e₁² + e₂²)", None, _runs(lambda e, f, *_: 2 * (e + f))[1]),
        "no root of n": Mistake(_SPREAD, *_runs(error=lambda s, n: s)),
        "spreads": Mistake(_SPREAD, None, _runs(lambda e, f, s, t: 2 * math.hypot(s, t))[1]),
        "one error": Mistake("both means are uncertain: √(e₁² + e₂²)", None, _runs(lambda e, *_: 2 * e)[1]),
        "not twice": Mistake("up to twice that is noise", None, _runs(lambda e, f, *_: math.hypot(e, f))[1]),
        "fixed": Mistake("how much is noise depends on the runs' standard errors", None, _runs(lambda *_: 0.02)[1]),
        "largest": Mistake("that is the largest value, not the mean", *_runs(mean=max)),
    }),
    "noise-scale": Answers((_norms(),), {
        "one number": Mistake("return three numbers, (|G|², tr Σ, B_noise)", lambda *_: 150.0),
        "biased signal": Mistake("that is |G_B|² as measured, which still holds tr Σ / B of noise; "
            "(B·|G_B|² − b·|G_b|²) / (B − b)", _norms(lambda G2, tr, b, B, s, t: (t, tr))),
        "swapped": Mistake("the batches are swapped", _norms(lambda G2, tr, b, B, s, t: ((B * s - b * t) / (B - b), tr))),
        "root": Mistake("that is |G|; its square is asked for", _norms(lambda G2, tr, *_: (max(0, G2) ** 0.5, tr))),
        "turned sign": Mistake("a variance is not negative: |G_b|² − |G_B|²", _norms(lambda G2, tr, *_: (G2, -tr))),
        "no denominator": Mistake("divide that by 1/b − 1/B", _norms(lambda G2, tr, b, B, s, t: (G2, s - t))),
        "only the first": Mistake("take the mean over all measurements", _norms(mean=lambda norms: norms[0])),
        "mean of quotients": Mistake("that is the mean of the measurements' quotients, which is biased upward; average "
            "|G|² and tr Σ first, then divide", _mean_of_quotients),
        "turned": Mistake("it is turned: tr Σ / |G|²", _norms(scale=lambda G2, tr: G2 / tr if G2 > 0 else math.inf)),
        "negative scale": Mistake(f"{_LOST}, not a negative number", _norms(scale=lambda G2, tr: tr / G2)),
        "zero": Mistake(_LOST, _norms(scale=lambda G2, tr: tr / G2 if G2 > 0 else 0.0)),
    }),
    "prediction": Answers((_steps, useful_batch), {
        "known steps for the fewest": Mistake("that takes known_steps for S_min; first S_min from the known point, "
            "known_steps / (1 + B_noise/known_batch)", lambda B, scale, _, steps: steps_needed(B, scale, steps), None),
        "halves for ever": Mistake("twice the batch, half the steps: that holds far below B_noise only",
            lambda B, scale, b, steps: steps * b / B, None),
        "rounded": Mistake("do not round: a float is asked for", lambda *known: math.ceil(_steps(*known)), None),
        "upside down": Mistake("larger batches need fewer steps", lambda B, n, b, steps: _steps(b, n, B, steps), None),
        "images": Mistake("the images grow so, not the steps", lambda B, n, b, steps: steps * (n + B) / (n + b), None),
        "one more": Mistake("extra is B/B_noise alone, without the 1", None, lambda scale, extra: scale * (1 + extra)),
        "divided": Mistake("more images on top allow a larger batch", None, lambda scale, extra: scale / extra),
    }),
}  # fmt: skip
