"""One set of metrics, and one model to evaluate, on all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["over_ranks", "share_buffers"]


def over_ranks(
    elapsed: float, trained: Sequence[float], validated: Sequence[float], device: torch.device
) -> tuple[float, float, list[float], list[float]]:
    """Slowest epoch time, summed images/s, summed counts: the same numbers on every rank (the multi-GPU tutorial, step 8–9)."""
    throughput = trained[2] / elapsed
    if not dist.is_initialized():
        return elapsed, throughput, list(trained), list(validated)
    slowest = torch.tensor(elapsed, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    sums = torch.tensor([throughput, *trained, *validated], dtype=torch.float64, device=device)
    dist.all_reduce(sums)
    throughput, *counts = sums.tolist()
    return slowest.item(), throughput, counts[:3], counts[3:]


def share_buffers(model: nn.Module) -> None:
    """Give every rank rank 0's buffers (batch norm's running statistics), so that all evaluate one model."""
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
