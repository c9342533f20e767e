"""Lab 04's visible checks: the reference passes, and typical mistakes are told apart."""

import csv
import math

import numpy as np
import pytest
import torch
from notebook_answers import answers

from course_lib.checks import CheckFailed, check

REFERENCE = answers("04_momentum_warmup_novograd")
ANSWERS = {
    "momentum": REFERENCE["momentum_step"],
    "warmup": REFERENCE["warmup_factor"],
    "range-test": (REFERENCE["range_test_rates"], REFERENCE["read_range_test"]),
    "novograd": REFERENCE["novograd_step"],
    "curve": (REFERENCE["curve_name"], REFERENCE["write_curve"]),
}


@pytest.mark.parametrize("exercise", ANSWERS)
def test_the_reference_passes_and_says_so(exercise, capsys):
    assert check(f"lab04.{exercise}", ANSWERS[exercise]) is None
    told = capsys.readouterr()
    assert told.out.count("\n") == 1 and not told.err


def refused(exercise, answer, *words):
    with pytest.raises(CheckFailed) as raised:
        check(f"lab04.{exercise}", answer)
    assert all(word in str(raised.value) for word in words), str(raised.value)


# Momentum


def right_length(lr, m, t):
    return lr * (1 - m**t) / (1 - m)


def right_distance(lr, m, t):
    return sum(right_length(lr, m, s) for s in range(1, t + 1))


def test_momentum_in_closed_form_and_in_numpy():
    check("lab04.momentum", lambda lr, m, t: [right_length(lr, m, t), lr / (1 - m) * (t - m * (1 - m**t) / (1 - m))])
    check(
        "lab04.momentum", lambda lr, m, t: (np.float32(right_length(lr, m, t)), torch.tensor(right_distance(lr, m, t)))
    )


def test_momentum_by_stepping_sgd_in_single_precision():
    def answer(lr, momentum, step):
        weight = torch.zeros(1, requires_grad=True)
        sgd = torch.optim.SGD([weight], lr=lr, momentum=momentum)
        for _ in range(step):
            before, weight.grad = weight.item(), torch.ones(1)
            sgd.step()
        return before - weight.item(), -weight.item()

    check("lab04.momentum", answer)


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda lr, m, t: (lr / (1 - m), 0.0), ("limit lr/(1 − m)",)),
        (lambda lr, m, t: (right_length(lr, m, t - 1), 0.0), ("one too small",)),
        (lambda lr, m, t: (right_length(lr, m, t + 1), 0.0), ("one too large",)),
        (lambda lr, m, t: (lr * (1 - m**t), 0.0), ("division by 1 − m",)),
        (lambda lr, m, t: (right_length(1, m, t), 0.0), ("lacks the learning rate",)),
        (lambda lr, m, t: (-right_length(lr, m, t), 0.0), ("sign",)),
        (lambda lr, m, t: (lr * m ** (t - 1), 0.0), ("first gradient alone",)),
        (lambda lr, m, t: (right_length(lr, m, t), t * right_length(lr, m, t)), ("t times the last step",)),
        (lambda lr, m, t: (right_length(lr, m, t), t * lr / (1 - m)), ("full length",)),
        (lambda lr, m, t: (right_length(lr, m, t), right_length(lr, m, t)), ("last step alone",)),
        (lambda lr, m, t: (right_length(lr, m, t), right_distance(lr, m, t - 1)), ("missing from the sum",)),
        (lambda lr, m, t: (right_length(lr, m, t), right_distance(lr, m, t + 1)), ("one step too many",)),
        (lambda lr, m, t: right_length(lr, m, t), ("two numbers",)),
        (lambda lr, m, t: None, ("two numbers", "return")),
        (lambda lr, m, t: ("a", 1), ("two numbers",)),
    ],
    ids=["limit", "t - 1", "t + 1", "average", "no rate", "sign", "first gradient", "t times", "t full steps", "last step",
         "one missing", "one too many", "one number", "nothing", "text"],
)  # fmt: skip
def test_wrong_momentum(answer, words):
    refused("momentum", answer, *words)


# Warm-up


