"""The loss along the straight line between the weights of two networks (Goodfellow, Vinyals and Saxe 2015)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import nn

from course_lib.training.loop import evaluate

__all__ = ["loss_along_line"]

State = Mapping[str, torch.Tensor]


def loss_along_line(
    model: nn.Module,
    first: State,
    second: State,
    interpolate: Callable[[State, State, float], State],
    points: Sequence[float],
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
) -> list[tuple[float, float]]:
    """Mean cross-entropy and accuracy of the network at each point t of the line, in evaluation mode.

    Parameters
    ----------
    model : nn.Module
        Any network with these names and shapes; it is left with the weights of the last point.
    interpolate : callable
        ``interpolate(first, second, t)`` gives the state dict at t; 0 is the first, 1 the second.

    Notes
    -----
    Running statistics of batch norm are interpolated like weights. They would be other numbers there; the course's
    network has none.
    """
    losses = []
    for t in points:
        model.load_state_dict(interpolate(first, second, t))
        loss, correct, images = evaluate(model, batches, nn.functional.cross_entropy)
        losses.append((loss / images, correct / images))
    return losses
