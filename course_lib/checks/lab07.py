"""Checks of lab 07: what the ranks hold after each exercise's function; `lab07_server` has the two sides of Algorithm 2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from course_lib.checks.lab07_server import on_ranks, server, worker
from course_lib.checks.registry import CheckFailed
from course_lib.checks.run_evidence import check_run
from course_lib.distributed.messages.message_trace import trace_messages

__all__ = ["CHECKS"]


def _network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def _try_initial(synchronise: Callable[..., Any]) -> list[torch.Tensor]:
    model = _network()
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(5 + 3 * dist.get_rank())
    synchronise(model)
    return [tensor.clone() for tensor in model.state_dict().values()]


def initial(answer: Callable[..., Any]) -> None:
    names = list(_network().state_dict())
    for rank, state in enumerate(on_ranks(2, _try_initial, answer)):
        for name, tensor in zip(names, state, strict=True):
            value = float(tensor.flatten()[0])
            if value == 5:
                continue
            given = f"{name} was 5 on rank 0 and 8 on rank 1, and should be rank 0's 5 on both; on rank {rank} it is {value:g}"
            if value == 6.5:
                raise CheckFailed(
                    f"{given}: that is the mean. One rank's model is to be everybody's: dist.broadcast(…, src=0)"
                )
            if rank == 0:
                raise CheckFailed(f"{given}: rank 0 is the one that keeps its model: dist.broadcast(…, src=0)")
            if "running" in name or "num_batches" in name:
                raise CheckFailed(
                    f"{given}: the parameters are synchronised, the buffers are not. state_dict() has both"
                )
            raise CheckFailed(
                f"{given}: dist.broadcast(tensor, src=0) overwrites the tensor in place; is every one sent?"
            )
    print("synchronise: parameters and buffers of both ranks are rank 0's")


def _try_average(average: Callable[..., Any]) -> dict[str, Any]:
    rank, found = dist.get_rank(), {}
    for case, samples in (("even", (32, 32)), ("uneven", (96, 32)), ("none", (8, 0))):
        model = _network()
        model[1].bias.requires_grad_(False)
        for number, parameter in enumerate(p for p in model.parameters() if p.requires_grad):
            if samples[rank]:
                parameter.grad = torch.full_like(parameter, (1.0, 5.0)[rank]) * (number + 1)
        with trace_messages() as trace:
            average(model, samples[rank])
        found[case] = [None if p.grad is None else p.grad.detach().clone() for p in model.parameters()]
        found[f"{case} collectives"] = [message.kind for message in trace.messages]
    found["lying"] = _try_lying(average)
    return found


def _try_lying(average: Callable[..., Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]] | str:
    """A convolution with channels-last weight, every gradient another number: what is expected, and the result."""
    convolution = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
    expected = []
    for p in convolution.parameters():
        values = torch.arange(1.0, p.numel() + 1).view(p.shape)
        p.grad = torch.empty_like(p).copy_(values * (1 + 2 * dist.get_rank()))
        expected.append(2 * values)
    try:
        average(convolution, 16)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return expected, [p.grad.detach().clone() for p in convolution.parameters()]


def average(answer: Callable[..., Any]) -> None:
    results = on_ranks(2, _try_average, answer)
    frozen = 3  # the place of the frozen parameter among the parameters
    for case, mean, given in (
        ("even", 3.0, "two ranks with 32 images each, gradients 1 and 5: the mean is 3"),
        ("uneven", 2.0, "96 images with gradient 1 and 32 with gradient 5: (96·1 + 32·5)/128 = 2"),
        (
            "none",
            1.0,
            "8 images with gradient 1 on rank 0, none on rank 1, whose gradients are None: the mean over the 8 is 1",
        ),
    ):
        for rank, found in enumerate(results):
            gradients = list(found[case])
            if gradients.pop(frozen) is not None:
                raise CheckFailed("a frozen parameter (requires_grad is False) got a gradient: leave it out")
            for number, gradient in enumerate(gradients):
                if gradient is None:
                    raise CheckFailed(f"{given}; on rank {rank} a parameter has no gradient afterwards")
                value = float(gradient.flatten()[0]) / (number + 1)
                if torch.allclose(gradient, torch.full_like(gradient, mean * (number + 1))):
                    continue
                raise CheckFailed(f"{given}. Rank {rank} has {value:.4g}{_why_average(case, value, gradient, number)}")
    for rank, found in enumerate(results):
        _judge_lying(rank, found["lying"])
    kinds = results[0]["uneven collectives"]
    if len(kinds) != 1:
        raise CheckFailed(
            f"the values are right, but there were {len(kinds)} collectives ({', '.join(sorted(set(kinds)))}); put all "
            "gradients and the number of images into one vector, and sum it once"
        )
    print("average_gradients: the mean over all images, uneven batches included, in one all_reduce")


def _judge_lying(rank: int, found: tuple[list[torch.Tensor], list[torch.Tensor]] | str) -> None:
    given = "a convolution whose weight is channels-last in memory, as the networks' are"
    if isinstance(found, str):
        raise CheckFailed(
            f"{given}: rank {rank} raised {found!r}. p.grad.flatten() or reshape(-1) works on every order in memory"
        )
    for expected, gradient in zip(*found, strict=True):
        if torch.allclose(gradient, expected):
            continue
        if torch.allclose(gradient.flatten().sort().values, expected.flatten().sort().values):
            raise CheckFailed(
                f"{given}: on rank {rank} the means are right, but in other places of the gradient: flattened by one order in "
                "memory and put back by another. p.grad.flatten() goes with piece.view_as(p)"
            )
        raise CheckFailed(f"{given}: rank {rank}'s gradient is not the mean; for linear layers it is")


def _why_average(case: str, value: float, gradient: torch.Tensor, number: int) -> str:
    if gradient.unique().numel() > 1 or (case == "even" and value not in (1.0, 5.0, 6.0, 96.0, 192.0)):
        return " in some place: are the pieces cut at the right places, in the order in which they were joined?"
    known = {
        "even": {6.0: "the sum; divide by the images of all ranks", 1.0: "rank 0's own: nothing was summed",
                 5.0: "rank 1's own: nothing was summed", 96.0: "divided by the number of ranks, not by their images",
                 192.0: "the weighted sum; divide it by the images of all ranks"},
        "uneven": {3.0: "the mean of the two ranks; weigh each gradient by its images",
                   6.0: "the sum; weigh by images, and divide by the images of all ranks",
                   256.0: "the weighted sum; divide it by the images of all ranks"},
        "none": {0.5: "rank 1 counts as much as rank 0, but it has no images"},
    }  # fmt: skip
    return next((f": that is {why}" for found, why in known[case].items() if abs(value - found) < 1e-3), "")


def _try_statistics(average_statistics: Callable[..., Any]) -> list[float]:
    rank, norm = dist.get_rank(), nn.BatchNorm1d(2)
    norm.running_mean.fill_((1.0, 4.0)[rank])
    norm.running_var.fill_((2.0, 6.0)[rank])
    norm.num_batches_tracked.fill_((10, 20)[rank])
    average_statistics(nn.Sequential(nn.Linear(2, 2), norm))
    return [float(norm.running_mean[0]), float(norm.running_var[1]), int(norm.num_batches_tracked)]


def statistics(answer: Callable[..., Any]) -> None:
    results = on_ranks(2, _try_statistics, answer)
    copied = all((mean, variance) == (1.0, 2.0) for mean, variance, _ in results)
    for rank, (mean, variance, counter) in enumerate(results):
        given = (
            "running means of 1 and 4 have the mean 2.5, running variances of 2 and 6 the mean 4; "
            f"rank {rank} has {mean:g} and {variance:g}"
        )
        if copied:
            raise CheckFailed(f"{given}: those are rank 0's. That is what DDP does; here the mean is asked for")
        if (mean, variance) == (5.0, 8.0):
            raise CheckFailed(f"{given}: those are the sums; divide by the number of ranks")
        if (mean, variance) != (2.5, 4.0):
            raise CheckFailed(f"{given}. model.buffers() are the tensors to average, in place")
        if counter != (10, 20)[rank]:
            raise CheckFailed(f"num_batches_tracked, a whole number, became {counter} on rank {rank}: it should stay")
    print("average_statistics: both ranks have the mean of the running statistics")


CHECKS = {
    "initial": initial,
    "average": average,
    "statistics": statistics,
    "worker": worker,
    "server": server,
    "run": lambda folder: check_run(folder, "07_sync_async_sgd"),
    "sync-sgd-cifar100": lambda folder: check_run(folder, "07_sync_async_sgd", "sync_sgd_cifar100"),
    "async-sgd-cifar100": lambda folder: check_run(folder, "07_sync_async_sgd", "async_sgd_cifar100"),
}