def factor(
    *, ahead=0, from_zero=False, clip=True, per=None, geometric=False, in_steps=False, falls_back=False, guarded=True
):
    def answer(step, n, epochs, start, per=per):
        if epochs == 0 and guarded:
            return 1.0
        which = answer.per or per
        done = (step + ahead) / n if which == "iteration" else step // n + ahead
        share = step / epochs if in_steps else done / epochs
        if falls_back and share >= 1:
            return start
        share = min(1.0, share) if clip else share
        if geometric:
            return start ** (1 - share)
        return share if from_zero else start + (1 - start) * share

    answer.per = per
    return answer


def test_a_right_factor_written_otherwise_passes():
    check("lab04.warmup", factor())


@pytest.mark.parametrize(
    "mistake, words",
    [
        ({"ahead": 1}, ("step ahead",)),
        ({"from_zero": True}, ("starting factor",)),
        ({"clip": False}, ("goes on rising",)),
        ({"falls_back": True}, ("falls back",)),
        ({"geometric": True}, ("constant factor",)),
        ({"in_steps": True}, ("warmup_epochs · steps_per_epoch",)),
        ({"per": "iteration"}, ("whole epochs",)),
        ({"per": "epoch"}, ("at every step",)),
        ({"guarded": False}, ("divides by zero",)),
    ],
    ids=str,
)
def test_wrong_factors(mistake, words):
    refused("warmup", factor(**mistake), *words)


def test_factors_that_are_none():
    refused("warmup", lambda step, n, epochs, start, per: None, "a number", "return")
    right = factor()
    refused(
        "warmup",
        lambda step, n, epochs, start, per: right(step, n, epochs, start, per) if epochs else start,
        "factor is 1",
    )


def test_an_epoch_ahead():
    right = factor()
    refused("warmup", lambda step, n, epochs, start, per: right(step + n * (per == "epoch" and epochs > 0), n, epochs, start, per),
            "epoch ahead")  # fmt: skip


# Range test

RATES, READ = ANSWERS["range-test"]


@pytest.mark.parametrize(
    "rates, words",
    [
        (lambda low, high, n: [low + i * (high - low) / (n - 1) for i in range(n)], ("constant amount",)),
        (lambda low, high, n: [low * (high / low) ** (i / n) for i in range(n)], ("n − 1 ratios",)),
        (lambda low, high, n: [low * (high / low) ** (i / n) for i in range(n + 1)], ("has 5 rates", "has 6")),
        (lambda low, high, n: RATES(high, low, n), ("the first rate is",)),
        (lambda low, high, n: [math.log(rate) for rate in RATES(low, high, n)], ("the first rate is",)),
        (
            lambda low, high, n: [low, low * (high / low) ** (1 / (n - 1)), *[high] * (n - 2)],
            ("in yours 10 follows 0.01",),
        ),
        (lambda low, high, n: None, ("list of numbers",)),
    ],
    ids=["linear", "n ratios", "n + 1", "turned", "logs", "first ratio alone", "nothing"],
)
def test_wrong_rates(rates, words):
    refused("range-test", (rates, READ), *words)


def test_rates_of_numpy_and_torch_pass():
    check("lab04.range-test", (np.geomspace, READ))
    check(
        "lab04.range-test",
        (lambda low, high, n: torch.logspace(math.log10(low), math.log10(high), n, dtype=torch.float64), READ),
    )


def reading(*, against_first=False, finite=True, shift=0, whole=False, no_tenth=False, of_loss=False, none=False):
    def answer(rates, losses):
        best, stop = 0, len(losses)
        for place, loss in enumerate(losses):
            lost = loss > 4 * losses[0 if against_first else best] or (finite and not math.isfinite(loss))
            if lost:
                stop = place
                break
            if loss < losses[best]:
                best = place
        if whole:
            clean = [loss if math.isfinite(loss) else math.inf for loss in losses]
            best = clean.index(min(clean))
        chosen = losses[best] / 10 if of_loss else rates[best] / (1 if no_tenth else 10)
        return (None if none and stop == len(losses) else stop + shift), chosen

    return answer


