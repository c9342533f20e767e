"""A server's record of every update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["ServerRecord", "Update", "staleness_of_order"]


@dataclass(frozen=True)
class Update:
    """One step of the server's optimiser.

    Attributes
    ----------
    version : int
        Of the parameters after it: the first update makes version 1.
    worker : int
        Rank whose gradient it was.
    staleness : int
        Updates in between: the version just before this one, minus the version that the gradient was computed on.
    """

    version: int
    worker: int
    staleness: int


@dataclass
class ServerRecord:
    """What `serve` returns.

    Attributes
    ----------
    updates : list of Update
        In the order in which they were applied.
    """

    updates: list[Update] = field(default_factory=list)

    @property
    def version(self) -> int:
        """Of the parameters now."""
        return len(self.updates)

    @property
    def staleness(self) -> list[int]:
        """Of each update, in order."""
        return [update.staleness for update in self.updates]


def staleness_of_order(order: Sequence[int]) -> list[int]:
    """Staleness of each update, computed only from the order in which the workers' updates were applied.

    A worker computes its gradient on the parameters that it got after its own last update (or at the start). So the
    staleness is the number of other workers' updates since then. This holds if every answer is sent at once.

    >>> staleness_of_order([1, 2, 1, 1, 2])
    [0, 1, 1, 0, 2]
    """
    last: dict[int, int] = {}
    staleness = []
    for place, worker in enumerate(order):
        staleness.append(place - last.get(worker, 0))
        last[worker] = place + 1
    return staleness
