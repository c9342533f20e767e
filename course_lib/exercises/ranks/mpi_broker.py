"""MPI's collectives between ranks that share no network: combined here, in the grader, where calls and bytes are counted.

The ranks' half is `mpi_comm`. Upper-case calls bring buffers, which are combined here. Lower-case calls bring pickled
objects, which nobody unpickles here: the ranks do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from course_lib.exercises.ranks.collective_broker import REDUCE, Collective, CollectiveBroker

__all__ = ["MPIBroker"]

OF_BUFFERS = ("Bcast", "Reduce", "Allreduce", "Gather", "Allgather", "Barrier")
OF_OBJECTS = ("bcast", "reduce", "allreduce", "gather", "allgather", "scatter")
TO_ALL = ("Allreduce", "Allgather", "allreduce", "allgather")


class MPIBroker(CollectiveBroker):
    """Delivers the messages, and combines the collectives, of `size` ranks of MPI. A send waits for its receive."""

    kinds = (*OF_BUFFERS, *OF_OBJECTS)
    unlike = "arrays of different lengths or types"

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.buffered = False

    def _waited_for(self, name: str, number: int) -> str:
        return {"taken": "comm.send", "collect": "comm.recv"}.get(name) or super()._waited_for(name, number)

    @property
    def answers(self) -> Mapping[str, Callable[..., Any]]:
        """For `Ask.call`."""
        known = super().answers
        return {
            **{name: known[name] for name in ("post", "taken", "expect", "collect", "source")},
            "join": self.join, "result": self.result, "left": self.leave,
        }  # fmt: skip

    def evidence(self) -> dict[str, Any]:
        """For an observation: each collective's ``[name, root, operation, bytes by rank]``, and bytes of the other messages."""
        calls = [
            [each.kind, each.root, each.operation, [each.nbytes(rank) for rank in range(self.size)]]
            for each in self.collectives
        ]
        return {"calls": calls, "sent": self.sent()}

    @staticmethod
    def words_for(kind: str, root: int = -1, operation: str = "") -> str:
        """A call, as a student writes it."""
        return f"comm.{kind}"

    @staticmethod
    def combined(collective: Collective) -> list[list[torch.Tensor]]:
        """What each rank leaves with; of a lower-case call, what it needs to make its result."""
        kind, root, every = collective.kind, collective.root, range(len(collective.members))
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
