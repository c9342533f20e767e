"""Messages between workers and servers: flat float32 buffers that begin with a header of six numbers."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from enum import IntEnum

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["Answer", "Message", "Request", "Shard", "gloo_group", "shards_of", "split_by_size"]

HEADER = 12  # float32 places: six float64 numbers, which count exactly to 2⁵³
KIND, VERSION, SAMPLES, CORRECT, LOSS, FINGERPRINT = range(6)


class Request(IntEnum):
    """A worker's request to a server."""

    HELLO = 1  # are the models the same? (a header only)
    PULL = 2  # send the parameters, for a first gradient
    PUSH = 3  # apply this gradient, and send the parameters
    GOODBYE = 4  # this worker has finished and expects no answer


class Answer(IntEnum):
    """A server's answer to a worker."""

    WELCOME = 11  # to a HELLO
    MISMATCH = 12  # to a HELLO
    GO = 13  # compute a gradient with these parameters
    STOP = 14  # all requested updates are applied, or will be by other workers


class Message:
    """A buffer and its parts.

    Attributes
    ----------
    flat : Tensor, float32, 1-D
        The whole buffer, as it is sent or received.
    header : Tensor, float64 ``(6,)``
        A view of its first 12 places: kind, version, images, correct ones, sum of losses, fingerprint.
    tensors, buffers : list of Tensor
        Views of the rest, in the shapes of the shard's parameters (or their gradients) and buffers.
    """

    def __init__(self, shard: Shard | None = None) -> None:
        parts = [] if shard is None else [*shard.parameters, *shard.buffers]
        self.flat = torch.zeros(HEADER + sum(part.numel() for part in parts))
        self.header = self.flat[:HEADER].view(torch.float64)
        views = [
            view.view(part.shape)
            for view, part in zip(self.flat[HEADER:].split([part.numel() for part in parts]), parts, strict=True)
        ]
        own = 0 if shard is None else len(shard.parameters)
        self.tensors, self.buffers = views[:own], views[own:]

    def number(self, place: int) -> int:
        """A whole number of the header."""
        return int(self.header[place])

    def write(self, kind: IntEnum, version: int = 0, samples: int = 0, correct: int = 0, loss_sum: float = 0.0) -> None:
        """Fill the header."""
        self.header[:FINGERPRINT] = torch.tensor([kind, version, samples, correct, loss_sum], dtype=torch.float64)


class Shard:
    """The part of a model that one server keeps.

    Attributes
    ----------
    parameters : list of nn.Parameter
        Those that require a gradient; frozen ones are not sent.
    buffers : list of Tensor
        Floating-point ones; counters such as ``num_batches_tracked`` are not sent.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], buffers: Iterable[torch.Tensor]) -> None:
        self.parameters, self.buffers = list(parameters), list(buffers)

    @property
    def fingerprint(self) -> int:
        """A checksum of the shapes, in order."""
        shapes = [tuple(part.shape) for part in (*self.parameters, *self.buffers)]
        return zlib.crc32(repr(shapes).encode())


def split_by_size(sizes: Sequence[int], parts: int) -> list[list[int]]:
    """Split items into `parts` piles of about the same total: the largest item first, each to the lightest pile.

    Graham (1969): the heaviest pile weighs at most 4/3 − 1/(3·parts) times the best possible one.

    Returns
    -------
    list of list of int
        The items' indices, in each pile in order.

    Raises
    ------
    ValueError
        Fewer items than piles.
    """
    if not 1 <= parts <= len(sizes):
        raise ValueError(f"{len(sizes)} parameter tensors cannot be split over {parts} servers")
    piles: list[list[int]] = [[] for _ in range(parts)]
    weights = [0] * parts
    for item in sorted(range(len(sizes)), key=lambda item: -sizes[item]):
        lightest = min(range(parts), key=lambda pile: (weights[pile], len(piles[pile])))
        piles[lightest].append(item)
        weights[lightest] += sizes[item]
    return [sorted(pile) for pile in piles]


def shards_of(model: nn.Module, servers: int) -> list[Shard]:
    """Split a model into one shard for each server, whole tensors, by size. The first server keeps the buffers.

    Raises
    ------
    ValueError
        There are fewer parameters than servers, or some are not float32.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    for tensor in (*parameters, *buffers):
        if tensor.dtype is not torch.float32:
            raise ValueError(f"a parameter server sends float32, and the model has {tensor.dtype}: use model.float()")
    piles = split_by_size([parameter.numel() for parameter in parameters], servers)
    return [
        Shard([parameters[item] for item in pile], buffers if number == 0 else []) for number, pile in enumerate(piles)
    ]


def gloo_group() -> dist.ProcessGroup | None:
    """The group that messages go through: the default one if it is Gloo's, else a new one beside it.

    Messages are in the host's memory, which NCCL cannot send from. Creating a group is a collective: every rank, worker
    or server, must call this once.
    """
    return None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
