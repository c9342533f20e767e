"""The server's side of asynchronous SGD (the HW4 slides, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from course_lib.distributed.parameter_server.messages import Answer, Request
from course_lib.distributed.parameter_server.record import ServerRecord, Update
from course_lib.distributed.parameter_server.served_model import ServedModel

__all__ = ["serve"]


def serve(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    servers: Sequence[int] = (0,),
    updates: int | None = None,
    scheduler: Any = None,
    buffers: str = "mean",
    on_update: Callable[[Update], None] | None = None,
    version: int = 0,
    timeout: float = 600.0,
) -> ServerRecord:
    """Serve workers in order of arrival: apply a gradient, send the parameters back, until all workers have finished.

    Every rank of the process group that is not a server must create a `ParameterServerWorker`. The first gradients are
    computed when all have done so. With several servers, each keeps a part of the parameters (`shards_of`) with a
    version of its own; at the end ``servers[0]`` has the whole model.

    Parameters
    ----------
    model : nn.Module
        All workers start from its parameters, and it holds the result. Float32; frozen parameters are not sent.
    optimizer : torch.optim.Optimizer
        Over the model's parameters; its state (momentum) exists only here. On each server it steps that server's part.
    servers : sequence of int
        The servers' ranks, the same on every rank.
    updates : int, optional
        Stop at exactly this version. A fast worker makes more of the updates. No more workers compute than there are
        updates left, so that no gradient is wasted. Without it, the workers decide when they finish.
    scheduler : optional
        Stepped after each update: a learning-rate schedule by the number of updates.
    buffers : {"mean", "own"}
        Batch norm's running statistics, which have no gradient. "mean": each worker keeps its own and sends them with
        each gradient; the server's are the mean of the workers' latest. "own": none are sent, and the server's stay as
        they were, which is useful only for a model without batch norm.
    on_update : callable
        Called with each `Update` after it is applied, for example to evaluate or to save a checkpoint. The workers wait
        meanwhile. (Each of several servers has only its own part of the parameters up to date.)
    version : int
        Number of updates already made, when a training is resumed.
    timeout : float
        Seconds without a message after which a worker counts as lost.

    Returns
    -------
    ServerRecord

    Raises
    ------
    WorkerLostError
        A worker's connection has closed before its goodbye, or it has been silent for `timeout` seconds.
    ModelMismatchError
        A worker's model has other shapes.
    ValueError
        No worker, an unknown policy, a model that cannot be sent or split.
    """
    if buffers not in ("mean", "own"):
        raise ValueError(f'buffers must be "mean" or "own", got {buffers!r}')
    server = ServedModel(model, optimizer, servers, timeout, scheduler, buffers, on_update, version)
    # One server counts the updates: two could stop at different workers. A push goes to all servers.
    queue = _AnswerQueue(server, updates if server.rank == server.servers[0] else None)
    for worker in sorted(server.serving):
        server.listen_in_background(worker)
    while server.serving:
        worker = server.next_arrival()
        request = server.take(worker)
        queue.note(worker, request)
        for released, answer in queue.release():
            server.answer(released, answer)
            server.listen_in_background(released)
        if request is Request.HELLO:
            server.answer_hello(worker)
            server.listen_in_background(worker)
    server.assemble()
    return server.record


class _AnswerQueue:
    """The workers that wait for an answer, and which of them may have one."""

    def __init__(self, server: ServedModel, updates: int | None) -> None:
        self.server, self.updates = server, updates
        self.waiting: list[int] = []  # in order of arrival
        self.absent = set(server.serving)  # no worker computes before all have arrived
        self.computing: set[int] = set()  # workers whose next gradient has not arrived yet

    def note(self, worker: int, request: Request) -> None:
        self.computing.discard(worker)
        if request is not Request.HELLO:
            self.absent.discard(worker)
        if request not in (Request.GOODBYE, Request.HELLO):
            self.waiting.append(worker)

    def release(self) -> list[tuple[int, Answer]]:
        """The answers that may be sent now, in order of arrival."""
        released = []
        while self.waiting and not self.absent:
            worker = self.waiting.pop(0)
            if self._enough():
                released.append((worker, Answer.STOP))
            else:
                self.computing.add(worker)
                released.append((worker, Answer.GO))
        return released

    def _enough(self) -> bool:
        return self.updates is not None and self.server.record.version + len(self.computing) >= self.updates
