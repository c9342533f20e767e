"""What training on several ranks does to a network's weights, computed in one process outside the sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from course_lib.models import WideResNet
from course_lib.training.precision import accelerate_model

__all__ = ["moved_alike", "trained"]

Batch = tuple[torch.Tensor, torch.Tensor]


def trained(
    first: Any, channels: int, steps: Sequence[Sequence[Batch]], rates: Sequence[float], nesterov: bool
) -> WideResNet | None:
    """The network of width 1 after SGD with momentum 0.9 on the mean of the ranks' gradients, without dropout.

    Parameters
    ----------
    first : dict of str to Tensor
        The weights before training. From the sandbox: None is returned where they are not the network's.
    channels : int
        Of the images.
    steps : sequence
        For each step, a batch of each rank.
    rates : sequence of float
        Learning rate of each step.
    """
    model = WideResNet((16, 32, 64), channels)
    try:
        model.load_state_dict(first)
    except (RuntimeError, TypeError, AttributeError):
        return None
    model = accelerate_model(model, "cpu")  # as the labs do: rounding decides where a training goes
    for module in model.modules():
        if "Dropout" in type(module).__name__:
            module.p = 0.0
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1, momentum=0.9, nesterov=nesterov)
    for batches, rate in zip(steps, rates, strict=True):
        optimizer.zero_grad()
        for images, labels in batches:
            (
                nn.functional.cross_entropy(model(images.contiguous(memory_format=torch.channels_last)), labels)
                / len(batches)
            ).backward()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    return model


def moved_alike(first: Any, model: nn.Module, reference: nn.Module) -> bool:
    """Whether `model` has moved away from `first` as far as `reference` has, and in its direction.

    Loosely, because training magnifies rounding, above all in bfloat16: with a learning rate of 0.001 the two ends of
    the same 15 steps lay up to 0.2 of the way apart (two seeds, width 1), while its length agreed within 1 %.
    """
    try:
        moves = [
            torch.cat([(parameter.detach() - first[name]).flatten() for name, parameter in one.named_parameters()])
            for one in (model, reference)
        ]
    except (RuntimeError, TypeError, KeyError):
        return False
    own, expected = (move.double() for move in moves)
    length, ratio = float(expected.norm()), float(own.norm() / expected.norm())
    return length > 1e-4 and 0.85 < ratio < 1.18 and float((own - expected).norm()) < 0.5 * length
