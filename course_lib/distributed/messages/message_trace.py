"""A trace of the messages that a rank sends and receives, to be counted and drawn.

While a trace is open, the methods of PyTorch's process groups are wrapped: every message passes through them, whether
it was sent by ``dist.send``, ``dist.isend``, ``dist.batch_isend_irecv`` or an imported name. What a backend does inside
a collective of its own is not seen; a collective is one record, with its payload. Not seen at all is what never passes
through Python: the all-reduces of `torch.nn.parallel.DistributedDataParallel`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["Message", "MessageTrace", "trace_messages"]


@dataclass
class Message:
    """One message, or one collective, as this rank saw it.

    Attributes
    ----------
    kind : str
        ``send``, ``recv``, or a collective's name: ``all_reduce``, ``broadcast``… Blocking and non-blocking calls are
        the same message; they differ in when they wait.
    peer : int or None
        The other rank; None for a collective, and for a receive from anybody until it has ended.
    nbytes : int
        Bytes of the tensor that is sent, or of the buffer that receives; of a collective, what this rank puts in.
    start, end : float
        Seconds on the machine's monotonic clock, the same for all processes of a machine: the call, and the return of
        ``wait()``. `end` is NaN for a message that nobody waited for.
    tag : int
    """

    kind: str
    peer: int | None
    nbytes: int
    start: float
    end: float = float("nan")
    tag: int = 0


@dataclass
class MessageTrace:
    """What one rank sent and received while the trace was open.

    Attributes
    ----------
    rank, world_size : int
    messages : list of Message
        In the order of the calls.
    """

    rank: int
    world_size: int
    messages: list[Message] = field(default_factory=list)

    def _bytes(self, *kinds: str) -> int:
        return sum(message.nbytes for message in self.messages if message.kind in kinds)

    @property
    def bytes_sent(self) -> int:
        """Bytes of this rank's sends, without those inside a backend's collectives."""
        return self._bytes("send")

    @property
    def bytes_received(self) -> int:
        """Bytes of the buffers of this rank's receives, without those inside a backend's collectives."""
        return self._bytes("recv")

    @property
    def messages_sent(self) -> int:
        """Number of sends."""
        return sum(message.kind == "send" for message in self.messages)

    @property
    def collectives(self) -> list[Message]:
        """The records of the backend's collectives."""
        return [message for message in self.messages if message.kind not in ("send", "recv")]

    def __repr__(self) -> str:
        return (
            f"rank {self.rank}: {self.messages_sent} messages sent, {self.bytes_sent:,} bytes; "
            f"{self._count('recv')} received, {self.bytes_received:,} bytes; {len(self.collectives)} collectives"
        )

    def _count(self, kind: str) -> int:
        return sum(message.kind == kind for message in self.messages)


@contextlib.contextmanager
def trace_messages() -> Iterator[MessageTrace]:
    """Record this process's messages while the block runs; several traces may be open at a time.

    Yields
    ------
    MessageTrace
        Grows; it can be returned from `launch` once the block has ended.

    Raises
    ------
    RuntimeError
        There is no process group.
    """
    if not dist.is_initialized():
        raise RuntimeError("trace_messages: there is no process group yet; open the trace on a rank, inside the worker")
    trace = MessageTrace(dist.get_rank(), dist.get_world_size())
    with _changing:
        if not _open:
            _wrap_process_group()
        _open.append(trace)
    try:
        yield trace
    finally:
        with _changing:
            # By identity: two traces that saw nothing are equal.
            _open[:] = [other for other in _open if other is not trace]
            if not _open:
                _unwrap_process_group()


_changing = threading.Lock()
_open: list[MessageTrace] = []
_originals: dict[str, Any] = {}

# Method of the process group → what this rank puts in, by position. The names differ between versions of PyTorch.
_COLLECTIVES = {
    "broadcast": ("broadcast", 0),
    "allreduce": ("all_reduce", 0),
    "allreduce_coalesced": ("all_reduce", 0),
    "reduce": ("reduce", 0),
    "allgather": ("all_gather", 1),
    "all_gather_single": ("all_gather", 1),
    "_allgather_base": ("all_gather", 1),
    "gather": ("gather", 1),
    "scatter": ("scatter", 1),
    "reduce_scatter": ("reduce_scatter", 1),
    "reduce_scatter_single": ("reduce_scatter", 1),
    "_reduce_scatter_base": ("reduce_scatter", 1),
    "alltoall": ("all_to_all", 1),
    "all_to_all_single": ("all_to_all", 1),
    "alltoall_base": ("all_to_all", 1),
    "barrier": ("barrier", None),
}


def _wrap_process_group() -> None:
    for name in ("send", "recv", "recv_anysource", *_COLLECTIVES):
        if name in vars(dist.ProcessGroup):
            # The entry itself: the result of getattr would no longer bind `self` when it is put back.
            _originals[name] = vars(dist.ProcessGroup)[name]
            setattr(dist.ProcessGroup, name, _recorded(name, getattr(dist.ProcessGroup, name)))


def _unwrap_process_group() -> None:
    while _originals:
        name, original = _originals.popitem()
        setattr(dist.ProcessGroup, name, original)


def _recorded(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        message = _described(name, group, args, kwargs)
        for trace in list(_open):
            trace.messages.append(message)
        work = original(group, *args, **kwargs)
        return None if work is None else TracedWork(work, message, group)

    return method


def _described(name: str, group: dist.ProcessGroup, args: Sequence[Any], kwargs: dict[str, Any]) -> Message:
    start = time.monotonic()
    if name in _COLLECTIVES:
        kind, place = _COLLECTIVES[name]
        return Message(kind, None, 0 if place is None or place >= len(args) else _nbytes(args[place]), start)
    if name == "recv_anysource":
        tensors, peer, tag = args[0], None, args[1]
    else:
        tensors, peer, tag = args[0], dist.get_global_rank(group, args[1]), args[2]
    return Message("send" if name == "send" else "recv", peer, _nbytes(tensors), start, tag=tag)


def _nbytes(tensors: Any) -> int:
    if isinstance(tensors, torch.Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(map(_nbytes, tensors))


class TracedWork:
    """The backend's handle of a message, whose end is written down when somebody has waited for it."""

    def __init__(self, work: dist.Work, message: Message, group: dist.ProcessGroup) -> None:
        self._work, self._message, self._group = work, message, group

    def wait(self, *args: Any, **kwargs: Any) -> bool:
        """As `torch.distributed.Work.wait`."""
        done = self._work.wait(*args, **kwargs)
        self._ended()
        return done

    def is_completed(self) -> bool:
        """As `torch.distributed.Work.is_completed`."""
        done = self._work.is_completed()
        if done:
            self._ended()
        return done

    def _ended(self) -> None:
        message = self._message
        if message.end != message.end:  # NaN: the first to see the end
            message.end = time.monotonic()
            if message.kind == "recv" and message.peer is None:
                message.peer = dist.get_global_rank(self._group, self._work._source_rank())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)
