"""A model's gradients as views of one tensor, so that one message sums all of them."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["flat_gradients"]


def flat_gradients(model: nn.Module) -> torch.Tensor:
    """Replace each parameter's `grad` by a view of one flat tensor of zeros, and return that tensor.

    `backward()` adds to the views. Set the tensor to zero before each step, and never the gradients to None. The views
    have their parameters' memory layout, channels last for example.

    Returns
    -------
    Tensor ``(number of parameters,)``, on the parameters' device and of their type
    """
    weights = list(model.parameters())
    flat = torch.zeros(sum(w.numel() for w in weights), device=weights[0].device, dtype=weights[0].dtype)
    start = 0
    for weight in weights:
        weight.grad = flat.as_strided(weight.shape, weight.stride(), start)
        start += weight.numel()
    return flat
