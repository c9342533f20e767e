"""Hidden check of lab 12's worker: a short training on two ranks, and what its weights are worth outside."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from autograde.checks.compare import close, is_number, same_tensor
from autograde.checks.reference_training import moved_alike, trained
from autograde.checks.registry import Ask, Findings
from autograde.rubric.criteria import Finding
from course_lib.models import WideResNet

__all__ = ["worker"]

RANKS = 2
TEST_IMAGES = 150  # of each rank
IMAGES_OFF = 3  # rounding may turn the odd image whose two best classes are nearly equal
_TOLD = ("epoch", "total", "seconds", "rate", "train_accuracy", "val_loss", "val_accuracy", "stopped")
_LR = 7  # place of the learning rate in a row of the curve


def worker(ask: Ask) -> Findings:
    """Trains on random images until a target that every network reaches has held for `patience` epochs."""
    random = ask.random
    size, patience, batches = int(random.integers(6, 10)), int(random.integers(2, 4)), int(random.integers(4, 7))
    count = size * batches + int(random.integers(1, size))
    args = {
        "dataset": "hidden", "train_samples": 0, "test_samples": 0, "batch_size": size, "epochs": patience + 2,
        "base_lr": float(random.uniform(0.0005, 0.001)), "optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.0,
        "label_smoothing": 0.0, "warmup_epochs": 0.0, "augmentation": "none", "sync_batchnorm": False, "width": 1,
        "target_accuracy": 1e-9, "patience": patience, "seed": int(random.integers(0, 10_000)), "output_dir": None,
    }  # fmt: skip
    given = [
        {"args": args, **_images(random, count, ""), **_images(random, TEST_IMAGES, "test_")} for _ in range(RANKS)
    ]
    start = time.monotonic()
    found = [one if isinstance(one, dict) else {} for one in ask.call("worker", given)]
    wall = time.monotonic() - start
    networks = [_network(one.get("state")) for one in found]
    truth = None if None in networks else _validated(networks, given)
    told = _told(found[0])
    passes = [[one for one in _lists(rank.get("passes")) if len(one) == size * batches] for rank in found]
    epochs = len(passes[0])
    whole = args["epochs"] * batches
    rates = [args["base_lr"] * RANKS * (1 - step / (whole + 1)) for step in range(whole)]
    steps = _steps(passes, given, size)
    first = found[0].get("first")
    reference = trained(first, 3, steps, rates[: len(steps)], nesterov=False) if 0 < len(steps) <= whole else None
    return {
        "order": _order(passes),
        "training": _training(
            networks, epochs * batches, _lists(found[0].get("rows")), rates[batches], first, reference
        ),
        "accuracy": _accuracy([one.get("accuracies") for one in found], truth),
        "report": _report(told, epochs, RANKS * size * batches, wall, truth),
        "stop": _stop([one.get("accuracies") for one in found], patience, told),
    }


def _images(random: Any, count: int, prefix: str) -> dict[str, torch.Tensor]:
    return {
        f"{prefix}images": torch.from_numpy(random.normal(0, 1, (count, 3, 8, 8))).float(),
        f"{prefix}labels": torch.from_numpy(random.integers(0, 10, count)),
    }


def _lists(value: Any) -> list[list[Any]]:
    return [one for one in value if isinstance(one, list)] if isinstance(value, list) else []


def _told(found: dict[str, Any]) -> list[dict[str, float]]:
    rows = [row for row in _lists(found.get("told")) if len(row) == len(_TOLD) and all(map(is_number, row))]
    return [dict(zip(_TOLD, map(float, row), strict=True)) for row in rows]


def _network(state: Any) -> WideResNet | None:
    model = WideResNet((16, 32, 64), 3)
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError):
        return None
    return model.eval()


@torch.no_grad()
def _validated(networks: list[Any], given: list[dict[str, Any]]) -> tuple[float, float]:
    """Mean loss and accuracy, each rank's network on its share: batch norm's statistics are each rank's own."""
    loss = correct = 0.0
    for network, share in zip(networks, given, strict=True):
        logits, labels = network(share["test_images"]), share["test_labels"]
        loss += nn.functional.cross_entropy(logits, labels, reduction="sum").item()
        correct += (logits.argmax(1) == labels).sum().item()
    return loss / (RANKS * TEST_IMAGES), correct / (RANKS * TEST_IMAGES)


def _order(passes: list[list[list[Any]]]) -> Finding:
    look = "print the first images of each epoch"
    for rank in passes:
        if len(rank) < 2:
            return Finding(False, "the epochs do not go through all of this rank's training images", look)
        if len({tuple(map(str, one)) for one in rank}) < len(rank):
            return Finding(False, "two epochs have the same order of images", look)
    return Finding(True, "each epoch has its own order of images")


