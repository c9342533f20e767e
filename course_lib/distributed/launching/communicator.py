"""The methods of mpi4py's ``Comm`` on three primitives, which a subclass has."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

__all__ = ["Communicator", "Request"]


class Request:
    """A send or a receive that has begun; `wait` ends it, and returns a receive's message."""

    def __init__(self, finish: Callable[[], Any]) -> None:
        self._finish = finish

    def wait(self, status: Any = None) -> Any:
        return self._finish()


class Communicator:
    """The methods of mpi4py's ``Comm`` that parameter averaging may use: lower case (objects), upper case (buffers).

    A subclass moves the messages: `_all`, `_post_send`, `_post_receive`.

    Attributes
    ----------
    rank, size : int
    calls : list of str
        Names of the methods that were called, in order.
    """

    rank: int
    size: int
    calls: list[str]

    def _all(self, name: str, value: Any) -> list[Any]:
        """Every rank's value, in order of rank; every collective uses it."""
        raise NotImplementedError

    def _post_send(self, name: str, obj: Any, dest: int, tag: int) -> Request:
        raise NotImplementedError

    def _post_receive(self, name: str, source: int, tag: int) -> Request:
        raise NotImplementedError

    @property
    def carried_data(self) -> bool:
        """Whether a call moved data from rank to rank; a barrier does not."""
        return bool(set(self.calls) - {"barrier"})

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def barrier(self) -> None:
        self._all("barrier", None)

    Barrier = barrier

    def bcast(self, obj: Any, root: int = 0) -> Any:
        return self._all("bcast", obj if self.rank == root else None)[root]

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        values = self._all("gather", sendobj)
        return values if self.rank == root else None

    def allgather(self, sendobj: Any) -> list[Any]:
        return self._all("allgather", sendobj)

    def scatter(self, sendobj: Any, root: int = 0) -> Any:
        return self._all("scatter", sendobj if self.rank == root else None)[root][self.rank]

    def reduce(self, sendobj: Any, op: Any = None, root: int = 0) -> Any:
        values = self._all("reduce", sendobj)
        return functools.reduce(op or operator.add, values) if self.rank == root else None

    def allreduce(self, sendobj: Any, op: Any = None) -> Any:
        return functools.reduce(op or operator.add, self._all("allreduce", sendobj))

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        self._post_send("send", obj, dest, tag).wait()

    def recv(self, buf: Any = None, source: int = -1, tag: int = -1, status: Any = None) -> Any:
        return self._post_receive("recv", source, tag).wait()

    def sendrecv(
        self, sendobj: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: int = -1, recvtag: int = -1
    ) -> Any:
        sending = self._post_send("sendrecv", sendobj, dest, sendtag)
        result = self._post_receive("sendrecv", source, recvtag).wait()
        sending.wait()
        return result

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        return self._post_send("isend", obj, dest, tag)

    def irecv(self, buf: Any = None, source: int = -1, tag: int = -1) -> Request:
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


def _array(buffer: Any, in_place: Any = None) -> np.ndarray:
    """The memory of an mpi4py buffer: an array, a tensor or ``[array, type]``; of anything else (IN_PLACE) `in_place`'s."""
    if isinstance(buffer, list | tuple) and buffer and not np.isscalar(buffer[0]):
        buffer = buffer[0]
    if isinstance(buffer, torch.Tensor):
        return buffer.detach().numpy()
    if isinstance(buffer, np.ndarray):
        return buffer
    if in_place is None:
        raise TypeError(f"a buffer is an array or a tensor, not a {type(buffer).__name__}")
    return _array(in_place)
