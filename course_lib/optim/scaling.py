"""How the learning rate follows the batch: two rules of thumb."""

from __future__ import annotations

import math

__all__ = ["linear_scaling", "sqrt_scaling"]


def linear_scaling(base_lr: float, factor: float) -> float:
    """The learning rate for a batch `factor` times as large: k·η.

    k small steps along gradients that hardly differ are one step of k times the length. It fails where they do differ:
    in the first epochs (hence warm-up) and past the critical batch size.

    Parameters
    ----------
    base_lr : float
        Learning rate tuned for the base batch, positive.
    factor : float
        k, the batch's growth: usually the number of ranks, each with the base batch. Below 1 for a smaller batch.

    Raises
    ------
    ValueError
        Either is not a positive finite number.

    Source: Goyal et al. 2017, arXiv 1706.02677, section 2.1; Krizhevsky 2014, arXiv 1404.5997, which used it in
    practice.
    """
    _check(base_lr, factor)
    return base_lr * factor


def sqrt_scaling(base_lr: float, factor: float) -> float:
    """The learning rate for a batch `factor` times as large: √k·η.

    The mean of k times as many gradients has a k times smaller covariance; √k keeps that of the step, lr²·Σ/B, as it
    was. Parameters and errors as of `linear_scaling`.

    Source: Krizhevsky 2014, arXiv 1404.5997 (the theory there); Hoffer et al. 2017, arXiv 1705.08741.
    """
    _check(base_lr, factor)
    return base_lr * math.sqrt(factor)


def _check(base_lr: float, factor: float) -> None:
    for name, value in (("base_lr", base_lr), ("factor", factor)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be a positive finite number, got {value}")
