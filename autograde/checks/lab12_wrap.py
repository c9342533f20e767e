"""Hidden check of lab 12's wrapped model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from autograde.checks.compare import same_tensor, same_tensors, trusted
from autograde.checks.registry import Ask, Findings
from autograde.rubric.criteria import Finding

__all__ = ["wrap"]


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
    model = trusted("lab12.wrap", "make_model")(problem["spec"], problem["states"][0])
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
