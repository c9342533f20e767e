"""MPI's communicator among threads of one process: to try a function before there is an mpirun, and to check one at once.

It has the methods of mpi4py's ``Comm`` that parameter averaging may use, lower case (objects, pickled) and upper case (buffers).
Two things are better than in MPI: ranks that make different calls, or wait for a message that nobody sends, get an error.
Two are worse: it is slow, and the ranks share PyTorch's random numbers.
"""

from __future__ import annotations

import functools
import operator
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

__all__ = ["CommunicationError", "ThreadComm", "run_threads"]


class CommunicationError(RuntimeError):
    """Ranks made different calls, or one waited for what nobody sends."""


def run_threads(worker: Callable[..., Any], size: int, *args: Any, timeout: float = 5.0) -> list[Any]:
    """Run ``worker(comm, *args)`` on `size` ranks, each a thread; returns their results in order of rank.

    Raises
    ------
    Exception
        What a rank raised, the first of them; `CommunicationError` where a rank waited longer than `timeout` seconds.
    """
    world = _World(size, timeout)
    results: list[Any] = [None] * size
    errors: list[tuple[float, BaseException]] = []

    def run(rank: int) -> None:
        try:
            results[rank] = worker(ThreadComm(world, rank), *args)
        except BaseException as error:
            errors.append((time.monotonic(), error))
            world.stop(rank)
        else:
            with world.changed:
                world.returned.add(rank)
                world.changed.notify_all()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True, name=f"rank {rank}") for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20 * timeout)
    if errors:
        # A rank that broke off takes the others along; the cause is the error that is none of ours, or the first.
        own = [error for _, error in errors if not isinstance(error, CommunicationError)]
        raise own[0] if own else min(errors, key=lambda one: one[0])[1]
    if any(thread.is_alive() for thread in threads):
        raise CommunicationError("a rank does not end")
    return results


