"""Run one strategy, and evaluate its weights."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.nn import functional as F

from course_lib.data.batches import Batches, ImageData
from course_lib.distributed import launch
from course_lib.system.hardware import available_cores
from course_lib.training.loop import evaluate
from course_lib.training.strategies.clock import RankRecord, Snapshot
from course_lib.training.strategies.kinds.hogwild import hogwild
from course_lib.training.strategies.kinds.parallel_sgd import local_sgd, parallel_sgd
from course_lib.training.strategies.kinds.parameter_server import parameter_server
from course_lib.training.strategies.kinds.single import single
from course_lib.training.strategies.kinds.synchronous import synchronous
from course_lib.training.strategies.result import CurvePoint, StrategyResult
from course_lib.training.strategies.task import Task
from course_lib.training.strategies.weight_health import WeightHealth, check_weight_health
from course_lib.training.strategies.worker_shard import load_state_vector, state_vector

__all__ = ["STRATEGIES", "run_strategy"]

Runner = Callable[[Task, int], list[RankRecord]]


def _on_ranks(worker: Callable[[Task, int], RankRecord], extra: int = 0) -> Runner:
    """Let `launch` run the worker on as many ranks as there are workers, and `extra` more, each with one thread.

    They compute on CPUs and use Gloo, even on a machine with GPUs: HogWild's weights are in the CPU's memory, and all
    strategies must run on the same hardware to be compared.
    """
    return lambda task, seed: launch(worker, task.workers + extra, (task, seed), backend="gloo", threads=1)


STRATEGIES: dict[str, Runner] = {
    "single": lambda task, seed: launch(single, 1, (task, seed), backend="gloo", threads=1),
    "synchronous": _on_ranks(synchronous),
    "parameter server": _on_ranks(parameter_server, extra=1),
    "parallel SGD": _on_ranks(parallel_sgd),
    "local SGD": _on_ranks(local_sgd),
    "HogWild": hogwild,
}
"""Name → function of the task and a seed that trains and returns each process's record."""


def run_strategy(name: str, task: Task, seed: int = 0) -> StrategyResult:
    """Train by one strategy, then evaluate the copies of the weights that it made.

    Parameters
    ----------
    name : str
        One of `STRATEGIES`.
    task : Task
    seed : int
        Of the initial weights, the order of the images, and dropout.

    Raises
    ------
    ValueError
        No such strategy; or too few images (see `Task`).
    RankFailedError
        A process failed; the others are ended.
    """
    if name not in STRATEGIES:
        raise ValueError(f"no strategy {name!r}; there are {', '.join(STRATEGIES)}")
    data = task.data()
    records = STRATEGIES[name](task, seed)
    stale = [count for record in records for count in record.staleness]
    snapshots = list(_curve(records))
    health = _health(task, data, seed, snapshots[-1].weights)
    return StrategyResult(
        strategy=name,
        seed=seed,
        workers=1 if name == "single" else task.workers,
        processes=len(records),
        cores=available_cores(),
        samples=task.epochs * len(data.train),
        updates=sum(record.updates for record in records),
        seconds=max(record.seconds for record in records),
        cpu_seconds=sum(record.cpu_seconds for record in records),
        busiest_seconds=max(record.cpu_seconds for record in records),
        bytes_sent=sum(record.bytes_sent for record in records),
        messages=sum(record.messages for record in records),
        staleness=statistics.fmean(stale) if stale else math.nan,
        finite=health.finite,
        moved=health.moved,
        constant=health.constant,
        curve=tuple(_scored(task, data, snapshots)),
    )


def _curve(records: Sequence[RankRecord]) -> Iterator[Snapshot]:
    """The points of a run: those of the one process that has some, or the means over all that have some."""
    curves = [record.snapshots for record in records if record.snapshots]
    for points in zip(*curves, strict=True):
        weights = torch.stack([point.weights for point in points]).mean(0)
        yield Snapshot(max(point.seconds for point in points), points[0].samples, weights, points[0].hypothetical)


def _health(task: Task, data: ImageData, seed: int, weights: torch.Tensor) -> WeightHealth:
    torch.manual_seed(seed)
    model = task.model(data)
    start = state_vector(model)
    load_state_vector(model, weights)
    return check_weight_health(model, start, Batches(data.test, 500, mean=data.mean, std=data.std))


def _scored(task: Task, data: ImageData, snapshots: Sequence[Snapshot]) -> Iterator[CurvePoint]:
    model = task.model(data)
    test = Batches(data.test, 500, mean=data.mean, std=data.std)
    for snapshot in snapshots:
        load_state_vector(model, snapshot.weights)
        _, correct, images = evaluate(model, test, F.cross_entropy)
        yield CurvePoint(snapshot.seconds, snapshot.samples, correct / images, snapshot.hypothetical)
