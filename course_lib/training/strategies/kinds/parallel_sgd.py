"""Parallel SGD (Zinkevich et al., 2010): workers that train alone and average their weights, once or every few steps."""

from __future__ import annotations

import torch

from course_lib.distributed import TorchPeers, average_parameters, trace_messages
from course_lib.training.strategies.clock import Clock, RankRecord
from course_lib.training.strategies.share import Share
from course_lib.training.strategies.task import Task
from course_lib.training.strategies.wire import bytes_on_the_wire

__all__ = ["local_sgd", "parallel_sgd"]


def parallel_sgd(task: Task, seed: int) -> RankRecord:
    """Average once, at the end. Every rank's record has its own weights on the way, the last point the average.

    What an average on the way would have scored is found by averaging the ranks' copies when the clock has stopped: it
    costs the training nothing, because it does not happen. Those points are hypothetical; no time to an accuracy is read
    from them.
    """
    return _train(task, seed, every=None)


def local_sgd(task: Task, seed: int) -> RankRecord:
    """Average every `Task.average_every` steps, and at the end. All records have the averages."""
    return _train(task, seed, every=task.average_every)


def _train(task: Task, seed: int, every: int | None) -> RankRecord:
    peers = TorchPeers()
    share = Share(task, seed, peers.rank, peers.size)
    optimizer = torch.optim.SGD(share.model.parameters(), lr=task.lr)
    clock = Clock(share.total, task.points)
    with trace_messages() as trace:
        for step, batch in enumerate(share, 1):
            share.backward(*batch)
            optimizer.step()
            meeting = step == len(share) or (every is not None and step % every == 0)
            if meeting:
                average_parameters(peers, share.model)
            if meeting or every is None:
                clock.take(step * task.batch_size * peers.size, share.model, hypothetical=not meeting)
    return clock.stop(bytes_sent=bytes_on_the_wire(trace), messages=len(trace.messages), updates=len(share))
