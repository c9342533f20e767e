"""Updates lost in races, measured in a training.

To add to a shared number, a process reads it, adds, and writes it back. If two processes read before either writes, one
of the two updates is lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

__all__ = ["LostUpdates", "measure_lost_updates"]


@dataclass(frozen=True)
class LostUpdates:
    """How much the workers added to the weights, and how much of it is missing.

    Attributes
    ----------
    added : float
        Sum of the absolute values of all updates, over steps, coordinates and workers.
    missing : float
        Sum over the coordinates of |sum of the updates − displacement of the weight|. Losses of opposite sign on one
        coordinate cancel, so this is a lower bound. Without races it is the rounding error of the weights' dtype.
    """

    added: float
    missing: float

    @property
    def fraction(self) -> float:
        return self.missing / self.added if self.added else 0.0


def measure_lost_updates(
    before: torch.Tensor, after: torch.Tensor, sums: Iterable[torch.Tensor], absolute_sums: Iterable[float]
) -> LostUpdates:
    """Compare the sum of all updates with the displacement of the weights.

    Parameters
    ----------
    before, after : Tensor ``(n,)``
        The weights at the start and at the end.
    sums : iterable of Tensor ``(n,)``, float64
        Each worker's updates, summed over its steps.
    absolute_sums : iterable of float
        Each worker's updates' absolute values, summed over steps and coordinates.
    """
    missing = sum(sums, torch.zeros_like(before, dtype=torch.float64)) - (after.double() - before.double())
    return LostUpdates(added=float(sum(absolute_sums)), missing=missing.abs().sum().item())
