"""The server's side of asynchronous SGD (the HW4 slides, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from course_lib.distributed.parameter_server.messages import Answer, Request
from course_lib.distributed.parameter_server.record import ServerRecord, Update
from course_lib.distributed.parameter_server.served_model import ServedModel

__all__ = ["serve", "serve_in_turns"]


def serve_in_turns(
    model: nn.Module, optimizer: torch.optim.Optimizer, servers: Sequence[int] = (0,), timeout: float = 600.0
) -> ServerRecord:
    """Serve the workers in the order of their ranks, round after round: what most teaching code does.

    It shows the idea and is not used: whoever is ready waits for the worker whose turn it is, so that every step takes as
    long as the slowest worker's, as in synchronous SGD, and the gradients are stale besides. Arguments as in `serve`.
    """
    server = ServedModel(model, optimizer, servers, timeout)
    while server.serving:
        for worker in sorted(server.serving):
            server.wait_for(worker, server.listen(worker))
            request = server.take(worker)
            if request is Request.HELLO:
                server.answer_hello(worker)
            elif request is not Request.GOODBYE:
                server.answer(worker, Answer.GO)
    server.assemble()
    return server.record


def serve(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    servers: Sequence[int] = (0,),
    updates: int | None = None,
    scheduler: Any = None,
    staleness_bound: int | None = None,
    buffers: str = "mean",
    on_update: Callable[[Update], None] | None = None,
    version: int = 0,
    timeout: float = 600.0,
) -> ServerRecord:
    """Serve whoever asks first: apply a worker's gradient, send the parameters back, until all workers have said goodbye.

    Every rank of the process group that is no server must make a `ParameterServerWorker`; the first gradients are computed
    once all have. With several servers each keeps
    a part of the parameters (`shards_of`), with a version of its own; at the end ``servers[0]`` has the whole model.

    Parameters
    ----------
    model : nn.Module
        Its parameters are where everybody begins, and it holds the result. Float32; frozen parameters do not travel.
    optimizer : torch.optim.Optimizer
        Over the model's parameters; momentum and the like live here, once. On each server it steps that server's part.
    servers : sequence of int
        The servers' ranks, the same on every rank.
    updates : int, optional
        Apply exactly so many (the version at the end), whoever they come from: a fast worker does more of them. As many
        workers are sent off as there are updates left, so that no gradient is computed for nothing. Without it, the
        workers end when they like.
    scheduler : optional
        Stepped after each update: a learning-rate schedule by the number of updates.
    staleness_bound : int, optional
        A worker that has made more than so many updates more than the slowest one waits for it (stale synchronous
        parallel: Ho et al. 2013), and is sent the parameters of when it may go on. 0 makes rounds. With W workers no
        gradient is then staler than (W − 1)·(2·bound + 1).
    buffers : {"mean", "own"}
        Batch norm's running statistics: gradients do not carry them. "mean": each worker keeps its own and sends them
        along, and the server's are the mean of the workers' latest. "own": none travel, and the server's stay as they
        were at the start, which is of use only where there are none that matter.
    on_update : callable
        Called with each `Update` once it is applied: to evaluate, to keep a checkpoint. The workers wait meanwhile. (Of
        several servers, each has only its own part of the parameters up to date.)
    version : int
        Updates that `model` and `optimizer` have behind them already, when a training goes on.
    timeout : float
        Seconds without a word after which a worker counts as lost.

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
    if staleness_bound is not None and staleness_bound < 0:
        raise ValueError(f"staleness_bound must be at least 0, got {staleness_bound}")
    server = ServedModel(model, optimizer, servers, timeout, scheduler, buffers, on_update, version)
    # One server keeps the count, or two could send off different workers last. A push goes to all of them.
    desk = _Desk(server, updates if server.rank == server.servers[0] else None, staleness_bound)
    for worker in sorted(server.serving):
        server.listen_aside(worker)
    while server.serving:
        worker = server.next_arrival()
        request = server.take(worker)
        desk.note(worker, request)
        for released, answer in desk.release():
            server.answer(released, answer)
            server.listen_aside(released)
        if request is Request.HELLO:
            server.answer_hello(worker)
            server.listen_aside(worker)
    server.assemble()
    return server.record


class _Desk:
    """Who waits for an answer, and who may have one."""

    def __init__(self, server: ServedModel, updates: int | None, bound: int | None) -> None:
        self.server, self.updates, self.bound = server, updates, bound
        self.waiting: list[int] = []  # in order of arrival
        self.absent = set(server.serving)  # nobody is sent off before all are there: they begin together
        self.computing: set[int] = set()  # sent off to compute a gradient that has not come yet
        self.clock = dict.fromkeys(server.serving, 0)  # updates that a worker has made; who has finished is not in it

    def note(self, worker: int, request: Request) -> None:
        self.computing.discard(worker)
        if request is not Request.HELLO:
            self.absent.discard(worker)
        if request is Request.GOODBYE:
            self.clock.pop(worker, None)
        elif request is not Request.HELLO:
            self.clock[worker] += request is Request.PUSH
            self.waiting.append(worker)

    def release(self) -> list[tuple[int, Answer]]:
        """Those who need wait no longer, in order of arrival; who is sent off changes the count, so look again."""
        released = []
        while (worker := next(filter(self._may_go, self.waiting), None)) is not None:
            self.waiting.remove(worker)
            if self._enough():
                released.append((worker, Answer.STOP))
            else:
                self.computing.add(worker)
                released.append((worker, Answer.GO))
        return released

    def _enough(self) -> bool:
        return self.updates is not None and self.server.record.version + len(self.computing) >= self.updates

    def _may_go(self, worker: int) -> bool:
        if self.absent:
            return False
        return self._enough() or self.bound is None or self.clock[worker] - min(self.clock.values()) <= self.bound
