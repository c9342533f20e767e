"""Reduce: the sum of all ranks' tensors on one rank, built from messages. First one after the other, then by a tree."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course_lib.distributed.collectives.flat_view import flat_view
from course_lib.distributed.launching.rank import require_rank
from course_lib.distributed.messages.agreement import check_agreement

__all__ = ["linear_reduce", "tree_reduce"]


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


@torch.no_grad()
def tree_reduce(tensor: torch.Tensor, dst: int = 0, *, check: bool = True) -> None:
    """Add all ranks' tensors to rank `dst`'s along a binomial tree: `tree_broadcast` backwards, ⌈log₂ N⌉ rounds.

    Parameters and errors as for `linear_reduce`.
    """
    require_rank("tree_reduce", dst=dst)
    if check:
        check_agreement("tree_reduce", tensor, dst=dst)
    size = dist.get_world_size()
    position = (dist.get_rank() - dst) % size
    if not tensor.numel():
        return
    # The other ranks add in a buffer of their own: only the root's tensor may change.
    total = tensor.clone(memory_format=torch.contiguous_format).view(-1)
    part = torch.empty_like(total)
    distance = 1
    while distance < size:
        if position % (2 * distance) == distance:
            dist.send(total, (position - distance + dst) % size)
            break
        if position + distance < size:
            dist.recv(part, (position + distance + dst) % size)
            total += part
        distance *= 2
    if position == 0:
        tensor.copy_(total.view(tensor.shape))
