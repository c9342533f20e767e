"""The learning-rate schedules of the labs: a linear rise, then a linear fall or steps down."""

from __future__ import annotations

import torch
from torch.optim.lr_scheduler import LambdaLR

__all__ = ["warmup_then_decay", "warmup_then_steps"]


def warmup_then_decay(optimizer: torch.optim.Optimizer, total_steps: int, warmup_steps: int = 0) -> LambdaLR:
    """Learning rate rises linearly over `warmup_steps` and falls linearly to 0 at `total_steps`.

    Step it once per iteration. The factor of step i is min((i+1)/warmup, (total−i)/(total−warmup)).

    Raises
    ------
    ValueError
        `warmup_steps` not below `total_steps`.
    """
    if not 0 <= warmup_steps < max(total_steps, 1):
        raise ValueError(f"warmup_steps must be in 0…{total_steps - 1}, got {warmup_steps}")

    def factor(step: int) -> float:
        rising = (step + 1) / warmup_steps if warmup_steps else 1.0
        falling = (total_steps - step) / (total_steps - warmup_steps)
        return max(0.0, min(rising, falling, 1.0))

    return LambdaLR(optimizer, factor)


def warmup_then_steps(
    optimizer: torch.optim.Optimizer,
    total_steps: int,
    warmup_steps: int = 0,
    drops: tuple[float, ...] = (0.35, 0.75, 0.9),
) -> LambdaLR:
    """Learning rate rises linearly over `warmup_steps` and falls to a tenth after each share `drops` of `total_steps`.

    Step it once per iteration. The default shares are kfac-pytorch's epochs 35, 75 and 90 of 100.
    """

    def factor(step: int) -> float:
        rising = (step + 1) / warmup_steps if warmup_steps else 1.0
        return min(rising, 1.0) * 0.1 ** sum(step >= share * total_steps for share in drops)

    return LambdaLR(optimizer, factor)
