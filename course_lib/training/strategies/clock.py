"""Time and samples of a training, and copies of the weights to be evaluated after the clock has stopped."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn

from course_lib.training.strategies.worker_shard import state_vector

__all__ = ["Clock", "RankRecord", "Snapshot"]


@dataclass(frozen=True)
class Snapshot:
    """A copy of the weights, with the seconds since the start and the samples that all workers had used.

    ``hypothetical``: the average of weights that the training itself did not average.
    """

    seconds: float
    samples: int
    weights: torch.Tensor
    hypothetical: bool = False


@dataclass
class RankRecord:
    """Measurements of one process.

    Attributes
    ----------
    snapshots : list of Snapshot
        Empty on processes whose weights are not needed.
    seconds : float
        From the common start to this process's end.
    cpu_seconds : float
        Processor time of this process, all its threads, over the same stretch.
    bytes_sent, messages : int
        Sent by this process.
    updates : int
        Its optimiser steps; a step that all ranks take together is counted by rank 0 only.
    staleness : list of int
        For each update, the number of others between reading the weights and changing them; empty if not recorded.
    """

    snapshots: list[Snapshot]
    seconds: float
    cpu_seconds: float
    bytes_sent: int = 0
    messages: int = 0
    updates: int = 0
    staleness: list[int] = field(default_factory=list)


class Clock:
    """Starts when all processes are ready. A copy of the weights takes less than a millisecond; evaluation is later.

    Parameters
    ----------
    total : int
        Samples of the whole training.
    points : int
        Copies to take, evenly spaced in samples; the last one at the end.
    """

    def __init__(self, total: int, points: int) -> None:
        self.due = [round(total * (place + 1) / points) for place in range(points)]
        self.snapshots: list[Snapshot] = []
        if dist.is_initialized():
            dist.barrier()
        self.began, self.cpu_began = time.perf_counter(), time.process_time()

    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def take(self, samples: int, model: nn.Module, hypothetical: bool = False) -> None:
        """Copy the weights for each point of the curve that has been reached; skipped points share one copy."""
        reached = [due for due in self.due if due <= samples]
        if reached:
            self.snapshots += [Snapshot(self.seconds(), samples, state_vector(model), hypothetical)] * len(reached)
            self.due = self.due[len(reached) :]

    def stop(self, **counts) -> RankRecord:
        return RankRecord(self.snapshots, self.seconds(), time.process_time() - self.cpu_began, **counts)
