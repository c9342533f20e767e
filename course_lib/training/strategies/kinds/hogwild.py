"""HogWild (Niu et al., 2011): workers that write into the same weights, without a lock and without a message."""

from __future__ import annotations

import time

import torch
from torch import nn

from course_lib.distributed import hogwild as share_memory
from course_lib.distributed import meet
from course_lib.training.strategies.clock import Clock, RankRecord
from course_lib.training.strategies.share import Share
from course_lib.training.strategies.task import Task

__all__ = ["hogwild"]


def hogwild(task: Task, seed: int) -> list[RankRecord]:
    """Train in shared memory; a record of each worker, rank 0's has the curve.

    The staleness is counted from the workers' progress, and exact to the update that is being made.
    """
    torch.manual_seed(seed)
    model = task.model(task.data())
    ready, done = (torch.zeros(task.workers, dtype=torch.int64).share_memory_() for _ in range(2))
    return share_memory(_worker, model, task.workers, (task, seed, ready, done))


def _worker(
    model: nn.Module, rank: int, lock, task: Task, seed: int, ready: torch.Tensor, done: torch.Tensor
) -> RankRecord:
    share = Share(task, seed, rank, task.workers, model)
    optimizer = torch.optim.SGD(share.model.parameters(), lr=task.lr)
    meet(ready, rank)
    clock, staleness = Clock(share.total, task.points), []
    for batch in share:
        read = int(done.sum())
        share.backward(*batch)
        with lock:
            optimizer.step()
        staleness.append((int(done.sum()) - read) // task.batch_size)
        done[rank] += task.batch_size  # a place of its own: nobody else writes there
        if rank == 0:
            clock.take(int(done.sum()), share.model)
    record = clock.stop(updates=len(share), staleness=staleness)
    if rank == 0 and clock.due:
        while int(done.sum()) < share.total:
            time.sleep(0.0005)
        clock.take(share.total, share.model)
    return record
