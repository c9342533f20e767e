"""Hidden checks of what makes training data parallel in lab 02: the shares of the data, and the wrapped model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from autograde.checks.compare import same_tensor, same_tensors, trusted
from autograde.checks.registry import Ask, Findings, shape_of
from autograde.rubric.criteria import Finding

__all__ = ["samplers", "wrap"]

TEST_BATCH = 250


def samplers(ask: Ask) -> Findings:
    """Data sets of distinct numbers, so that what a loader yields tells which images they were.

    A rank's share is one to `batch_size` - 1 images more than whole batches: what is dropped then holds the image that
    fills up the last round.
    """
    random = ask.random
    ranks, batch_size, whole = (int(n) for n in random.integers([3, 5, 9], [6, 9, 12]))
    share = whole * batch_size + int(random.integers(1, batch_size))
    values = random.permutation(10_000)
    train = values[: ranks * share - int(random.integers(0, ranks))]
    test = values[5_000 : 5_000 + ranks * int(random.integers(270, 320)) + int(random.integers(1, ranks))]
    first, other = (int(n) for n in random.choice(50, 2, replace=False))
    seed, other_seed = (int(n) for n in random.choice(10_000, 2, replace=False))
    given = {
        "train": torch.from_numpy(train),
        "test": torch.from_numpy(test),
        "batch_size": batch_size,
        "world_size": ranks,
        "seed": seed,
        "epochs": [first, other, first],
    }
    found = ask.call("samplers", given)
    reseeded = ask.call("samplers", given | {"seed": other_seed, "epochs": [first]})
    places = ({int(v): i for i, v in enumerate(train)}, {int(v): i for i, v in enumerate(test)})
    dealt, again = _dealt(found, places, ranks, 3), _dealt(reseeded, places, ranks, 1)
    if dealt is None or again is None:
        returned = found.get("returned") if isinstance(found, dict) else found
        reason = f"should return a pair of loaders of the given sets' items, it returned {shape_of(returned)}"
        return dict.fromkeys(["shares", "epochs", "batches", "test"], Finding(False, reason, _PRINT))
    epochs, tests = dealt
    return {
        "shares": _shares(epochs, len(train)),
        "epochs": _epochs(epochs, again[0]),
        "batches": _batches(epochs, batch_size),
        "test": _test(tests, len(test), ranks),
    }


_PRINT = "print, for each of two ranks, what its loaders yield for a data set of 20 numbers"

Batches = list[list[int]]


def _dealt(found: Any, places: Any, ranks: int, epochs: int) -> tuple[list[list[Batches]], list[Batches]] | None:
    """By rank and epoch, and by rank, the indices in each batch; None where that is not what was returned."""
    parts = found.get("ranks") if isinstance(found, dict) else None
    if not isinstance(parts, list) or len(parts) != ranks or not all(isinstance(part, dict) for part in parts):
        return None
    try:
        train = [[_indices(batches, places[0]) for batches in part["epochs"]] for part in parts]
        test = [_indices(part["test"], places[1]) for part in parts]
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return (train, test) if all(len(part) == epochs for part in train) else None


def _indices(batches: Any, places: dict[int, int]) -> Batches:
    return [[places[int(value)] for value in batch.flatten().tolist()] for batch in batches]


def _flat(batches: Batches) -> list[int]:
    return [index for batch in batches for index in batch]


def _shares(epochs: list[list[Batches]], images: int) -> Finding:
    for epoch in range(len(epochs[0])):
        # An incomplete batch may hold the image that fills up the round, and is not this part's business.
        sizes = [len(part[epoch][0]) if part[epoch] else 0 for part in epochs]
        parts = [
            [batch for batch in part[epoch] if len(batch) == size] for part, size in zip(epochs, sizes, strict=True)
        ]
        seen = [index for part in parts for index in _flat(part)]
        if len(set(seen)) < len(seen):
            return Finding(False, "ranks train on the same images", _PRINT)
        if len(seen) < images - sum(sizes):
            return Finding(False, "the ranks together leave out more than each one's incomplete last batch", _PRINT)
        if len(set(map(len, parts))) > 1:
            return Finding(
                False, "the ranks have different numbers of batches, so one would wait for the other", _PRINT
            )
    return Finding(True, "in each epoch, the ranks' images are disjoint and together the whole set")


def _epochs(epochs: list[list[Batches]], reseeded: list[list[Batches]]) -> Finding:
    orders = [[_flat(part[epoch]) for part in epochs] for epoch in range(3)]
    look = "print the first images of two epochs, with sampler.set_epoch before each"
    if any(part == sorted(part) for part in orders[0]):
        return Finding(False, "the training images are not shuffled", look)
    if orders[0] == orders[1]:
        return Finding(False, "the order of two epochs is the same in spite of set_epoch", look)
    if orders[0] != orders[2]:
        return Finding(False, "the same epoch has two orders: a run could not be repeated", look)
    if orders[0] == [_flat(part[0]) for part in reseeded]:
        return Finding(False, "another seed gives the same order", look)
    return Finding(True, "each epoch and each seed has its own order, and it can be repeated")


def _batches(epochs: list[list[Batches]], batch_size: int) -> Finding:
    sizes = {len(batch) for part in epochs for batches in part for batch in batches}
    if sizes == {batch_size}:
        return Finding(True, "training batches are full, of the size asked for")
    reason = "training batches do not have the size asked for"
    if batch_size in sizes and max(sizes) == batch_size:
        reason = "an incomplete last training batch is not dropped"
    return Finding(
        False, reason, "print the length of each training batch, for a share that batch_size does not divide"
    )


def _test(tests: list[Batches], images: int, ranks: int) -> Finding:
    look = "print the number of test images of each rank, and the first and last of them"
    seen = [index for part in tests for index in _flat(part)]
    if len(set(seen)) < images:
        return Finding(False, "some test images are seen by no rank", look)
    if len(seen) >= images + ranks:
        return Finding(False, "ranks test the same images", look)
    # The last one may be an image from the start, which fills up the round.
    if any(_flat(part)[:-1] != sorted(_flat(part)[:-1]) for part in tests):
        return Finding(False, "the test images are shuffled", look)
    if any(len(batch) != TEST_BATCH for part in tests for batch in part[:-1]) or any(
        len(p[-1]) > TEST_BATCH for p in tests
    ):
        return Finding(False, f"test batches do not have {TEST_BATCH} images", look)
    return Finding(True, "every test image is seen, in order, in batches of 250")


def _problem(random: np.random.Generator, sizes: list[int], normed: bool) -> dict[str, Any]:
    """A convolutional network, and per rank its batch; `states` are what two ranks' networks start from."""
    channels, classes = 6, int(random.integers(20, 40))
    norm = [("norm2d", (channels,))] if normed else []
    spec = [("conv", (1, channels, 3)), *norm, ("tanh", ()), ("flatten", ()), ("linear", (channels * 100, classes))]
    states = []
    for _ in sizes:
        state = [random.normal(0, 0.5, (channels, 1, 3, 3)), random.normal(0, 0.5, channels)]
        if normed:
            state += [random.uniform(0.5, 1.5, channels), *random.normal(0, 0.3, (2, channels))]
            state += [random.uniform(0.5, 2, channels), np.array(3.0)]
        state += [random.normal(0, 0.05, (classes, channels * 100)), random.normal(0, 0.5, classes)]
        states.append([torch.from_numpy(np.asarray(values)).float() for values in state])
    return {
        "spec": spec,
        "states": states,
        "images": [torch.from_numpy(random.normal(r, 1, (n, 1, 12, 12))).float() for r, n in enumerate(sizes)],
        "labels": [torch.from_numpy(random.integers(0, classes, n)) for n in sizes],
    }


