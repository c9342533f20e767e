"""Train and report as Keras's ``model.fit(verbose=2)`` does: a line per epoch, with its seconds (the UPC article)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from course_lib.training.loop import train_epoch

__all__ = ["KerasEpoch", "keras_fit"]


@dataclass(frozen=True)
class KerasEpoch:
    """One epoch.

    Attributes
    ----------
    number, epochs : int
        The epoch, counted from 1, and how many there are.
    steps : int
    seconds : float
        Of training, the slowest rank's.
    images_per_sec : float
        Of all ranks together.
    loss, accuracy : float
        Means over the epoch's training images, in training mode, as Keras's are.
    """

    number: int
    epochs: int
    steps: int
    seconds: float
    images_per_sec: float
    loss: float
    accuracy: float

    def __str__(self) -> str:
        """The two lines that Keras prints; a tenth of a second more where an epoch is short."""
        seconds = f"{self.seconds:.0f}s" if self.seconds >= 10 else f"{self.seconds:.1f}s"
        return (
            f"Epoch {self.number}/{self.epochs}\n"
            f"{self.steps}/{self.steps} - {seconds} - loss: {self.loss:.4f} - accuracy: {self.accuracy:.4f}"
        )


def keras_fit(
    model: nn.Module,
    batches: Any,
    optimizer: torch.optim.Optimizer,
    epochs: int,
    verbose: bool = True,
) -> list[KerasEpoch]:
    """Train on the mean cross-entropy; nothing is validated, as in the UPC article.

    Parameters
    ----------
    model : nn.Module
        With a process group up, wrapped in DistributedDataParallel.
    batches : iterable of (images, labels)
        On the model's device; ``set_epoch`` is called where there is one.
    epochs : int
    verbose : bool
        Rank 0 prints each epoch when it ends.

    Returns
    -------
    list of KerasEpoch
        The same on every rank.
    """
    device = next(model.parameters()).device
    several = dist.is_initialized()
    done = []
    for number in range(1, epochs + 1):
        if hasattr(batches, "set_epoch"):
            batches.set_epoch(number - 1)
        if several:
            dist.barrier()
        start = time.perf_counter()
        totals = train_epoch(model, batches, optimizer, nn.functional.cross_entropy)
        totals.tolist()  # waits for the device
        seconds = torch.tensor(time.perf_counter() - start, dtype=torch.float64, device=device)
        if several:
            dist.all_reduce(totals)
            dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        loss, correct, images = totals.tolist()
        rate = images / seconds.item()
        done.append(KerasEpoch(number, epochs, len(batches), seconds.item(), rate, loss / images, correct / images))
        if verbose and (not several or dist.get_rank() == 0):
            print(done[-1], flush=True)
    return done
