"""Hidden checks of lab 09's two updates: the training loop on shared weights, and the sparse step."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from ..criteria import Finding
from ..limits import Exceeded
from .compare import is_int, same_tensor, same_tensors, trusted
from .registry import AnswerError, Ask, Findings

__all__ = ["loop", "sparse"]

LARGE = 2**30  # weights that take 8 GiB, twice the memory that the rubric allows

_SPEC = [("linear", (6, 5)), ("tanh", ()), ("linear", (5, 4))]


def loop(ask: Ask) -> Findings:
    """Two trainings alone; then one whose lock is the grader's: it counts, and changes the weights as others would."""
    random = ask.random
    make = trusted("lab02.wrap", "make_model")
    state = [torch.from_numpy(random.normal(0, 1, tuple(t.shape))).float() for t in make(_SPEC).state_dict().values()]
    lr = float(random.uniform(0.05, 0.3))
    steps = int(random.integers(3, 6))
    given = []
    for _ in range(2):
        sizes = random.integers(3, 9, steps).tolist()
        images = [torch.from_numpy(random.normal(0, 1, (size, 6))).float() for size in sizes]
        labels = [torch.from_numpy(random.integers(0, 4, size)) for size in sizes]
        given.append({"spec": _SPEC, "state": state, "lr": lr, "batches": [images, labels]})
    found = ask.call("alone", given)
    found = [one if isinstance(one, dict) else {} for one in found] if isinstance(found, list) else []
    found += [{}] * (len(given) - len(found))
    counts = [sum(map(len, one["batches"][1])) for one in given]
    none = [(1.0, 1.0)] * steps
    plain = [_sgd(make, data, none) for data in given]
    right = [same_tensors(one.get("weights"), after, 1e-4) for one, after in zip(found, plain, strict=False)]
    private = [
        same_tensors(one.get("own"), after, 1e-4) and not ok
        for one, after, ok in zip(found, plain, right, strict=False)
    ]
    left = [
        same_tensors(one.get("weights"), _sgd(make, data, none, left=1.0), 1e-4)
        for one, data in zip(found, given, strict=False)
    ]
    counted = [is_int(one.get("samples"), count) for one, count in zip(found, counts, strict=False)]
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
    return {
        "steps": Finding(all(right) and all(counted), steps_told,
                         "train a linear layer on two batches, and do the second step by hand"),
        **_beside_others(ask, make, given[0], all(right)),
    }  # fmt: skip


def _beside_others(ask: Ask, make: Any, given: dict[str, Any], right: bool) -> Findings:
    look = "print something before and after `with lock:`, before the forward, and after the backward"
    adds = "let two processes add to one tensor under the lock, and compare with the sum"
    not_tried = Finding(False, "not tried: alone, or with the lock, it is not right yet", adds)
    if not right:
        return {"lock": Finding(False, "the steps are not right yet", look), "memory": not_tried}
    steps = len(given["batches"][0])
    # What others make of the weights: by so much that each order of events leaves other weights.
    turns = [
        tuple(float(x) for x in ask.random.choice([-1, 1], 2) * ask.random.uniform(0.2, 0.3, 2) + 1)
        for _ in range(steps)
    ]
    calls: list[str] = []

    def turn(which: int, name: str) -> float:
        calls.append(name)
        place = calls.count(name) - 1
        return turns[place][which] if place < steps else 1.0

    try:
        weights = ask.call(
            "together", given, {"enter": lambda rank: turn(0, "enter"), "exit": lambda rank: turn(1, "exit")}
        )
    except AnswerError as error:
        failed = Finding(False, str(error), error.remedy or look)
        return {"lock": failed, "memory": failed}

    def is_as_of(order: str) -> bool:
        return same_tensors(weights, _sgd(make, given, turns, order), 1e-4)

    once = calls == ["enter", "exit"] * steps
    written_back = once and is_as_of("read, enter, write, exit")
    together = once and is_as_of("read, enter, update, exit")
    why = (
        "a gradient was computed while the lock was held" if once and is_as_of("enter, read, update, exit")
        else "weights were changed while the lock was not held"
        if not calls or is_as_of("read, update, enter, exit") or is_as_of("read, enter, exit, update")
        else "the lock was not taken once for each batch" if not once
        else "the weights are not those of one update in each turn, with the gradient of before"
    )  # fmt: skip
    if not (together or written_back):
        return {"lock": Finding(False, why, look), "memory": not_tried}
    told = "both processes' updates are in the weights"
    lost = "of two processes' updates, made one after the other, not all are there"
    return {
        "lock": Finding(True, "once a batch, around the update alone", look),
        "memory": Finding(together, told if together else lost, adds),
    }