def _steps(passes: list[list[list[Any]]], given: list[dict[str, Any]], size: int) -> list[list[Any]]:
    """The batch of each rank for each step, in the order in which the ranks asked for their images."""
    dealt = []
    for rank, one in zip(passes, given, strict=True):
        order = [index for epoch in rank for index in epoch]
        if not all(type(index) is int and 0 <= index < len(one["labels"]) for index in order):
            return []
        cut = torch.tensor(order, dtype=torch.int64).split(size)
        dealt.append([(one["images"][part], one["labels"][part]) for part in cut if len(part)])
    return [list(step) for step in zip(*dealt, strict=False)]


def _training(
    networks: list[Any], steps: int, rows: list[list[Any]], rate: float, before: Any, reference: WideResNet | None
) -> Finding:
    look = "compare, after training, the sum of a layer's weights on two ranks, and the learning rate of each epoch"
    if None in networks:
        return Finding(False, "there is no model that wrap() made", look)
    for network in networks:
        counts = {buffer.item() for name, buffer in network.named_buffers() if name.endswith("num_batches_tracked")}
        if counts != {steps} or not steps:
            return Finding(False, "the model did not train once on every batch of every epoch", look)
    first, second = (list(network.parameters()) for network in networks)
    if not all(same_tensor(a, b.detach(), 1e-5) for a, b in zip(first, second, strict=True)):
        return Finding(False, "after training the ranks' weights differ: their gradients were not averaged", look)
    if len(rows) < 2 or len(rows[1]) <= _LR or not close(rows[1][_LR], rate, 1e-3):
        return Finding(False, "in the second epoch the learning rate is not the schedule's", look)
    if reference is None or not moved_alike(before, networks[0], reference):
        return Finding(False, "the weights have not moved as the given optimiser, schedule and loss move them", look)
    return Finding(True, "the wrapped model trained on every batch, by the schedule")


def _numbers(accuracies: list[Any]) -> list[list[float]] | None:
    if not all(isinstance(one, list) and all(map(is_number, one)) for one in accuracies):
        return None
    return [[float(value) for value in one] for one in accuracies]


def _accuracy(accuracies: list[Any], truth: tuple[float, float] | None) -> Finding:
    look = "print the accuracies on every rank, and evaluate the weights once more"
    values = _numbers(accuracies)
    if values is None:
        return Finding(False, "the worker should return the list of its accuracies, numbers from 0 to 1", look)
    if not values[0]:
        return Finding(False, "no accuracy was recorded", look)
    if len(values[0]) != len(values[1]):
        return Finding(False, "the ranks recorded different numbers of epochs", look)
    if any(abs(a - b) > 1e-9 for a, b in zip(*values, strict=True)):
        return Finding(False, "the ranks disagree about the accuracy, so one could stop while the other waits", look)
    if truth is None:
        return Finding(False, "there is no model that wrap() made, to which the accuracy could belong", look)
    if abs(values[0][-1] - truth[1]) > (IMAGES_OFF + 0.5) / (RANKS * TEST_IMAGES):
        return Finding(False, "the last accuracy is not that of the trained weights on the test images", look)
    return Finding(True, "every rank has the accuracy that the weights have")


def _report(
    told: list[dict[str, float]], epochs: int, trained: int, wall: float, truth: tuple[float, float] | None
) -> Finding:
    look = "print what report is called with: rate × epoch time is the number of images of all ranks together"
    if not told or len(told) != epochs or [row["epoch"] for row in told] != list(range(1, epochs + 1)):
        return Finding(False, "report is not called once an epoch, with the epochs counted from 1", look)
    total = 0.0
    for row in told:
        total += row["seconds"]
        if not row["seconds"] > 0 or not close(row["total"], total, 1e-4):
            return Finding(False, "the cumulative time is not the sum of the epochs' times", look)
        if not close(row["rate"] * row["seconds"], trained, 1e-3):
            return Finding(False, "the rate is not that of all ranks' training images in the epoch's time", look)
        hits = row["train_accuracy"] * trained
        if not (0 <= hits <= trained and abs(hits - round(hits)) < 1e-3):
            return Finding(False, "the training accuracy is not a share of all ranks' training images", look)
    if not wall * 0.05 < total < wall:
        return Finding(False, "the epochs' times are not what training took", look)
    if truth is None or not close(told[-1]["val_loss"], truth[0], 3e-2):
        return Finding(False, "the last validation loss is not that of the trained weights on the test images", look)
    if abs(told[-1]["val_accuracy"] - truth[1]) > (IMAGES_OFF + 0.5) / (RANKS * TEST_IMAGES):
        return Finding(False, "the last accuracy told is not that of the trained weights on the test images", look)
    return Finding(True, "times, rate, losses and accuracies are those of the whole job")


def _stop(accuracies: list[Any], patience: int, told: list[dict[str, float]]) -> Finding:
    look = "set a target that is reached at once, and print `stopped` in each epoch"
    values = _numbers(accuracies)
    if values is None or any(len(one) != patience for one in values):
        return Finding(False, "training did not end at the epoch at which the stopping rule says so", look)
    if not told or [bool(row["stopped"]) for row in told] != [False] * (len(told) - 1) + [True]:
        return Finding(False, "report is not told of the stop, in the last epoch and only there", look)
    return Finding(True, "training stopped by the rule, and the report was told")
