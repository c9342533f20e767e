"""Reduce-scatter and all-gather of equal shards, started now and awaited later.

Gloo's own reduce-scatter sends as much as an all-reduce, 2·(N−1)/N of the vector per rank (measured at the kernel's
loopback counter, PyTorch 2.13). Here each rank sends every other rank that one's shard: (N−1)/N.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

__all__ = ["start_all_gather", "start_reduce_scatter"]


def start_all_gather(whole: torch.Tensor, shard: torch.Tensor) -> dist.Work:
    """Start to fill `whole` with all ranks' shards, in rank order.

    Parameters
    ----------
    whole : Tensor (N·n,)
    shard : Tensor (n,)
        The same length on every rank.

    Returns
    -------
    dist.Work
        ``wait()`` before `whole` is read.
    """
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name before PyTorch 2.13
    return gather(whole, shard, async_op=True)


def start_reduce_scatter(vector: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Start to sum all ranks' vectors, of which each rank gets one shard.

    Parameters
    ----------
    vector : Tensor (N·n,)
        Not changed; it must stay as it is until the result is there.

    Returns
    -------
    callable
        Waits, and returns this rank's shard of the sum, a Tensor (n,).
    """
    size, rank = dist.get_world_size(), dist.get_rank()
    if vector.is_cuda:
        shard = vector.new_empty(vector.numel() // size)
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        work = scatter(shard, vector, async_op=True)

        def finish() -> torch.Tensor:
            work.wait()
            return shard

        return finish

    mine = vector.view(size, -1)
    others = [other for other in range(size) if other != rank]
    arriving = [torch.empty_like(mine[rank]) for _ in others]
    works = [dist.irecv(buffer, src=other) for buffer, other in zip(arriving, others, strict=True)]
    works += [dist.isend(mine[other], dst=other) for other in others]

    def add_up() -> torch.Tensor:
        for work in works:
            work.wait()
        total = mine[rank].clone()
        for buffer in arriving:
            total += buffer
        return total

    return add_up
