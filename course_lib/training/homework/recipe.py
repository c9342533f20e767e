"""SGD with one cycle of the learning rate: few epochs to a good accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from course_lib.optim import linear_scaling, no_decay_groups

__all__ = ["REFERENCE_BATCH", "Recipe", "one_cycle_options", "one_cycle_recipe", "one_cycle_sgd"]

REFERENCE_BATCH = 128  # images per step for which base_lr is meant


@dataclass
class Recipe:
    """Optimiser, schedule and loss for `course_lib.training.loop.fit`."""

    optimizer: torch.optim.Optimizer
    scheduler: Any
    loss_fn: nn.Module


def one_cycle_sgd(
    groups: nn.Module | Sequence[dict[str, Any]],
    *,
    steps_per_epoch: int,
    epochs: int,
    images_per_step: int,
    base_lr: float,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    label_smoothing: float = 0.1,
    warmup_epochs: float = 2.0,
) -> Recipe:
    """SGD with Nesterov momentum, one-cycle schedule, smoothed labels.

    The learning rate rises along a cosine to ``base_lr · images_per_step / 128`` during the warm-up and falls along a
    cosine to nearly 0 at the end (Smith & Topin 2018, in its two-phase form); the momentum stays.

    Parameters
    ----------
    groups : nn.Module or sequence of dict
        A model, whose weights decay and whose biases and norms do not; or parameter groups, each of which may have
        ``lr_factor``, a factor of its learning rate.
    steps_per_epoch, epochs, images_per_step : int
        The schedule's length, and the images of one step on all ranks together.
    """
    if isinstance(groups, nn.Module):
        groups = no_decay_groups(groups, weight_decay)
    highest = linear_scaling(base_lr, images_per_step / REFERENCE_BATCH)
    groups = [{**group} for group in groups]
    rates = [highest * group.pop("lr_factor", 1.0) for group in groups]
    # One kernel for all parameters where there is one: the step is then a few launches, not hundreds.
    optimizer = torch.optim.SGD(
        groups, lr=highest, momentum=momentum, weight_decay=weight_decay, nesterov=momentum > 0, fused=True
    )
    total = steps_per_epoch * epochs + 1  # fit steps the schedule after each iteration, the last included
    rising = max(warmup_epochs * steps_per_epoch, 1.0) + 1  # OneCycleLR divides by rising − 1
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=rates,
        total_steps=total,
        pct_start=min(rising / total, 0.9),
        cycle_momentum=False,
        div_factor=25.0,
        final_div_factor=1e3,
    )
    return Recipe(optimizer, scheduler, nn.CrossEntropyLoss(label_smoothing=label_smoothing))


def one_cycle_recipe(model: nn.Module, values: Mapping[str, Any], steps_per_epoch: int, images_per_step: int) -> Recipe:
    """`one_cycle_sgd` for a whole model, by a program's options."""
    return one_cycle_sgd(
        model, steps_per_epoch=steps_per_epoch, images_per_step=images_per_step, **one_cycle_options(values)
    )


def one_cycle_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a program that `one_cycle_sgd` takes."""
    names = ("epochs", "base_lr", "momentum", "weight_decay", "label_smoothing", "warmup_epochs")
    return {name: values[name] for name in names}
