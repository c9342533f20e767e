"""The visible check's ranks of MPI: processes of `launch`, which need no mpirun, and the exercise's watch in this process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from course_lib.distributed.launching.launch_folder import pickled
from course_lib.exercises.description import Exercise, Watch
from course_lib.exercises.ranks.watched_ranks import on_watched_ranks, watched
from course_lib.system.extras import need

__all__ = ["on_mpi", "on_mpi_ranks"]


class _Packed:
    """Functions that a rank unpacks once it is certain that no MPI starts: an import of ``mpi4py.MPI`` would start one."""

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        self._packed = pickled(tuple(functions))

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        need("mpi", "this exercise")
        import mpi4py

        mpi4py.rc.initialize = False
        return iter(pickle.loads(self._packed))


def on_mpi_ranks(exercise: Exercise, case: Any, functions: Sequence[Callable[..., Any]]) -> dict[str, Any]:
    """`Exercise.transport`: observe a case whose ranks reach each other by a `BrokerComm` through `exercise.watch`."""
    return on_watched_ranks(exercise, case, _Packed(functions))


def on_mpi(ranks: int, watch: Callable[[Any], Watch], world: Callable[[Any], int] | None = None) -> dict[str, Any]:
    """The fields of an `Exercise` on several ranks of MPI whose messages the watch moves and counts."""
    return watched(ranks, watch, world) | {"transport": on_mpi_ranks}
