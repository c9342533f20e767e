"""How long a piece of work takes, on one rank or on all of them: the least disturbed of several runs."""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["least_seconds"]


def least_seconds(work: Callable[[], Any], repeats: int = 2) -> float:
    """Seconds of ``work()``, the shortest of `repeats` runs.

    Where a process group is up, every rank calls it. A run begins when the last rank is there, and ends with the slowest
    rank's work. A GPU has finished its work by then.

    Raises
    ------
    ValueError
        `repeats` is below 1.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    seconds = []
    for _ in range(repeats):
        _wait_for_all()
        start = time.perf_counter()
        work()
        _wait_for_all()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _wait_for_all() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    if dist.is_initialized():
        dist.barrier()
