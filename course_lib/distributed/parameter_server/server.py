"""The server's side of asynchronous SGD (the HW4 slides, Algorithm 2)."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from course_lib.distributed.parameter_server.errors import WorkerLostError, model_mismatch, wait_for
from course_lib.distributed.parameter_server.messages import (
    FINGERPRINT,
    HEADER,
    KIND,
    VERSION,
    Kind,
    Message,
    SentTensors,
    gloo_group,
)
from course_lib.distributed.parameter_server.record import ServerRecord, Update

__all__ = ["serve"]


def serve(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    on_update: Callable[[Update], None] | None = None,
    timeout: float = 600.0,
) -> ServerRecord:
    """Serve workers in order of arrival: apply a gradient, send the parameters back, until all workers have finished.

    Rank 0 calls it; every other rank of the process group must create a `ParameterServerWorker`. The first gradients
    are computed when all have done so.

    Parameters
    ----------
    model : nn.Module
        All workers start from its parameters, and it holds the result. Float32; frozen parameters are not sent. Each
        worker keeps its own running statistics (batch norm's) and sends them with each gradient; the server's are the
        mean of the workers' latest.
    optimizer : torch.optim.Optimizer
        Over the model's parameters; its state (momentum) exists only here.
    on_update : callable
        Called with each `Update` after it is applied, for example to evaluate or to save a checkpoint. The workers wait
        meanwhile.
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
        This rank is not 0; there is no worker; a model that cannot be sent.
    """
    server = _Server(model, optimizer, on_update, timeout)
    for worker in sorted(server.absent):
        server.listen(worker, header_only=True)
    while server.serving:
        server.handle(server.next_arrival())
    for worker in list(server.sent):
        server.flush(worker)
    return server.record


class _Server:
    """Receiving, applying and answering: a message each way for every worker."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        on_update: Callable[[Update], None] | None,
        timeout: float,
    ) -> None:
        if dist.get_rank() != 0:
            raise ValueError(f"rank {dist.get_rank()} is a worker: rank 0 calls serve()")
        self.serving = set(range(1, dist.get_world_size()))
        if not self.serving:
            raise ValueError("1 rank, the server: a parameter server needs at least one worker, so start one rank more")
        self.absent = set(self.serving)  # no worker computes before all have arrived
        self.model, self.optimizer, self.on_update, self.timeout = SentTensors(model), optimizer, on_update, timeout
        self.group = gloo_group()
        for parameter in self.model.parameters:
            # In the parameter's own memory format: fused optimisers work on memory, and a message has no format.
            parameter.grad = torch.zeros_like(parameter)
        self.inbox = {worker: Message(self.model) for worker in self.serving}
        self.outbox = {worker: Message(self.model) for worker in self.serving}
        self.sent: dict[int, dist.Work] = {}
        self.latest_buffers: dict[int, list[torch.Tensor]] = {}
        self.arrivals: queue.SimpleQueue[tuple[int, WorkerLostError | None]] = queue.SimpleQueue()
        self.record = ServerRecord()

    def listen(self, worker: int, header_only: bool = False) -> None:
        """Open the receive for a worker's next message, and wait for it in a thread.

        A receive from any source does not notice that a worker has died, and Gloo's requests cannot be polled. So each
        worker has a receive of its own. A sleeping thread costs nothing, and the queue keeps the order of arrival.
        """
        flat = self.inbox[worker].flat
        receive = dist.irecv(flat[:HEADER] if header_only else flat, src=worker, group=self.group)

        def wait() -> None:
            lost = None
            try:
                wait_for(receive, worker, self.timeout, WorkerLostError)
            except WorkerLostError as error:
                lost = error
            self.arrivals.put((worker, lost))

        threading.Thread(target=wait, daemon=True, name=f"waits for rank {worker}").start()

    def next_arrival(self) -> int:
        worker, lost = self.arrivals.get()
        if lost is not None:
            raise lost
        return worker

    def handle(self, worker: int) -> None:
        """Do what a worker's message asks for, and answer."""
        kind = self.inbox[worker].number(KIND)
        if kind == Kind.GOODBYE:
            self.serving.remove(worker)
        elif kind == Kind.PUSH:
            self._update(worker, self.inbox[worker])
            self._answer(worker)
        else:
            self._welcome(worker)
            self.absent.discard(worker)
            for ready in () if self.absent else sorted(self.serving):
                self._answer(ready)

    @torch.no_grad()
    def _update(self, worker: int, message: Message) -> None:
        for parameter, gradient in zip(self.model.parameters, message.tensors, strict=True):
            parameter.grad.copy_(gradient)
        self.optimizer.step()
        self.latest_buffers[worker] = [buffer.clone() for buffer in message.buffers]
        for buffer, *ones in zip(self.model.buffers, *self.latest_buffers.values(), strict=True):
            buffer.copy_(torch.stack(ones).mean(0))
        update = Update(
            version=self.record.version + 1,
            worker=worker,
            staleness=self.record.version - message.number(VERSION),
        )
        self.record.updates.append(update)
        if self.on_update is not None:
            self.on_update(update)

    @torch.no_grad()
    def _answer(self, worker: int) -> None:
        """Send the parameters as they are now, and listen for the gradient."""
        self.flush(worker)
        message = self.outbox[worker]
        message.write(Kind.PARAMETERS, self.record.version)
        tensors = (*self.model.parameters, *self.model.buffers)
        for place, tensor in zip((*message.tensors, *message.buffers), tensors, strict=True):
            place.copy_(tensor)
        self.sent[worker] = dist.isend(message.flat, dst=worker, group=self.group)
        self.listen(worker)

    def _welcome(self, worker: int) -> None:
        """Answer a worker's greeting: do the models agree?"""
        fits = self.inbox[worker].number(FINGERPRINT) == self.model.fingerprint
        message = self.outbox[worker]
        message.write(Kind.WELCOME if fits else Kind.MISMATCH)
        self.sent[worker] = dist.isend(message.flat[:HEADER], dst=worker, group=self.group)
        if not fits:
            self.flush(worker)
            raise model_mismatch(worker)

    def flush(self, worker: int) -> None:
        """Wait until the last answer has been sent: its buffer must not change before."""
        if worker in self.sent:
            wait_for(self.sent.pop(worker), worker, self.timeout, WorkerLostError)
