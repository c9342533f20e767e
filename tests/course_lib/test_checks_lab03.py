"""Lab 03's visible checks: the reference passes, and typical mistakes are told apart."""

import math
import statistics

import pytest
from notebook_answers import answers

from course_lib.checks import CheckFailed, check
from course_lib.optim import gradient_noise_scale, linear_scaling, sqrt_scaling, steps_needed

REFERENCE = answers("03_batch_size_scaling")
EXERCISES = {
    "batch-and-steps": "batch_and_steps",
    "scaled-lr": "scaled_lr",
    "noise-or-not": ("summarise", "is_noise"),
    "noise-scale": "noise_scale",
    "prediction": ("predicted_steps", "useful_batch"),
}


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_reference_passes_and_says_so(exercise, capsys):
    names = EXERCISES[exercise]
    answer = REFERENCE[names] if isinstance(names, str) else tuple(REFERENCE[name] for name in names)
    assert check(f"lab03.{exercise}", answer) is None
    assert capsys.readouterr().out.startswith(names if isinstance(names, str) else ", ".join(names))


def refused(exercise, answer, *words):
    with pytest.raises(CheckFailed) as raised:
        check(f"lab03.{exercise}", answer)
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_the_references_are_the_librarys():
    """The library follows Goyal et al. and McCandlish et al., and has oracles of its own."""
    assert REFERENCE["scaled_lr"](0.02, 1024, 32, "linear") == pytest.approx(linear_scaling(0.02, 32))
    assert REFERENCE["scaled_lr"](0.02, 48, 32, "sqrt") == pytest.approx(sqrt_scaling(0.02, 1.5))
    found = gradient_noise_scale(32, 512, statistics.mean([11, 12]), statistics.mean([2.5, 2.75]))
    assert REFERENCE["noise_scale"](32, 512, [11, 12], [2.5, 2.75]) == pytest.approx(
        (found.squared_gradient, found.covariance_trace, found.noise_scale)
    )
    known = steps_needed(32, 300, 289)
    assert REFERENCE["predicted_steps"](2048, 300, 32, known) == pytest.approx(steps_needed(2048, 300, 289))


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda b, n, m, e: (b, e * (m // n // b)), ("one rank's share", "batch_size × num_ranks")),
        (lambda b, n, m, e: (b + n, e * (m // n // b)), ("effective batch is 128",)),
        (lambda b, n, m, e: (b * n, e * (m // b)), ("one rank that sees all images",)),
        (lambda b, n, m, e: (b * n, m // n // b), ("that is one epoch",)),
        (lambda b, n, m, e: (b * n, e * math.ceil(m / n / b)), ("did you round up",)),
        (lambda b, n, m, e: (b * n, e * m / n / b), ("no part of a step",)),
        (lambda b, n, m, e: None, ("nothing (None)", "return")),
        (lambda b, n, m, e: b * n, ("2 numbers",)),
    ],
    ids=["per rank", "sum", "all images each", "one epoch", "rounded up", "not rounded", "no return", "one number"],
)
def test_wrong_batches_and_steps(answer, words):
    refused("batch-and-steps", answer, *words)


def rules(
    linear=lambda k: k, sqrt=lambda k: k**0.5, none=lambda k: 1.0, factor=lambda batch, reference: batch / reference
):
    def answer(base, batch, reference, rule):
        return base * {"linear": linear, "sqrt": sqrt, "none": none}[rule](factor(batch, reference))

    return answer


@pytest.mark.parametrize(
    "answer, words",
    [
        (rules(factor=lambda batch, reference: batch), ("by the batch itself", "= 16")),
        (rules(factor=lambda batch, reference: reference / batch), ("you divided",)),
        (rules(factor=lambda batch, reference: batch // reference), ("whole number", "1.5")),
        (rules(linear=lambda k: k**0.5), ("that is rule 'sqrt'",)),
        (rules(sqrt=lambda k: k), ("that is rule 'linear'",)),
        (rules(none=lambda k: k), ("rule 'none'", "that is rule 'linear'")),
        (rules(linear=lambda k: max(k, 1)), ("reference batch 64", "that is rule 'none'")),
        (lambda *_: None, ("is there a return?",)),
        (lambda *_: "fast", ("a str",)),
    ],
    ids=[
        "no reference",
        "inverse",
        "floor",
        "linear is sqrt",
        "sqrt is linear",
        "none scales",
        "never below",
        "None",
        "text",
    ],
)
def test_wrong_rates(answer, words):
    refused("scaled-lr", answer, *words)


def summary(values, spread=statistics.stdev, root=math.sqrt):
    return statistics.mean(values), spread(values), spread(values) / root(len(values))


def decision(limit):
    def is_noise(first, second):
        (a, s, e), (b, t, f) = summary(first), summary(second)
        return limit(a - b, e, f, s, t)

    return is_noise


RIGHT = decision(lambda d, e, f, *_: abs(d) <= 2 * math.hypot(e, f))


@pytest.mark.parametrize(
    "answer, words",
    [
        ((lambda v: summary(v, statistics.pstdev), RIGHT), ("you divided by n", "n − 1")),
        ((lambda v: summary(v, statistics.variance), RIGHT), ("that is the variance",)),
        ((lambda v: summary(v, lambda w: max(w) - min(w)), RIGHT), ("that is the range",)),
        ((lambda v: summary(v, root=lambda n: n), RIGHT), ("standard error", "you divided by n")),
        ((lambda v: summary(v, root=lambda n: 1), RIGHT), ("one run's spread",)),
        ((lambda v: summary(v)[:2], RIGHT), ("3 numbers",)),
        ((lambda v: (statistics.median(v), *summary(v)[1:]), RIGHT), ("the mean of",)),
        ((summary, decision(lambda d, e, f, *_: d <= 2 * math.hypot(e, f))), ("must be False", "points apart")),
        ((summary, decision(lambda d, e, f, *_: abs(d) > 2 * math.hypot(e, f))), ("must be True",)),
        ((summary, decision(lambda d, e, *_: abs(d) <= 2 * e)), ("both means are uncertain",)),
        ((summary, decision(lambda d, e, f, s, t: abs(d) <= 2 * math.hypot(s, t))), ("the spreads, would be more",)),
        ((summary, decision(lambda d, e, f, *_: abs(d) <= 2 * (e + f))), ("a sum",)),
        ((summary, decision(lambda d, *_: abs(d) < 0.02)), ("must be False", "0.6 points")),
        ((summary, lambda first, second: None), ("is there a return?",)),
        (summary, ("both functions",)),
    ],
    ids=["n", "variance", "range", "error over n", "error is spread", "two numbers", "median", "signed", "reversed", "one error",
         "spreads", "sum", "fixed", "None", "one function"],
)  # fmt: skip
def test_wrong_statistics(answer, words):
    refused("noise-or-not", answer, *words)


def noise(signal=None, trace=None, scale=None, lost=math.inf):
    def answer(b, B, small, big):
        s, t = statistics.mean(small), statistics.mean(big)
        G2, tr = (B * t - b * s) / (B - b), (s - t) / (1 / b - 1 / B)
        G2 = signal(b, B, s, t) if signal else G2
        tr = trace(b, B, s, t) if trace else tr
        if G2 <= 0:
            return G2, tr, tr / G2 if lost is None else lost
        return G2, tr, scale(b, B, small, big) if scale else tr / G2

    return answer


def mean_of_quotients(b, B, small, big):
    return statistics.mean(
        (s - t) / (1 / b - 1 / B) / ((B * t - b * s) / (B - b)) for s, t in zip(small, big, strict=True)
    )


@pytest.mark.parametrize(
    "answer, words",
    [
        (noise(signal=lambda b, B, s, t: t), ("still holds tr Σ / B",)),
        (noise(signal=lambda b, B, s, t: (B * s - b * t) / (B - b)), ("|G|² is",)),
        (noise(signal=lambda b, B, s, t: math.sqrt(max(0, (B * t - b * s) / (B - b)))), ("that is |G|",)),
        (noise(trace=lambda b, B, s, t: (t - s) / (1 / b - 1 / B)), ("not negative", "signs")),
        (noise(trace=lambda b, B, s, t: s - t), ("divide by 1/b − 1/B",)),
        (noise(scale=mean_of_quotients), ("averaged the measurements' quotients", "average |G|² and tr Σ first")),
        (noise(lost=None), ("cannot tell the gradient from 0", "inf")),
        (noise(lost=0.0), ("cannot tell",)),
        (lambda b, B, small, big: 150.0, ("3 numbers",)),
        (lambda b, B, small, big: None, ("return",)),
    ],
    ids=[
        "biased",
        "swapped",
        "root",
        "sign",
        "difference",
        "mean of quotients",
        "negative scale",
        "zero",
        "one number",
        "None",
    ],
)
def test_wrong_noise_scales(answer, words):
    refused("noise-scale", answer, *words)


def steps(batch, scale, known_batch, known_steps):
    return known_steps * (1 + scale / batch) / (1 + scale / known_batch)


def useful(scale, extra):
    return extra * scale


@pytest.mark.parametrize(
    "answer, words",
    [
        ((lambda B, n, b, s: s * (1 + n / B), useful), ("known_steps for S_min",)),
        ((lambda B, n, b, s: s * b / B, useful), ("for ever",)),
        ((lambda B, n, b, s: math.ceil(steps(B, n, b, s)), useful), ("do not round",)),
        ((lambda B, n, b, s: s * (1 + n / b) / (1 + n / B), useful), ("upside down",)),
        ((lambda B, n, b, s: s * (1 + B / n) / (1 + b / n), useful), ("as the images do",)),
        ((steps, lambda n, extra: n * (1 + extra)), ("300", "E_min")),
        ((steps, lambda n, extra: n / extra), ("E_min",)),
        ((steps, lambda n, extra: None), ("is there a return?",)),
        (steps, ("both functions",)),
    ],
    ids=["S_min", "for ever", "rounded", "upside down", "images", "one more", "divided", "None", "one function"],
)
def test_wrong_predictions(answer, words):
    refused("prediction", answer, *words)
