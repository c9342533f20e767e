"""mpi4py's communicator for ranks without mpirun: the grader moves its messages (`mpi_broker`).

The source is sent to the sandbox, beside `observe`.
"""

import contextlib
import functools
import operator
import pickle
import time

import numpy as np
import torch

from course_lib.distributed.launching.communicator import Communicator, Request
from course_lib.exercises.ranks.broker_process_group import POLL, SendWork, moved


def packed(value):
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


def unpacked(tensor):
    return pickle.loads(tensor.numpy().tobytes())


def in_place(buffer):
    """Whether it is MPI.IN_PLACE, which is neither an array nor a tensor."""
    return not isinstance(buffer, np.ndarray | torch.Tensor | list | tuple) and buffer is not None


def memory(buffer):
    """The memory of an mpi4py buffer: an array, a tensor or ``[array, type]``."""
    if isinstance(buffer, list | tuple) and buffer and not np.isscalar(buffer[0]):
        buffer = buffer[0]
    if isinstance(buffer, torch.Tensor):
        buffer = buffer.detach().numpy()
    if not isinstance(buffer, np.ndarray):
        raise TypeError(f"a buffer is an array or a tensor, not a {type(buffer).__name__}")
    if not buffer.flags.c_contiguous:
        raise ValueError("the buffer is not contiguous in memory")
    return buffer


def reduction_of(op):
    """The name of one of MPI's operations, by what it does."""
    if op is None:
        return "SUM"
    known = {5: "SUM", 6: "PRODUCT", 3: "MAX", 2: "MIN"}
    if (result := op(2, 3)) not in known:
        raise ValueError("this operation is not there: take MPI.SUM, MPI.MAX, MPI.MIN or MPI.PROD")
    return known[result]


class BrokerComm(Communicator):
    """One rank's communicator."""

    def __init__(self, rank, size, outside):
        self.rank, self.size, self.calls, self.outside = rank, size, [], outside

    def _enter(self, kind, brought, root=-1, operation=""):
        self.calls.append(kind)
        number = moved(self.outside("join", kind, root, operation, brought))
        while (ended := moved(self.outside("result", number))) is None:
            time.sleep(POLL)
        return ended

    def _objects(self, kind, value, root=-1):
        return [unpacked(tensor) for tensor in self._enter(kind, [packed(value)], root)]

    def _buffers(self, kind, sendbuf, recvbuf, root=-1, operation="", receives=True):
        given = memory(recvbuf if in_place(sendbuf) else sendbuf)
        ended = self._enter(kind, [torch.from_numpy(given.reshape(-1).copy())], root, operation)
        if receives:
            into = memory(recvbuf).reshape(-1)
            arrived = np.concatenate([tensor.numpy() for tensor in ended])
            if into.dtype != arrived.dtype or len(into) < len(arrived):
                raise ValueError(
                    f"message truncated: {len(arrived)} elements ({arrived.dtype}) arrive in a buffer of {len(into)} "
                    f"({into.dtype})"
                )
            into[: len(arrived)] = arrived

    def barrier(self):
        self._enter("Barrier", [])

    Barrier = barrier

    def bcast(self, obj=None, root=0):
        return unpacked(self._enter("bcast", [packed(obj)] if self.rank == root else [], root)[0])

    def gather(self, sendobj, root=0):
        values = self._objects("gather", sendobj, root)
        return values if self.rank == root else None

    def allgather(self, sendobj):
        return self._objects("allgather", sendobj)

    def scatter(self, sendobj=None, root=0):
        brought = [packed(each) for each in sendobj] if self.rank == root else []
        return unpacked(self._enter("scatter", brought, root)[0])

    def reduce(self, sendobj, op=None, root=0):
        values = self._objects("reduce", sendobj, root)
        return functools.reduce(op or operator.add, values) if self.rank == root else None

    def allreduce(self, sendobj, op=None):
        return functools.reduce(op or operator.add, self._objects("allreduce", sendobj))

    def Bcast(self, buf, root=0):
        into = memory(buf).reshape(-1)
        ended = self._enter("Bcast", [torch.from_numpy(into.copy())] if self.rank == root else [], root)
        arrived = ended[0].numpy()
        if into.dtype != arrived.dtype or len(into) != len(arrived):
            raise ValueError(
                f"message truncated: {len(arrived)} elements ({arrived.dtype}) arrive in a buffer of {len(into)} "
                f"({into.dtype})"
            )
        into[:] = arrived

    def Allreduce(self, sendbuf, recvbuf, op=None):
        self._buffers("Allreduce", sendbuf, recvbuf, operation=reduction_of(op))

    def Reduce(self, sendbuf, recvbuf, op=None, root=0):
        self._buffers("Reduce", sendbuf, recvbuf, root, reduction_of(op), self.rank == root)

    def Gather(self, sendbuf, recvbuf, root=0):
        self._buffers("Gather", sendbuf, recvbuf, root, receives=self.rank == root)

    def Allgather(self, sendbuf, recvbuf):
        self._buffers("Allgather", sendbuf, recvbuf)

    def _post_send(self, name, obj, dest, tag):
        self.calls.append(name)
        return Request(SendWork(moved(self.outside("post", dest, tag, packed(obj))), self.outside).wait)

    def _post_receive(self, name, source, tag):
        self.calls.append(name)
        number = moved(self.outside("expect", source, tag))

        def awaited():
            while (tensor := moved(self.outside("collect", number))) is None:
                time.sleep(POLL)
            return unpacked(tensor)

        return Request(awaited)


@contextlib.contextmanager
def mpi_comm(rank, size, outside):
    """The communicator of a rank while its answer is called."""
    raised = True
    try:
        yield BrokerComm(rank, size, outside)
        raised = False
    finally:
        outside("left", raised)