def _sgd(
    make: Any,
    data: dict[str, Any],
    turns: list[tuple[float, float]],
    order: str = "read, enter, update, exit",
    left: float = 0.0,
) -> list[torch.Tensor]:
    """The weights after all batches, where others multiply them by `turns` when the lock is entered and left.

    `left` is added to each number of the first gradient.
    """
    model = make(data["spec"], data["state"])
    parameters = list(model.parameters())
    gradients: list[torch.Tensor] = []
    before: list[torch.Tensor] = []
    for images, labels, factors in zip(*data["batches"], turns, strict=True):
        for event in order.split(", "):
            if event == "read":
                before = [parameter.detach().clone() for parameter in parameters]
                gradients = list(torch.autograd.grad(F.cross_entropy(model(images), labels), parameters))
            with torch.no_grad():
                for parameter, gradient, old in zip(parameters, gradients, before, strict=False):
                    if event in ("update", "write"):
                        start = old if event == "write" else parameter
                        parameter.copy_(start - data["lr"] * (gradient + left))
                if event in ("enter", "exit"):
                    for parameter in parameters:
                        parameter *= factors[event == "exit"]
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
    lr = float(random.uniform(0.1, 0.5))
    answers = ask.call("sparse", {"cases": cases, "lr": lr})
    answers = answers if isinstance(answers, list) and len(answers) == len(cases) else [None] * len(cases)
    right = {}
    for kind, answer, (weights, indices, labels) in zip(kinds, answers, cases, strict=True):
        answer = answer if isinstance(answer, dict) else {}
        after, mine = _sparse_step(weights, indices, labels, lr), answer.get("weights")
        shown = isinstance(mine, torch.Tensor) and mine.shape == after.shape
        chosen = indices.flatten() if kind == "hidden" else slice(None)
        right[kind] = shown and _is(answer.get("indices"), indices) and same_tensor(mine[chosen], after[chosen], 1e-8)
    step = right["apart"] and right["hidden"]
    repeated = right["apart"] and right["between"] and right["within"]
    memory = right["apart"] and _large(ask, lr)
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


def _is(value: Any, indices: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is indices.dtype and torch.equal(value, indices)


def _large(ask: Ask, lr: float) -> bool:
    """Whether a step is right on more weights than there is memory for: whoever goes through all of them never returns."""
    # A kernel that never promises more memory than it has does not lend it; what is then asked proves nothing.
    strict = Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
    features = 2**21 if strict else LARGE
    indices = torch.from_numpy(ask.random.choice(features, (4, 5), replace=False))
    values = torch.from_numpy(ask.random.normal(0, 1, (4, 5)))
    labels = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    given = {"features": features, "indices": indices, "labels": labels, "values": values, "lr": lr}
    try:
        found = ask.call("large", given)
    except AnswerError:
        return False
    except Exceeded as error:
        if error.kind not in ("memory", "time"):
            raise
        return False
    after = _sparse_step(values.flatten(), torch.arange(20).view(4, 5), labels, lr)
    return same_tensor(found, after.view(4, 5), 1e-8)


def _sparse_step(weights: torch.Tensor, indices: torch.Tensor, labels: torch.Tensor, lr: float) -> torch.Tensor:
    after = weights.clone()
    for row, label in zip(indices.tolist(), labels.tolist(), strict=True):
        error = 1 / (1 + math.exp(-sum(weights[feature].item() for feature in row))) - label
        for feature in row:
            after[feature] -= lr * error
    return after
