"""Lab 04's answers, right and wrong. Right is what PyTorch's SGD and LinearLR do, and the library's NovoGrad."""

from __future__ import annotations

import math
from functools import cache
from types import SimpleNamespace

import torch

from course_lib.exercises.description import Answers, Mistake
from course_lib.optim import NovoGrad

__all__ = ["ANSWERS"]


def _by_sgd(lr, m, steps):
    weight, places = torch.zeros((), dtype=torch.float64), [0.0]
    optimizer, weight.grad = torch.optim.SGD([weight], lr, m), torch.ones_like(weight)
    for _ in range(steps):
        optimizer.step()
        places.append(-weight.item())
    return places[-1] - places[-2], places[-1]


def _length(lr, m, t):
    return lr * (1 - m**t) / (1 - m)


def _sum(length=_length, end=0):
    """The length of step t, and the sum of those of steps 1 to t + `end`."""
    return lambda lr, m, t: (length(lr, m, t), sum(length(lr, m, s) for s in range(1, t + end + 1)))


def _far(distance):
    return lambda lr, m, t: (_length(lr, m, t), distance(lr, m, t))


# Distances come first: some are those of a wrong length, too.
momentum = Answers((_by_sgd,), {
    "no pair": Mistake("return two numbers, (length, distance): is there a return?", lambda *_: None),
    "t times the last": Mistake("that is t times the last step; the earlier ones were shorter",
        _far(lambda lr, m, t: t * _length(lr, m, t))),
    "t full steps": Mistake("that is t steps of the full length lr/(1 − m); the first ones were shorter",
        _far(lambda lr, m, t: t * lr / (1 - m))),
    "last step alone": Mistake("that is the last step alone; the distance is the sum of all of them", _far(_length)),
    "no momentum": Mistake("that is t steps without momentum", _far(lambda lr, m, t: t * lr)),
    "one missing": Mistake("the last step is missing from the sum", _sum(end=-1)),
    "one too many": Mistake("the sum has one step too many", _sum(end=1)),
    "limit": Mistake("that is the limit lr/(1 − m), which the steps approach: step t has come 1 − mᵗ of the way",
        _sum(lambda lr, m, t: lr / (1 - m))),
    "t - 1": Mistake("the exponent is one too small: the first step is lr itself",
        _sum(lambda lr, m, t: _length(lr, m, t - 1))),
    "t + 1": Mistake("the exponent is one too large: the first step is lr itself",
        _sum(lambda lr, m, t: _length(lr, m, t + 1))),
    "an average": Mistake("it lacks the division by 1 − m: PyTorch's momentum adds gradients up, without averaging",
        _sum(lambda lr, m, t: lr * (1 - m**t))),
    "no rate": Mistake("it lacks the learning rate", _sum(lambda lr, m, t: _length(1, m, t))),
    "turned": Mistake("the sign is turned: a length is positive", _sum(lambda lr, m, t: -_length(lr, m, t))),
    "first gradient": Mistake("that is what the first gradient alone contributes; add up what all t of them do",
        _sum(lambda lr, m, t: lr * m ** (t - 1))),
})  # fmt: skip


@cache
def _linear_lr(n, epochs, start, per):
    optimizer = torch.optim.SGD([torch.zeros(())], lr=1.0)
    length, factors = (round(epochs * n) if per == "iteration" else epochs), []
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=start, total_iters=length)
    for step in range(math.ceil(n * (epochs + 2))):
        factors.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if per == "iteration" or (step + 1) % n == 0:
            schedule.step()
    return factors


def _warmup(
    iteration=lambda step, n: step / n, epoch=lambda step, n: step // n,
    rise=lambda share, start: start + (1 - start) * min(1.0, share), without=lambda start: 1.0,
):  # fmt: skip
    def factor(step, n, epochs, start, per="iteration"):
        return rise((iteration if per == "iteration" else epoch)(step, n) / epochs, start) if epochs else without(start)

    return factor


def _by_linear_lr(step, n, epochs, start, per="iteration"):
    return _linear_lr(n, epochs, start, per)[step] if epochs else 1.0


