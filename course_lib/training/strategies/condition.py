"""What became of a model's weights: trained, diverged, dead, or never touched. An accuracy alone does not tell them apart.

The argmax of a row of NaN is class 0, so a diverged network scores the share of class 0; one that answers all images
alike, its ReLUs at zero or its weights thrown far off, scores the share of its one answer; one whose weights nobody
moved scores by luck. On ten classes all three are 10 %.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from course_lib.training.strategies.share import state_vector

__all__ = ["Condition", "condition_of"]


@dataclass(frozen=True)
class Condition:
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
    def trouble(self) -> str:
        """Why the model cannot have learned, with the remedy, in one line; empty where nothing speaks against it."""
        if not self.finite:
            return "diverged: there are weights or outputs that are no numbers; lower the learning rate"
        if self.moved == 0:
            return "unmoved: the weights are those of the start; the processes trained copies of their own"
        if self.constant:
            return (
                f"one answer for all images: the weights moved by {self.moved:.2f}, which threw the network off (lower the "
                "learning rate) or hardly trained it"
            )
        return ""

    def __str__(self) -> str:
        return self.trouble or f"the weights moved by {self.moved:.2f}"


@torch.no_grad()
def condition_of(
    model: nn.Module, start: torch.Tensor, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]
) -> Condition:
    """Look at a trained model.

    Parameters
    ----------
    model : nn.Module
        Left in the mode, training or evaluation, in which it comes.
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
    return Condition(finite, (weights - start).norm().item(), finite and len(outputs.argmax(1).unique()) == 1)
