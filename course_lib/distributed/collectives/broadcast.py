"""Broadcast: one rank's tensor to all, built from messages, one after the other."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course_lib.distributed.collectives.flat_view import flat_view
from course_lib.distributed.launching.rank import require_rank
from course_lib.distributed.messages.agreement import check_agreement

__all__ = ["linear_broadcast"]


@torch.no_grad()
def linear_broadcast(tensor: torch.Tensor, src: int = 0, *, check: bool = True) -> None:
    """Overwrite `tensor` with rank `src`'s, which sends it to every other rank, one after the other.

    N − 1 rounds, all through the root's link: too slow for more than a few ranks.

    Parameters
    ----------
    tensor : torch.Tensor
        The same shape and dtype on every rank; strided, of any memory layout.
    src : int
    check : bool
        Check first that all ranks make the same call (`check_agreement`); this takes less than a millisecond.

    Raises
    ------
    ValueError
        There is no rank `src`.
    CollectiveMismatchError
        The ranks do not make the same call.
    """
    require_rank("linear_broadcast", src=src)
    if check:
        check_agreement("linear_broadcast", tensor, src=src)
    with flat_view(tensor) as flat:
        if not flat.numel():
            return
        if dist.get_rank() != src:
            dist.recv(flat, src)
            return
        for peer in range(dist.get_world_size()):
            if peer != src:
                dist.send(flat, peer)
