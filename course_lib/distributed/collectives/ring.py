"""The ring: reduce-scatter, all-gather, and the all-reduce that the two make (Patarasuk and Yuan 2009).

Rank r sends only to rank r + 1 and receives only from rank r − 1. A tensor of n bytes is cut into N chunks. In the
first N − 1 rounds every rank sends one chunk and adds the one that it receives, until each rank holds the complete sum
of one chunk. In N − 1 further rounds the sums are passed round. Each rank sends 2(N−1)/N · n bytes, less than 2n for
any number of ranks. No algorithm in which only ranks add sends fewer; switches that add can do with less.
"""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist

from course_lib.distributed.collectives.flat_view import flat_view
from course_lib.distributed.messages.agreement import check_agreement

__all__ = ["chunks_of", "ring_all_reduce", "whole_tensor_all_reduce"]


@torch.no_grad()
def whole_tensor_all_reduce(tensor: torch.Tensor, *, check: bool = True) -> None:
    """Sum `tensor` over all ranks, in place: the whole tensor is passed round, and each rank adds what it receives.

    The result is right, but each rank sends (N−1)·n bytes where the ring below sends 2(N−1)/N·n: twice as many for 4
    ranks, 32 times for 64. It is often taught as "ring all-reduce"; do not use it.

    Parameters and errors as for `ring_all_reduce`.
    """
    if check:
        check_agreement("whole_tensor_all_reduce", tensor)
    rank, size = dist.get_rank(), dist.get_world_size()
    with flat_view(tensor) as total:
        if not total.numel():
            return
        passing, arriving = total.clone(), torch.empty_like(total)
        for _ in range(size - 1):
            _exchange(passing, (rank + 1) % size, arriving, (rank - 1) % size)
            total += arriving
            passing, arriving = arriving, passing


@torch.no_grad()
def ring_all_reduce(tensor: torch.Tensor, *, check: bool = True) -> None:
    """Sum `tensor` over all ranks, in place, by reduce-scatter and all-gather on a ring.

    Parameters
    ----------
    tensor : torch.Tensor
        The same shape and dtype on every rank. Any length, shape and memory layout; a layout without a flat view costs
        a copy.
    check : bool
        Check first that all ranks make the same call (`check_agreement`); this takes less than a millisecond. Without
        it, ranks whose tensors differ in size hang or fail inside the backend.

    Raises
    ------
    CollectiveMismatchError
        The ranks do not make the same call.
    TypeError
        The tensor is not dense.
    RuntimeError
        A rank died, or sent nothing within the group's timeout; the backend's own error.
    """
    if check:
        check_agreement("ring_all_reduce", tensor)
    if dist.get_world_size() == 1:
        return
    with flat_view(tensor) as flat:
        chunks = chunks_of(flat, dist.get_world_size())
        _reduce_scatter(chunks)
        _all_gather(chunks, own=(dist.get_rank() + 1) % dist.get_world_size())


def chunks_of(flat: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Views of `count` consecutive pieces of a flat tensor, whose lengths differ by at most one; some may be empty."""
    bounds = [place * flat.numel() // count for place in range(count + 1)]
    return [flat[start:end] for start, end in itertools.pairwise(bounds)]


def _reduce_scatter(chunks: list[torch.Tensor]) -> None:
    """Leave the sum in rank r's chunk r + 1; its other chunks hold partial sums."""
    rank, size = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(max(chunks, key=torch.Tensor.numel))
    for step in range(size - 1):
        passed_on, added = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        received = arriving[: added.numel()]
        _exchange(passed_on, (rank + 1) % size, received, (rank - 1) % size)
        added += received


def _all_gather(chunks: list[torch.Tensor], own: int) -> None:
    """Pass the chunks round, starting with the rank's `own`; neighbours' own chunks are consecutive."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(size - 1):
        passed_on, received = chunks[(own - step) % size], chunks[(own - step - 1) % size]
        _exchange(passed_on, (rank + 1) % size, received, (rank - 1) % size)


def _exchange(outgoing: torch.Tensor, to: int, incoming: torch.Tensor, source: int) -> None:
    """Send and receive at the same time: if all ranks sent first, all would wait. An empty chunk is no message."""
    operations = []
    if outgoing.numel():
        operations.append(dist.P2POp(dist.isend, outgoing, to))
    if incoming.numel():
        operations.append(dist.P2POp(dist.irecv, incoming, source))
    # In one batch: otherwise NCCL would finish the first before it starts the second.
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
