"""Hidden checks of lab 09's two updates: the training loop on shared weights, and the sparse step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

from ..criteria import Finding
from .compare import is_int, same_tensor, same_tensors, trusted
from .registry import AnswerError, Ask, Findings

__all__ = ["RANKS", "SECONDS", "loop", "sparse"]

RANKS = 2
SECONDS = 20.0  # ranks that wait for each other wait for ever; nothing here takes two seconds
PAGE = 8  # blocks of 512 bytes

_SPEC = [("linear", (6, 5)), ("tanh", ()), ("linear", (5, 4))]


def loop(ask: Ask) -> Findings:
    """Each rank on its own weights, with other data; then both on the same, taking turns under the lock."""
    random = ask.random
    make = trusted("lab02.wrap", "make_model")
    state = [torch.from_numpy(random.normal(0, 1, tuple(t.shape))).float() for t in make(_SPEC).state_dict().values()]
    lr = float(random.uniform(0.05, 0.3))
    steps = int(random.integers(3, 6))
    given = []
    for _ in range(RANKS):
        sizes = random.integers(3, 9, steps).tolist()
        given.append(
            {
                "spec": _SPEC,
                "state": state,
                "lr": lr,
                "images": [torch.from_numpy(random.normal(0, 1, (size, 6))).float() for size in sizes],
                "labels": [torch.from_numpy(random.integers(0, 4, size)) for size in sizes],
            }
        )
    found = ask.call("alone", given)
    found = [one if isinstance(one, dict) else {} for one in found]
    counts = [sum(map(len, one["labels"])) for one in given]
    right = [same_tensors(one.get("weights"), _sgd(make, [data]), 1e-4) for one, data in zip(found, given, strict=True)]
    private = [
        same_tensors(one.get("own"), _sgd(make, [data]), 1e-4) and not ok
        for one, data, ok in zip(found, given, right, strict=True)
    ]
    left = [
        same_tensors(one.get("weights"), _sgd(make, [data], left=1.0), 1e-4)
        for one, data in zip(found, given, strict=True)
    ]
    counted = [is_int(one.get("samples"), count) for one, count in zip(found, counts, strict=True)]
    taken = [is_int(one.get("entries"), steps) for one in found]
    clean = [one.get("outside") is False and one.get("inside") is False for one in found]
    lock = all(right) and all(taken) and all(clean)
    if all(right):
        steps_told = "plain SGD's steps" if all(counted) else "the weights are right, the number of samples is not"
    else:
        steps_told = (
            "the memory that was given still holds other weights: the model has tensors of its own now"
            if any(private)
            else "the gradient that the model came with went into the first step"
            if all(left)
            else "the weights are not those of plain SGD with the gradient of each batch's mean loss"
        )
    why = (
        "a gradient was computed while the lock was held" if any(one.get("inside") is True for one in found)
        else "weights were changed while the lock was not held" if any(one.get("outside") is True for one in found)
        else "the lock was not taken once for each batch"
    )  # fmt: skip
    return {
        "steps": Finding(all(right) and all(counted), steps_told,
                         "train a linear layer on two batches, and do the second step by hand"),
        "lock": Finding(lock, "once a batch, around the update alone" if lock else
                        why if all(right) else "the steps are not right yet",
                        "print something before and after `with lock:`, before the forward, and after the backward"),
        "memory": _together(ask, make, given, lock),
    }  # fmt: skip


def _together(ask: Ask, make: Any, given: list[dict[str, Any]], lock: bool) -> Finding:
    look = "let two processes add to one tensor under the lock, and compare with the sum"
    if not lock:
        return Finding(False, "not tried: alone, or with the lock, it is not right yet", look)
    try:
        found = ask.call("together", given)
    except AnswerError as error:
        return Finding(False, str(error), error.remedy or look)
    expected = torch.cat([tensor.flatten() for tensor in _sgd(make, given)])
    right = all(same_tensor(one, expected, 1e-4) for one in found)
    told = "both processes' updates are in the weights"
    return Finding(
        right, told if right else "of two processes' updates, made one after the other, not all are there", look
    )


def _sgd(make: Any, given: list[dict[str, Any]], left: float = 0.0) -> list[torch.Tensor]:
    """The weights after all batches; in each step everybody's gradient is of the weights before it.

    `left` is added to each number of the first gradient.
    """
    model = make(given[0]["spec"], given[0]["state"])
    parameters = list(model.parameters())
    batches = [zip(data["images"], data["labels"], strict=True) for data in given]
    for together in zip(*batches, strict=True):
        gradients = [torch.autograd.grad(F.cross_entropy(model(x), y), parameters) for x, y in together]
        with torch.no_grad():
            for parameter, *parts in zip(parameters, *gradients, strict=True):
                parameter -= given[0]["lr"] * (sum(parts) + left)
        left = 0.0
    return [parameter.detach() for parameter in parameters]


def sparse(ask: Ask) -> Findings:
    """Features apart from each other, features repeated in both ways, and a model of many weights."""
    random = ask.random
    features, active = int(random.integers(80, 200)), int(random.integers(2, 6))
    samples = int(random.integers(3, 7))

    def case(kind: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        weights = torch.from_numpy(random.normal(0, 1, features))
        indices = torch.from_numpy(random.permutation(features)[: samples * active].reshape(samples, active))
        if kind == "between":
            indices[:, 0] = indices[0, 0]
        elif kind == "within":
            indices[1, 1] = indices[1, 0]
        elif kind == "hidden":  # whoever computes with other weights than the batch's is found out
            kept = weights[indices].clone()
            weights[:] = math.nan
            weights[indices] = kept
        return weights, indices, torch.from_numpy(random.integers(0, 2, samples).astype(float))

    kinds = ["apart", "hidden", "between", "within"]
    cases = [case(kind) for kind in kinds]
    large = 2**21
    lr = float(random.uniform(0.1, 0.5))
    rare = torch.from_numpy(random.integers(0, large, (4, 5)))
    given = {"cases": cases, "lr": lr, "large": (large, rare, torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64))}
    found = ask.call("sparse", given)
    found = found if isinstance(found, dict) else {}
    answers = found.get("cases")
    answers = answers if isinstance(answers, list) and len(answers) == len(cases) else [None] * len(cases)
    right = {}
    for kind, answer, (weights, indices, labels) in zip(kinds, answers, cases, strict=True):
        answer = answer if isinstance(answer, dict) else {}
        after, mine = _sparse_step(weights, indices, labels, lr), answer.get("weights")
        shown = isinstance(mine, torch.Tensor) and mine.shape == after.shape
        chosen = indices.flatten() if kind == "hidden" else slice(None)
        right[kind] = shown and answer.get("kept") is True and same_tensor(mine[chosen], after[chosen], 1e-8)
    step = right["apart"] and right["hidden"]
    repeated = right["apart"] and right["between"] and right["within"]
    pages = found.get("pages")
    pages = (
        pages if isinstance(pages, list | tuple) and len(pages) == 2 and all(type(n) is int for n in pages) else None
    )
    # Where the system does not count pages as they are touched, nothing is held against anybody.
    counted = pages is not None and 0 < pages[0] <= 4 * PAGE
    memory = right["apart"] and pages is not None and (not counted or 0 < pages[1] <= 2 * PAGE * rare.numel())
    look = "three features, one sample: do it by hand"
    return {
        "step": Finding(step, "right where no feature occurs twice" if step else
                        "weights of features that no sample has enter the result" if right["apart"] else
                        "wrong where no feature occurs twice", look),
        "repeated": Finding(repeated, "right where features occur twice, in one sample and in several" if repeated else
                            "where a feature occurs more than once, not all of its updates arrive" if right["apart"] else
                            "where no feature occurs twice it is not right yet",
                            "two samples with the same single feature: its weight must move twice as far as with one"),
        "memory": Finding(memory, "touches the memory of its own features only" if memory else
                          "reads or writes far more of the weights than the batch has features" if right["apart"] else
                          "the step is not right yet", "look for an operation on all of `weights`, or a tensor of its size"),
    }  # fmt: skip


def _sparse_step(weights: torch.Tensor, indices: torch.Tensor, labels: torch.Tensor, lr: float) -> torch.Tensor:
    after = weights.clone()
    for row, label in zip(indices.tolist(), labels.tolist(), strict=True):
        error = 1 / (1 + math.exp(-sum(weights[feature].item() for feature in row))) - label
        for feature in row:
            after[feature] -= lr * error
    return after
