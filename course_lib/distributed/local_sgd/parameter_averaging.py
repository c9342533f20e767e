"""Average the workers' models by one all-reduce."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["TorchPeers", "average_parameters"]


class TorchPeers:
    """Ranks of a torch.distributed process group (the default one unless given)."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of all workers' tensors, the same on each; `tensor` itself is not changed."""
        total = tensor.detach().clone()
        dist.all_reduce(total, group=self.group)
        return total


@torch.no_grad()
def average_parameters(peers: TorchPeers, model: nn.Module, weight: float = 1.0) -> None:
    """Give every worker's model the weighted mean of all workers' models, in one all-reduce of one flat buffer.

    Parameters
    ----------
    weight : float
        This worker's: the number of its samples, if shards are uneven. The mean is Σ weight·model / Σ weight.

    Notes
    -----
    Parameters and buffers are averaged. Batch norm's running means and variances are averaged like parameters; the mean
    of the variances ignores how far the means are apart, which is little if the shards are alike. Counters become their
    rounded mean, exact as far as the precision of the sum allows (float32: about 1e-7 of its value). The optimiser's
    state (momentum) stays each worker's own.

    Raises
    ------
    ValueError
        A weight is negative, or all are 0; raised on every worker.
    """
    tensors = list(model.state_dict().values())
    exact = torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32
    flat = torch.cat([tensor.detach().reshape(-1).to(exact) for tensor in tensors])
    device = flat.device
    # The weight is part of the same message.
    total = peers.sum(torch.cat([flat * weight, torch.tensor([weight, float(weight < 0)], dtype=exact, device=device)]))
    flat, (weights, negative) = total[:-2], total[-2:].tolist()
    if negative or not weights > 0:
        raise ValueError(f"weights of an average must be 0 or more, and not all 0; this worker's is {weight}")
    flat /= weights
    for tensor, mean in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_((mean if tensor.is_floating_point() else mean.round()).view_as(tensor))
