"""The state of a model's weights after a training: trained, diverged, dead, or unchanged.

The accuracy does not distinguish the last three: on ten classes all have 10 %. The argmax of a row of NaN is class 0,
so a diverged network is right for the images of class 0. A network that gives all images one class, with its ReLUs at
zero or its weights far off, is right for the images of that class. Unchanged weights are right by chance.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from course_lib.training.strategies.worker_shard import state_vector

__all__ = ["WeightHealth", "check_weight_health"]


@dataclass(frozen=True)
class WeightHealth:
    """The state that a training left a model in.

    Attributes
    ----------
    finite : bool
        All weights and all outputs are numbers.
    moved : float
        Euclidean norm of the weights' displacement from the start; nan or inf after a divergence.
    constant : bool
        Every image gets the same class.
    """

    finite: bool
    moved: float
    constant: bool

    @property
    def problem(self) -> str:
        """Why the model cannot have learned, with the remedy, in one line; empty if no problem is seen."""
        if not self.finite:
            return "diverged: some weights or outputs are not finite; lower the learning rate"
        if self.moved == 0:
            return "unmoved: the weights are the initial ones; the processes trained copies of their own"
        if self.constant:
            return (
                f"one answer for all images: the weights moved by {self.moved:.2f}; that is too far (lower the learning "
                "rate), or too little to learn anything"
            )
        return ""

    def __str__(self) -> str:
        return self.problem or f"the weights moved by {self.moved:.2f}"


@torch.no_grad()
def check_weight_health(
    model: nn.Module, start: torch.Tensor, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]
) -> WeightHealth:
    """Examine a trained model.

    Parameters
    ----------
    model : nn.Module
        Its mode, training or evaluation, is not changed.
    start : Tensor ``(n,)``
        `state_vector` of the model before the training.
    batches : iterable of (images, labels)
        Images of several classes. Outputs are ``(images, classes)``.
    """
    training = model.training
    model.eval()
    outputs = torch.cat([model(images) for images, _ in batches])
    model.train(training)
    weights = state_vector(model)
    finite = bool(weights.isfinite().all() and outputs.isfinite().all())
    return WeightHealth(finite, (weights - start).norm().item(), finite and len(outputs.argmax(1).unique()) == 1)
