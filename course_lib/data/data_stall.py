"""How long a training loop waits for its input.

A loader that cannot keep up looks from outside like bad scaling: more ranks, and hardly more images per second. The
difference is where the time goes. `DataStallTimer` between the loader and the loop measures it.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

__all__ = ["DataStallTimer"]


class DataStallTimer:
    """An iterable of batches that measures the waiting for each and the step taken with it.

    Waiting is from the request of a batch until it is there; the step is what the loop does until it requests the next.
    ::

        timer = DataStallTimer(loader)
        for images, labels in timer:
            ...
        print(f"{timer.share:.0%} of the time went into waiting for input")

    A GPU works after the loop has moved on, so that the clock is read when the device has finished: the steps then
    contain the device's own time, and batches that are prepared on the device count as waiting. That costs the overlap
    of the two, so take the timer out again after the measurement.

    Parameters
    ----------
    batches : iterable
        A `DataLoader`, `course_lib.data.batches.Batches`…
    device : torch.device or str
        Where the steps run; a CUDA device is synchronised before the clock is read.
    clock : callable
        Seconds.

    Attributes
    ----------
    waited, stepped : float
        Seconds, over all passes since the start or `reset`. The wait that ends without a batch is counted.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        device: torch.device | str = "cpu",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.batches, self.device, self.clock = batches, torch.device(device), clock
        self.reset()

    def reset(self) -> None:
        """Start again from nothing, also within a pass: at the end of a step that was a warm-up."""
        self.waited = self.stepped = self._mark = 0.0
        self._lap()

    @property
    def share(self) -> float:
        """Of the time, what was spent waiting for input, in 0…1; 0 before the first batch."""
        total = self.waited + self.stepped
        return self.waited / total if total > 0 else 0.0

    def __iter__(self) -> Iterator[Any]:
        self._lap()
        source = iter(self.batches)
        while True:
            try:
                batch = next(source)
            except StopIteration:
                self.waited += self._lap()
                return
            self.waited += self._lap()
            try:
                yield batch
            finally:  # also the last step of a loop that breaks off
                self.stepped += self._lap()

    def _lap(self) -> float:
        """Seconds since the last call."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        before, self._mark = self._mark, self.clock()
        return self._mark - before
