"""Parallel SGD (Zinkevich et al., 2010): independent workers average their weights, once or every few steps."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course_lib.distributed import average_parameters, trace_messages
from course_lib.training.strategies.clock import Clock, RankRecord
from course_lib.training.strategies.task import Task
from course_lib.training.strategies.traffic import bytes_on_the_wire
from course_lib.training.strategies.worker_shard import WorkerShard

__all__ = ["local_sgd", "parallel_sgd"]


def parallel_sgd(task: Task, seed: int) -> RankRecord:
    """Average once, at the end. Each rank's record has its own weights until the last point, which is the average.

    The earlier points are evaluated as averages of the ranks' copies, made after the clock has stopped. The training
    itself makes no such average, so these points are hypothetical, and no time to an accuracy is taken from them.
    """
    return _train(task, seed, every=None)


def local_sgd(task: Task, seed: int) -> RankRecord:
    """Average every `Task.average_every` steps, and at the end. All records have the averages."""
    return _train(task, seed, every=task.average_every)


def _train(task: Task, seed: int, every: int | None) -> RankRecord:
    ranks = dist.get_world_size()
    shard = WorkerShard(task, seed, dist.get_rank(), ranks)
    optimizer = torch.optim.SGD(shard.model.parameters(), lr=task.lr)
    clock = Clock(shard.total, task.points)
    with trace_messages() as trace:
        for step, batch in enumerate(shard, 1):
            shard.backward(*batch)
            optimizer.step()
            averaging = step == len(shard) or (every is not None and step % every == 0)
            if averaging:
                average_parameters(shard.model)
            if averaging or every is None:
                clock.take(step * task.batch_size * ranks, shard.model, hypothetical=not averaging)
    return clock.stop(bytes_sent=bytes_on_the_wire(trace), messages=len(trace.messages), updates=len(shard))
