"""Checks of lab 04."""

from __future__ import annotations

import csv
import itertools
import math
import numbers
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from course_lib.checks.registry import CheckFailed
from course_lib.checks.run_evidence import check_run
from course_lib.optim import NovoGrad

__all__ = ["CHECKS"]


def momentum_step(answer: Callable[..., Any]) -> None:
    for lr, momentum, step in ((0.02, 0.6, 7), (0.1, 0.9, 40), (0.1, 0.9, 1), (0.1, 0.9, 2), (0.3, 0.0, 5)):
        result = answer(lr, momentum, step)
        if not isinstance(result, tuple | list) or len(result) != 2 or not all(_is_number(value) for value in result):
            raise CheckFailed(f"return two numbers, (length, distance); yours returned {_name(result)}")
        length, distance = (float(value) for value in result)
        moves = _sgd_moves(lr, momentum, step)
        case = f"lr = {lr}, momentum = {momentum}, constant gradient 1: step {step}"
        if not math.isclose(length, moves[-1], rel_tol=1e-5):  # SGD itself, in float32, is an answer too
            raise CheckFailed(
                f"{case} of torch.optim.SGD moves the weight by {moves[-1]:.6g}, yours says {length:.6g}. "
                + _why_length(length, lr, momentum, step)
            )
        if not math.isclose(distance, sum(moves), rel_tol=1e-5):
            raise CheckFailed(
                f"{case} is right, {moves[-1]:.6g}; after it torch.optim.SGD is {sum(moves):.6g} away from where it "
                f"began, yours says {distance:.6g}. " + _why_distance(distance, lr, momentum, step)
            )
    print("momentum_step: lengths and distances are torch.optim.SGD's, with momentum 0, 0.6 and 0.9")


def _sgd_moves(lr: float, momentum: float, steps: int) -> list[float]:
    """How far each step of PyTorch's SGD moves a weight whose gradient is always 1."""
    weight = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=lr, momentum=momentum)
    moves = []
    for _ in range(steps):
        before = weight.item()
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        moves.append(before - weight.item())
    return moves


def _why_length(found: float, lr: float, m: float, t: int) -> str:
    right = lr * (1 - m**t) / (1 - m)
    reasons = {
        lr / (1 - m): "That is the limit lr/(1 − m), which the steps approach: step t has come 1 − mᵗ of the way",
        lr * (1 - m ** (t - 1)) / (1 - m): "The exponent is one too small: the first step is lr itself",
        lr * (1 - m ** (t + 1)) / (1 - m): "The exponent is one too large: the first step is lr itself",
        lr
        * (1 - m**t): "It lacks the division by 1 − m: PyTorch's momentum adds gradients up, it does not average them",
        right / lr: "It lacks the learning rate",
        -right: "The sign is turned: the length of a step is positive",
        lr * m ** (t - 1): "That is what the first gradient alone contributes; add up what all t of them do",
    }
    return _closest(found, reasons) or "Write out v₁, v₂, v₃ for m = 0.9: 1, 1.9, 2.71; a step is lr times that"


def _why_distance(found: float, lr: float, m: float, t: int) -> str:
    right = sum(lr * (1 - m**s) / (1 - m) for s in range(1, t + 1))
    reasons = {
        t * lr * (1 - m**t) / (1 - m): "That is t times the last step; the earlier ones were shorter",
        t * lr / (1 - m): "That is t steps of the full length lr/(1 − m); the first ones were shorter",
        lr * (1 - m**t) / (1 - m): "That is the last step alone; the distance is the sum of all of them",
        t * lr: "That is t steps without momentum",
        right - lr * (1 - m**t) / (1 - m): "The last step is missing from the sum",
        right + lr * (1 - m ** (t + 1)) / (1 - m): "The sum has one step too many",
    }
    return _closest(found, reasons) or "The distance is the sum of the lengths of steps 1 to t"


def _closest(found: float, reasons: dict[float, str]) -> str:
    return next((why for value, why in reasons.items() if math.isclose(found, value, rel_tol=1e-6)), "")


