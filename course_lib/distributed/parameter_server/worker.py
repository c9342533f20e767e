"""A worker's side of asynchronous SGD (the HW4 slides, Algorithm 2)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from course_lib.distributed.parameter_server.errors import ServerLostError, model_mismatch, why_lost
from course_lib.distributed.parameter_server.messages import (
    FINGERPRINT,
    KIND,
    VERSION,
    Answer,
    Message,
    Request,
    gloo_group,
    shards_of,
)

__all__ = ["Exchange", "ParameterServerWorker", "WorkerRecord"]


@dataclass(frozen=True)
class Exchange:
    """A gradient sent and the parameters that came back.

    Attributes
    ----------
    computed_on, received : tuple of int
        Versions of the parameters before and after, one per server.
    seconds : float
        When the gradient was sent, since the worker began.
    waited : float
        Seconds from there to the answer's arrival.
    """

    computed_on: tuple[int, ...]
    received: tuple[int, ...]
    seconds: float
    waited: float


@dataclass
class WorkerRecord:
    """A worker's exchanges in order, and the seconds of its work, waiting included."""

    rank: int
    exchanges: list[Exchange] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def waited(self) -> float:
        """Seconds spent waiting for servers."""
        return sum(exchange.waited for exchange in self.exchanges)


class ParameterServerWorker:
    """Sends gradients to parameter servers and takes the parameters from them.

        worker = ParameterServerWorker(model)          # from now on the model has the server's parameters
        while worker.active:
            images, labels = next(batches)
            model.zero_grad()
            loss_fn(model(images), labels).backward()
            worker.exchange()
        worker.finish()

    Making one is the "synchronous initialization" of Algorithm 2: parameters and buffers come from the server. Later,
    parameters come, and each worker keeps its own buffers (see `serve`'s ``buffers``).

    Parameters
    ----------
    model : nn.Module
        As on the servers. A parameter without a gradient counts as one with gradient 0.
    servers : sequence of int
        The servers' ranks, in the same order everywhere.
    delay : float
        Seconds to sleep before each exchange. It makes this worker a straggler.
    timeout : float
        Seconds without an answer after which a server counts as lost.

    Attributes
    ----------
    active : bool
        False when the server has made the requested number of updates, and after `finish`.
    versions : tuple of int
        Versions of the model's parameters, one per server.
    record : WorkerRecord

    Raises
    ------
    ServerLostError
        From here, `exchange` and `finish`: a server's connection has closed, or it has been silent for `timeout`
        seconds.
    ModelMismatchError
        The server's model has other shapes.
    ValueError
        This rank is a server; the model cannot be sent or split.
    """

    def __init__(
        self, model: nn.Module, servers: Sequence[int] = (0,), *, delay: float = 0.0, timeout: float = 600.0
    ) -> None:
        self.rank = dist.get_rank()
        if self.rank in servers:
            raise ValueError(f"rank {self.rank} is a server (servers are {list(servers)}): it calls serve()")
        self.servers, self.delay, self.timeout = list(servers), delay, timeout
        self.shards = shards_of(model, len(self.servers))
        self.group = gloo_group()
        self.outbox = [Message(shard) for shard in self.shards]
        self.inbox = [Message(shard) for shard in self.shards]
        self.record, self.start = WorkerRecord(self.rank), time.perf_counter()
        self.active, self.versions = True, (0,) * len(self.servers)
        self._greet()
        self._ask(Request.PULL)
        with torch.no_grad():
            for shard, message in zip(self.shards, self.inbox, strict=True):
                for buffer, value in zip(shard.buffers, message.buffers, strict=True):
                    buffer.copy_(value)

    @torch.no_grad()
    def exchange(self, samples: int = 0, correct: int = 0, loss_sum: float = 0.0) -> bool:
        """Send the gradients, wait for the parameters and put them into the model.

        Parameters
        ----------
        samples, correct, loss_sum
            Images of this batch, how many were right, and the sum of their losses, for the server's record.

        Returns
        -------
        bool
            Whether another gradient is wanted (`active`).
        """
        if not self.active:
            raise RuntimeError(
                "the server has stopped this worker, or finish() was called: no further exchange is possible"
            )
        if self.delay:
            time.sleep(self.delay)
        for shard, message in zip(self.shards, self.outbox, strict=True):
            for place, parameter in zip(message.tensors, shard.parameters, strict=True):
                place.zero_() if parameter.grad is None else place.copy_(parameter.grad)
            for place, buffer in zip(message.buffers, shard.buffers, strict=True):
                place.copy_(buffer)
        before, sent = self.versions, time.perf_counter()
        self._ask(Request.PUSH, samples, correct, loss_sum)
        waited = time.perf_counter() - sent
        self.record.exchanges.append(Exchange(before, self.versions, sent - self.start, waited))
        self.record.seconds = time.perf_counter() - self.start
        return self.active

    def finish(self) -> WorkerRecord:
        """Report to the servers that this worker has finished; its process may end. The servers continue with the others."""
        self.active = False
        for server, message in zip(self.servers, self.outbox, strict=True):
            message.write(Request.GOODBYE)
            self._wait(server, dist.isend(message.flat, dst=server, group=self.group))
        return self.record

    def _ask(self, request: Request, samples: int = 0, correct: int = 0, loss_sum: float = 0.0) -> None:
        """Send to all servers at once, then wait for all answers."""
        pending = []
        for server, out, answer, version in zip(self.servers, self.outbox, self.inbox, self.versions, strict=True):
            out.write(request, version, samples, correct, loss_sum)
            pending.append((server, dist.irecv(answer.flat, src=server, group=self.group)))
            pending.append((server, dist.isend(out.flat, dst=server, group=self.group)))
        for server, work in pending:
            self._wait(server, work)
        self.versions = tuple(answer.number(VERSION) for answer in self.inbox)
        self.active = self.inbox[0].number(KIND) == Answer.GO  # the first server keeps the count
        with torch.no_grad():
            for shard, answer in zip(self.shards, self.inbox, strict=True):
                for parameter, value in zip(shard.parameters, answer.tensors, strict=True):
                    parameter.copy_(value)

    def _greet(self) -> None:
        for server, shard in zip(self.servers, self.shards, strict=True):
            hello, answer = Message(), Message()
            hello.write(Request.HELLO)
            hello.header[FINGERPRINT] = shard.fingerprint
            received = dist.irecv(answer.flat, src=server, group=self.group)
            self._wait(server, dist.isend(hello.flat, dst=server, group=self.group))
            self._wait(server, received)
            if answer.number(KIND) != Answer.WELCOME:
                raise model_mismatch(self.rank, server)

    def _wait(self, server: int, work: dist.Work) -> None:
        try:
            work.wait(timedelta(seconds=self.timeout))
        except RuntimeError as error:
            raise ServerLostError(server, why_lost(error, self.timeout)) from error