def test_a_right_reading_written_otherwise_passes():
    check("lab04.range-test", (RATES, reading()))


@pytest.mark.parametrize(
    "mistake, words",
    [
        ({"against_first": True}, ("lowest loss so far",)),
        ({"finite": False}, ("math.isfinite",)),
        ({"shift": -1}, ("the offending loss itself",)),
        ({"whole": True}, ("after the stop",)),
        ({"no_tenth": True}, ("take a tenth",)),
        ({"of_loss": True}, ("tenth of the loss",)),
        ({"none": True}, ("number of losses",)),
    ],
    ids=str,
)
def test_wrong_readings(mistake, words):
    refused("range-test", (RATES, reading(**mistake)), *words)


def test_a_reading_that_is_no_pair():
    refused("range-test", (RATES, lambda rates, losses: 3), "pair")
    refused("range-test", (RATES, lambda rates, losses: None), "pair", "return")
    refused("range-test", (RATES, lambda rates, losses: (READ(rates, losses)[0], None)), "should be a number")


# NovoGrad


def step(**mistakes):
    """NovoGrad in another style than the notebook's, with pieces replaced."""
    code = {
        "norm": "(g * g).sum()",
        "start": "n",
        "v": "b2 * state['v'][i] + (1 - b2) * n",
        "corrected": "v",
        "divided": "g / (corrected**0.5 + eps)",
        "decay": "+ weight_decay * w",
        "share": "(1 - b1) if grad_averaging else 1",
        "m": "b1 * state['m'][i] + share * bracket",
        "move": "w.sub_(lr * m)",
    } | mistakes
    source = f"""
def novograd_step(weights, gradients, state, lr, betas=(0.95, 0.98), eps=1e-8, weight_decay=0.0, grad_averaging=False):
    b1, b2 = betas
    state['t'] = t = state.get('t', 0) + 1
    if t == 1:
        state['v'], state['m'] = {{}}, {{}}
    for i in range(len(weights)):
        w, g = weights[i], gradients[i]
        n = {code["norm"]}
        v = {code["v"]} if i in state['v'] else {code["start"]}
        state['v'][i] = v
        corrected = {code["corrected"]}
        bracket = {code["divided"]} {code["decay"]}
        share = {code["share"]}
        m = {code["m"]} if i in state['m'] else share * bracket
        state['m'][i] = m
        {code["move"]}
"""
    names = {"torch": torch}
    exec(source, names)
    return names["novograd_step"]


def test_another_style_passes():
    check("lab04.novograd", step())