def warmup(answer: Callable[..., Any]) -> None:
    for per, n, epochs, start in (
        ("iteration", 10, 2, 0.125), ("epoch", 10, 2, 0.125), ("epoch", 7, 5, 0.25), ("iteration", 5, 0.4, 0.5),
    ):  # fmt: skip
        expected = _linear_lr(per, n, epochs, start, steps=round(n * (epochs + 2)))
        for step, truth in enumerate(expected):
            found = answer(step, n, epochs, start, per=per)
            if not _is_number(found):
                raise CheckFailed(f"return the factor, a number; yours returned {_name(found)}")
            if not math.isclose(found, truth, rel_tol=1e-6, abs_tol=1e-9):
                raise CheckFailed(
                    f"per={per!r}, {n} steps an epoch, {epochs:g} epochs of warm-up from {start:g}: at step {step} the "
                    f"factor is {truth:.4f}, yours is {found:.4f}. "
                    + _why_factor(float(found), truth, step, n, epochs, start, per)
                )
    for per in ("iteration", "epoch"):
        try:
            found = answer(0, 10, 0, 0.125, per=per)
        except ZeroDivisionError:
            raise CheckFailed("without warm-up (warmup_epochs = 0) yours divides by zero; the factor is 1") from None
        if found != 1:
            raise CheckFailed(
                f"without warm-up (warmup_epochs = 0) the factor is 1 from the first step, yours is {found}"
            )
    print("warmup_factor: torch's LinearLR, stepped per iteration and per epoch, gives the same")


def _linear_lr(per: str, steps_per_epoch: int, epochs: float, start: float, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros((), requires_grad=True)], lr=1.0)
    length = round(epochs * steps_per_epoch) if per == "iteration" else epochs
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=start, total_iters=length)
    factors = []
    for step in range(steps):
        factors.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if per == "iteration" or (step + 1) % steps_per_epoch == 0:
            schedule.step()
    return factors


