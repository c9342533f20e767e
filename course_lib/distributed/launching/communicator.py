"""The messages from rank to rank of mpi4py's ``Comm``, on two primitives, which a subclass has beside the collectives."""

from __future__ import annotations

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
    """Sends and receives of mpi4py's ``Comm``: lower case (objects), upper case (buffers).

    A subclass moves the messages: `_post_send`, `_post_receive`.

    Attributes
    ----------
    rank, size : int
    """

    rank: int
    size: int

    def _post_send(self, name: str, obj: Any, dest: int, tag: int) -> Request:
        raise NotImplementedError

    def _post_receive(self, name: str, source: int, tag: int) -> Request:
        raise NotImplementedError

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

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

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        self.send(_array(buf), dest, tag)

    def Recv(self, buf: Any, source: int = -1, tag: int = -1, status: Any = None) -> None:
        into = _array(buf)
        into[...] = self.recv(source=source, tag=tag).reshape(into.shape)


def _array(buffer: Any) -> np.ndarray:
    """The memory of an mpi4py buffer: an array, a tensor or ``[array, type]``."""
    if isinstance(buffer, list | tuple) and buffer and not np.isscalar(buffer[0]):
        buffer = buffer[0]
    if isinstance(buffer, torch.Tensor):
        return buffer.detach().numpy()
    if isinstance(buffer, np.ndarray):
        return buffer
    raise TypeError(f"a buffer is an array or a tensor, not a {type(buffer).__name__}")
