"""Checks of lab 05's training: groups of parameters, the schedule, a new head, and the folders of the three programs."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from course_lib.checks.registry import CheckFailed

__all__ = ["Pretrained", "factor", "recipe", "transfer"]

Answer = Callable[..., Any]


def recipe(answer: tuple[Answer, Answer]) -> None:
    groups, schedule = answer
    _check_groups(groups)
    _check_schedule(schedule)
    print(
        "recipe: only weights decay; the factor rises linearly and falls by half a cosine, with a warm-up and without"
    )


def _small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 5))


def _check_groups(answer: Answer) -> None:
    model = _small()
    found = answer(model, 0.02)
    try:
        optimizer = torch.optim.SGD(found, lr=1.0)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise CheckFailed(f"torch.optim.SGD does not take what parameter_groups returned: {error}") from None
    decays: dict[int, float] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            decays[id(parameter)] = group["weight_decay"]
    for name, parameter in model.named_parameters():
        wanted = 0.02 if parameter.dim() > 1 else 0.0
        if id(parameter) not in decays:
            raise CheckFailed(f"parameter {name} is in no group, so it would never be trained")
        if not math.isclose(decays[id(parameter)], wanted):
            what = "a weight of a convolution or linear layer" if wanted else "a bias or belongs to a batch norm"
            raise CheckFailed(f"parameter {name}, shape {tuple(parameter.shape)}, is {what}: weight decay {wanted:g}, yours "
                              f"has {decays[id(parameter)]:g}")  # fmt: skip


def factor(step: int, total: int, warm: int) -> float:
    """The schedule of the exercise: linear from 1/25 to 1 over `warm` steps, half a cosine down to 0 at `total`."""
    if step < warm:
        return 1 / 25 + (1 - 1 / 25) * step / warm
    return (1 + math.cos(math.pi * (step - warm) / (total - warm))) / 2


def _check_schedule(answer: Answer) -> None:
    for total, warm in ((40, 10), (30, 0), (25, 7)):
        for step in range(total):
            case = f"one_cycle(step={step}, total={total}, warm={warm})"
            try:
                found = answer(step, total, warm)
            except ZeroDivisionError:
                raise CheckFailed(f"{case} divides by zero: without warm-up the factor begins at 1") from None
            if not _is_number(found):
                raise CheckFailed(f"{case} is {'nothing' if found is None else type(found).__name__}; return a number")
            truth = factor(step, total, warm)
            if not math.isclose(found, truth, rel_tol=1e-5, abs_tol=1e-7):
                raise CheckFailed(
                    f"{case} is {truth:.4f}, yours is {float(found):.4f}. {_why(float(found), step, total, warm)}"
                )


def _why(found: float, step: int, total: int, warm: int) -> str:
    def near(value: float) -> bool:
        return math.isclose(found, value, rel_tol=1e-5, abs_tol=1e-7)

    if step < warm:
        if near(step / warm):
            return "It starts from 1/25, not from 0"
        if near(factor(step + 1, total, warm)):
            return "You are a step ahead: the first step is step 0"
        return "Linear from 1/25 at step 0 to 1 at step `warm`"
    done = (step - warm) / (total - warm)
    if near(1 - done):
        return "That is a straight line; the fall is half a cosine"
    if near((1 + math.cos(math.pi * step / total)) / 2):
        return "The cosine begins when the warm-up is over: count its steps from there"
    if near(math.cos(math.pi * done / 2)):
        return "That is a quarter of a cosine; (1 + cos(π·x))/2 is half of one, from 1 to 0"
    if near(1 / 25 + (1 - 1 / 25) * step / max(warm, 1)):
        return "The rise must stop at step `warm`"
    return "(1 + cos(π·x))/2 with x the share of the fall that is done: 0 at step `warm`, 1 at step `total`"


class Pretrained(nn.Module):
    """A network with a head, for the check of `transfer`."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        )
        self.classifier = nn.Linear(6, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.body(x).flatten(1))


def transfer(answer: Answer) -> None:
    for lr_body in (0.01, 0.0):
        torch.manual_seed(2)
        network = Pretrained()
        body = {name: tensor.clone() for name, tensor in network.body.state_dict().items()}
        old = network.classifier
        groups = answer(network, 7, 0.3, lr_body)
        case = f"transfer(network, 7, lr_head=0.3, lr_body={lr_body:g})"
        head = network.classifier
        if head is old:
            raise CheckFailed(
                f"{case}: the old head of 10 classes is still there. Set network.classifier to a new nn.Linear"
            )
        if not isinstance(head, nn.Linear) or tuple(head.weight.shape) != (7, 6):
            raise CheckFailed(
                f"{case}: the new head takes what the old one took, 6 numbers, and has 7 outputs; yours is {head}"
            )
        if any(not torch.equal(tensor, body[name]) for name, tensor in network.body.state_dict().items()):
            raise CheckFailed(f"{case}: the body's weights changed. They are what was learned; only the head is new")
        try:
            optimizer = torch.optim.SGD(groups, lr=99.0)
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise CheckFailed(f"{case}: torch.optim.SGD does not take what it returned: {error}") from None
        rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
        for name, parameter in network.named_parameters():
            wanted = 0.3 if name.startswith("classifier") else lr_body or None
            found = rates.get(id(parameter))
            if wanted is None:
                if parameter.requires_grad or found is not None:
                    raise CheckFailed(f"{case}: {name} is frozen then: requires_grad False, and in no group. Yours "
                                      f"{'still asks for a gradient' if parameter.requires_grad else 'is in a group'}")  # fmt: skip
            elif found is None:
                raise CheckFailed(f"{case}: {name} is in no group, so it would never be trained")
            elif found == 99.0:
                raise CheckFailed(f'{case}: the group of {name} has no "lr" of its own')
            elif not math.isclose(found, wanted):
                raise CheckFailed(f"{case}: {name} has learning rate {found:g}, expected {wanted:g}")
            elif not parameter.requires_grad:
                raise CheckFailed(f"{case}: {name} is to be trained and asks for no gradient")
    print("transfer: a new head, two learning rates, and a frozen body where its rate is 0")


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and value.dtype is not torch.bool
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
