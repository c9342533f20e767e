"""A server's parameters and optimiser, and a message each way for every worker."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from course_lib.distributed.parameter_server.errors import WorkerLostError, model_mismatch, why_lost
from course_lib.distributed.parameter_server.messages import (
    CORRECT,
    FINGERPRINT,
    HEADER,
    KIND,
    LOSS,
    SAMPLES,
    VERSION,
    Answer,
    Message,
    Request,
    Shard,
    gloo_group,
    shards_of,
)
from course_lib.distributed.parameter_server.record import ServerRecord, Update

__all__ = ["ServedModel"]


class ServedModel:
    """Receiving, applying and answering. Arguments as in `serve`."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        servers: Sequence[int],
        timeout: float,
        scheduler: Any = None,
        buffers: str = "mean",
        on_update: Callable[[Update], None] | None = None,
        version: int = 0,
    ) -> None:
        self.rank = dist.get_rank()
        self.servers, self.timeout = list(servers), timeout
        self.optimizer, self.scheduler, self.policy, self.on_update = optimizer, scheduler, buffers, on_update
        self.serving = set(range(dist.get_world_size())) - set(servers)
        if self.rank not in self.servers:
            raise ValueError(f"rank {self.rank} serves, but servers are {self.servers}: it must be one of them")
        if not self.serving:
            raise ValueError(
                f"{dist.get_world_size()} rank(s), all of them servers: a parameter server needs at least one worker, "
                "so start one rank more"
            )
        self.shards = shards_of(model, len(self.servers))
        self.shard: Shard = self.shards[self.servers.index(self.rank)]
        self.group = gloo_group()
        for parameter in model.parameters():
            parameter.grad = None  # the optimiser skips what belongs to other servers
        for parameter in self.shard.parameters:
            # In the parameter's own memory format: fused optimisers work on memory, and a message has no format.
            parameter.grad = torch.zeros_like(parameter)
        self.inbox = {worker: Message(self.shard) for worker in self.serving}
        self.outbox = {worker: Message(self.shard) for worker in self.serving}
        self.sent: dict[int, dist.Work] = {}
        self.latest_buffers: dict[int, list[torch.Tensor]] = {}
        self.greeted: set[int] = set()
        self.arrivals: queue.SimpleQueue[tuple[int, RuntimeError | None]] = queue.SimpleQueue()
        self.record = ServerRecord(version=version)
        self.start: float | None = None  # when the first worker got its first parameters
        self.paused = 0.0

    # Receiving

    def listen(self, worker: int) -> dist.Work:
        """Open the receive for a worker's next message. Its first one is a greeting, a header alone."""
        if worker not in self.greeted:
            return dist.irecv(self.inbox[worker].flat[:HEADER], src=worker, group=self.group)
        return dist.irecv(self.inbox[worker].flat, src=worker, group=self.group)

    def wait_for(self, worker: int, receive: dist.Work) -> None:
        """Return when the message has arrived."""
        try:
            receive.wait(timedelta(seconds=self.timeout))
        except RuntimeError as error:
            raise WorkerLostError(worker, why_lost(error, self.timeout)) from error

    def listen_in_background(self, worker: int) -> None:
        """Open the receive, and wait for it in a thread.

        A receive from any source does not notice that a worker has died, and Gloo's requests cannot be polled. So each
        worker has a receive of its own. A sleeping thread costs nothing, and the queue keeps the order of arrival.
        """
        receive = self.listen(worker)

        def wait() -> None:
            lost = None
            try:
                self.wait_for(worker, receive)
            except WorkerLostError as error:
                lost = error
            self.arrivals.put((worker, lost))

        threading.Thread(target=wait, daemon=True, name=f"waits for rank {worker}").start()

    def next_arrival(self) -> int:
        worker, lost = self.arrivals.get()
        if lost is not None:
            raise lost
        return worker

    # Applying

    def take(self, worker: int) -> Request:
        """Handle a worker's message: apply its gradient, or remove a worker that has finished. It sends no answer."""
        message = self.inbox[worker]
        request = Request(message.number(KIND))
        if request is Request.GOODBYE:
            self.serving.remove(worker)
        elif request is Request.PUSH:
            self._update(worker, message)
        return request

    @torch.no_grad()
    def _update(self, worker: int, message: Message) -> None:
        for parameter, gradient in zip(self.shard.parameters, message.tensors, strict=True):
            parameter.grad.copy_(gradient)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        if self.policy == "mean" and self.shard.buffers:
            self.latest_buffers[worker] = [buffer.clone() for buffer in message.buffers]
            for buffer, *ones in zip(self.shard.buffers, *self.latest_buffers.values(), strict=True):
                buffer.copy_(torch.stack(ones).mean(0))
        update = Update(
            version=self.record.version + 1,
            worker=worker,
            staleness=self.record.version - message.number(VERSION),
            seconds=time.perf_counter() - self.start - self.paused,
            samples=message.number(SAMPLES),
            correct=message.number(CORRECT),
            loss_sum=float(message.header[LOSS]),
        )
        self.record.version += 1
        self.record.updates.append(update)
        if self.on_update is not None:
            before = time.perf_counter()
            self.on_update(update)
            self.paused += time.perf_counter() - before

    # Answering

    @torch.no_grad()
    def answer(self, worker: int, answer: Answer) -> None:
        """Send the parameters as they are now."""
        self.start = self.start or time.perf_counter()
        self._flush(worker)
        message = self.outbox[worker]
        message.write(answer, self.record.version)
        for place, tensor in zip(
            (*message.tensors, *message.buffers), (*self.shard.parameters, *self.shard.buffers), strict=True
        ):
            place.copy_(tensor)
        self.sent[worker] = dist.isend(message.flat, dst=worker, group=self.group)

    def answer_hello(self, worker: int) -> None:
        """Answer a worker's greeting: do the models agree?"""
        self.greeted.add(worker)
        fits = self.inbox[worker].number(FINGERPRINT) == self.shard.fingerprint
        self._flush(worker)
        message = self.outbox[worker]
        message.write(Answer.WELCOME if fits else Answer.MISMATCH, self.record.version)
        self.sent[worker] = dist.isend(message.flat[:HEADER], dst=worker, group=self.group)
        if not fits:
            self._flush(worker)
            raise model_mismatch(worker, self.rank)

    def _flush(self, worker: int) -> None:
        """Wait until the last answer has been sent: its buffer must not change before."""
        if worker in self.sent:
            try:
                self.sent.pop(worker).wait(timedelta(seconds=self.timeout))
            except RuntimeError as error:
                raise WorkerLostError(worker, why_lost(error, self.timeout)) from error

    @torch.no_grad()
    def assemble(self) -> None:
        """Collect all shards on the first server."""
        for worker in list(self.sent):
            self._flush(worker)
        first = self.servers[0]
        if self.rank != first:
            message = Message(self.shard)
            for place, tensor in zip(message.tensors, self.shard.parameters, strict=True):
                place.copy_(tensor)
            dist.isend(message.flat, dst=first, group=self.group).wait(timedelta(seconds=self.timeout))
            return
        for server, shard in zip(self.servers[1:], self.shards[1:], strict=True):
            message = Message(shard)
            dist.irecv(message.flat, src=server, group=self.group).wait(timedelta(seconds=self.timeout))
            for tensor, place in zip(shard.parameters, message.tensors, strict=True):
                tensor.copy_(place)
