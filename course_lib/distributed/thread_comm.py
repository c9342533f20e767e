"""MPI's communicator among threads of one process: to try a function before there is an mpirun, and to check one at once.

It has the methods of mpi4py's ``Comm`` that parameter averaging may use, lower case (objects, pickled) and upper case (buffers).
Two things are better than in MPI: ranks that make different calls, or wait for what never comes, get an error; and `send`
waits for its receive always, where MPI's does so for large messages only (MPI 4.1, section 3.4: a right program relies on no
buffer). Three are worse: it is slow, the ranks share PyTorch's random numbers, and they share global variables unless each
has its function from `as_another_process`.
"""

from __future__ import annotations

import functools
import operator
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["CommunicationError", "ThreadComm", "run_threads"]

LIMIT = 6  # timeouts that all ranks together get to end


class CommunicationError(RuntimeError):
    """Ranks made different calls, or one waited for what nobody sends."""


def run_threads(worker: Callable[..., Any], size: int, *args: Any, timeout: float = 5.0) -> list[Any]:
    """Run ``worker(comm, *args)`` on `size` ranks, each a thread; returns their results in order of rank.

    Raises
    ------
    Exception
        What a rank raised, the first of them; `CommunicationError` where a rank waited longer than `timeout` seconds, or
        does not end. Threads cannot be ended: such a rank runs on.
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
    end = time.monotonic() + LIMIT * timeout
    for thread in threads:
        while thread.is_alive() and time.monotonic() < (min(end, errors[0][0] + timeout) if errors else end):
            thread.join(0.05)
    # A rank that broke off takes the others along; the cause is the error that is none of ours, or the first.
    for _, error in errors:
        if not isinstance(error, CommunicationError):
            raise error
    running = [str(rank) for rank, thread in enumerate(threads) if thread.is_alive()]
    if running:
        raise CommunicationError(f"rank {', '.join(running)} does not end: is there a loop without an end? Restart the "
                                 "kernel, it runs on")  # fmt: skip
    if errors:
        raise min(errors, key=lambda one: one[0])[1]
    return results


class _World:
    """What the ranks share."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size, self.timeout = size, timeout
        self.changed = threading.Condition()
        self.arrived: list[dict[int, tuple[str, Any]]] = []  # a dictionary a collective
        self.messages: list[_Post] = []  # that nobody has taken yet
        self.receives: list[_Post] = []  # that have got nothing yet
        self.returned: set[int] = set()
        self.stopped: set[int] = set()

    def stop(self, rank: int) -> None:
        with self.changed:
            self.stopped.add(rank)
            self.changed.notify_all()

    def match(self) -> None:
        """Give each receive the first message that fits, as MPI orders them; called with the condition held."""
        for receive in list(self.receives):
            for message in self.messages:
                wanted = receive.source in (message.source, -1, -2) and receive.tag in (message.tag, -1, -2)
                if wanted and receive.dest == message.dest:
                    receive.packed, receive.met, message.met = message.packed, True, True
                    self.receives.remove(receive)
                    self.messages.remove(message)
                    break
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


@dataclass(eq=False)
class _Post:
    """A send, or a receive, and whether it has met its other half."""

    source: int
    dest: int
    tag: int
    packed: bytes | None = None
    met: bool = False


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

    @property
    def carried_data(self) -> bool:
        """Whether a call was made that takes anything from rank to rank; a barrier does not."""
        return bool(set(self.calls) - {"barrier"})

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

    def _post_send(self, name: str, obj: Any, dest: int, tag: int) -> _Request:
        self.calls.append(name)
        if not 0 <= dest < self.size:
            raise CommunicationError(f"rank {self.rank} sends to rank {dest}; there are ranks 0 to {self.size - 1}")
        world, message = self._world, _Post(self.rank, dest, tag, pickle.dumps(obj))
        with world.changed:
            world.messages.append(message)
            world.match()

        def finish() -> None:
            with world.changed:
                world.wait(lambda: message.met or None, f"rank {self.rank} stands in {name} to rank {dest}")

        return _Request(finish)

    def _post_receive(self, name: str, source: int, tag: int) -> _Request:
        self.calls.append(name)
        world, receive = self._world, _Post(source, self.rank, tag)
        with world.changed:
            world.receives.append(receive)
            world.match()

        def finish() -> Any:
            place = f"from rank {source}" if source >= 0 else "from any rank"
            with world.changed:
                world.wait(lambda: receive.met or None, f"rank {self.rank} stands in {name} {place}")
            return pickle.loads(receive.packed)

        return _Request(finish)

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        self._post_send("send", obj, dest, tag).wait()

    def recv(self, buf: Any = None, source: int = -1, tag: int = -1, status: Any = None) -> Any:
        return self._post_receive("recv", source, tag).wait()

    def sendrecv(
        self, sendobj: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: int = -1, recvtag: int = -1
    ) -> Any:
        sending = self._post_send("sendrecv", sendobj, dest, sendtag)
        found = self._post_receive("sendrecv", source, recvtag).wait()
        sending.wait()
        return found

    def isend(self, obj: Any, dest: int, tag: int = 0) -> _Request:
        return self._post_send("isend", obj, dest, tag)

    def irecv(self, buf: Any = None, source: int = -1, tag: int = -1) -> _Request:
        return self._post_receive("irecv", source, tag)

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