@pytest.mark.parametrize(
    "mistake, words",
    [
        ({"norm": "g * g"}, ("layer", "one number a layer", "Adam")),
        ({"norm": "sum((x * x).sum() for x in gradients)"}, ("v of its own",)),
        ({"norm": "(g * g).mean()"}, ("sum of the squares",)),
        ({"start": "(1 - b2) * n"}, ("first step", "starts at ‖g₁‖²")),
        ({"start": "(1 - b2) * n", "corrected": "v / (1 - b2**t)"}, ("fifty steps", "no bias correction")),
        ({"move": "w.sub_(lr * m / (1 - b1**t))"}, ("correct m's bias",)),
        ({"start": "(1 - b2) * n", "corrected": "v / (1 - b2**t)", "move": "w.sub_(lr * m / (1 - b1**t))"}, ("bias",)),
        ({"v": "n"}, ("fifty steps", "running average")),
        ({"divided": "g / (corrected + eps)"}, ("divides by v",)),
        ({"divided": "g / (corrected + eps) ** 0.5"}, ("eps = 0.5", "not under it")),
        ({"divided": "g / corrected ** 0.5"}, ("eps is missing",)),
        ({"divided": "g"}, ("plain momentum",)),
        ({"m": "bracket"}, ("forgets the earlier steps",)),
        ({"move": "w.add_(lr * m)"}, ("goes down",)),
        ({"decay": ""}, ("weight_decay has no effect",)),
        ({"decay": "- weight_decay * w"}, ("add d·w",)),
        ({"norm": "((g + weight_decay * w) ** 2).sum()", "divided": "(g + weight_decay * w) / (corrected**0.5 + eps)", "decay": ""},
         ("decoupled",)),
        ({"decay": "", "move": "w.mul_(1 - lr * weight_decay).sub_(lr * m)"}, ("AdamW",)),
        ({"share": "1"}, ("grad_averaging has no effect",)),
        ({"share": "1 - b1"}, ("Without grad_averaging",)),
        ({"m": "b1 * state['m'][i] + share * bracket", "share": "(1 - b1) if grad_averaging and t > 1 else 1"}, ("first step too",)),
        ({"move": "w = w - lr * m"}, ("did not move", "w -= lr * m")),
        ({"move": "weights[i] = w - lr * m"}, ("new tensors",)),
        ({"divided": "g.div_(corrected**0.5 + eps)"}, ("gradients were changed in place",)),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_novograds(mistake, words):
    refused("novograd", step(**mistake), *words)


def test_a_state_kept_elsewhere():
    kept = {}
    right = ANSWERS["novograd"]

    def in_a_global(weights, gradients, state, lr, **options):
        if not state:
            kept.clear()
            state["begun"] = True
        right(weights, gradients, kept, lr, **options)

    refused("novograd", in_a_global, "disturb each other", "Keep v and m in state")


def test_betas_turned():
    right = ANSWERS["novograd"]

    def turned(weights, gradients, state, lr, betas=(0.95, 0.98), **options):
        right(weights, gradients, state, lr, betas=betas[::-1], **options)

    refused("novograd", turned, "(β1, β2)")


# The curve's file

NAME, WRITE = ANSWERS["curve"]


@pytest.mark.parametrize(
    "name, words",
    [
        (lambda n, b, lr, m, w: f"{n}ranks-{b}bs-{lr}lr-{m}m-{w}w", ("ends in .csv",)),
        (lambda n, b, lr, m, w: f"{b}bs-{n}ranks-{lr}lr-{m}m-{w}w.csv", ("order",)),
        (lambda n, b, lr, m, w: f"{n}ranks-{b}bs-{lr:.3f}lr-{m}m-{w}w.csv", ("as Python prints them",)),
        (lambda n, b, lr, m, w: None, ("a str",)),
    ],
    ids=["no ending", "order", "digits", "nothing"],
)
def test_wrong_names(name, words):
    refused("curve", (name, WRITE), *words)


def file(*, header=True, first=True, digits=(1, 4), percent=False, mode="w", closed=True, cut=0):
    def write(path, times, accuracies):
        rows = ([["time", "val_accuracy"]] if header else []) + ([[0.0, 0.0]] if first else [])
        pairs = list(zip(times, accuracies, strict=True))
        for t, a in pairs[: len(pairs) - cut]:
            rows.append(
                [round(t, digits[0]) if digits else t, (100 if percent else 1) * (round(a, digits[1]) if digits else a)]
            )
        with open(path, mode, newline="") as out:
            csv.writer(out).writerows(rows)

    return write


@pytest.mark.parametrize(
    "mistake, words",
    [
        ({"header": False}, ("header time,val_accuracy",)),
        ({"first": False}, ("begins at 0.0,0.0",)),
        ({"digits": None}, ("rounds", "12.3,0.7124")),
        ({"digits": (0, 2)}, ("the row 12.3,0.7124",)),
        ({"percent": True}, ("in 0…1",)),
        ({"mode": "a"}, ("appended to",)),
        ({"cut": 1}, ("2 epochs give 3 rows",)),
    ],
    ids=str,
)
def test_wrong_files(mistake, words):
    refused("curve", (NAME, file(**mistake)), *words)


def test_no_file_and_other_right_files(tmp_path):
    refused("curve", (NAME, lambda path, times, accuracies: None), "no file")
    check("lab04.curve", (NAME, file()))

    def by_hand(path, times, accuracies):
        lines = ["time,val_accuracy", "0,0", *(f"{t:.1f},{a:.4f}" for t, a in zip(times, accuracies, strict=True))]
        path.write_text("\n".join(lines) + "\n")

    check("lab04.curve", (NAME, by_hand))
