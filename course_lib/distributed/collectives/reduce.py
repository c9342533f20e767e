"""Reduce: the sum of all ranks' tensors on one rank, built from messages, one after the other."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course_lib.distributed.collectives.flat_view import flat_view
from course_lib.distributed.launching.rank import require_rank
from course_lib.distributed.messages.agreement import check_agreement

__all__ = ["linear_reduce"]


@torch.no_grad()
def linear_reduce(tensor: torch.Tensor, dst: int = 0, *, check: bool = True) -> None:
    """Add all ranks' tensors to rank `dst`'s, in place; the others' stay as they are.

    The root receives N − 1 whole tensors, one after the other: the bottleneck of a parameter server.

    Parameters
    ----------
    tensor : torch.Tensor
        The same shape and dtype on every rank; strided, of any memory layout.
    dst : int
    check : bool
        Check first that all ranks make the same call (`check_agreement`).

    Raises
    ------
    ValueError
        There is no rank `dst`.
    CollectiveMismatchError
        The ranks do not make the same call.
    """
    require_rank("linear_reduce", dst=dst)
    if check:
        check_agreement("linear_reduce", tensor, dst=dst)
    if not tensor.numel():
        return
    if dist.get_rank() != dst:
        dist.send(tensor.contiguous(), dst)
        return
    with flat_view(tensor) as total:
        part = torch.empty_like(total)
        for peer in range(dist.get_world_size()):
            if peer != dst:
                dist.recv(part, peer)
                total += part
