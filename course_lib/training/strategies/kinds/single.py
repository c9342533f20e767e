"""One process alone: the reference for the other strategies."""

from __future__ import annotations

import torch

from course_lib.training.strategies.clock import Clock, RankRecord
from course_lib.training.strategies.task import Task
from course_lib.training.strategies.worker_shard import WorkerShard

__all__ = ["single"]


def single(task: Task, seed: int) -> RankRecord:
    """Plain SGD over all images, batch after batch, on one thread."""
    shard = WorkerShard(task, seed, rank=0, workers=1)
    optimizer = torch.optim.SGD(shard.model.parameters(), lr=task.lr)
    clock = Clock(shard.total, task.points)
    for step, batch in enumerate(shard, 1):
        shard.backward(*batch)
        optimizer.step()
        clock.take(step * task.batch_size, shard.model)
    return clock.stop(updates=len(shard))
