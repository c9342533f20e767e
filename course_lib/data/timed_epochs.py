"""How long a training loop takes for each epoch, measured from inside of its batches."""

import time
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["TimedEpochs"]


class TimedEpochs:
    """Batches that measure each pass over them: the training time of an epoch, without the validation after it.

    Each pass has the order of the next epoch (``set_epoch``).

    Parameters
    ----------
    batches : course_lib.data.batches.Batches
        Or another iterable with ``set_epoch``.
    optimizer : torch.optim.Optimizer
        Its learning rate at the beginning of each epoch is kept, too.

    Attributes
    ----------
    seconds, learning_rates : list of float
        One per epoch; an epoch's seconds come when it is over. A GPU has finished its work by then.
    """

    def __init__(self, batches: Any, optimizer: torch.optim.Optimizer) -> None:
        self.batches, self.optimizer = batches, optimizer
        self.seconds: list[float] = []
        self.learning_rates: list[float] = []

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        self.batches.set_epoch(len(self.seconds))
        self.learning_rates.append(self.optimizer.param_groups[0]["lr"])
        _synchronize()
        start = time.perf_counter()
        yield from self.batches
        _synchronize()
        self.seconds.append(time.perf_counter() - start)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