warmup = Answers((_by_linear_lr,), {
    "nothing": Mistake("return the factor, a number: is there a return?", lambda *_, per: None),
    "a step ahead": Mistake("you are a step ahead: step counts the iterations done before, so the first is 0",
        _warmup(lambda step, n: (step + 1) / n)),
    "an epoch ahead": Mistake("you are an epoch ahead: the first epoch has the starting factor",
        _warmup(epoch=lambda step, n: step // n + 1)),
    "always per iteration": Mistake("per epoch it stays the same for all steps of an epoch: count whole epochs, "
        "step // steps_per_epoch", _warmup(epoch=lambda step, n: step / n)),
    "always per epoch": Mistake("per iteration it rises at every step, not only when an epoch is over",
        _warmup(lambda step, n: step // n)),
    "no end": Mistake("after the warm-up it must stay 1: yours goes on rising",
        _warmup(rise=lambda share, start: start + (1 - start) * share)),
    "falls back": Mistake("after the warm-up it must stay 1: yours falls back",
        _warmup(rise=lambda share, start: start + (1 - start) * share if share < 1 else start)),
    "from zero": Mistake("it should rise from the starting factor, not from 0",
        _warmup(rise=lambda share, start: min(1.0, share))),
    "geometric": Mistake("it rises by a constant amount, not by a constant factor",
        _warmup(rise=lambda share, start: start ** (1 - min(1.0, share)))),
    "in steps": Mistake("the warm-up lasts warmup_epochs · steps_per_epoch iterations, not warmup_epochs of them",
        _warmup(lambda step, n: step, lambda step, n: step)),
    "divides by zero": Mistake("without warm-up (warmup_epochs = 0) yours divides by zero; the factor is 1",
        _warmup(without=lambda start: 1 / 0)),
    "none starts low": Mistake("without warm-up (warmup_epochs = 0) the factor is 1 from the first step",
        _warmup(without=lambda start: start)),
})  # fmt: skip


def _rates(low, high, n):
    return [low * (high / low) ** (i / (n - 1)) for i in range(n)]


def _read(first=False, finite=True, stop=lambda place, n: float(place), chosen=lambda rates, _, best: rates[best] / 10):
    def read(rates, losses):
        best = place = 0
        while place < len(losses):
            loss = losses[place]
            if loss > 4 * losses[0 if first else best] or (finite and not math.isfinite(loss)):
                break
            best, place = (place if loss < losses[best] else best), place + 1
        return stop(place, len(losses)), chosen(rates, losses, best)

    return read


range_test = Answers((_rates, _read()), {
    "no rates": Mistake("return a list from range_test_rates: is there a return?", lambda *_: None, None),
    "linear": Mistake("the rates grow by a constant amount, so that nearly all are large",
        lambda low, high, n: [low + i * (high - low) / (n - 1) for i in range(n)], None),
    "n ratios": Mistake("the last rate is not the highest: with n rates there are n − 1 ratios between them",
        lambda low, high, n: _rates(low, high, n + 1)[:-1], None),
    "n + 1": Mistake("that is one rate too many", lambda low, high, n: _rates(low, high, n + 1), None),
    "turned": Mistake("the first rate is the lowest and the last the highest, not the other way round",
        lambda low, high, n: _rates(high, low, n), None),
    "logs": Mistake("those are the logarithms of the rates", lambda *ends: list(map(math.log, _rates(*ends))), None),
    "no pair": Mistake("return the pair (stop, chosen) from read_range_test", None, lambda *_: None),
    "against the first": Mistake("compare with the lowest loss so far, not with the first", None, _read(True)),
    "nan passes": Mistake("comparisons with nan are False: ask math.isfinite", None, _read(finite=False)),
    "the place before": Mistake("the stop is the place of the offending loss itself",
        None, _read(stop=lambda place, n: place - 1)),
    "no stop": Mistake("return the number of losses when none is beyond the limit",
        None, _read(stop=lambda place, n: place if place < n else None)),
    "after the stop": Mistake("your minimum lies after the stop, where the training was lost already",
        None, _read(chosen=lambda rates, losses, _: rates[losses.index(min(filter(math.isfinite, losses)))] / 10)),
    "no tenth": Mistake("there the loss is about to turn; take a tenth",
        None, _read(chosen=lambda rates, losses, best: rates[best])),
    "a tenth of the loss": Mistake("that is a tenth of the loss, not of the rate",
        None, _read(chosen=lambda rates, losses, best: losses[best] / 10)),
})  # fmt: skip


def _by_library(weights, gradients, state, lr, **options):
    if not state:
        state["optimizer"] = NovoGrad(weights, lr, **options)
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    state["optimizer"].step()


_KEPT = {}


def _state_elsewhere(weights, gradients, state, lr, **options):
    if not state:
        _KEPT.clear()
    state["begun"] = True
    _step()(weights, gradients, _KEPT, lr, **options)


_PIECES = {
    "g": lambda s: s.g,
    "norm": lambda s: s.g.square().sum(),
    "v": lambda s: s.norm if s.old is None else s.b2 * s.old + (1 - s.b2) * s.norm,
    "unit": lambda s: s.g / (s.v.sqrt() + s.eps),
    "share": lambda s: 1 - s.b1 if s.averaging else 1,
    "bracket": lambda s: s.unit + s.d * s.w,
    "m": lambda s: s.b1 * s.m + s.share * s.bracket,
    "move": lambda s: s.w.sub_(s.lr * s.m),
}


def _step(turned=False, **pieces):
    """The algorithm with other pieces; `s` holds what there is so far."""

    def step(weights, gradients, state, lr, betas=(0.95, 0.98), eps=1e-8, weight_decay=0.0, grad_averaging=False):
        s = SimpleNamespace(lr=lr, eps=eps, d=weight_decay, averaging=grad_averaging, gradients=gradients)
        s.b1, s.b2 = reversed(betas) if turned else betas
        s.t = state["t"] = state.get("t", 0) + 1
        for layer, (s.w, s.g) in enumerate(zip(weights, gradients, strict=True)):
            s.old, s.m = state.get(layer, (None, 0))
            for name, piece in (_PIECES | pieces).items():
                setattr(s, name, piece(s))
            state[layer] = s.v, s.m

    return step


novograd = Answers((_by_library,), {
    "new tensors": Mistake("the weights did not move: change the tensors that were given, in place, w -= lr * m; "
        "w = w - lr * m and weights[i] = … make new ones, and the model still has the old", _step(move=lambda s: 0)),
    "element-wise": Mistake("take one number a layer for v, the squared norm of the whole tensor; yours is one for "
        "each weight, which is Adam", _step(norm=lambda s: s.g.square())),
    "one norm": Mistake("each layer has a v of its own; you took the norm over all layers together",
        _step(norm=lambda s: sum(g.square().sum() for g in s.gradients))),
    "mean": Mistake("take the sum of the squares, ‖g‖², for v; yours is their mean",
        _step(norm=lambda s: s.g.square().mean())),
    "zero start": Mistake("start v at ‖g₁‖², the first gradient's own; from 0 it would be 50 times too small at "
        "first, and the step 7 times too long", _step(v=lambda s: (1 - s.b2) * s.norm + s.b2 * (s.old or 0))),
    "bias of v": Mistake("start v at ‖g₁‖², with no bias correction; starting at 0 and correcting gives other "
        "weights to the steps", _step(v=lambda s: (1 - s.b2) * s.norm + s.b2 * (s.old or 0),
            unit=lambda s: s.g / ((s.v / (1 - s.b2**s.t)).sqrt() + s.eps))),
    "bias of m": Mistake("NovoGrad does not correct m's bias: leave out the division by 1 − β1ᵗ",
        _step(move=lambda s: s.w.sub_(s.lr * s.m / (1 - s.b1**s.t)))),
    "old v": Mistake("divide by the new v, the one that has just taken in this gradient",
        _step(unit=lambda s: s.g / ((s.v if s.old is None else s.old).sqrt() + s.eps))),
    "v not kept": Mistake("keep v in state, as a running average: v ← β2 v + (1 − β2) ‖g‖²", _step(v=lambda s: s.norm)),
    "norm": Mistake("average the squared norms in v, and take the root afterwards",
        _step(norm=lambda s: s.g.norm(), unit=lambda s: s.g / (s.v + s.eps))),
    "no root": Mistake("divide by √v + eps; yours divides by v", _step(unit=lambda s: s.g / (s.v + s.eps))),
    "eps in the root": Mistake("add eps to the root, √v + eps, and not under it",
        _step(unit=lambda s: s.g / (s.v + s.eps).sqrt())),
    "no eps": Mistake("the eps is missing: divide by √v + eps", _step(unit=lambda s: s.g / s.v.sqrt())),
    "no division": Mistake("the gradient is not divided by √v + eps: that is plain momentum",
        _step(unit=lambda s: s.g)),
    "late division": Mistake("the gradient is divided before it enters m; yours collects raw gradients in m and "
        "divides m", _step(unit=lambda s: s.g, move=lambda s: s.w.sub_(s.lr * s.m / (s.v.sqrt() + s.eps)))),
    "forgets": Mistake("yours forgets the earlier steps: m ← β1 m + …", _step(m=lambda s: s.share * s.bracket)),
    "betas turned": Mistake("the betas are (β1, β2): the first is the momentum's, the second v's", _step(turned=True)),
    "upwards": Mistake("the step goes down: w ← w − lr m", _step(move=lambda s: s.w.add_(s.lr * s.m))),
    "state elsewhere": Mistake("one network alone is right; two trained in turn, each with a state of its own, "
        "disturb each other. Keep v and m in state, and nowhere else", _state_elsewhere),
    "no decay": Mistake("the option weight_decay has no effect: m ← β1 m + (g/(√v + eps) + d w)",
        _step(bracket=lambda s: s.unit)),
    "decay in the norm": Mistake("the decay d·w is added after the division (“decoupled”); yours is in the gradient, "
        "and so is divided too", _step(g=lambda s: s.g + s.d * s.w, bracket=lambda s: s.unit)),
    "decay twice": Mistake("the decay is in the gradient and in the bracket", _step(g=lambda s: s.g + s.d * s.w)),
    "decay of the weights": Mistake("the decay enters m; yours shrinks the weights outside of it, as AdamW does",
        _step(bracket=lambda s: s.unit, move=lambda s: s.w.mul_(1 - s.lr * s.d).sub_(s.lr * s.m))),
    "decay's sign": Mistake("the decay pulls towards 0: add d·w to the bracket",
        _step(bracket=lambda s: s.unit - s.d * s.w)),
    "no averaging": Mistake("the option grad_averaging has no effect: it multiplies the bracket by 1 − β1",
        _step(share=lambda s: 1)),
    "always averaging": Mistake("without grad_averaging the bracket enters m whole; yours is multiplied by 1 − β1",
        _step(share=lambda s: 1 - s.b1)),
    "averaged later": Mistake("the factor 1 − β1 of grad_averaging belongs to the first step too; yours takes it "
        "whole", _step(share=lambda s: 1 - s.b1 if s.averaging and s.t > 1 else 1)),
    "decay not averaged": Mistake("the factor 1 − β1 of grad_averaging belongs to the decay, too",
        _step(bracket=lambda s: s.unit + s.d * s.w / s.share)),
})  # fmt: skip


def _name(*numbers):
    return "{}ranks-{}bs-{}lr-{}m-{}w.csv".format(*numbers)


def _file(head=("time,val_accuracy", "0.0,0.0"), digits=(1, 4), unit=1, mode="w", epochs=None, end="\n"):
    def write(path, times, accuracies):
        pairs = list(zip(times, accuracies, strict=True))[:epochs]
        rows = [f"{round(t, digits[0])},{unit * round(a, digits[1])}" for t, a in pairs]
        with path.open(mode) as file:
            file.write("\n".join([*head, *rows]) + end)

    return write


curve = Answers((_name, _file()), {
    "no name": Mistake("return the name, a str: is there a return?", lambda *_: None, None),
    "no ending": Mistake("the name ends in .csv", lambda *numbers: _name(*numbers)[:-4], None),
    "another order": Mistake("the order is ranks, batch size, learning rate, momentum, warm-up",
        lambda n, b, lr, m, w: f"{b}bs-{n}ranks-{lr}lr-{m}m-{w}w.csv", None),
    "no file": Mistake("there is no file at the path that was given", None, lambda *_: None),
    "no header": Mistake("the first row is the header time,val_accuracy", None, _file(("0.0,0.0",))),
    "no first row": Mistake("the curve begins at 0.0,0.0, before any training", None, _file(("time,val_accuracy",))),
    "not rounded": Mistake("the tutorial rounds: seconds to 1 digit, accuracy to 4", None, _file(digits=(9, 9))),
    "per cent": Mistake("accuracies are in 0…1", None, _file(unit=100)),
    "an epoch less": Mistake("each epoch gives a row below 0.0,0.0; the last is missing", None, _file(epochs=-1)),
    "no last line end": Mistake("the last row has no line end: the file was not closed, or not written whole. Use "
        "`with open(…)`", None, _file(end="")),
    "appended": Mistake("a second header: the file was appended to. A new curve replaces the old one, "
        "open(path, 'w')", None, _file(mode="a")),
})  # fmt: skip

ANSWERS = {"momentum": momentum, "warmup": warmup, "range-test": range_test, "novograd": novograd, "curve": curve}
