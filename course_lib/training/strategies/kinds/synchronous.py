"""Synchronous SGD: every step is the mean gradient of all workers (the HW4 slides, Algorithm 1)."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course_lib.distributed import trace_messages
from course_lib.distributed.data_parallel.synchronous_sgd import average_gradients
from course_lib.training.strategies.clock import Clock, RankRecord
from course_lib.training.strategies.share import Share
from course_lib.training.strategies.task import Task
from course_lib.training.strategies.wire import bytes_on_the_wire

__all__ = ["synchronous"]


def synchronous(task: Task, seed: int) -> RankRecord:
    """Each rank a batch, one all_reduce, the same step everywhere. All ranks return a record with a curve.

    The mean of N gradients moves the weights by N times the task's rate: as far as N workers would, one after the other.
    Batch norm's running statistics, where there are any, are each rank's own; a point is scored with their mean, found
    when the clock has stopped, so that the curve costs no message.
    """
    rank, workers = dist.get_rank(), dist.get_world_size()
    share = Share(task, seed, rank, workers)
    optimizer = torch.optim.SGD(share.model.parameters(), lr=workers * task.lr)
    clock = Clock(share.total, task.points)
    with trace_messages() as trace:
        for step, (images, labels) in enumerate(share, 1):
            share.backward(images, labels)
            average_gradients(share.model, samples=len(labels))
            optimizer.step()
            clock.take(step * task.batch_size * workers, share.model)
    counts = {"bytes_sent": bytes_on_the_wire(trace), "messages": len(trace.messages)}
    return clock.stop(updates=len(share) if rank == 0 else 0, **counts)
