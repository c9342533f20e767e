"""Gradual warm-up: the first steps with many ranks start from one rank's learning rate (Goyal et al. 2017).

The functions multiply each group's own learning rate, so groups with different rates keep their ratios.
`warmup_then_decay` is the plain rise and fall that the first labs use.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    SequentialLR,
)

__all__ = ["linear_warmup", "warmup_then", "warmup_then_decay"]


def linear_warmup(optimizer: torch.optim.Optimizer, world_size: int, warmup_epochs: int) -> LinearLR:
    """Rise from lr / world size to lr, the optimiser's own; step it once per epoch (the multi-GPU tutorial, warm-up).

    Epoch e (from 0) has lr·(1/N + (1 − 1/N)·e / warmup_epochs), and lr from epoch `warmup_epochs` on. Give the
    optimiser the rate already scaled to N ranks (`course_lib.optim.linear_scaling`).

    Raises
    ------
    ValueError
        `world_size` or `warmup_epochs` below 1.
    """
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, got {world_size}")
    if warmup_epochs < 1:
        raise ValueError(f"warmup_epochs must be at least 1, got {warmup_epochs}")
    return LinearLR(optimizer, start_factor=1 / world_size, total_iters=warmup_epochs)


def warmup_then(
    optimizer: torch.optim.Optimizer,
    total_steps: int,
    warmup_steps: int,
    start_factor: float,
    decay: str = "cosine",
    milestones: Sequence[int] = (),
    gamma: float = 0.1,
) -> LRScheduler:
    """Warm-up by equal steps per iteration, then a decay; step it once per iteration (Goyal et al. 2017, 2.2 and 5.1).

    With w warm-up steps of T, step i (from 0) has lr times

    - start_factor + (1 − start_factor)·i / w, where i < w; from there on
    - "cosine": ½(1 + cos π(i − w)/(T − w)), to 0 at T
    - "linear": (T − i)/(T − w), to 0 at T
    - "step": gamma to the number of milestones ≤ i
    - "constant": 1

    To resume, build the optimiser and the schedule anew, then load both of their state dicts.

    Parameters
    ----------
    total_steps : int
        T, iterations in the whole training. Do not step beyond it: torch's cosine would rise again.
    warmup_steps : int
        w, below `total_steps`; 0 for none.
    start_factor : float
        In (0, 1]; Goyal's is 1 / k, for a learning rate scaled by k.
    milestones : sequence of int
        Increasing iterations, counted from the start of training, at which "step" multiplies by `gamma`.

    Raises
    ------
    ValueError
        `decay` is none of the four, or a number is outside its range.
    """
    if total_steps < 1:
        raise ValueError(f"total_steps must be at least 1, got {total_steps}")
    if not 0 <= warmup_steps < total_steps:
        raise ValueError(f"warmup_steps must lie in 0…{total_steps - 1}, got {warmup_steps}")
    if not 0 < start_factor <= 1:
        raise ValueError(f"start_factor must lie in (0, 1], got {start_factor}")
    ordered = all(a < b for a, b in itertools.pairwise(milestones))
    if milestones and (decay != "step" or not ordered or milestones[0] <= warmup_steps):
        raise ValueError(f"milestones must increase, lie after the warm-up and go with decay 'step', got {milestones}")
    remaining = total_steps - warmup_steps
    if decay == "cosine":
        after = CosineAnnealingLR(optimizer, remaining)
    elif decay == "linear":
        after = LinearLR(optimizer, 1.0, 0.0, remaining)
    elif decay == "step":
        after = MultiStepLR(optimizer, [step - warmup_steps for step in milestones], gamma)
    elif decay == "constant":
        after = ConstantLR(optimizer, 1.0, remaining)
    else:
        raise ValueError(f"decay must be cosine, linear, step or constant, got {decay!r}")
    if not warmup_steps:
        return after
    warmup = LinearLR(optimizer, start_factor, total_iters=warmup_steps)
    return SequentialLR(optimizer, [warmup, after], [warmup_steps])


def warmup_then_decay(optimizer: torch.optim.Optimizer, total_steps: int, warmup_steps: int = 0) -> LambdaLR:
    """Learning rate rises linearly over `warmup_steps` and falls linearly to 0 at `total_steps`.

    Step it once per iteration. The factor of step i is min((i+1)/warmup, (total−i)/(total−warmup)).

    Raises
    ------
    ValueError
        `warmup_steps` not below `total_steps`.
    """
    if not 0 <= warmup_steps < max(total_steps, 1):
        raise ValueError(f"warmup_steps must lie in 0…{total_steps - 1}, got {warmup_steps}")

    def factor(step: int) -> float:
        rising = (step + 1) / warmup_steps if warmup_steps else 1.0
        falling = (total_steps - step) / (total_steps - warmup_steps)
        return max(0.0, min(rising, falling, 1.0))

    return LambdaLR(optimizer, factor)
