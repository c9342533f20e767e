"""Average the workers' models: through the master, as the parallel SGD lab does, and by one all-reduce.

The workers may be ranks of an MPI communicator (`MPIPeers`) or of torch.distributed (`TorchPeers`).
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["MPIPeers", "Peers", "TorchPeers", "average_on_master", "average_parameters"]


class Peers(Protocol):
    """A group of workers, from the view of one of them."""

    rank: int
    size: int

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of all workers' tensors, the same on each; `tensor` itself is not changed."""

    def gather(self, value: Any) -> list[Any]:
        """All workers' values in the order of ranks, the same list on each."""

    def barrier(self) -> None:
        """Wait until all workers have called it."""


class MPIPeers:
    """Ranks of an MPI communicator. It imports no MPI: any object with mpi4py's methods works."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        mine = tensor.detach().cpu().contiguous()
        total = torch.empty_like(mine)
        self.comm.Allreduce(mine.numpy(), total.numpy())  # capital A: sends the buffers, without pickling
        return total.to(tensor.device)

    def gather(self, value: Any) -> list[Any]:
        return self.comm.allgather(value)

    def barrier(self) -> None:
        self.comm.Barrier()


class TorchPeers:
    """Ranks of a torch.distributed process group (the default one unless given)."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        total = tensor.detach().clone()
        dist.all_reduce(total, group=self.group)
        return total

    def gather(self, value: Any) -> list[Any]:
        values = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def barrier(self) -> None:
        dist.barrier(self.group)


@torch.no_grad()
def average_on_master(comm: Any, model: nn.Module) -> None:
    """The parallel SGD lab's way, to read and not to use: each worker sends its parameters to rank 0, which averages.

    One rank receives P − 1 pickled models, one after the other. Only rank 0 has the average afterwards. Unequal shards
    have the same weight, and buffers (batch norm's running statistics) are left out.
    """
    mine = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    if comm.Get_rank() != 0:
        comm.send(mine, dest=0)
        return
    for source in range(1, comm.Get_size()):
        theirs = comm.recv(source=source)
        for name in mine:
            mine[name] += theirs[name]
    for name, parameter in model.named_parameters():
        parameter.copy_(mine[name] / comm.Get_size())


@torch.no_grad()
def average_parameters(peers: Peers, model: nn.Module, weight: float = 1.0) -> None:
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
