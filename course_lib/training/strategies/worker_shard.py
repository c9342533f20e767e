"""One worker's part of a task: its images, its network, and its gradients."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

from course_lib.data.batches import Batches
from course_lib.training.strategies.task import Task

__all__ = ["WorkerShard", "load_state_vector", "state_vector"]


class WorkerShard:
    """The images and the network of worker `rank` of `workers`. In each epoch, every image belongs to one worker.

    Attributes
    ----------
    model : nn.Module
        In training mode. The weights are the same for all workers of a seed; dropout differs from worker to worker.
    total : int
        Samples of all workers over all epochs.
    """

    def __init__(self, task: Task, seed: int, rank: int, workers: int, model: nn.Module | None = None) -> None:
        data = task.data()
        torch.manual_seed(seed)
        self.model = (task.model(data) if model is None else model).train()
        self.epochs, self.total = task.epochs, task.epochs * len(data.train)
        self._batches = Batches(
            data.train, task.batch_size, mean=data.mean, std=data.std, shuffle=True, seed=seed, rank=rank,
            world_size=workers
        )  # fmt: skip
        # A process's first step builds its kernels, which takes as long as dozens of later steps. On a copy, because of
        # batch norm's statistics.
        images, labels = next(iter(self._batches))
        F.cross_entropy(copy.deepcopy(self.model)(images), labels).backward()
        torch.manual_seed(1_000_003 * (seed + 1) + rank)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The worker's batches of all epochs, in a new order in each."""
        for epoch in range(self.epochs):
            self._batches.set_epoch(epoch)
            yield from self._batches

    def __len__(self) -> int:
        """Its batches over all epochs."""
        return self.epochs * len(self._batches)

    def backward(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """The gradient of the batch's mean loss, in ``.grad``."""
        self.model.zero_grad(set_to_none=True)
        F.cross_entropy(self.model(images), labels).backward()


def state_vector(model: nn.Module) -> torch.Tensor:
    """All floating-point weights and buffers as one float32 vector, a copy."""
    return torch.cat([tensor.detach().flatten().float() for tensor in _floats(model)])


def load_state_vector(model: nn.Module, vector: torch.Tensor) -> None:
    """Load what `state_vector` returned."""
    start = 0
    for tensor in _floats(model):
        tensor.detach().copy_(vector[start : start + tensor.numel()].view_as(tensor))
        start += tensor.numel()
    if start != len(vector):
        raise ValueError(f"{len(vector)} numbers for a model that has {start}")


def _floats(model: nn.Module) -> list[torch.Tensor]:
    return [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]
