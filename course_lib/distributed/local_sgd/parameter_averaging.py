"""Average the workers' models by one all-reduce."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["average_parameters"]


@torch.no_grad()
def average_parameters(model: nn.Module) -> None:
    """Give every worker's model the mean of all workers' models, in one all-reduce of one flat buffer.

    Notes
    -----
    Parameters and buffers are averaged. Batch norm's running means and variances are averaged like parameters; the mean
    of the variances ignores how far the means are apart, which is little if the shards are alike. Counters become their
    rounded mean, exact as far as the precision of the sum allows (float32: about 1e-7 of its value). The optimiser's
    state (momentum) stays each worker's own.
    """
    tensors = list(model.state_dict().values())
    exact = torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32
    flat = torch.cat([tensor.detach().reshape(-1).to(exact) for tensor in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for tensor, mean in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_((mean if tensor.is_floating_point() else mean.round()).view_as(tensor))
