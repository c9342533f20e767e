"""One process, no partner: what the others are compared with."""

from __future__ import annotations

import torch

from course_lib.training.strategies.clock import Clock, RankRecord
from course_lib.training.strategies.share import Share
from course_lib.training.strategies.task import Task

__all__ = ["single"]


def single(task: Task, seed: int) -> RankRecord:
    """Plain SGD over all images, batch after batch, on one thread."""
    share = Share(task, seed, rank=0, workers=1)
    optimizer = torch.optim.SGD(share.model.parameters(), lr=task.lr)
    clock = Clock(share.total, task.points)
    for step, batch in enumerate(share, 1):
        share.backward(*batch)
        optimizer.step()
        clock.take(step * task.batch_size, share.model)
    return clock.stop(updates=len(share))
