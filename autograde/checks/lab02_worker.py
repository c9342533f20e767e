"""Hidden check of lab 02's worker: a short training on two ranks, and what its weights are worth outside."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import nn

from autograde.checks.compare import close, is_number, same_tensor
from autograde.checks.reference_training import moved_alike, trained
from autograde.checks.registry import Ask, Findings, shape_of
from autograde.rubric.criteria import Finding
from course_lib.data.batches import load
from course_lib.models import WideResNet
from course_lib.training.loop import warmup_then_decay

__all__ = ["worker"]

RANKS = 2
DATASET = "fashion-mnist-small"  # ships with the project
TEST_IMAGES = 300
# Rounding may turn the odd image whose two best classes are nearly equal.
IMAGES_OFF = 2
_ROW = (
    "epoch",
    "time",
    "images_per_sec",
    "train_loss",
    "train_accuracy",
    "val_loss",
    "val_accuracy",
    "lr",
    "epoch_time",
)


def worker(ask: Ask) -> Findings:
    """Trains until a target that every network reaches has held for `patience` epochs."""
    random = ask.random
    batch_size, patience = int(random.integers(8, 17)), 2
    batches = int(random.integers(4, 7))
    test = load(DATASET).test
    chosen = torch.from_numpy(random.permutation(len(test))[:TEST_IMAGES])
    images, labels = test.images[chosen].contiguous(), test.labels[chosen]
    args = {
        "dataset": DATASET,
        # No whole number of batches, so that a rank's last one is incomplete.
        "train_samples": RANKS * (batches * batch_size + int(random.integers(1, batch_size))),
        "batch_size": batch_size,
        "epochs": int(random.integers(4, 7)),
        "base_lr": float(random.uniform(0.001, 0.002)),
        "momentum": 0.9,
        "warmup_epochs": 0.5,
        "width": 1,
        "sync_batchnorm": False,
        "target_accuracy": 1e-9,
        "patience": patience,
        "seed": int(random.integers(0, 10_000)),
        "num_nodes": 1,
        "node_id": 0,
        "num_gpus": RANKS,
        "checkpoint": "",
    }
    start = time.monotonic()
    found = ask.call("worker", [{"args": args, "images": images, "labels": labels}] * RANKS)
    wall = time.monotonic() - start
    found = [one if isinstance(one, dict) else {} for one in found]
    rows = [dict(zip(_ROW, row, strict=True)) for row in _rows(found[0].get("rows"))]
    networks = [_network(one.get("state")) for one in found]
    # What training did is judged by the epochs that it had, and their number where the accuracies are.
    whole = [one for one in _passes(found[0]) if len(one) == batches * batch_size]
    epochs, total = len(whole), RANKS * batches * batch_size
    rates = _rates(args, batches)
    split = load(DATASET, train_samples=args["train_samples"]).train
    steps = [
        [(split.images[one].float() / 255, split.labels[one]) for one in step]
        for step in _batches([_passes(one) for one in found], batches, batch_size, len(split))
    ]
    first = found[0].get("first")
    reference = trained(first, 1, steps, rates[: len(steps)], nesterov=True) if len(steps) == epochs * batches else None
    return {
        "order": _order([_passes(one) for one in found], batches * batch_size),
        "training": _training(networks, epochs * batches, rows, rates[::batches], first, reference),
        "accuracy": _accuracy([one.get("accuracies") for one in found], patience, networks, images, labels),
        "records": _records(rows, epochs, total, wall, networks, images, labels),
    }


def _rows(rows: Any) -> list[list[Any]]:
    rows = rows if isinstance(rows, list) else []
    return [row for row in rows if isinstance(row, list) and len(row) == len(_ROW)]


def _passes(found: dict[str, Any]) -> list[list[Any]]:
    passes = found.get("passes")
    return [one for one in passes if isinstance(one, list)] if isinstance(passes, list) else []


def _network(state: Any) -> WideResNet | None:
    model = WideResNet((16, 32, 64))
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError):
        return None
    return model.eval()


def _rates(args: dict[str, Any], batches: int) -> list[float]:
    """The learning rate of each step, as the worker's given lines make the schedule."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=args["base_lr"])
    steps = args["epochs"] * batches
    schedule = warmup_then_decay(optimizer, steps, min(steps - 1, round(args["warmup_epochs"] * batches)))
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def _order(passes: list[list[list[Any]]], images: int) -> Finding:
    look = "print the first images of each epoch"
    for rank in passes:
        whole = [one for one in rank if len(one) == images]
        if len(whole) < 2:
            return Finding(False, "the epochs do not go through all of this rank's training images", look)
        if len({tuple(map(str, one)) for one in whole}) < len(whole):
            return Finding(False, "two epochs have the same order of images", look)
    return Finding(True, "each epoch has its own order of images")


def _batches(passes: list[list[list[Any]]], batches: int, batch_size: int, images: int) -> list[list[torch.Tensor]]:
    """The indices of each step, a tensor of each rank, in the order in which the ranks asked for them."""
    whole = [[one for one in rank if len(one) == batches * batch_size] for rank in passes]
    orders = [[index for one in rank for index in one] for rank in whole]
    if not all(type(index) is int and 0 <= index < images for order in orders for index in order):
        return []
    cut = [torch.tensor(order, dtype=torch.int64).split(batch_size) for order in orders]
    return [list(step) for step in zip(*cut, strict=False)] if orders[0] else []


