"""Synchronous SGD: every step is the mean gradient of all workers (the HW4 slides, Algorithm 1)."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course_lib.distributed import trace_messages
from course_lib.distributed.data_parallel.synchronous_sgd import average_gradients
from course_lib.training.strategies.clock import Clock, RankRecord
from course_lib.training.strategies.task import Task
from course_lib.training.strategies.traffic import bytes_on_the_wire
from course_lib.training.strategies.worker_shard import WorkerShard

__all__ = ["synchronous"]


def synchronous(task: Task, seed: int) -> RankRecord:
    """A batch for each rank, one all_reduce, the same step on all ranks. All ranks return a record with a curve.

    The mean of N gradients is applied with N times the task's rate: it moves the weights as far as N workers would, one
    after the other. Each rank has its own batch norm statistics; a point is evaluated with their mean, computed after
    the clock has stopped, so that the curve needs no message.
    """
    rank, workers = dist.get_rank(), dist.get_world_size()
    shard = WorkerShard(task, seed, rank, workers)
    optimizer = torch.optim.SGD(shard.model.parameters(), lr=workers * task.lr)
    clock = Clock(shard.total, task.points)
    with trace_messages() as trace:
        for step, (images, labels) in enumerate(shard, 1):
            shard.backward(images, labels)
            average_gradients(shard.model, samples=len(labels))
            optimizer.step()
            clock.take(step * task.batch_size * workers, shard.model)
    counts = {"bytes_sent": bytes_on_the_wire(trace), "messages": len(trace.messages)}
    return clock.stop(updates=len(shard) if rank == 0 else 0, **counts)
