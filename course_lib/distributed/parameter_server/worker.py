"""A worker's side of asynchronous SGD (the HW4 slides, Algorithm 2)."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from course_lib.distributed.parameter_server.errors import ServerLostError, model_mismatch, wait_for
from course_lib.distributed.parameter_server.messages import (
    KIND,
    VERSION,
    Kind,
    Message,
    SentTensors,
    gloo_group,
)

__all__ = ["ParameterServerWorker"]

SERVER = 0


class ParameterServerWorker:
    """Sends gradients to the parameter server, rank 0, and takes the parameters from it::

        worker = ParameterServerWorker(model)          # from now on the model has the server's parameters
        for images, labels in batches:
            model.zero_grad()
            loss_fn(model(images), labels).backward()
            worker.exchange()
        worker.finish()

    Making one is the "synchronous initialization" of Algorithm 2: parameters and buffers come from the server. Later,
    parameters come, and each worker keeps its own buffers.

    Parameters
    ----------
    model : nn.Module
        As on the server. A parameter without a gradient counts as one with gradient 0.
    timeout : float
        Seconds without an answer after which the server counts as lost.

    Attributes
    ----------
    version : int
        Of the model's parameters.

    Raises
    ------
    ServerLostError
        From here, `exchange` and `finish`: the server's connection has closed, or it has been silent for `timeout`
        seconds.
    ModelMismatchError
        The server's model has other shapes.
    ValueError
        This rank is the server; the model cannot be sent.
    """

    def __init__(self, model: nn.Module, *, timeout: float = 600.0) -> None:
        self.rank, self.timeout = dist.get_rank(), timeout
        if self.rank == SERVER:
            raise ValueError("rank 0 is the server: it calls serve()")
        self.model = SentTensors(model)
        self.group = gloo_group()
        self.outbox, self.inbox = Message(self.model), Message(self.model)
        self._greet()
        self._take_parameters()
        with torch.no_grad():
            for buffer, value in zip(self.model.buffers, self.inbox.buffers, strict=True):
                buffer.copy_(value)

    @torch.no_grad()
    def exchange(self) -> None:
        """Send the gradients, wait for the parameters and put them into the model."""
        for place, parameter in zip(self.outbox.tensors, self.model.parameters, strict=True):
            place.zero_() if parameter.grad is None else place.copy_(parameter.grad)
        for place, buffer in zip(self.outbox.buffers, self.model.buffers, strict=True):
            place.copy_(buffer)
        self.outbox.write(Kind.PUSH, self.version)
        self._send(self.outbox)
        self._take_parameters()

    def finish(self) -> None:
        """Report to the server that this worker has finished; its process may end. The server continues with the others."""
        self.outbox.write(Kind.GOODBYE)
        self._send(self.outbox)

    def _greet(self) -> None:
        hello, answer = Message(), Message()
        hello.write(Kind.HELLO, fingerprint=self.model.fingerprint)
        self._send(hello)
        self._receive(answer)
        if answer.number(KIND) != Kind.WELCOME:
            raise model_mismatch(self.rank)

    @torch.no_grad()
    def _take_parameters(self) -> None:
        self._receive(self.inbox)
        self.version = self.inbox.number(VERSION)
        for parameter, value in zip(self.model.parameters, self.inbox.tensors, strict=True):
            parameter.copy_(value)

    def _send(self, message: Message) -> None:
        work = dist.isend(message.flat, dst=SERVER, group=self.group)
        wait_for(work, SERVER, self.timeout, ServerLostError)

    def _receive(self, message: Message) -> None:
        work = dist.irecv(message.flat, src=SERVER, group=self.group)
        wait_for(work, SERVER, self.timeout, ServerLostError)
