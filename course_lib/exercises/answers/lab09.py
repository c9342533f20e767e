"""Lab 09's answers, right and wrong."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from torch.nn import functional as F

from course_lib.exercises.description import Answers, Mistake

__all__ = ["ANSWERS"]


def _apart(k, n):
    """Probability that two updates have no feature in common."""
    return math.comb(n - k, k) / math.comb(n, k)


collision = Answers(
    (lambda k, n, p: 1 - _apart(k, n) ** (p - 1),),
    {
        "the misses": Mistake("that is the probability that nothing is shared; the collision is the other case",
            lambda k, n, p: _apart(k, n) ** (p - 1)),
        "alone": Mistake("alone there is nobody to collide with: the probability is 0",
            lambda k, n, p: 1 - _apart(k, n) ** max(1, p - 1)),
        "one other": Mistake("that is for one other process; none of the others may meet yours",
            lambda k, n, p: 1 - _apart(k, n)),
        "itself too": Mistake("count the other processes only: an update does not collide with itself",
            lambda k, n, p: 1 - _apart(k, n) ** p),
        "the sum": Mistake("adding probabilities counts double meetings twice: multiply those of not meeting",
            lambda k, n, p: (p - 1) * (1 - _apart(k, n))),
        "the sum up to 1": Mistake("adding probabilities counts double meetings twice: multiply those of not meeting",
            lambda k, n, p: min(1.0, (p - 1) * (1 - _apart(k, n)))),
        "one feature": Mistake("that is for one of your features; any of your nonzeros may be the one that is shared",
            lambda k, n, p: k / n),
        "k²/n": Mistake("k²/n is the approximation for sparse updates; take the product over the features",
            lambda k, n, p: min(1.0, k * k / n * (p - 1))),
        "with replacement": Mistake("the other's features are distinct: each one that missed leaves one place fewer to "
            "miss, (n − k)/n, then (n − k − 1)/(n − 1), …", lambda k, n, p: 1 - (1 - k / n) ** (k * (p - 1))),
        "per cent": Mistake("a probability lies in 0…1", lambda k, n, p: 100 * (1 - _apart(k, n) ** (p - 1))),
    },
)  # fmt: skip


def _sparse(factor=lambda margins, labels: margins.sigmoid() - labels, scale=lambda lr, labels: -lr, write=None):
    def step(weights, indices, labels, lr):
        amounts = scale(lr, labels) * factor(weights[indices].sum(1), labels)
        spread = indices.flatten(), amounts.repeat_interleave(indices.shape[1])
        weights.index_add_(0, *spread) if write is None else write(weights, *spread)

    return step


def _lost(weights, indices, amounts):
    weights[indices] += amounts


def _dense_write(weights, indices, amounts):
    weights += torch.zeros_like(weights).index_add_(0, indices, amounts)


def _copy_back(weights, indices, amounts):
    weights[:] = weights.clone().index_add_(0, indices, amounts)


def _dense_margins(weights, indices, labels, lr):
    ones = torch.ones_like(indices, dtype=weights.dtype)
    margins = torch.zeros(len(labels), len(weights), dtype=weights.dtype).scatter_add_(1, indices, ones) @ weights
    amounts = -lr * (margins.sigmoid() - labels)
    weights.index_add_(0, indices.flatten(), amounts.repeat_interleave(indices.shape[1]))


def _in_turn(weights, indices, labels, lr):
    for features, label in zip(indices, labels, strict=True):
        _sparse()(weights, features[None], label[None], lr)


def _changed_indices(weights, indices, labels, lr):
    _sparse()(weights, indices, labels, lr)
    indices += 1


sparse = Answers(
    (_sparse(),),
    {
        "repeats lost": Mistake("repeated features got only one of their updates: weights[indices] += … reads them all "
            "first and writes one of the sums, a lost update inside one process; use index_add_", _sparse(write=_lost)),
        "unchanged": Mistake("the weights did not change: change those that were given, in place", lambda *_: None),
        "upwards": Mistake("it goes up: subtract lr · (σ(margin) − label)", _sparse(scale=lambda lr, y: lr)),
        "no rate": Mistake("the learning rate is missing", _sparse(scale=lambda lr, y: -1.0)),
        "the mean": Mistake("that is the mean over the batch; the samples' updates are added",
            _sparse(scale=lambda lr, y: -lr / len(y))),
        "no sigmoid": Mistake("the margin must go through the sigmoid", _sparse(lambda m, y: m - y)),
        "signs": Mistake("labels are 0 and 1, not −1 and 1", _sparse(lambda m, y: m.sigmoid() - (2 * y - 1))),
        "no label": Mistake("the label is missing", _sparse(lambda m, y: m.sigmoid())),
        "in turn": Mistake("later samples saw the earlier ones' updates: take all margins from the weights as they were",
            _in_turn),
        "indices changed": Mistake("the indices were changed; they are the data, which the next epoch needs",
            _changed_indices),
        "dense margins": Mistake("weights of features that no sample has enter the result: 0 · w is computed for all "
            "of them. The margin of a sample is the sum of its own weights, weights[indices].sum(1)", _dense_margins),
        "dense writing": Mistake("the update goes over all weights", _sparse(write=_dense_write)),
        "copied back": Mistake("all weights are written back", _sparse(write=_copy_back)),
    },
)  # fmt: skip


def _time(curve, target):
    return next((seconds for seconds, _, accuracy in curve if accuracy >= target), None)


def _rates(serial, other):
    return (other[1] / other[0]) / (serial[1] / serial[0])


def _never_none(first, second):
    return None if first is None or second is None else first / second


def _speed_up(rate=_rates, timed=_never_none, pair=True):
    def speed_up(serial, other, target):
        found = rate(serial[-1], other[-1]), timed(_time(serial, target), _time(other, target))
        return found if pair else found[0]

    return speed_up


def _interpolated(curve, target):
    return float(np.interp(target, [accuracy for *_, accuracy in curve], [seconds for seconds, *_ in curve]))


_UNSEEN = "where no point reaches the target the answer is None: a number would claim an accuracy that was never seen"
_EITHER = "where either run never reaches the target, the speed-up of time to accuracy is None"

reading = Answers(
    (_time, _speed_up()),
    {
        "above the target": Mistake("an accuracy equal to the target counts",
            lambda curve, target: next((t for t, _, a in curve if a > target), None), None),
        "the last such point": Mistake("that is the last such point; the target was reached before",
            lambda curve, target: next((t for t, _, a in reversed(curve) if a >= target), None), None),
        "the last time": Mistake(_UNSEEN,
            lambda curve, target: next((t for t, _, a in curve if a >= target), curve[-1][0]), None),
        "infinity for never": Mistake(_UNSEEN,
            lambda curve, target: next((t for t, _, a in curve if a >= target), math.inf), None),
        "interpolated": Mistake("between two points nothing was measured: no interpolation", _interpolated, None),
        "ratio of seconds": Mistake("a ratio of seconds holds for equal work only; divide samples per second by "
            "samples per second", None, _speed_up(lambda serial, other: serial[0] / other[0])),
        "turned rate": Mistake("it is turned: faster than the serial run is more than 1",
            None, _speed_up(lambda serial, other: 1 / _rates(serial, other))),
        "turned": Mistake("it is turned: faster than the serial run is more than 1",
            None, _speed_up(timed=lambda a, b: None if a is None or b is None else b / a)),
        "zero for never": Mistake(_EITHER, None, _speed_up(timed=lambda a, b: (a or 0) / (b or 1))),
        "the serial run never": Mistake(_EITHER,
            None, _speed_up(timed=lambda a, b: None if b is None else (a or b) / b)),
        "stopped at None": Mistake(f"your function stopped there: {_EITHER}",
            None, _speed_up(timed=lambda a, b: a / b)),
        "no pair": Mistake("return the pair (throughput, time to accuracy)", None, _speed_up(pair=False)),
    },
)  # fmt: skip


def _sgd(
    clear="before",
    reduction="mean",
    step=lambda lr, gradient: -lr * gradient,
    memory="in place",
    count=len,
    order="gradient, lock, update, unlock",
):
    """A training loop in which `order` says what happens for each batch."""

    def train(model, batches, lr, lock):
        samples, before = 0, []
        if memory == "a copy":
            model = copy.deepcopy(model)
        parameters = list(model.parameters())
        if clear == "first":
            model.zero_grad()
        for images, labels in batches:
            for event in order.split(", "):
                if event == "gradient":
                    if clear == "before":
                        model.zero_grad()
                    F.cross_entropy(model(images), labels, reduction=reduction).backward()
                    before = [parameter.detach().clone() for parameter in parameters]
                elif event == "lock":
                    lock.__enter__()
                elif event == "unlock":
                    lock.__exit__(None, None, None)
                else:
                    for parameter, old in zip(parameters, before, strict=True):
                        if event == "update one by one":
                            lock.__enter__()
                        with torch.no_grad():
                            moved = step(lr, parameter.grad)
                            if memory == "its own":
                                parameter.data = parameter.data + moved
                            elif event == "write back":
                                parameter.copy_(old + moved)
                            else:
                                parameter += moved
                        if event == "update one by one":
                            lock.__exit__(None, None, None)
            if clear == "after":
                model.zero_grad()
            samples += count(labels)
        return samples

    return train


_BEFORE = "weights were changed while the lock was not held; the locked variant then loses updates like the other"

loop = Answers(
    (_sgd(),),
    {
        "accumulates": Mistake("gradients of earlier batches are still in .grad, and add up: clear them before each "
            "backward", _sgd("first")),
        "cleared after the step": Mistake("the gradient that the model came with went into the first step: clear "
            "before the first backward", _sgd("after")),
        "gradients add up": Mistake("the gradient that the model came with and those of earlier batches are still in "
            ".grad, and add up: clear them before each backward", _sgd("never")),
        "summed loss": Mistake("that is the gradient of the summed loss: take the mean over the batch, which is "
            "cross_entropy's default", _sgd(reduction="sum")),
        "upwards": Mistake("the weights went up the gradient: subtract it", _sgd(step=lambda lr, g: lr * g)),
        "no rate": Mistake("the learning rate is missing", _sgd(step=lambda lr, g: -g)),
        "tensors of its own": Mistake("the memory that was given still holds other weights: the model has tensors of "
            "its own now. parameter.data = … makes new ones; change it in place, parameter -= … under torch.no_grad()",
            _sgd(memory="its own")),
        "a copy": Mistake("the weights did not change: is it the model that was given which is trained, or a copy of "
            "it?", _sgd(memory="a copy")),
        "counts batches": Mistake("count the labels of each batch, not the batches", _sgd(count=lambda labels: 1)),
        "a tensor of samples": Mistake("return the number of samples as an int: int(…) makes one of a tensor or a float",
            _sgd(count=lambda labels: torch.tensor(len(labels)))),
        "a float of samples": Mistake("return the number of samples as an int: int(…) makes one of a tensor or a float",
            _sgd(count=lambda labels: float(len(labels)))),
        "gradient inside": Mistake("a gradient was computed while the lock was held: then the processes take turns, "
            "and two are no faster than one. Take the lock for the update only",
            _sgd(order="lock, gradient, update, unlock")),
        "no lock": Mistake("the lock was never taken: weights were changed while it was not held; put the update into "
            "`with lock:`", _sgd(order="gradient, update")),
        "before the lock": Mistake(_BEFORE, _sgd(order="gradient, update, lock, unlock")),
        "after the lock": Mistake(_BEFORE, _sgd(order="gradient, lock, unlock, update")),
        "a lock each": Mistake("the lock was taken for each parameter: take it once a batch, around the update of all "
            "parameters", _sgd(order="gradient, update one by one")),
        "writes back": Mistake("what another process did while yours waited for the lock is gone: subtract from what "
            "stands there now (parameter -= …), do not write back what you had read before",
            _sgd(order="gradient, lock, write back, unlock")),
    },
)  # fmt: skip

ANSWERS = {"share": Answers(), "loop": loop, "sparse": sparse, "collision": collision, "reading": reading}
