"""Checks of lab 12 on two ranks, by `launch`: the wrapped model; and the rule of the early stop."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from course_lib.checks.registry import CheckFailed
from course_lib.distributed import LaunchTimeoutError, RankFailedError, launch
from course_lib.distributed.data_parallel.sync_batchnorm import GlooSyncBatchNorm

__all__ = ["early_stop", "on_two_ranks", "wrap"]

TIMEOUT = 20.0


def on_two_ranks(worker: Callable[..., Any], *args: Any, process_group: bool = True) -> list[Any]:
    try:
        return launch(worker, 2, args, timeout=TIMEOUT, backend="gloo", process_group=process_group)
    except LaunchTimeoutError as error:
        raise CheckFailed(f"on two ranks it hangs: one waits for a call that the other never makes.\n{error}") from None
    except RankFailedError as error:
        raise CheckFailed(f"on two ranks it raised.\n{error}") from None


class _NormedNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.classifier = nn.Linear(4 * 36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.norm(self.convolution(x)).flatten(1))


def _try_wrap(wrap: Callable[..., Any]) -> dict[str, Any]:
    rank = dist.get_rank()
    found: dict[str, Any] = {}
    for sync in (False, True):
        torch.manual_seed(rank)  # a different start on each rank, which DDP must overrule
        wrapped = wrap(_NormedNet(), torch.device("cpu"), sync)
        found["type"] = type(wrapped).__name__
        if not isinstance(wrapped, nn.parallel.DistributedDataParallel):
            return found
        kinds = {type(module) for module in wrapped.modules()}
        found[f"synced {sync}"] = bool(kinds & {GlooSyncBatchNorm, nn.SyncBatchNorm})
        torch.manual_seed(100 + rank)
        wrapped(torch.randn(4, 1, 8, 8)).square().mean().backward()
        found[f"weights {sync}"] = [p.detach().clone() for p in wrapped.parameters()]
        found[f"gradients {sync}"] = [p.grad.clone() for p in wrapped.parameters()]
    return found


def wrap(answer: Callable[..., Any]) -> None:
    first, second = on_two_ranks(_try_wrap, answer)
    if first["type"] != "DistributedDataParallel":
        raise CheckFailed(
            f"wrap returns nn.parallel.DistributedDataParallel(model, …); yours returned a {first['type']}"
        )
    for sync in (False, True):
        for what in ("weights", "gradients"):
            if not all(
                torch.equal(a, b) for a, b in zip(first[f"{what} {sync}"], second[f"{what} {sync}"], strict=True)
            ):
                raise CheckFailed(
                    f"after a backward pass the two ranks' {what} differ: is the wrapped model the one that runs?"
                )
    if first["synced False"]:
        raise CheckFailed("with sync_batchnorm=False the model has synchronised batch norm: convert only when asked to")
    if not first["synced True"]:
        raise CheckFailed(
            "with sync_batchnorm=True the model still has ordinary batch norm: convert_sync_batchnorm(model, device), "
            "before DistributedDataParallel wraps it, and use what it returns"
        )
    print("wrap: two ranks that started differently now share weights and gradients")


def early_stop(answer: Callable[[list[float], float, int], Any]) -> None:
    for accuracies, patience, expected, why in (
        ([0.80, 0.86], 2, False, "only the last epoch reached 85 %"),
        ([0.86, 0.84, 0.87], 2, False, "the epoch before the last fell below: the run of good epochs starts again"),
        ([0.84, 0.85, 0.85], 2, True, "the last two epochs are at or above 85 % (exactly 85 % counts)"),
        ([0.90], 1, True, "one epoch is enough with patience 1"),
        ([0.90], 2, False, "there has been one epoch; patience asks for two"),
        ([], 2, False, "nothing has been trained yet"),
    ):
        if bool(answer(list(accuracies), 0.85, patience)) is not expected:
            raise CheckFailed(
                f"accuracies {accuracies}, target 0.85, patience {patience}: should_stop must be {expected}, because {why}"
            )
    generator = random.Random(5)
    for _ in range(300):
        accuracies = [generator.choice([0.8, 0.85, 0.9]) for _ in range(generator.randint(1, 8))]
        patience = generator.randint(1, 4)
        expected = len(accuracies) >= patience and min(accuracies[-patience:]) >= 0.85
        if bool(answer(list(accuracies), 0.85, patience)) is not expected:
            raise CheckFailed(
                f"accuracies {accuracies}, target 0.85, patience {patience}: should_stop must be {expected}"
            )
    print("should_stop: right on 300 random histories")
