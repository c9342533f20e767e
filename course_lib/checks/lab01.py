"""Checks of lab 01."""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from course_lib.checks.registry import CheckFailed
from course_lib.checks.run_evidence import check_run

__all__ = ["CHECKS"]


SMOOTHING = 0.4  # a loss that nobody writes down by habit: train_step is to use the one that it is given


def _tiny_problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) / 3
    return model, torch.randn(8, 1, 3, 4, generator=generator), torch.randint(5, (8,), generator=generator)


def _reference_steps(steps: int, keep_gradients: bool = False) -> tuple[nn.Module, list[float]]:
    model, images, labels = _tiny_problem()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=SMOOTHING)
    losses = []
    for _ in range(steps):
        loss = loss_fn(model(images), labels)
        if not keep_gradients:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


def _distance(a: nn.Module, b: nn.Module) -> float:
    return max((p - q).abs().max().item() for p, q in zip(a.parameters(), b.parameters(), strict=True))


def train_step(answer: Callable[..., Any]) -> None:
    model, images, labels = _tiny_problem()
    untouched = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=SMOOTHING)
    modes = []
    model.register_forward_pre_hook(lambda *_: modes.append(model.training))
    result = answer(model.train(), images, labels, optimizer, loss_fn)
    if not isinstance(result, tuple) or len(result) != 2:
        raise CheckFailed(f"train_step returns two tensors, the loss and the logits; yours returned {_name(result)}")
    for what, value in zip(("loss", "logits"), result, strict=True):
        if not isinstance(value, torch.Tensor):
            raise CheckFailed(
                f"train_step returns a tuple of two tensors; the {what} in yours is {_name(value)}. Return "
                f"{what}.detach(): .item() would make a GPU wait for Python in every step"
            )
    if not all(modes) or not model.training:
        raise CheckFailed(
            "train_step put the network into evaluation mode: dropout and batch norm then do not train. Leave the mode "
            "alone; evaluate() calls model.eval(), and the training loop model.train()"
        )
    loss, logits = result
    if loss.requires_grad or logits.requires_grad:
        raise CheckFailed(
            "what train_step returns still carries its graph (requires_grad is True). Adding such losses up over an "
            "epoch keeps every step's activations in memory: return loss.detach() and logits.detach()"
        )
    if logits.shape != (8, 5):
        raise CheckFailed(f"the logits have shape (batch, classes) = (8, 5); yours have {tuple(logits.shape)}")
    if _distance(model, untouched) == 0:
        raise CheckFailed(
            "the weights did not move. Either loss.backward() or optimizer.step() is missing, or the gradients were "
            "cleared between backward() and step(): zero_grad belongs before backward()"
        )
    expected, losses = _reference_steps(1)
    if not math.isclose(loss.item(), losses[0], rel_tol=1e-4):
        with torch.no_grad():
            plain = nn.functional.cross_entropy(untouched(images), labels).item()
        if math.isclose(loss.item(), plain, rel_tol=1e-4):
            raise CheckFailed(
                f"the loss is {losses[0]:.4f} by the loss_fn that was given, yours is {plain:.4f}, which is plain "
                "cross-entropy's: call loss_fn(logits, labels), not a loss of your own choice"
            )
        raise CheckFailed(
            f"the loss of the first step should be {losses[0]:.4f}, yours is {loss.item():.4f}. "
            "It is loss_fn(logits, labels), of the logits before the update"
        )
    if _distance(model, expected) > 1e-5:
        raise CheckFailed(
            "after one step the weights differ from plain gradient descent's: call backward() once on the loss as "
            "loss_fn gives it, then step() once"
        )
    answer(model, images, labels, optimizer, loss_fn)
    if _distance(model, _reference_steps(2)[0]) > 1e-5:
        if _distance(model, _reference_steps(2, keep_gradients=True)[0]) < 1e-5:
            raise CheckFailed(
                "the first step is right, the second is too long: it used the gradients of both steps. PyTorch adds "
                "to .grad; call optimizer.zero_grad() before backward()"
            )
        raise CheckFailed("the first step is right, the second is not; train_step should keep nothing between calls")
    print("train_step: right on two steps of a known problem")


def evaluate(answer: Callable[..., Any]) -> None:
    generator = torch.Generator().manual_seed(2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 5))
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) / 2
    images = torch.randn(21, 1, 3, 4, generator=generator)
    labels = torch.randint(5, (21,), generator=generator)
    batches = [(images[i : i + 9], labels[i : i + 9]) for i in (0, 9, 18)]  # the last one is short
    loss_fn = nn.CrossEntropyLoss()
    with torch.no_grad():
        logits = copy.deepcopy(model).eval()(images)
    right = int((logits.argmax(1) == labels).sum())
    loss_sum = float(loss_fn(logits, labels)) * 21

    grad_modes = []
    model.register_forward_pre_hook(lambda *_: grad_modes.append(torch.is_grad_enabled()))
    model.train()
    before = copy.deepcopy(model.state_dict())
    result = answer(model, batches, loss_fn)
    if not isinstance(result, tuple | list) or len(result) != 3:
        raise CheckFailed(f"evaluate returns three numbers (loss_sum, correct, images); yours returned {_name(result)}")
    got_loss, got_correct, got_images = (float(value) for value in result)
    if len(grad_modes) != 3:
        raise CheckFailed(f"there were 3 batches, and the model was called {len(grad_modes)} times")
    if any(not torch.equal(before[name], tensor) for name, tensor in model.state_dict().items()):
        raise CheckFailed(
            "evaluating changed the model: its batch-norm statistics moved, so it was in training mode. "
            "Call model.eval() first"
        )
    if any(grad_modes):
        raise CheckFailed(
            "the forward passes recorded a graph, which costs memory that grows with the batch: wrap them in "
            "torch.no_grad()"
        )
    in_order = (loss_sum, float(right), 21.0)
    if any(
        order != in_order and all(map(partial(math.isclose, rel_tol=1e-4), (got_loss, got_correct, got_images), order))
        for order in itertools.permutations(in_order)
    ):
        raise CheckFailed("the three numbers are right, in another order: return (loss_sum, correct, images)")
    if got_images != 21:
        raise CheckFailed(f"there were 21 images in the batches (9 + 9 + 3), yours counted {got_images:g}")
    if got_correct != right:
        raise CheckFailed(
            f"{right} of 21 predictions are right, yours counted {got_correct:g}. A prediction is the class with the "
            "largest logit, logits.argmax(1)"
        )
    if not math.isclose(got_loss, loss_sum, rel_tol=1e-4):
        means = sum(float(loss_fn(logits[i : i + 9], labels[i : i + 9])) for i in (0, 9, 18))
        likely = "loss_fn gives a batch's mean; multiply it by the number of images before adding"
        if math.isclose(got_loss, means, rel_tol=1e-4) or math.isclose(got_loss, means / 3, rel_tol=1e-4):
            likely = (
                "you added the batches' means, which gives the 3 images of the last batch the weight of 9: " + likely
            )
        raise CheckFailed(f"the losses of the 21 images sum to {loss_sum:.3f}, yours to {got_loss:.3f}: {likely}")
    print("evaluate: right on three batches, the last of them short")


