"""Collectives between ranks that share no network: combined here, in the grader, where every byte is counted.

The ranks' half is `collective_process_group`. A collective has ended when all ranks have joined it. Ranks that make
different calls, or wait for one that has returned, are stopped at once, with both calls named.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from course_lib.exercises.ranks.message_broker import MOST, MOST_BYTES, MessageBroker

__all__ = ["Collective", "CollectiveBroker"]

NAMES = {
    "allreduce": "all_reduce", "broadcast": "broadcast", "allgather": "all_gather", "reduce": "reduce",
    "gather": "gather", "scatter": "scatter", "barrier": "barrier", "reducescatter": "reduce_scatter",
}  # fmt: skip
REDUCE: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "SUM": lambda each: each.sum(0, dtype=each.dtype),
    "AVG": lambda each: each.mean(0),
    "MAX": lambda each: each.amax(0),
    "MIN": lambda each: each.amin(0),
    "PRODUCT": lambda each: each.prod(0, dtype=each.dtype),
}


@dataclass
class Collective:
    """A collective that one rank at least has joined.

    Attributes
    ----------
    kind : str
        As in `NAMES`.
    root : int
        -1 where there is none.
    operation : str
        As in `REDUCE`; empty where there is none.
    members : tuple of int
        Ranks of the group, in its order; `root` is a place in it.
    brought : dict of int to list of Tensor
        By the ranks that have joined.
    ended : list of list of Tensor or None
        What each member leaves with.
    """

    kind: str
    root: int
    operation: str
    members: tuple[int, ...] = ()
    brought: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    ended: list[list[torch.Tensor]] | None = None

    def nbytes(self, rank: int) -> int:
        """Bytes that a rank brought."""
        return sum(tensor.nbytes for tensor in self.brought.get(rank, ()))

    def left_with(self, rank: int) -> int:
        """Bytes that a rank left with."""
        if self.ended is None or rank not in self.members:
            return 0
        return sum(tensor.nbytes for tensor in self.ended[self.members.index(rank)])


class CollectiveBroker(MessageBroker):
    """Combines the collectives of `size` ranks, each rank's in the order of its calls; messages as `MessageBroker`.

    Attributes
    ----------
    collectives : list of Collective
    groups : list of list of tuple of int
        Members of the groups that each rank asked for, in the order of its calls of ``dist.new_group``.
    """

    kinds: Container[str] = NAMES
    unlike = "tensors of different shapes or types"

    def __init__(self, size: int) -> None:
        super().__init__(size, buffered=True)
        self.collectives: list[Collective] = []
        self.groups: list[list[tuple[int, ...]]] = [[] for _ in range(size)]
        self._joined = [0] * size  # collectives by rank
        self._numbers: dict[tuple[int, ...], list[int]] = {}  # of each group's collectives
        self._counts: dict[tuple[int, tuple[int, ...]], int] = {}  # collectives by rank and group

    def evidence(self) -> dict[str, Any]:
        """For an observation: bytes that each rank brought to all-reduces, and to all collectives; kinds; messages; bytes of both."""
        reduced, carried = (
            [sum(each.nbytes(rank) for each in self.collectives if each.kind in kinds) for rank in range(self.size)]
            for kinds in (("allreduce",), self.kinds)
        )
        return {
            "reduced": reduced, "carried": carried, "ended": sum(each.ended is not None for each in self.collectives),
            "kinds": [each.kind for each in self.collectives], "messages": len(self.messages),
            "passed": sum(carried) + sum(message.nbytes for message in self.messages),
        }  # fmt: skip

    @property
    def answers(self) -> Mapping[str, Callable[..., Any]]:
        """For `Ask.call`."""
        return {**super().answers, "join": self.join, "join_group": self.join_group, "result": self.result,
                "group": self.new_group}  # fmt: skip

    def new_group(self, rank: int, members: Any) -> str | None:
        """A rank calls ``dist.new_group``; why the ranks are stopped, where another called it for other members."""
        if not self._are_ranks(members) or len(self.groups[rank]) >= MOST:
            return "there is no such group"
        mine = self.groups[rank]
        mine.append(tuple(members))
        for theirs in self.groups:
            if len(theirs) >= len(mine) and theirs[len(mine) - 1] != mine[-1]:
                one, another = sorted([list(mine[-1]), list(theirs[len(mine) - 1])])
                self.fault = self.fault or (
                    f"the ranks make different groups: one calls dist.new_group({one}) where another calls "
                    f"dist.new_group({another}). Every rank calls it for every group, in the same order, its own or not"
                )
        return self.fault or None

    def join(self, rank: int, kind: Any, root: Any, operation: Any, tensors: Any) -> int | str:
        """A rank joins its next collective of all ranks; the number of it, or why the ranks are stopped."""
        return self._join(rank, tuple(range(self.size)), kind, root, operation, tensors)

    def join_group(self, rank: int, members: Any, kind: Any, root: Any, operation: Any, tensors: Any) -> int | str:
        """As `join`, for the ranks `members` of a group; `root` is a place among them."""
        if not self._are_ranks(members) or rank not in members or tuple(members) not in self.groups[rank]:
            return "there is no such group"
        return self._join(rank, tuple(members), kind, root, operation, tensors)

    def _join(
        self, rank: int, members: tuple[int, ...], kind: Any, root: Any, operation: Any, tensors: Any
    ) -> int | str:
        if not (
            self._is_rank(rank) and isinstance(tensors, list) and all(isinstance(t, torch.Tensor) for t in tensors)
        ):
            return "a collective takes tensors"
        if (
            type(kind) is not str
            or kind not in self.kinds
            or not (type(root) is int and -1 <= root < len(members))
            or operation not in ("", *REDUCE)
        ):
            return "there is no such collective, root or operation"
        self._bytes += sum(tensor.nbytes for tensor in tensors)
        if self._joined[rank] >= MOST or self._bytes > MOST_BYTES:
            return "far too many collectives"
        numbers, place = self._numbers.setdefault(members, []), self._counts.get((rank, members), 0)
        if place == len(numbers):
            numbers.append(len(self.collectives))
            self.collectives.append(Collective(kind, root, operation, members))
        number = numbers[place]
        self._counts[rank, members] = place + 1
        self._joined[rank] += 1
        collective = self.collectives[number]
        other = self.words_for(collective.kind, collective.root, collective.operation)
        if (kind, root, operation) != (collective.kind, collective.root, collective.operation):
            one, another = sorted([self.words_for(kind, root, operation), other])
            different = f"one is in {one}, another in {another}"
            if kind == collective.kind:
                different = f"they call {self.words_for(kind)} with different roots or operations"
            self.fault = self.fault or f"the ranks make different calls: {different}"
        collective.brought[rank] = tensors
        if not self.fault and len(collective.brought) == len(members):
            try:
                collective.ended = self.combined(collective)
            except (RuntimeError, IndexError, ValueError):
                self.fault = f"the ranks bring {self.unlike} to {other}"
        return self.fault or number

    def result(self, rank: int, number: Any) -> list[torch.Tensor] | str | None:
        """What a rank leaves a collective with; None while ranks are missing, a text where they never come."""
        known = type(number) is int and 0 <= number < len(self.collectives)
        if not known or rank not in self.collectives[number].brought:
            return "there is no such collective"
        collective = self.collectives[number]
        if collective.ended is None:
            return self.fault or self._stopped() or None
        return collective.ended[collective.members.index(rank)]

    def _waited_for(self, name: str, number: int) -> str:
        """As `MessageBroker`'s; of a message without its other end, which a hidden check must not tell."""
        if name != "result":
            return "a send" if name == "taken" else "a receive"
        collective = self.collectives[number]
        return self.words_for(collective.kind, collective.root, collective.operation)

    def _are_ranks(self, members: Any) -> bool:
        """Whether they are one rank or more, each once."""
        known = isinstance(members, list | tuple) and all(map(self._is_rank, members))
        return known and 0 < len(members) == len(set(members))

    @staticmethod
    def words_for(kind: str, root: int = -1, operation: str = "") -> str:
        """A call, as a student writes it."""
        inside = ", ".join(filter(None, [operation, f"root {root}" if root >= 0 else ""]))
        return f"dist.{NAMES[kind]}" + (f" ({inside})" if inside else "")

    @staticmethod
    def combined(collective: Collective) -> list[list[torch.Tensor]]:
        """What each member leaves with."""
        brought = [collective.brought[rank] for rank in collective.members]
        root, size = collective.root, len(collective.members)
        every = range(size)
        if collective.kind == "barrier":
            return [[] for _ in every]
        if collective.kind == "broadcast":
            return [brought[root] for _ in every]
        if collective.kind == "scatter":
            if len(brought[root]) != size:
                raise ValueError
            return [[tensor] for tensor in brought[root]]
        if collective.kind in ("allgather", "gather"):
            if len({(tensor.shape, tensor.dtype) for tensors in brought for tensor in tensors}) > 1:
                raise ValueError
            all_of_them = [tensor for tensors in brought for tensor in tensors]
            return [all_of_them if collective.kind == "allgather" or rank == root else [] for rank in every]
        total = [REDUCE[collective.operation](torch.stack(each)) for each in zip(*brought, strict=True)]
        if collective.kind == "reducescatter":
            if len(total) != size:
                raise ValueError
            return [[part] for part in total]
        return [total if collective.kind == "allreduce" or rank == root else [] for rank in every]