def _training(
    networks: list[WideResNet | None],
    steps: int,
    rows: list[dict[str, Any]],
    rates: list[float],
    before: Any,
    reference: WideResNet | None,
) -> Finding:
    look = "compare, after training, the sum of a layer's weights on two ranks, and the learning rate of each epoch"
    if None in networks:
        return Finding(False, "there is no model that wrap() made", look)
    for network in networks:
        counts = [buffer.item() for name, buffer in network.named_buffers() if name.endswith("num_batches_tracked")]
        if not any(counts):
            return Finding(False, "the model that wrap() returned was not trained", look)
        if set(counts) != {steps}:
            return Finding(False, "the model did not train once on every batch of every epoch", look)
    first, second = (list(network.parameters()) for network in networks)
    if not all(same_tensor(a, b.detach(), 1e-5) for a, b in zip(first, second, strict=True)):
        return Finding(False, "after training the ranks' weights differ: their gradients were not averaged", look)
    if len(rows) < 2 or not close(rows[1]["lr"], rates[1], 1e-3):
        return Finding(False, "in the second epoch the learning rate is not the schedule's", look)
    if reference is None or not moved_alike(before, networks[0], reference):
        return Finding(False, "the weights have not moved as the given optimiser, schedule and loss move them", look)
    return Finding(True, "the wrapped model trained on every batch, by the schedule")


@torch.no_grad()
def _validated(networks: list[WideResNet | None], images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Mean loss and accuracy, each rank's network on its share: batch norm's statistics are each rank's own."""
    loss = correct = 0.0
    for rank, network in enumerate(networks):
        share = labels[rank::RANKS]
        logits = network(images[rank::RANKS].float() / 255)
        loss += nn.functional.cross_entropy(logits, share, reduction="sum").item()
        correct += (logits.argmax(1) == share).sum().item()
    return loss / len(labels), correct / len(labels)


def _accuracy(
    accuracies: list[Any], epochs: int, networks: list[WideResNet | None], images: torch.Tensor, labels: torch.Tensor
) -> Finding:
    look = "print the accuracies on every rank, and evaluate the returned weights once more"
    if not all(isinstance(one, list) and all(map(is_number, one)) for one in accuracies):
        return Finding(False, "the worker should return the list of its accuracies, numbers from 0 to 1", look)
    counts = {len(one) for one in accuracies}
    if len(counts) > 1:
        return Finding(False, "the ranks recorded different numbers of epochs", look)
    if counts == {0}:
        return Finding(False, "no accuracy was recorded", look)
    if counts != {epochs}:
        return Finding(False, "training did not end at the epoch at which the stopping rule says so", look)
    values = [[float(value) for value in one] for one in accuracies]
    if any(abs(a - b) > 1e-9 for a, b in zip(*values, strict=True)):
        return Finding(False, "the ranks disagree about the accuracy, so one could stop while the other waits", look)
    if None in networks:
        return Finding(False, "there is no model that wrap() made, to which the accuracy could belong", look)
    first, second = (list(network.buffers()) for network in networks)
    if not all(same_tensor(a, b, 1e-5) for a, b in zip(first, second, strict=True)):
        return Finding(
            False, "the ranks evaluate different batch-norm statistics: broadcast rank 0's buffers before", look
        )
    _, accuracy = _validated(networks, images, labels)
    if abs(values[0][-1] - accuracy) > (IMAGES_OFF + 0.5) / len(labels):
        return Finding(False, "the last accuracy is not that of the trained weights on the test images", look)
    return Finding(True, "every rank has the accuracy that the weights have, and training stopped by the rule")


def _records(
    rows: list[dict[str, Any]],
    epochs: int,
    trained: int,
    wall: float,
    networks: list[WideResNet | None],
    images: torch.Tensor,
    labels: torch.Tensor,
) -> Finding:
    look = "print the line of each epoch: rate × time is the number of images of all ranks together"
    if not rows or len(rows) != epochs:
        return Finding(False, "rank 0 did not record one line for each epoch", look)
    numbers = {name: [row[name] for row in rows] for name in _ROW}
    for name in _ROW:
        if not all(map(is_number, numbers[name])):
            return Finding(False, f"{name} should be a number, it is {shape_of(numbers[name][0])}", look)
    seconds = [float(value) for value in numbers["epoch_time"]]
    if min(seconds) <= 0 or not wall * 0.05 < sum(seconds) < wall:
        return Finding(False, "the epochs' times are not what training took", look)
    if not all(close(r * s, trained, 1e-3) for r, s in zip(numbers["images_per_sec"], seconds, strict=True)):
        return Finding(False, "the rate is not that of all ranks' training images in the epoch's time", look)
    hits = [float(value) * trained for value in numbers["train_accuracy"]]
    if not all(0 <= hit <= trained and abs(hit - round(hit)) < 1e-3 for hit in hits):
        return Finding(False, "the training accuracy is not a share of all ranks' training images", look)
    if not all(0 < float(value) < math.inf for value in numbers["train_loss"]):
        return Finding(False, "the training loss is not a mean loss", look)
    if None in networks or not close(numbers["val_loss"][-1], _validated(networks, images, labels)[0], 2e-3):
        return Finding(False, "the last validation loss is not that of the trained weights on the test images", look)
    return Finding(True, "rate, time, losses and accuracies are those of the whole job")