def _why_factor(found: float, truth: float, step: int, n: int, epochs: float, start: float, per: str) -> str:
    def line(x: float) -> float:
        return start + (1 - start) * x

    fraction = step / (n * epochs)
    if found > 1 + 1e-9:
        return "After the warm-up it must stay 1: yours goes on rising"
    if math.isclose(truth, 1) and math.isclose(found, start):
        return "After the warm-up it must stay 1: yours falls back"
    if per == "iteration" and math.isclose(found, line(min(1.0, (step + 1) / (n * epochs)))):
        return "You are a step ahead: step counts the iterations done before, so the first is 0"
    if per == "iteration" and math.isclose(found, line(min(1.0, (step // n) / epochs))):
        return "Per iteration it rises at every step, not only when an epoch is over"
    if per == "epoch" and math.isclose(found, line(min(1.0, fraction))):
        return "Per epoch it stays the same for all steps of an epoch: count whole epochs, step // steps_per_epoch"
    if per == "epoch" and math.isclose(found, line(min(1.0, (step // n + 1) / epochs))):
        return "You are an epoch ahead: the first epoch has the starting factor"
    if math.isclose(found, min(1.0, fraction), abs_tol=1e-12) or math.isclose(found, min(1.0, (step // n) / epochs)):
        return "It should rise from the starting factor, not from 0"
    if math.isclose(found, start ** (1 - min(1.0, fraction))):
        return "It rises by a constant amount, not by a constant factor"
    if math.isclose(found, line(min(1.0, step / epochs))):
        return "The warm-up lasts warmup_epochs · steps_per_epoch iterations, not warmup_epochs of them"
    if step == 0:
        return f"The first step has the starting factor {start:g} itself"
    return "It rises in equal amounts from the starting factor to 1: start + (1 − start) · (share of the warm-up done)"


def range_test(answer: tuple[Callable[..., Any], Callable[..., Any]]) -> None:
    rates_of, read = answer
    _check_rates(rates_of)
    inf, nan = math.inf, math.nan
    cases = [
        # losses, first loss beyond the limit, place of the lowest before it
        ([2.3, 2.2, 1.5, 0.9, 0.6, 0.9, 1.4, 6.0, 0.1], 7, 4),
        ([2.3, 2.2, 1.0, 0.8, nan, 0.5, 0.4], 4, 3),
        ([2.3, 2.0, 1.2, inf, inf], 3, 2),
        ([2.3, 2.0, 1.2, 1.0, 0.9], 5, 4),
        ([2.3, 1.0, 0.5, 2.1, 2.2, 0.3], 3, 2),
    ]
    for losses, stop, lowest in cases:
        rates = [0.001 * 10 ** (index / 2) for index in range(len(losses))]
        result = read(rates, losses)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise CheckFailed(f"read_range_test returns the pair (stop, chosen rate); yours returned {_name(result)}")
        found_stop, chosen = result
        shown = f"losses {losses}: " + (
            f"the loss at {stop} is the first that is not finite or above 4 × the lowest before it"
            if stop < len(losses)
            else "none is beyond the limit, so stop is their number"
        )
        if found_stop != stop:
            raise CheckFailed(f"{shown}, {stop}; your stop is {found_stop}. {_why_stop(found_stop, losses, stop)}")
        if not _is_number(chosen) or not math.isclose(chosen, rates[lowest] / 10, rel_tol=1e-6):
            raise CheckFailed(
                f"losses {losses}: the lowest before the stop is at place {lowest}, rate {rates[lowest]:.4g}; a tenth of "
                f"it is {rates[lowest] / 10:.4g}, yours is {chosen if not _is_number(chosen) else format(chosen, '.4g')}. "
                + _why_chosen(chosen, rates, losses, stop, lowest)
            )
    print("range test: rates are geometric; stop and choice are right on five curves, two of them with nan or inf")


def _check_rates(rates_of: Callable[..., Any]) -> None:
    for lowest, highest, steps in ((1e-3, 10.0, 5), (0.02, 3.0, 40)):
        rates = rates_of(lowest, highest, steps)
        try:
            rates = [float(rate) for rate in rates]
        except TypeError:
            raise CheckFailed(f"range_test_rates returns a list of numbers; yours returned {_name(rates)}") from None
        if len(rates) != steps:
            raise CheckFailed(
                f"range_test_rates({lowest}, {highest}, {steps}) has {steps} rates; yours has {len(rates)}"
            )
        ends = math.isclose(rates[0], lowest, rel_tol=1e-5), math.isclose(rates[-1], highest, rel_tol=1e-5)
        if not all(ends):
            hint = " With n rates there are n − 1 ratios between them" if ends[0] else ""
            raise CheckFailed(
                f"the first rate is {lowest} and the last {highest}; yours are {rates[0]:.6g} and {rates[-1]:.6g}.{hint}"
            )
        ratio = (highest / lowest) ** (1 / (steps - 1))
        for a, b in itertools.pairwise(rates):
            if math.isclose(b, ratio * a, rel_tol=1e-5):
                continue
            equal = math.isclose(rates[1] - rates[0], rates[-1] - rates[-2], rel_tol=1e-5)
            why = "Yours grow by a constant amount, so that nearly all are large" if equal else ""
            raise CheckFailed(
                f"from {lowest} to {highest} in {steps} rates each is {ratio:.4g} times the one before; "
                f"in yours {b:.4g} follows {a:.4g}. {why}".rstrip()
            )


def _why_stop(found: Any, losses: list[float], stop: int) -> str:
    if found is None:
        return "Return the number of losses when none is beyond the limit"
    if _is_number(found) and found == stop - 1:
        return "stop is the place of the offending loss itself"
    if stop < len(losses) and not math.isfinite(losses[stop]):
        return "nan compares as False with everything; ask math.isfinite"
    if stop < len(losses) and losses[stop] <= 4 * losses[0]:
        return "Compare with the lowest loss so far, not with the first"
    return "Go through the losses in order and keep the lowest so far"


def _why_chosen(chosen: Any, rates: list[float], losses: list[float], stop: int, lowest: int) -> str:
    if not _is_number(chosen):
        return "It should be a number"
    if math.isclose(chosen, rates[lowest], rel_tol=1e-6):
        return "There the loss is about to turn; take a tenth"
    finite = [loss if math.isfinite(loss) else math.inf for loss in losses]
    overall = finite.index(min(finite))
    if overall != lowest and math.isclose(chosen, rates[overall] / 10, rel_tol=1e-6):
        return "Your minimum lies after the stop, where the training was lost already"
    if math.isclose(chosen, losses[lowest] / 10, rel_tol=1e-6):
        return "That is a tenth of the loss, not of the rate"
    return "Look for the lowest loss before the stop"


# NovoGrad. Inputs are in float64, so that a mistake of one part in a million shows.

_SHAPES = ((4, 3), (6,), (2, 3, 2))


def _novograd_problem(steps: int) -> tuple[list[torch.Tensor], list[list[torch.Tensor]]]:
    """Weights of three layers, and gradients whose scale differs from layer to layer and falls with time."""
    generator = torch.Generator().manual_seed(4)

    def draw(scale: float, shape: tuple[int, ...]) -> torch.Tensor:
        return scale * torch.randn(shape, generator=generator, dtype=torch.float64)

    weights = [draw(1.0, shape) for shape in _SHAPES]
    scales = (20.0, 0.05, 1.0)
    gradients = [
        [draw(scale * (0.3 + 3 * 0.9**step), shape) + 0.3 * scale for scale, shape in zip(scales, _SHAPES, strict=True)]
        for step in range(steps)
    ]
    return weights, gradients


def _reference(
    weights: list[torch.Tensor], gradients: Sequence[Sequence[torch.Tensor]], **options: Any
) -> list[torch.Tensor]:
    params = [torch.nn.Parameter(weight.clone()) for weight in weights]
    optimizer = NovoGrad(params, **options)
    for step in gradients:
        for param, gradient in zip(params, step, strict=True):
            param.grad = gradient.clone()
        optimizer.step()
    return [param.detach() for param in params]


def _mistaken(
    weights: list[torch.Tensor],
    gradients: Sequence[Sequence[torch.Tensor]],
    mistake: str,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    grad_averaging: bool = False,
) -> list[torch.Tensor]:
    """The algorithm with one of the usual mistakes in it."""
    beta1, beta2 = reversed(betas) if mistake == "betas" else betas
    weights = [weight.clone() for weight in weights]
    vs: list[Any] = [None] * len(weights)
    ms = [torch.zeros_like(weight) for weight in weights]
    share = (1 - beta1) if (grad_averaging != (mistake in ("no averaging", "averaging"))) else 1.0
    for t, step in enumerate(gradients, 1):
        total = sum(gradient.square().sum() for gradient in step)
        for index, (w, gradient) in enumerate(zip(weights, step, strict=True)):
            g = gradient + weight_decay * w if mistake == "decay in the norm" else gradient
            squared = {
                "element-wise": g.square(), "one norm": total, "norm": g.square().sum().sqrt(), "mean": g.square().mean(),
            }.get(mistake, g.square().sum())  # fmt: skip
            before = vs[index]
            if before is None:
                zero = mistake in ("zero start", "bias of v", "Adam")
                vs[index] = (1 - beta2) * squared if zero else squared
            else:
                vs[index] = beta2 * before + (1 - beta2) * squared
            v = vs[index]
            if mistake in ("bias of v", "Adam"):
                v = v / (1 - beta2**t)
            if mistake == "old v" and before is not None:
                v = before
            if mistake == "v not kept":
                v = squared
            divisor = {
                "no root": v + eps, "norm": v + eps, "eps in the root": (v + eps).sqrt(), "no eps": v.sqrt(),
                "late division": torch.ones(()), "no division": torch.ones(()),
            }.get(mistake, v.sqrt() + eps)  # fmt: skip
            bracket = g / divisor
            if mistake not in ("no decay", "decay in the norm", "decay of the weights"):
                bracket = bracket + (-1 if mistake == "decay's sign" else 1) * weight_decay * w
            if mistake == "decay not averaged":
                bracket = g / divisor + weight_decay * w / share
            ms[index] = bracket if mistake == "no momentum" else beta1 * ms[index] + share * bracket
            if mistake == "averaged later" and t == 1:
                ms[index] = bracket
            m = ms[index]
            if mistake in ("bias of m", "Adam"):
                m = m / (1 - beta1**t)
            if mistake == "late division":
                m = m / (v.sqrt() + eps)
            if mistake == "decay of the weights":
                w.mul_(1 - lr * weight_decay)
            w.add_(m, alpha=lr if mistake == "sign" else -lr)
    return weights


_WHY = {
    "element-wise": "v is one number a layer, the squared norm of the whole tensor; yours is a number for each weight, which is Adam",
    "one norm": "Each layer has a v of its own; you took the norm over all layers together",
    "mean": "v is the sum of the squares, ‖g‖²; yours is their mean",
    "zero start": "v starts at ‖g₁‖², the first gradient's own; from 0 it would be 50 times too small at first, and the step 7 times too long",
    "bias of v": "v starts at ‖g₁‖² and needs no bias correction; starting at 0 and correcting gives other weights to the steps",
    "bias of m": "NovoGrad does not correct m's bias: leave out the division by 1 − β1ᵗ",
    "Adam": "v starts at ‖g₁‖², and neither v nor m is bias-corrected; that is Adam's",
    "old v": "Divide by the new v, the one that has just taken in this gradient",
    "v not kept": "v is a running average: keep it in state, v ← β2 v + (1 − β2) ‖g‖²",
    "norm": "v averages the squared norms, and its root is taken afterwards",
    "no root": "Divide by √v + eps; yours divides by v",
    "eps in the root": "eps is added to the root, √v + eps, and not under it",
    "no eps": "eps is missing: divide by √v + eps",
    "no division": "The gradient is not divided by √v + eps: that is plain momentum",
    "late division": "The gradient is divided before it enters m; yours collects raw gradients in m and divides m",
    "no momentum": "m ← β1 m + …: yours forgets the earlier steps",
    "betas": "betas is (β1, β2): the first is the momentum's, the second v's",
    "sign": "The step goes down: w ← w − lr m",
    "no decay": "weight_decay has no effect: m ← β1 m + (g/(√v + eps) + d w)",
    "decay in the norm": "The decay d·w is added after the division; yours is in the gradient whose norm is taken, and so is divided too (that is what “decoupled” avoids)",
    "decay of the weights": "The decay enters m, beside the normalised gradient; yours shrinks the weights outside of it, as AdamW does",
    "decay's sign": "The decay pulls towards 0: add d·w to the bracket",
    "no averaging": "grad_averaging has no effect: it multiplies the bracket by 1 − β1",
    "averaging": "Without grad_averaging the bracket enters m whole; yours is multiplied by 1 − β1",
    "averaged later": "grad_averaging multiplies the bracket by 1 − β1 in the first step too; yours takes the first whole",
    "decay not averaged": "grad_averaging multiplies the whole bracket by 1 − β1, the decay included",
}


def novograd(answer: Callable[..., Any]) -> None:
    plain = dict(lr=0.02, betas=(0.9, 0.95))
    cases = [
        ("the first step", 1, plain),
        ("fifty steps", 50, plain),
        ("twenty steps with weight_decay = 0.1", 20, {**plain, "weight_decay": 0.1}),
        ("five steps with grad_averaging and weight_decay = 0.1", 5, {**plain, "weight_decay": 0.1, "grad_averaging": True}),
        ("three steps with eps = 0.5", 3, {**plain, "eps": 0.5}),
        ("two steps with the paper's betas, left to their default", 2, dict(lr=0.02)),
    ]  # fmt: skip
    for what, steps, options in cases:
        _compare_novograd(answer, what, steps, options)
    _two_networks(answer)
    print(
        "novograd_step: the reference's weights after 1 step, after 50, with decay, with averaging; gradients left alone"
    )


def _run(
    answer: Callable[..., Any], weights: list[torch.Tensor], gradients: Any, options: dict[str, Any]
) -> list[torch.Tensor]:
    mine, state = [weight.clone() for weight in weights], {}
    held = list(mine)
    for step in gradients:
        given = [gradient.clone() for gradient in step]
        answer(mine, given, state, **options)
        if any(not torch.equal(a, b) for a, b in zip(given, step, strict=True)):
            raise CheckFailed(
                "the gradients were changed in place (g /= …, g.div_(…), g.add_(…)?). Whoever logs or clips them after "
                "the step would see other numbers: compute a new tensor, g / …"
            )
        if any(a is not b for a, b in zip(mine, held, strict=True)):
            raise CheckFailed(
                "the list holds new tensors: the model still has the old ones. Change the weights in place, w -= …"
            )
    return mine


def _compare_novograd(answer: Callable[..., Any], what: str, steps: int, options: dict[str, Any]) -> None:
    weights, gradients = _novograd_problem(steps)
    expected = _reference(weights, gradients, **options)
    found = _run(answer, weights, gradients, options)
    moved = max(_distance(a, b) for a, b in zip(expected, weights, strict=True))
    off = [_distance(a, b) for a, b in zip(found, expected, strict=True)]
    if max(off) < 1e-5 * moved:
        return
    if all(torch.equal(a, b) for a, b in zip(found, weights, strict=True)):
        raise CheckFailed(
            f"{what}: the weights did not move. Change the tensors in place: w -= lr * m, not w = w - lr * m"
        )
    layer = next(index for index, distance in enumerate(off) if not distance < 1e-5 * moved)
    came, wanted = found[layer] - weights[layer], expected[layer] - weights[layer]
    told = (
        f"{what}: layer {layer} of shape {tuple(weights[layer].shape)} should have moved by {wanted.norm():.5f} in norm, "
        f"yours moved by {came.norm():.5f}. "
    )
    full = {"betas": (0.95, 0.98), **options}
    for mistake, why in _WHY.items():
        if _matters(mistake, full) and all(
            _distance(a, b) < 1e-5 * moved
            for a, b in zip(found, _mistaken(weights, gradients, mistake, **full), strict=True)
        ):
            raise CheckFailed(told + why)
    hint = {
        1: "In the first step v = ‖g‖² for each layer, so each moves by lr in norm, in the direction of −g",
        50: "The first step is right. Look at v ← β2 v + (1 − β2) ‖g‖² and m ← β1 m + g/(√v + eps), and at what state keeps for each layer",
    }.get(steps, "Without these options it is right; see how they enter the bracket")
    raise CheckFailed(told + hint)


def _matters(mistake: str, options: dict[str, Any]) -> bool:
    if "decay" in mistake and not options.get("weight_decay"):
        return False
    if mistake in ("averaged later", "no averaging", "decay not averaged"):
        return bool(options.get("grad_averaging"))
    return mistake != "averaging" or not options.get("grad_averaging")


def _two_networks(answer: Callable[..., Any]) -> None:
    weights, gradients = _novograd_problem(4)
    options = dict(lr=0.02, betas=(0.9, 0.95))
    expected = _reference(weights, gradients, **options)
    first, second = [w.clone() for w in weights], [w.clone() for w in weights]
    states: tuple[dict, dict] = ({}, {})
    for step in gradients:
        for mine, state in zip((first, second), states, strict=True):
            answer(mine, [gradient.clone() for gradient in step], state, **options)
    if max(_distance(a, b) for mine in (first, second) for a, b in zip(mine, expected, strict=True)) > 1e-5:
        raise CheckFailed(
            "one network alone is right; two trained in turn, each with a state of its own, disturb each other. "
            "Keep v and m in state, and nowhere else"
        )


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.shape != b.shape:
        return math.inf
    distance = (a.double() - b.double()).norm().item()
    return distance if math.isfinite(distance) else math.inf


def curve_csv(answer: tuple[Callable[..., Any], Callable[..., Any]]) -> None:
    name_of, write = answer
    for arguments, expected in (
        ((2, 32, 0.01, 0.9, 5), "2ranks-32bs-0.01lr-0.9m-5w.csv"), ((4, 256, 0.15, 0.0, 0.5), "4ranks-256bs-0.15lr-0.0m-0.5w.csv"),
    ):  # fmt: skip
        found = name_of(*arguments)
        if found != expected:
            why = "the name ends in .csv" if found == expected.removesuffix(".csv") else _why_name(found, expected)
            raise CheckFailed(f"curve_name{arguments} is {expected!r}, yours is {found!r}: {why}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "curve.csv"
        for times, accuracies in (([12.345, 24.06], [0.71236, 0.80004]), ([3.21, 6.5, 9.99], [0.5, 0.65433, 0.7])):
            write(path, times, accuracies)
            _check_curve(path, times, accuracies)
    print("learning curve: named and written as in the multi-GPU tutorial")


def _why_name(found: Any, expected: str) -> str:
    if not isinstance(found, str):
        return "return the name, a str"
    if sorted(found) == sorted(expected):
        return "the order is ranks, batch size, learning rate, momentum, warm-up"
    return "'{}ranks-{}bs-{}lr-{}m-{}w.csv'.format(…), the numbers as Python prints them"


def _check_curve(path: Path, times: list[float], accuracies: list[float]) -> None:
    if not path.exists():
        raise CheckFailed("write_curve wrote no file at the path that it was given")
    text = path.read_text()
    rows = [row for row in csv.reader(text.splitlines()) if row]
    wanted = [["time", "val_accuracy"], ["0.0", "0.0"]]
    wanted += [[str(round(time, 1)), str(round(accuracy, 4))] for time, accuracy in zip(times, accuracies, strict=True)]
    if not text.endswith("\n"):
        raise CheckFailed(
            "the last row has no line end: the file was not closed, or not written whole. Use `with open(…)`"
        )
    if not rows or rows[0] != wanted[0]:
        raise CheckFailed(
            f"the first row is the header time,val_accuracy; yours is {','.join(rows[0]) if rows else 'missing'}"
        )
    try:
        numbers = [[float(value) for value in row] for row in rows[1:]]
    except ValueError:
        twice = rows.count(wanted[0]) > 1
        why = "a second header: the file was appended to. A new curve replaces the old one, open(path, 'w')"
        raise CheckFailed(why if twice else f"a row holds something that is no number: {rows[1:]}") from None
    if any(len(row) != 2 for row in numbers):
        raise CheckFailed(f"each row holds two numbers, time and accuracy; yours are {rows[1:]}")
    if not numbers or numbers[0] != [0.0, 0.0]:
        raise CheckFailed(
            f"the curve begins at 0.0,0.0, before any training; yours with {','.join(rows[1]) if rows[1:] else 'nothing'}"
        )
    if len(numbers) != len(wanted) - 1:
        raise CheckFailed(f"{len(times)} epochs give {len(times) + 1} rows below the header, yours has {len(numbers)}")
    for row, (time, accuracy), exact in zip(
        numbers[1:], [(round(t, 1), round(a, 4)) for t, a in zip(times, accuracies, strict=True)],
        zip(times, accuracies, strict=True), strict=True,
    ):  # fmt: skip
        if math.isclose(row[1], 100 * accuracy, rel_tol=1e-3) and accuracy:
            raise CheckFailed(f"accuracies are in 0…1: {accuracy}, not {row[1]}")
        if row == [time, accuracy]:
            continue
        if all(math.isclose(a, b, abs_tol=1e-9) for a, b in zip(row, exact, strict=True)):
            raise CheckFailed(
                f"the multi-GPU tutorial rounds: seconds to 1 digit, accuracy to 4, which is {time},{accuracy}; yours is {row[0]},{row[1]}"
            )
        raise CheckFailed(f"the row {time},{accuracy} is {row[0]},{row[1]} in your file")


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and value.dtype is not torch.bool
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _name(value: Any) -> str:
    return "nothing (None): is there a return?" if value is None else f"a {type(value).__name__}"


CHECKS = {
    "momentum": momentum_step,
    "warmup": warmup,
    "range-test": range_test,
    "novograd": novograd,
    "curve": curve_csv,
    "run": lambda folder: check_run(folder, "04_momentum_warmup_novograd"),
}
