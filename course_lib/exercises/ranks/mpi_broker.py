"""MPI's collectives between ranks that share no network: combined here, in the grader, where calls and bytes are counted.

The ranks' half is `mpi_comm`. Upper-case calls bring buffers, which are combined here. Lower-case calls bring pickled
objects, which nobody unpickles here: the ranks do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from course_lib.exercises.ranks.collective_broker import REDUCE, Collective, CollectiveBroker
from course_lib.exercises.ranks.message_broker import MOST, MOST_BYTES, MessageBroker

__all__ = ["MPIBroker"]

OF_BUFFERS = ("Bcast", "Reduce", "Allreduce", "Gather", "Allgather", "Barrier")
OF_OBJECTS = ("bcast", "reduce", "allreduce", "gather", "allgather", "scatter")
TO_ALL = ("Allreduce", "Allgather", "allreduce", "allgather")


class MPIBroker(CollectiveBroker):
    """Delivers the messages, and combines the collectives, of `size` ranks of MPI. A send waits for its receive."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.buffered = False

    def answer(self, name: str, rank: int, *args: Any) -> Any:
        """What a rank is answered that asks ``outside(name, *args)``."""
        reply = MessageBroker.answer(self, name, rank, *args)
        waits = (name in ("result", "collect") and reply is None) or (name == "taken" and reply is False)
        if name in ("taken", "collect"):
            self._in[rank] = {"taken": "comm.send", "collect": "comm.recv"}[name] if waits else ""
        self._unanswered[rank] = self._unanswered[rank] + 1 if waits else 0
        if not waits and name not in ("result", "collect", "taken"):
            self._unanswered = [0] * self.size
        return reply

    @property
    def answers(self) -> Mapping[str, Callable[..., Any]]:
        """For `Ask.call`."""
        known = super().answers
        return {
            **{name: known[name] for name in ("here", "post", "taken", "expect", "collect", "source")},
            "join": self.join, "result": self.result, "left": self.leave,
        }  # fmt: skip

    def evidence(self) -> dict[str, Any]:
        """For an observation: each collective's ``[name, root, operation, bytes by rank]``, and bytes of the other messages."""
        calls = [
            [each.kind, each.root, each.operation, [each.nbytes(rank) for rank in range(self.size)]]
            for each in self.collectives
        ]
        return {"calls": calls, "sent": self.sent()}

    def join(self, rank: int, kind: Any, root: Any, operation: Any, tensors: Any) -> int | str:
        """A rank joins its next collective; the number of it, or why the ranks are stopped."""
        known = type(kind) is str and kind in (*OF_BUFFERS, *OF_OBJECTS) and operation in ("", *REDUCE)
        if not (known and self._is_rank(rank) and (root == -1 or self._is_rank(root))):
            return "there is no such collective, root or operation"
        if not (isinstance(tensors, list) and all(isinstance(tensor, torch.Tensor) for tensor in tensors)):
            return "a collective takes tensors"
        self._bytes += sum(tensor.nbytes for tensor in tensors)
        number = self._joined[rank]
        if number >= MOST or self._bytes > MOST_BYTES:
            return "far too many collectives"
        if number == len(self.collectives):
            self.collectives.append(Collective(kind, root, operation))
        self._joined[rank] += 1
        self._in[rank] = f"comm.{kind}"
        collective = self.collectives[number]
        if kind != collective.kind:
            one, another = sorted([f"comm.{kind}", f"comm.{collective.kind}"])
            self.fault = self.fault or f"the ranks make different calls: one is in {one}, another in {another}"
        elif (root, operation) != (collective.root, collective.operation):
            self.fault = self.fault or f"the ranks call comm.{kind} with different roots or operations"
        collective.brought[rank] = tensors
        if not self.fault and len(collective.brought) == self.size:
            try:
                collective.ended = self._combined(collective)
            except (RuntimeError, IndexError, ValueError):
                self.fault = f"the ranks bring arrays of different lengths or types to comm.{kind}"
            self._in = [""] * self.size
        return self.fault or number

    def result(self, rank: int, number: Any) -> list[torch.Tensor] | str | None:
        """What a rank leaves a collective with; None while ranks are missing, a text where they never come."""
        if type(number) is not int or not 0 <= number < self._joined[rank]:
            return "there is no such collective"
        ended = self.collectives[number].ended
        if ended is None:
            return self.fault or self._stopped() or None
        return ended[rank]

    def _combined(self, collective: Collective) -> list[list[torch.Tensor]]:
        """What each rank leaves with; of a lower-case call, what it needs to make its result."""
        kind, root, every = collective.kind, collective.root, range(self.size)
        brought = [collective.brought[rank] for rank in every]
        if kind == "Barrier":
            return [[] for _ in every]
        if kind in ("Bcast", "bcast"):
            return [brought[root] for _ in every]
        if kind == "scatter":
            return [[tensor] for _, tensor in zip(every, brought[root], strict=True)]
        if kind in ("Reduce", "Allreduce"):
            result = [REDUCE[collective.operation](torch.stack(each)) for each in zip(*brought, strict=True)]
        else:
            result = [tensor for tensors in brought for tensor in tensors]
        return [result if kind in TO_ALL or rank == root else [] for rank in every]
