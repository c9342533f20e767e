"""Scatter, gather and all-gather, built from messages.

The parts may have different lengths; each rank knows its own, and the root knows all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from course_lib.distributed.collectives.flat_view import flat_view, require_strided

__all__ = ["gather", "linear_all_gather", "scatter"]


@torch.no_grad()
def scatter(tensor: torch.Tensor, parts: Sequence[torch.Tensor] | None = None, src: int = 0) -> None:
    """Overwrite `tensor` with the part that rank `src` has for this rank.

    All messages are started before the first wait, so that no rank waits for another's message.

    Parameters
    ----------
    tensor : torch.Tensor
        Receives this rank's part, whose shape and dtype it must have.
    parts : sequence of torch.Tensor, optional
        On rank `src`: a part for each rank.
    src : int

    Raises
    ------
    ValueError
        On rank `src`: not one part for each rank, or its own does not fit `tensor`.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank != src:
        with flat_view(tensor) as flat:
            if flat.numel():
                dist.recv(flat, src)
        return
    _one_for_each(parts, size, "scatter")
    require_fit(tensor, parts[rank], "scatter")
    sent = [part.contiguous() for part in parts]  # kept until the messages have been sent
    works = [dist.isend(sent[peer], peer) for peer in range(size) if peer != src and sent[peer].numel()]
    tensor.copy_(parts[rank])
    for work in works:
        work.wait()


@torch.no_grad()
def gather(tensor: torch.Tensor, parts: Sequence[torch.Tensor] | None = None, dst: int = 0) -> None:
    """Collect every rank's `tensor` in rank `dst`'s `parts`.

    Parameters
    ----------
    tensor : torch.Tensor
    parts : sequence of torch.Tensor
        On rank `dst`: contiguous tensors, which receive; one for each rank, of its tensor's shape and dtype.
    dst : int

    Raises
    ------
    ValueError
        On rank `dst`: not one part for each rank, its own does not fit, or one is not contiguous.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    require_strided(tensor)
    if rank != dst:
        if tensor.numel():
            dist.send(tensor.contiguous(), dst)
        return
    _one_for_each(parts, size, "gather")
    require_fit(tensor, parts[rank], "gather")
    works = [dist.irecv(parts[peer], peer) for peer in range(size) if peer != dst and parts[peer].numel()]
    parts[rank].copy_(tensor)
    for work in works:
        work.wait()


@torch.no_grad()
def linear_all_gather(tensor: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    """Collect every rank's `tensor` in every rank's `parts`: each sends its own to all others, N(N−1) messages.

    `ring_all_gather` moves as many bytes over neighbours' links only.

    Parameters and errors as for `gather`, on every rank.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    _one_for_each(parts, size, "linear_all_gather")
    require_fit(tensor, parts[rank], "linear_all_gather")
    mine = tensor.contiguous()
    peers = [peer for peer in range(size) if peer != rank]
    works = [dist.irecv(parts[peer], peer) for peer in peers if parts[peer].numel()]
    works += [dist.isend(mine, peer) for peer in peers if mine.numel()]
    parts[rank].copy_(tensor)
    for work in works:
        work.wait()


def _one_for_each(parts: Sequence[torch.Tensor] | None, size: int, call: str) -> None:
    if parts is None or len(parts) != size:
        count = "none" if parts is None else len(parts)
        raise ValueError(f"{call}: a part for each of the {size} ranks is needed, got {count}")
    for peer, part in enumerate(parts):
        require_strided(part)
        if not part.is_contiguous() and call != "scatter":
            raise ValueError(
                f"{call}: the part for rank {peer} is not contiguous; messages arrive in contiguous memory"
            )


def require_fit(tensor: torch.Tensor, part: torch.Tensor, call: str) -> None:
    """Raise ValueError unless this rank's tensor and its part have one shape and dtype; copying would broadcast."""
    require_strided(tensor)
    if (tensor.shape, tensor.dtype) != (part.shape, part.dtype):
        raise ValueError(
            f"{call}: this rank's tensor is {tensor.dtype} of shape {tuple(tensor.shape)}, its part {part.dtype} of "
            f"shape {tuple(part.shape)}"
        )
