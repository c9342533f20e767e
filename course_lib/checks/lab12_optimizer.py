"""Visible checks of lab 12's optimiser and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from course_lib.checks.registry import CheckFailed
from course_lib.optim import NovoGrad

__all__ = ["optimizer", "schedule"]


class _Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.classifier = nn.Linear(4, 3)


def _after(optimizer: torch.optim.Optimizer, model: nn.Module, steps: int = 3) -> list[torch.Tensor]:
    """The parameters after steps along given gradients."""
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def _model() -> _Small:
    torch.manual_seed(3)
    model = _Small()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5)
    return model


def _expected(name: str, lr: float, momentum: float, decay: float, *, biases: bool = False, nesterov: bool = True,
              averaging: bool = True, betas: tuple[float, float] | None = None) -> list[torch.Tensor]:  # fmt: skip
    model = _model()
    weights = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": weights, "weight_decay": decay}, {"params": others, "weight_decay": decay if biases else 0.0}]
    if name == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            groups, lr=lr, momentum=momentum, nesterov=nesterov and momentum > 0
        )
    else:
        optimizer = NovoGrad(groups, lr=lr, betas=betas or (momentum, 0.98), grad_averaging=averaging)
    return _after(optimizer, model)


def optimizer(answer: Callable[..., Any]) -> None:
    for name, lr, momentum, decay in (("sgd", 0.1, 0.9, 0.2), ("sgd", 0.1, 0.0, 0.2), ("novograd", 0.1, 0.8, 0.2)):
        given = f'make_optimizer("{name}", model, {lr}, {momentum}, {decay})'
        model = _model()
        made = answer(name, model, lr, momentum, decay)
        if not isinstance(made, torch.optim.Optimizer):
            raise CheckFailed(f"{given} should return an optimiser, it returned {made!r}")
        held = [id(p) for group in made.param_groups for p in group["params"]]
        missing = [n for n, p in model.named_parameters() if id(p) not in held]
        if missing:
            raise CheckFailed(f"{given}: {', '.join(missing)} would never be trained; every parameter is in one group")
        found = _after(made, model)
        mistakes = (
            (dict(biases=True), "the decay acts on biases and batch norm too; those with one dimension have none"),
            (dict(nesterov=False), "this is momentum without Nesterov's look ahead: nesterov=True"),
            (dict(averaging=False), "grad_averaging=True is missing, so steps are 1/(1 − β1) times as long"),
            (dict(betas=(0.95, 0.98)), "betas is (momentum, 0.98); yours has the default 0.95"),
        )
        if not _same(found, _expected(name, lr, momentum, decay)):
            for options, why in mistakes:
                if _same(found, _expected(name, lr, momentum, decay, **options)):
                    raise CheckFailed(f"{given}: {why}")
            if _same(found, _expected(name, lr, momentum, 0.0)):
                raise CheckFailed(f"{given}: there is no weight decay at all")
            raise CheckFailed(f"{given}: after three steps the weights are not those of {name} with these settings")
    try:
        answer("adam", _model(), 0.1, 0.9, 0.0)
    except ValueError:
        pass
    except NotImplementedError:
        raise
    else:
        raise CheckFailed(
            'make_optimizer("adam", …) should raise ValueError: a misspelt name must not train something else'
        )
    print("make_optimizer: SGD with Nesterov momentum, NovoGrad; no decay on what has one dimension")


def _same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, expected, strict=True))


def _factor(step: int, total: int, warm: int) -> float:
    return 0.1 + 0.9 * step / warm if step < warm else (total - step) / (total - warm)


def schedule(answer: Callable[..., Any]) -> None:
    for total, warm in ((100, 20), (37, 5), (10, 0)):
        groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": lr} for lr in (0.4, 0.1)]
        sgd = torch.optim.SGD(groups, lr=0.4)
        made = answer(sgd, total, warm)
        if not hasattr(made, "step"):
            raise CheckFailed(f"make_schedule should return a scheduler, it returned {made!r}")
        for step in range(total + 1):
            for group, lr in zip(sgd.param_groups, (0.4, 0.1), strict=True):
                found, wanted = group["lr"], lr * _factor(step, total, warm)
                if not math.isclose(found, wanted, rel_tol=1e-4, abs_tol=1e-9):
                    raise CheckFailed(_why_schedule(step, total, warm, found / lr))
            sgd.step()
            made.step()
        if max(abs(group["lr"]) for group in sgd.param_groups) > 1e-9:
            raise CheckFailed(
                f"T = {total}: one step beyond T the rate is {sgd.param_groups[0]['lr']:g}, it should stay at 0"
            )
    print("make_schedule: up over the warm-up, down to 0 at the last step, step by step")


def _why_schedule(step: int, total: int, warm: int, found: float) -> str:
    given = f"T = {total}, w = {warm}: step {step} trains at {_factor(step, total, warm):g} times the rate, yours at {found:g}. "
    if warm and math.isclose(found, 1.0) and step == 0:
        return given + "The warm-up begins at 0.1, before the first step of the scheduler"
    if step < warm:
        return given + "During the warm-up it is 0.1 + 0.9·i/w"
    return given + "After the warm-up it is (T − i)/(T − w): 1 where the warm-up ends, 0 at T"