class _World:
    """What the ranks share."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size, self.timeout = size, timeout
        self.changed = threading.Condition()
        self.arrived: list[dict[int, tuple[str, Any]]] = []  # a dictionary a collective
        self.messages: list[tuple[int, int, int, bytes]] = []  # source, destination, tag, what
        self.returned: set[int] = set()
        self.stopped: set[int] = set()

    def stop(self, rank: int) -> None:
        with self.changed:
            self.stopped.add(rank)
            self.changed.notify_all()

    def wait(self, ready: Callable[[], Any], what: str) -> Any:
        """`ready()` once it is not None; called with the condition held."""
        end = time.monotonic() + self.timeout
        while (found := ready()) is None:
            gone = self.stopped or (self.returned and len(self.returned) == self.size - 1)
            if gone or not self.changed.wait(max(0.0, end - time.monotonic())):
                found = ready()
                if found is not None:
                    return found
                told = f"; rank {', '.join(map(str, sorted(self.returned)))} has returned" if self.returned else ""
                raise CommunicationError(f"{what} and waits for ever{told}")
        return found


class ThreadComm:
    """One rank's communicator; `run_threads` makes them.

    Attributes
    ----------
    calls : list of str
        The names of the methods that were called, in order.
    """

    def __init__(self, world: _World, rank: int) -> None:
        self._world, self.rank, self.size = world, rank, world.size
        self.calls: list[str] = []
        self._collectives = 0

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def _all(self, name: str, value: Any) -> list[Any]:
        """Every rank's value, in the order of ranks: all collectives are made of it."""
        self.calls.append(name)
        world, number = self._world, self._collectives
        self._collectives += 1
        packed = pickle.dumps(value)
        with world.changed:
            if number == len(world.arrived):
                world.arrived.append({})
            here = world.arrived[number]
            here[self.rank] = (name, packed)
            world.changed.notify_all()
            others = {other: called for other, (called, _) in here.items() if called != name}
            if others:
                rank, called = next(iter(others.items()))
                raise CommunicationError(f"rank {self.rank} calls {name} where rank {rank} calls {called}")
            world.wait(lambda: here if len(here) == self.size else None, f"rank {self.rank} stands in {name}")
        return [pickle.loads(here[rank][1]) for rank in range(self.size)]

    def barrier(self) -> None:
        self._all("barrier", None)

    Barrier = barrier

    def bcast(self, obj: Any, root: int = 0) -> Any:
        return self._all("bcast", obj)[root]

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        values = self._all("gather", sendobj)
        return values if self.rank == root else None

    def allgather(self, sendobj: Any) -> list[Any]:
        return self._all("allgather", sendobj)

    def scatter(self, sendobj: Any, root: int = 0) -> Any:
        return self._all("scatter", sendobj)[root][self.rank]

    def reduce(self, sendobj: Any, op: Any = None, root: int = 0) -> Any:
        values = self._all("reduce", sendobj)
        return functools.reduce(op or operator.add, values) if self.rank == root else None

    def allreduce(self, sendobj: Any, op: Any = None) -> Any:
        return functools.reduce(op or operator.add, self._all("allreduce", sendobj))

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        self.calls.append("send")
        if not 0 <= dest < self.size:
            raise CommunicationError(f"rank {self.rank} sends to rank {dest}; there are ranks 0 to {self.size - 1}")
        with self._world.changed:
            self._world.messages.append((self.rank, dest, tag, pickle.dumps(obj)))
            self._world.changed.notify_all()

    def recv(self, buf: Any = None, source: int = -1, tag: int = -1, status: Any = None) -> Any:
        self.calls.append("recv")
        world = self._world

        def find() -> bytes | None:
            for message in world.messages:
                sender, dest, marked, packed = message
                if dest == self.rank and source in (sender, -1, -2) and tag in (marked, -1, -2):
                    world.messages.remove(message)
                    return packed
            return None

        with world.changed:
            place = f"from rank {source}" if source >= 0 else "from any rank"
            return pickle.loads(world.wait(find, f"rank {self.rank} stands in recv {place}"))

    def sendrecv(
        self, sendobj: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: int = -1, recvtag: int = -1
    ) -> Any:
        self.send(sendobj, dest, sendtag)
        return self.recv(source=source, tag=recvtag)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> _Request:
        self.send(obj, dest, tag)
        return _Request(lambda: None)

    def irecv(self, buf: Any = None, source: int = -1, tag: int = -1) -> _Request:
        return _Request(lambda: self.recv(source=source, tag=tag))

    def Bcast(self, buf: Any, root: int = 0) -> None:
        _array(buf)[...] = self._all("Bcast", _array(buf))[root]

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> None:
        values = self._all("Allreduce", _array(sendbuf, recvbuf))
        _array(recvbuf)[...] = functools.reduce(op or operator.add, values)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Any = None, root: int = 0) -> None:
        values = self._all("Reduce", _array(sendbuf, recvbuf))
        if self.rank == root:
            _array(recvbuf)[...] = functools.reduce(op or operator.add, values)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        values = self._all("Gather", _array(sendbuf))
        if self.rank == root:
            into = _array(recvbuf)
            into[...] = np.stack(values).reshape(into.shape)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        into = _array(recvbuf)
        into[...] = np.stack(self._all("Allgather", _array(sendbuf))).reshape(into.shape)

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        self.send(_array(buf), dest, tag)

    def Recv(self, buf: Any, source: int = -1, tag: int = -1, status: Any = None) -> None:
        into = _array(buf)
        into[...] = self.recv(source=source, tag=tag).reshape(into.shape)


class _Request:
    def __init__(self, finish: Callable[[], Any]) -> None:
        self._finish = finish

    def wait(self, status: Any = None) -> Any:
        return self._finish()


def _array(buffer: Any, in_place: Any = None) -> np.ndarray:
    """The memory of a buffer as mpi4py takes them: an array, a tensor, ``[array, type]``; else (IN_PLACE) `in_place`'s."""
    if isinstance(buffer, list | tuple) and buffer and not np.isscalar(buffer[0]):
        buffer = buffer[0]
    if isinstance(buffer, torch.Tensor):
        return buffer.detach().numpy()
    if isinstance(buffer, np.ndarray):
        return buffer
    if in_place is None:
        raise TypeError(f"a buffer is an array or a tensor, not a {type(buffer).__name__}")
    return _array(in_place)
