"""K-FAC on many ranks: who inverts what, and what is sent.

Each rank sees its own samples, so the factors are averaged like gradients are. The inverses cost n³ and are dealt out.
What follows is the trade-off of the TACC slides and of Pauloski et al. (2020, arXiv 2007.00784; 2021, arXiv 2107.01739):

- ``comm-opt``: an owner for each factor. It sends the result to all ranks, which then precondition all gradients
  themselves: messages only when the inverses are renewed, and every rank keeps all of them.
- ``mem-opt``: an owner for each layer. It keeps the layer's two inverses to itself, preconditions, and sends the
  gradient: a message at every step, and each rank keeps only its share of the inverses.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["assign_greedily", "mean_over_ranks", "send_from_owners"]

Key = TypeVar("Key", bound=Hashable)


def assign_greedily(costs: Mapping[Key, float], ranks: int) -> dict[Key, int]:
    """Deal jobs to ranks: the costliest that is left, to the rank with the least so far.

    The longest rank works at most 4/3 − 1/(3 · ranks) times as long as with the best deal (Graham 1969). The same on
    every rank, without a message.
    """
    loads = [0.0] * ranks
    owners = {}
    for key in sorted(costs, key=lambda key: -costs[key]):  # stable: equal ones in their order
        owners[key] = loads.index(min(loads))
        loads[owners[key]] += costs[key]
    return {key: owners[key] for key in costs}


def mean_over_ranks(matrices: Sequence[Sequence[Tensor]], used: Sequence[bool]) -> list[list[Tensor] | None]:
    """Average symmetric matrices over the ranks that have them: one all-reduce of one flat buffer.

    Only upper triangles travel, with one number a group of matrices for whether this rank has it.

    Parameters
    ----------
    matrices : groups of symmetric ``(n, n)`` tensors
        The same shapes on every rank; of a group that this rank does not have, anything finite.
    used : one bool a group

    Returns
    -------
    list
        A group's means, or None where no rank has it.
    """
    groups = [list(group) for group in matrices]
    flags = torch.tensor([float(flag) for flag in used], dtype=groups[0][0].dtype, device=groups[0][0].device)
    pieces = [
        matrix[tuple(torch.triu_indices(*matrix.shape, device=matrix.device))] * flag
        for group, flag in zip(groups, flags, strict=True)
        for matrix in group
    ]
    flat = torch.cat([*pieces, flags])
    dist.all_reduce(flat)
    *pieces, counts = flat.split([len(piece) for piece in pieces] + [len(flags)])
    means: list[list[Tensor] | None] = []
    for group, count in zip(groups, counts.tolist(), strict=True):
        mine, pieces = pieces[: len(group)], pieces[len(group) :]
        means.append([_symmetric(p / count, m) for p, m in zip(mine, group, strict=True)] if count else None)
    return means


def _symmetric(upper: Tensor, like: Tensor) -> Tensor:
    rows, columns = torch.triu_indices(*like.shape, device=like.device)
    matrix = torch.empty_like(like, memory_format=torch.contiguous_format)
    matrix[rows, columns] = matrix[columns, rows] = upper.to(like.dtype)
    return matrix


def send_from_owners(
    mine: Mapping[Key, Tensor], owners: Mapping[Key, int], shapes: Mapping[Key, tuple[int, ...]], like: Tensor
) -> dict[Key, Tensor]:
    """Everybody gets everything: one broadcast from each rank that owns something, of all that it owns.

    Parameters
    ----------
    mine : mapping
        The tensors whose owner is this rank, contiguous or not.
    owners, shapes : mapping
        Of all keys, the same on every rank.
    like : Tensor
        Its dtype and device are those of the messages.
    """
    rank = dist.get_rank()
    received: dict[Key, Tensor] = {}
    open_messages = []
    for owner in sorted(set(owners.values())):
        keys = [key for key in owners if owners[key] == owner]
        sizes = [torch.Size(shapes[key]).numel() for key in keys]
        if owner == rank:
            flat = torch.cat([mine[key].reshape(-1).to(like.dtype) for key in keys])
        else:
            flat = like.new_empty(sum(sizes))
        open_messages.append(dist.broadcast(flat, src=owner, async_op=True))
        received |= {key: part.view(shapes[key]) for key, part in zip(keys, flat.split(sizes), strict=True)}
    for message in open_messages:
        message.wait()
    return received
