"""Asynchronous SGD with a parameter server (the HW4 slides, Algorithm 2)."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course_lib.distributed import trace_messages
from course_lib.distributed.parameter_server import ParameterServerWorker, Update, serve
from course_lib.training.strategies.clock import Clock, RankRecord
from course_lib.training.strategies.task import Task
from course_lib.training.strategies.traffic import bytes_on_the_wire
from course_lib.training.strategies.worker_shard import WorkerShard

__all__ = ["parameter_server"]


def parameter_server(task: Task, seed: int) -> RankRecord:
    """Rank 0 is the server and has the curve; the others compute gradients, each at its own pace.

    The server is an additional process and needs a core of its own.
    """
    rank, workers = dist.get_rank(), dist.get_world_size() - 1
    shard = WorkerShard(task, seed, max(0, rank - 1), workers)
    clock = Clock(shard.total, task.points)
    with trace_messages() as trace:
        counts = _serve(task, shard, clock) if rank == 0 else _work(shard)
    sent = sum(message.kind == "send" for message in trace.messages)
    return clock.stop(bytes_sent=bytes_on_the_wire(trace), messages=sent, **counts)


def _serve(task: Task, shard: WorkerShard, clock: Clock) -> dict:
    optimizer = torch.optim.SGD(shard.model.parameters(), lr=task.lr)

    def point(update: Update) -> None:
        clock.take(update.version * task.batch_size, shard.model)

    record = serve(shard.model, optimizer, on_update=point)
    return {"updates": record.version, "staleness": record.staleness}


def _work(shard: WorkerShard) -> dict:
    worker = ParameterServerWorker(shard.model)
    for images, labels in shard:
        shard.backward(images, labels)
        worker.exchange()
    worker.finish()
    return {}
