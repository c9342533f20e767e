"""Checks of lab 08's workers: what a worker does, watched by a communicator and an averaging that write it down."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from course_lib.checks.registry import CheckFailed

__all__ = ["local_sgd", "psgd"]

LR, EPOCHS, BATCHES = 0.5, 3, 4
PAUSE = 0.02  # seconds that the averaging, and the waiting at the barrier, take
BATCH = PAUSE / 4  # seconds that a batch takes where the clock is looked at


class _Comm:
    """The only rank there is; its barrier is slow."""

    rank, size = 0, 1

    def __init__(self, seen: _Seen) -> None:
        self.seen = seen

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 1

    def Barrier(self) -> None:
        self.seen.barriers.append(self.seen.steps)
        time.sleep(PAUSE)

    barrier = Barrier


class _Seen:
    """Batches whose order depends on the epoch; counts what a worker takes from them. Each takes `pause` seconds."""

    def __init__(self, pause: float = 0.0) -> None:
        self.pause = pause
        generator = torch.Generator().manual_seed(0)
        self.data = [(torch.randn(6, 4, generator=generator), torch.randint(3, (6,), generator=generator))
                     for _ in range(BATCHES * EPOCHS)]  # fmt: skip
        self.epoch, self.steps, self.averaging = 0, 0, 0.0
        self.first, self.last = math.inf, 0.0  # when the first batch was asked for, and the last averaging ended
        self.barriers: list[int] = []
        self.averages: list[tuple[int, list[torch.Tensor]]] = []

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return BATCHES

    def of(self, epoch: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return self.data[BATCHES * epoch : BATCHES * (epoch + 1)]

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        self.first = min(self.first, time.perf_counter())
        for images, labels in self.of(self.epoch % EPOCHS):
            self.steps += 1
            time.sleep(self.pause)
            yield images, labels

    def average(self, model: nn.Module) -> None:
        """Halves the parameters: what another rank would bring in."""
        start = time.perf_counter()
        time.sleep(PAUSE)
        self.last = time.perf_counter()
        self.averaging += self.last - start
        self.averages.append((self.steps, _parameters(model)))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.5)


def _network() -> nn.Module:
    model, generator = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)), torch.Generator()
    generator.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model.eval()  # as an evaluation left it


def _parameters(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def _reference(
    stops: list[int], *, epochs: int = EPOCHS, set_epoch: bool = True, zero: bool = True, train: bool = True
):
    """Parameters at each averaging, and at the end, of a training that averages after the steps `stops`."""
    seen, model = _Seen(), _network().train(train)
    sgd, at_stops, step = torch.optim.SGD(model.parameters(), lr=LR), [], 0
    for epoch in range(epochs):
        for images, labels in seen.of(epoch if set_epoch else 0):
            if zero:
                sgd.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            sgd.step()
            step += 1
            if step in stops:
                at_stops.append(_parameters(model))
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.mul_(0.5)
    return at_stops, _parameters(model)


def _same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in zip(found, wanted, strict=True))


def _watch(call: Callable[..., Any], pause: float = 0.0) -> tuple[_Seen, nn.Module, Any, float]:
    seen, model = _Seen(pause), _network()
    start = time.perf_counter()
    returned = call(_Comm(seen), model, seen)
    return seen, model, returned, time.perf_counter() - start


def _see_that_it_trains(seen: _Seen, total: int) -> None:
    if not seen.averages:
        raise CheckFailed("average(model) was never called: the workers end with models of their own")
    if seen.steps == total:
        return
    likely = "for epoch in range(epochs), and in it all batches"
    if seen.steps == BATCHES:
        likely = "you went through them once, not `epochs` times; " + likely
    raise CheckFailed(f"{EPOCHS} epochs of {BATCHES} batches are {total} steps, yours took {seen.steps}: {likely}")


def _see_values(seen: _Seen, model: nn.Module, stops: list[int]) -> None:
    at_stops, end = _reference(stops)
    if not _same(seen.averages[0][1], at_stops[0]):
        likely = "each step: zero_grad, loss.backward, w ← w − lr · gradient, of the mean cross-entropy"
        for reason, options in (
            ("the order of epoch 0 in every epoch: batches.set_epoch(epoch) where there is an epoch to set", {"set_epoch": False}),
            ("the gradients were not set to zero between steps", {"zero": False}),
            ("the model was in evaluation mode; model.train() first", {"train": False}),
        ):  # fmt: skip
            variant, _ = _reference(stops, **options)
            if variant and _same(seen.averages[0][1], variant[0]):
                likely = reason
        raise CheckFailed(f"when average(model) is called after step {seen.averages[0][0]}, the parameters are not those of "
                          f"plain SGD: {likely}")  # fmt: skip
    if not all(_same(found, wanted) for (_, found), wanted in zip(seen.averages, at_stops, strict=True)):
        raise CheckFailed("after the first averaging the training does not continue from the averaged parameters: leave to "
                          "the model what average(model) wrote into it")  # fmt: skip
    if not _same(_parameters(model), end):
        raise CheckFailed("at the end the model does not hold what the last average(model) wrote into it")


def psgd(answer: Callable[..., Any]) -> None:
    total = BATCHES * EPOCHS
    seen, model, seconds, wall = _watch(
        lambda comm, model, batches: answer(comm, model, batches, LR, EPOCHS, batches.average), BATCH
    )
    _see_that_it_trains(seen, total)
    if [step for step, _ in seen.averages] != [total]:
        places = ", ".join(str(step) for step, _ in seen.averages)
        raise CheckFailed(f"parallel SGD averages once, after all {total} steps; yours averaged after step {places}")
    _see_values(seen, model, [total])
    if not isinstance(seconds, int | float | np.number) or isinstance(seconds, bool) or not math.isfinite(seconds):
        came = (
            "nothing (None): is there a return?" if seconds is None else f"{seconds!r:.60}, a {type(seconds).__name__}"
        )
        raise CheckFailed(f"psgd_worker returns its seconds, a float; yours returned {came}")
    if seen.barriers[:1] != [0]:
        raise CheckFailed("comm.Barrier() comes before the first step, so that all clocks start together; yours "
                          + ("was never called" if not seen.barriers else f"came after step {seen.barriers[0]}"))  # fmt: skip
    least = seen.last - seen.first
    if not least <= seconds <= wall:
        likely = "take time.perf_counter() after the barrier and once more after the averaging"
        if PAUSE <= seconds < seen.averaging + BATCH:
            likely = "the training is not in the seconds: start the clock at the barrier, before the first step"
        elif least - seen.averaging <= seconds < least:
            likely = "the averaging is not in the seconds: stop the clock after it"
        raise CheckFailed(f"from the first batch to the end of the averaging the run took {least:.3f} s, {seen.averaging:.3f} s of it "
                          f"averaging, and {wall:.3f} s in all; yours says {seconds:.3f} s: {likely}")  # fmt: skip
    if seconds > wall - PAUSE:
        raise CheckFailed(f"the barrier took {PAUSE} s, and your {seconds:.3f} s count it: start the clock after it")
    print(f"psgd_worker: {total} steps of plain SGD, one averaging at the end, {1000 * seconds:.0f} ms")


def local_sgd(answer: Callable[..., Any]) -> None:
    total = BATCHES * EPOCHS
    for every in (3, 5, 0, total, 100, 1):
        seen, model, _, _ = _watch(
            lambda comm, model, batches: answer(comm, model, batches, LR, EPOCHS, batches.average, every)  # noqa: B023
        )
        _see_that_it_trains(seen, total)
        stops = sorted({*range(every, total + 1, every), total} if every else {total})
        places = [step for step, _ in seen.averages]
        if places != stops:
            likely = "after each H-th step, and after the last one"
            if len(places) > len(set(places)):
                likely = f"twice after step {next(step for step in places if places.count(step) > 1)}: once is enough"
            elif places == stops[:-1]:
                likely = "the steps after the last full H are never averaged: the workers end with different models"
            elif every and set(places) | {total} == _anew(every) | {total}:
                likely = "you count the steps of each epoch anew; count on over the epochs' ends"
            elif every == 0:
                likely = "with every = 0 once, at the end"
            raise CheckFailed(f"every = {every}, {EPOCHS} epochs of {BATCHES} steps: averagings after the steps {stops}, yours after "
                              f"{places}: {likely}")  # fmt: skip
        _see_values(seen, model, stops)
    print("local_sgd_worker: averages after every H-th step and after the last, for H = 1, 3, 5, 12, 100 and 0")


def _anew(every: int) -> set[int]:
    """Steps after which one averages who counts each epoch's steps from 0."""
    return {epoch * BATCHES + step for epoch in range(EPOCHS) for step in range(every, BATCHES + 1, every)}