def _call(ask: Ask, problem: dict[str, Any], sync: bool) -> list[dict[str, Any]]:
    keys = ("states", "images", "labels")
    given = [
        {"spec": problem["spec"], "state": state, "images": images, "labels": labels, "sync": sync}
        for state, images, labels in zip(*(problem[key] for key in keys), strict=True)
    ]
    return [one if isinstance(one, dict) else {} for one in ask.call("wrap", given)]


def _reference(problem: dict[str, Any], sync: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Per rank the logits, and the mean over ranks of the gradients, of a network with rank 0's weights."""
    model = trusted("lab02.wrap", "make_model")(problem["spec"], problem["states"][0])
    sizes = [len(images) for images in problem["images"]]
    if sync:
        logits = list(model(torch.cat(problem["images"])).split(sizes))
    else:
        logits = [model(images) for images in problem["images"]]
    losses = [nn.functional.cross_entropy(x, y) for x, y in zip(logits, problem["labels"], strict=True)]
    (sum(losses) / len(losses)).backward()
    return [x.detach() for x in logits], [p.grad for p in model.parameters()]


def wrap(ask: Ask) -> Findings:
    """Two ranks that start differently, and two with batch norm that start alike."""
    plain = _problem(ask.random, [int(n) for n in ask.random.choice(np.arange(3, 9), 2, replace=False)], False)
    before = ask.bytes_on_loopback()
    found = _call(ask, plain, False)
    after = ask.bytes_on_loopback()
    _, mean = _reference(plain, False)
    look = "on two ranks, seed each differently, wrap, run a backward pass and compare a weight and its gradient"
    equal = all(same_tensors(one.get("weights"), plain["states"][0]) for one in found)
    weights = Finding(
        equal,
        "all ranks start from rank 0's weights" if equal else "the ranks do not start from rank 0's weights",
        look,
    )
    averaged = all(same_tensors(one.get("gradients"), mean) for one in found)
    # The weights go once from rank 0 to rank 1, the gradients in both directions.
    size = 4 * sum(p.numel() for p in mean)
    travelled = before is None or after - before > 1.8 * size
    reason = "every rank has the mean of the ranks' gradients"
    if not averaged:
        reason = "after a backward pass the gradients are not the mean of the ranks' gradients"
    elif not travelled:
        reason = "fewer bytes passed between the ranks than a gradient has"
    gradients = Finding(averaged and travelled, reason, look)
    return {"weights": weights, "gradients": gradients, "sync": _synced(ask, averaged)}


def _synced(ask: Ask, averaged: bool) -> Finding:
    problem = _problem(ask.random, [5, 5], True)
    problem["states"][1] = problem["states"][0]
    look = "print the wrapped model with sync_batchnorm=True and False, and compare the batch-norm layers"
    for sync in (False, True):
        found = _call(ask, problem, sync)
        logits, mean = _reference(problem, sync)
        if not all(same_tensor(one.get("logits"), x, 1e-3) for one, x in zip(found, logits, strict=True)):
            reason = "batch norm is not over the batches of all ranks when it was asked for"
            return Finding(
                False, reason if sync else "without being asked for, batch norm is not each rank's own", look
            )
        if averaged and sync and not all(same_tensors(one.get("gradients"), mean, 1e-3) for one in found):
            return Finding(False, "with synchronised batch norm the gradients are no longer averaged over the ranks",
                           "which comes first, the conversion or the wrapping?")  # fmt: skip
    return Finding(True, "batch norm is over all ranks' batches when asked for, else over each one's own")
