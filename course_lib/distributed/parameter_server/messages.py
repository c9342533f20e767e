"""Messages between workers and the server: flat float32 buffers that begin with a header of three numbers."""

from __future__ import annotations

import zlib
from enum import IntEnum

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["Kind", "Message", "SentTensors", "gloo_group"]

HEADER = 6  # float32 places: three float64 numbers, which count exactly to 2⁵³
KIND, VERSION, FINGERPRINT = range(3)


class Kind(IntEnum):
    """What a message says. The first two answers and the greeting are a header alone."""

    HELLO = 1  # worker: are the models the same?
    WELCOME = 2  # server: they are
    MISMATCH = 3  # server: they are not
    PARAMETERS = 4  # server: compute a gradient with these
    PUSH = 5  # worker: apply this gradient, and send the parameters
    GOODBYE = 6  # worker: it has finished and expects no answer


class SentTensors:
    """The tensors of a model that are sent.

    Attributes
    ----------
    parameters : list of nn.Parameter
        Those that require a gradient; frozen ones are not sent.
    buffers : list of Tensor
        Floating-point ones; counters such as ``num_batches_tracked`` are not sent.

    Raises
    ------
    ValueError
        Some are not float32.
    """

    def __init__(self, model: nn.Module) -> None:
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        for tensor in (*self.parameters, *self.buffers):
            if tensor.dtype is not torch.float32:
                raise ValueError(
                    f"a parameter server sends float32, and the model has {tensor.dtype}: use model.float()"
                )

    @property
    def fingerprint(self) -> int:
        """A checksum of the shapes, in order."""
        shapes = [tuple(part.shape) for part in (*self.parameters, *self.buffers)]
        return zlib.crc32(repr(shapes).encode())


class Message:
    """A buffer and its parts.

    Attributes
    ----------
    flat : Tensor, float32, 1-D
        The whole buffer, as it is sent or received.
    header : Tensor, float64 ``(3,)``
        A view of its first 6 places: kind, version, fingerprint.
    tensors, buffers : list of Tensor
        Views of the rest, in the shapes of the model's parameters (or their gradients) and buffers.
    """

    def __init__(self, sent: SentTensors | None = None) -> None:
        parts = [] if sent is None else [*sent.parameters, *sent.buffers]
        self.flat = torch.zeros(HEADER + sum(part.numel() for part in parts))
        self.header = self.flat[:HEADER].view(torch.float64)
        views = [
            view.view(part.shape)
            for view, part in zip(self.flat[HEADER:].split([part.numel() for part in parts]), parts, strict=True)
        ]
        own = 0 if sent is None else len(sent.parameters)
        self.tensors, self.buffers = views[:own], views[own:]

    def number(self, place: int) -> int:
        """A whole number of the header."""
        return int(self.header[place])

    def write(self, kind: Kind, version: int = 0, fingerprint: int = 0) -> None:
        """Fill the header."""
        self.header.copy_(torch.tensor([kind, version, fingerprint], dtype=torch.float64))


def gloo_group() -> dist.ProcessGroup | None:
    """The group that messages go through: the default one if it is Gloo's, else a new one beside it.

    Messages are in the host's memory, which NCCL cannot send from. Creating a group is a collective: every rank, worker
    or server, must call this once.
    """
    return None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
