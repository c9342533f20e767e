"""The ring: reduce-scatter, all-gather, and the all-reduce that the two make (Patarasuk and Yuan 2009).

Rank r sends only to rank r + 1 and receives only from rank r − 1. A tensor of n bytes is cut into N chunks. In the
first N − 1 rounds every rank sends one chunk and adds the one that it receives, until each rank holds the complete sum
of one chunk. In N − 1 further rounds the sums are passed round. Each rank sends 2(N−1)/N · n bytes, less than 2n for
any number of ranks. No algorithm in which only ranks add sends fewer; switches that add can do with less.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.distributed as dist

from course_lib.distributed.collectives.flat_view import flat_view, require_strided
from course_lib.distributed.collectives.gather_scatter import require_fit
from course_lib.distributed.messages.agreement import check_agreement

__all__ = ["chunks_of", "ring_all_gather", "ring_all_reduce", "ring_reduce_scatter", "whole_tensor_all_reduce"]


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


@torch.no_grad()
def ring_reduce_scatter(output: torch.Tensor, parts: Sequence[torch.Tensor], *, check: bool = True) -> None:
    """Sum `parts` over all ranks and leave rank r with the sum of part r, in `output`.

    Parameters
    ----------
    output : torch.Tensor
        Of part r's shape and dtype.
    parts : sequence of torch.Tensor
        One for each rank, on every rank; they are not changed. Their lengths may differ.
    check : bool

    Raises
    ------
    ValueError
        Not one part for each rank, or `output` has not the shape and dtype of this rank's part.
    CollectiveMismatchError
        The ranks do not make the same call.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    if len(parts) != size:
        raise ValueError(f"ring_reduce_scatter: a part for each of the {size} ranks is needed, got {len(parts)}")
    if check:
        lengths = [part.numel() for part in parts]
        check_agreement("ring_reduce_scatter", parts[0].new_empty(0), lengths=lengths)
    require_fit(output, parts[rank], "ring_reduce_scatter")
    # The chunk that a rank ends up with is the one after its own number, so the parts move up by one.
    chunks = [_flat_copy(parts[(place - 1) % size]) for place in range(size)]
    _reduce_scatter(chunks)
    output.copy_(chunks[(rank + 1) % size].view(output.shape))


@torch.no_grad()
def ring_all_gather(tensor: torch.Tensor, parts: Sequence[torch.Tensor], *, check: bool = True) -> None:
    """Collect every rank's `tensor` in every rank's `parts`, each passed on from neighbour to neighbour.

    Parameters
    ----------
    tensor : torch.Tensor
    parts : sequence of torch.Tensor
        One for each rank, contiguous, of that rank's shape and dtype; they receive.
    check : bool

    Raises
    ------
    ValueError
        Not one part for each rank, one is not contiguous, or this rank's has not `tensor`'s shape and dtype.
    CollectiveMismatchError
        The ranks do not make the same call.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    if len(parts) != size:
        raise ValueError(f"ring_all_gather: a part for each of the {size} ranks is needed, got {len(parts)}")
    for part in parts:
        require_strided(part)
        if not part.is_contiguous():
            raise ValueError("ring_all_gather: the parts must be contiguous; messages arrive in contiguous memory")
    if check:
        lengths = [part.numel() for part in parts]
        check_agreement("ring_all_gather", tensor.new_empty(0), lengths=lengths)
    require_fit(tensor, parts[rank], "ring_all_gather")
    parts[rank].copy_(tensor)
    _all_gather([part.view(-1) for part in parts], own=rank)


def chunks_of(flat: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Views of `count` consecutive pieces of a flat tensor, whose lengths differ by at most one; some may be empty."""
    bounds = [place * flat.numel() // count for place in range(count + 1)]
    return [flat[start:end] for start, end in itertools.pairwise(bounds)]


def _flat_copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).view(-1)


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
