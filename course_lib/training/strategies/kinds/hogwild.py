"""HogWild (Niu et al., 2011): workers that write into the same weights, without a lock and without a message."""

from __future__ import annotations

import time

import torch
from torch import nn

from course_lib.distributed import barrier
from course_lib.distributed import hogwild as run_hogwild
from course_lib.training.strategies.clock import Clock, RankRecord
from course_lib.training.strategies.task import Task
from course_lib.training.strategies.worker_shard import WorkerShard

__all__ = ["hogwild"]


def hogwild(task: Task, seed: int) -> list[RankRecord]:
    """Train in shared memory; returns each worker's record, of which rank 0's has the curve.

    The staleness is computed from the workers' progress counters; an update in progress may be missing.
    """
    torch.manual_seed(seed)
    model = task.model(task.data())
    ready, done = (torch.zeros(task.workers, dtype=torch.int64).share_memory_() for _ in range(2))
    return run_hogwild(_worker, model, task.workers, (task, seed, ready, done))


def _worker(
    model: nn.Module, rank: int, lock, task: Task, seed: int, ready: torch.Tensor, done: torch.Tensor
) -> RankRecord:
    shard = WorkerShard(task, seed, rank, task.workers, model)
    optimizer = torch.optim.SGD(shard.model.parameters(), lr=task.lr)
    barrier(ready, rank)
    clock, staleness = Clock(shard.total, task.points), []
    for batch in shard:
        read = int(done.sum())
        shard.backward(*batch)
        with lock:
            optimizer.step()
        staleness.append((int(done.sum()) - read) // task.batch_size)
        done[rank] += task.batch_size  # its own element: no other worker writes there
        if rank == 0:
            clock.take(int(done.sum()), shard.model)
    record = clock.stop(updates=len(shard), staleness=staleness)
    if rank == 0 and clock.due:
        while int(done.sum()) < shard.total:
            time.sleep(0.0005)
        clock.take(shard.total, shard.model)
    return record
