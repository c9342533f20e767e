"""Synchronous SGD by all_reduce (the HW4 slides, Algorithm 1): averaged gradients at every step.

for images, labels in batches:                        # each rank its own
    optimizer.zero_grad()
    loss_fn(model(images), labels).backward()
    average_gradients(model, samples=len(images))
    optimizer.step()                                  # the same step on every rank
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["average_gradients"]


@torch.no_grad()
def average_gradients(model: nn.Module, samples: int = 1) -> int:
    """Replace the gradients by their mean over all ranks' images, in one all_reduce.

    Every rank must call it, with the same model. A rank's gradient is the mean over its own `samples` images and is
    weighted by their number, so that

        g = Σ_r n_r·g_r / Σ_r n_r

    is the gradient of the mean loss over the joined batch, also for uneven last batches (except that batch norm
    normalises with each rank's own batch). A rank that has no images left passes 0.

    Parameters
    ----------
    model : nn.Module
        Its parameters that require a gradient are averaged; a missing gradient counts as 0.
    samples : int
        Images of this rank's batch. By default all ranks have the same weight.

    Returns
    -------
    int
        Images of all ranks together.

    Raises
    ------
    ValueError
        `samples` is below 0 (raised before anything is sent, so the other ranks wait for this one), or 0 on all ranks.
    """
    if samples < 0:
        raise ValueError(f"samples must be at least 0, got {samples}")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    # The number of images is the last element of the same message. float32 counts exactly to 16 million.
    flat = torch.cat([*(gradient.flatten() for gradient in gradients), gradients[0].new_ones(1, dtype=torch.float32)])
    flat *= samples
    dist.all_reduce(flat)
    total = flat[-1].item()
    if total == 0:
        raise ValueError("no rank has images: samples is 0 everywhere")
    flat /= total
    means = flat[:-1].split([parameter.numel() for parameter in parameters])
    for parameter, gradient, mean in zip(parameters, gradients, means, strict=True):
        gradient.copy_(mean.view_as(gradient))
        parameter.grad = gradient
    return round(total)