class _PretendDevice:
    """A device that works behind Python's back, like a GPU: a step returns at once, `synchronize` waits for it."""

    def __init__(self, first: float, later: float, warmup: int) -> None:
        self.first, self.later, self.warmup = first, later, warmup
        self.calls = self.waits = 0
        self.busy_until = 0.0

    def step(self) -> None:
        now = time.perf_counter()
        self.busy_until = max(now, self.busy_until) + (self.first if self.calls < self.warmup else self.later)
        self.calls += 1

    def synchronize(self) -> None:
        self.waits += 1
        time.sleep(max(0.0, self.busy_until - time.perf_counter()))


def throughput(answer: Callable[..., Any]) -> None:
    warmup, steps, batch_size, later = 3, 20, 50, 0.01
    device = _PretendDevice(first=0.1, later=later, warmup=warmup)
    result = answer(device.step, batch_size, steps, warmup, device.synchronize)
    if not isinstance(result, int | float):
        raise CheckFailed(f"images_per_second returns a number; yours returned {_name(result)}")
    if device.calls != warmup + steps:
        raise CheckFailed(f"step() should run {warmup} + {steps} = {warmup + steps} times, it ran {device.calls} times")
    truth = batch_size / later
    all_steps = batch_size * (warmup + steps) / (0.1 * warmup + later * steps)
    expected = f"the pretend device trains {truth:,.0f} images/s once warm; yours says {result:,.0f}"
    if result > 2 * truth:
        raise CheckFailed(
            f"{expected}. The device was still at work when you read the clock: call synchronize() before each reading"
        )
    if 0.6 < result / truth < 1.15:
        print(f"images_per_second: {result:,.0f} images/s on a device whose truth is {truth:,.0f}")
        return
    for factor, why in (
        (batch_size, "count images, not steps: multiply by batch_size"),
        (steps, "count all timed steps: multiply by steps"),
        (batch_size * steps, "that is 1 / seconds: multiply by batch_size and by steps"),
    ):
        if 0.6 < factor * result / truth < 1.15:
            raise CheckFailed(f"{expected}, {factor} times too little: {why}")
    if device.waits > 3:
        raise CheckFailed(
            f"{expected}. synchronize() was called {device.waits} times: within the timed steps it makes the device wait "
            "for Python. Call it once before each reading of the clock"
        )
    if 0.6 * all_steps < result < 1.3 * all_steps:
        raise CheckFailed(
            f"{expected}. That is what the warm-up steps give when they are timed too, or when the clock starts before "
            "the device has finished them: warm up, synchronize(), and only then start the clock"
        )
    raise CheckFailed(f"{expected}. It is batch_size · steps / seconds, over the timed steps only")


def speedup(answer: Callable[..., Any]) -> None:
    times = {1: 120.0, 2: 66.0, 4: 40.0, 8: 24.0}
    for ranks, seconds in times.items():
        result = answer(times, ranks)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise CheckFailed(f"return the pair (speed-up, efficiency); yours returned {_name(result)}")
        gain, share = (float(value) for value in result)
        truth = times[1] / seconds
        if not math.isclose(gain, truth, rel_tol=1e-6):
            hint = " (yours is the inverse)" if math.isclose(gain * truth, 1, rel_tol=1e-6) and ranks > 1 else ""
            raise CheckFailed(
                f"{ranks} ranks took {seconds:g} s and one took 120 s: the speed-up is 120 / {seconds:g} = {truth:.3f}, "
                f"yours is {gain:.3f}{hint}"
            )
        if not math.isclose(share, truth / ranks, rel_tol=1e-6):
            raise CheckFailed(
                f"efficiency is speed-up per rank: {truth:.3f} / {ranks} = {truth / ranks:.3f}, yours is {share:.3f}"
            )
    print("speedup_and_efficiency: right for 1, 2, 4 and 8 ranks")


def _name(value: Any) -> str:
    return "nothing (None): is there a return?" if value is None else f"a {type(value).__name__}"


CHECKS = {
    "train-step": train_step,
    "evaluate": evaluate,
    "throughput": throughput,
    "speedup": speedup,
    "run": lambda folder: check_run(folder, "01_single_gpu"),
}
