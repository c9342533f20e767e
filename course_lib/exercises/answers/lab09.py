"""Lab 09's answers, right and wrong."""

from __future__ import annotations

import contextlib
import copy
import math
import statistics

import torch
from torch.nn import functional as F

from course_lib.exercises.description import Answers, Mistake

__all__ = ["ANSWERS"]


def _sparsity(omega=None, delta=None, rho=None):
    """A function whose three numbers are those of the functions given of (texts × words in use, 0 or 1), or right."""

    def sparsity(indices):
        places = torch.unique(indices, return_inverse=True)[1]
        has = torch.zeros(len(indices), int(places.max()) + 1, dtype=torch.float64).scatter_(1, places, 1.0)
        together = (has @ has.T > 0).double()
        return (
            omega(indices, has) if omega else int(has.sum(1).max()),
            delta(indices, has) if delta else has.mean(0).max().item(),
            rho(together) if rho else together.mean(1).max().item(),
        )

    return sparsity


sparsity = Answers(
    (_sparsity(),),
    {
        "words": Mistake("Ω counts a word twice that a text has twice: count distinct features",
            _sparsity(omega=lambda indices, has: indices.shape[1])),
        "mean text": Mistake("Ω is the most features of one text, not the mean", _sparsity(omega=lambda _, has: has.sum(1).mean())),
        "all features": Mistake("Ω is of one text, not of all texts together", _sparsity(omega=lambda _, has: has.shape[1])),
        "occurrences": Mistake("Δ counts texts: one that has a word twice counts once",
            _sparsity(delta=lambda indices, has: (indices.unique(return_counts=True)[1].max() / len(indices)).item())),
        "number of texts": Mistake("Δ is a share of the texts, in 0…1", _sparsity(delta=lambda _, has: has.sum(0).max().item())),
        "mean feature": Mistake("Δ is of the most frequent feature, not the mean over the features",
            _sparsity(delta=lambda _, has: has.mean().item())),
        "not itself": Mistake("the paper counts a text among those that it collides with",
            _sparsity(rho=lambda both: (both.sum(1).max().item() - 1) / len(both))),
        "among the others": Mistake("the paper counts a text among those that it collides with, and divides by all texts",
            _sparsity(rho=lambda both: (both.sum(1).max().item() - 1) / (len(both) - 1))),
        "mean collision": Mistake("ρ is of the text that collides with the most texts; that is the mean over all pairs",
            _sparsity(rho=lambda both: both.mean().item())),
        "collisions": Mistake("ρ is a share of the texts, in 0…1", _sparsity(rho=lambda both: both.sum(1).max().item())),
    },
)  # fmt: skip


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
        "one other": Mistake("that is for one other process; none of the others may collide with yours",
            lambda k, n, p: 1 - _apart(k, n)),
        "itself too": Mistake("count the other processes only: an update does not collide with itself",
            lambda k, n, p: 1 - _apart(k, n) ** p),
        "the sum": Mistake("adding probabilities counts double collisions twice: multiply those of missing each other",
            lambda k, n, p: (p - 1) * (1 - _apart(k, n))),
        "the sum up to 1": Mistake("adding probabilities counts double collisions twice: multiply those of missing each other",
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


_BEFORE = "weights were changed while the lock was not held; the locked variant then loses updates like the other"
_INSIDE = (
    "a gradient was computed while the lock was held: then the processes take turns, and two are no faster than one. Take the "
    "lock for the update only"
)
_NEVER = "the lock was never taken: weights were changed while it was not held; put the update into `with lock:`"
_BACK = (
    "what another process did while yours waited for the lock is gone: add to the weights as they are now, do not write back "
    "what you had read before"
)


def _sparse(factor=lambda margins, labels: margins.sigmoid() - labels, scale=lambda lr, labels: -lr, write=None,
            order="gradient, lock, update, unlock"):  # fmt: skip
    """A step in which `order` says what happens when."""

    def step(weights, batch, lr, lock):
        (indices, labels), spread, before = batch, (), None
        for event in order.split(", "):
            if event == "gradient":
                amounts = scale(lr, labels) * factor(weights[indices].sum(1), labels)
                spread, before = (
                    (indices.flatten(), amounts.repeat_interleave(indices.shape[1])),
                    weights[indices.flatten()],
                )
            elif event == "lock":
                lock.__enter__()
            elif event == "unlock":
                lock.__exit__(None, None, None)
            elif event == "write back":
                weights[spread[0]] = before + spread[1]
            elif write is None:
                weights.index_add_(0, *spread)
            else:
                write(weights, *spread)

    return step


def _lost(weights, indices, amounts):
    weights[indices] += amounts


def _dense_write(weights, indices, amounts):
    weights += torch.zeros_like(weights).index_add_(0, indices, amounts)


def _copy_back(weights, indices, amounts):
    weights[:] = weights.clone().index_add_(0, indices, amounts)


def _dense_margins(weights, batch, lr, lock):
    indices, labels = batch
    ones = torch.ones_like(indices, dtype=weights.dtype)
    margins = torch.zeros(len(labels), len(weights), dtype=weights.dtype).scatter_add_(1, indices, ones) @ weights
    amounts = -lr * (margins.sigmoid() - labels)
    with lock:
        weights.index_add_(0, indices.flatten(), amounts.repeat_interleave(indices.shape[1]))


def _in_turn(weights, batch, lr, lock):
    with lock:
        for features, label in zip(*batch, strict=True):
            _sparse()(weights, (features[None], label[None]), lr, contextlib.nullcontext())


def _changed_indices(weights, batch, lr, lock):
    _sparse()(weights, batch, lr, lock)
    batch[0].add_(1)


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
        "sparse gradient inside": Mistake(_INSIDE, _sparse(order="lock, gradient, update, unlock")),
        "sparse no lock": Mistake(_NEVER, _sparse(order="gradient, update")),
        "sparse before the lock": Mistake(_BEFORE, _sparse(order="gradient, update, lock, unlock")),
        "sparse after the lock": Mistake(_BEFORE, _sparse(order="gradient, lock, unlock, update")),
        "sparse writes back": Mistake(_BACK, _sparse(order="gradient, lock, write back, unlock")),
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


def _sgd(
    clear="before",
    reduction="mean",
    step=lambda lr, gradient: -lr * gradient,
    memory="in place",
    order="gradient, lock, update, unlock",
):
    """A step of SGD in which `order` says what happens when."""

    def train(model, batch, lr, lock):
        images, labels = batch
        if memory == "a copy":
            model = copy.deepcopy(model)
        parameters, before = list(model.parameters()), []
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

    return train


network = Answers(
    (_sgd(),),
    {
        "cleared after the step": Mistake("the gradient that the model came with went into the first step: clear "
            "before the backward", _sgd("after")),
        "gradients add up": Mistake("the gradient that the model came with and those of earlier batches are still in "
            ".grad, and add up: clear them before each backward", _sgd("never")),
        "summed loss": Mistake("that is the gradient of the summed loss: take the mean over the batch, which is "
            "cross_entropy's default", _sgd(reduction="sum")),
        "network upwards": Mistake("the weights went up the gradient: subtract it", _sgd(step=lambda lr, g: lr * g)),
        "network no rate": Mistake("the learning rate is missing", _sgd(step=lambda lr, g: -g)),
        "tensors of its own": Mistake("the memory that was given still holds other weights: the model has tensors of "
            "its own now. parameter.data = … makes new ones; change it in place, parameter -= … under torch.no_grad()",
            _sgd(memory="its own")),
        "a copy": Mistake("the weights did not change: is it the model that was given which is trained, or a copy of "
            "it?", _sgd(memory="a copy")),
        "gradient inside": Mistake(_INSIDE, _sgd(order="lock, gradient, update, unlock")),
        "no lock": Mistake(_NEVER, _sgd(order="gradient, update")),
        "before the lock": Mistake(_BEFORE, _sgd(order="gradient, update, lock, unlock")),
        "after the lock": Mistake(_BEFORE, _sgd(order="gradient, lock, unlock, update")),
        "a lock each": Mistake("the lock was taken for each parameter: take it once a batch, around the update of all "
            "parameters", _sgd(order="gradient, update one by one")),
        "writes back": Mistake(_BACK, _sgd(order="gradient, lock, write back, unlock")),
    },
)  # fmt: skip


def _speedups(
    middle=statistics.median, baseline=statistics.median, ratio=lambda alone, each: alone / each, spread=None
):
    def speedups(train_once, counts, runs):
        seconds = {count: [] for count in counts}
        for run in range(runs):
            for count in counts:
                seconds[count].append(train_once(count, run))
        alone, found = baseline(seconds[1]), {}
        for count, some in seconds.items():
            every = [ratio(alone, each) for each in some]
            found[count] = middle(every), *(spread(every) if spread else (min(every), max(every)))
        return found

    return speedups


speedup = Answers(
    (_speedups(),),
    {
        "means": Mistake("that is the mean: one disturbed run moves it; take the median", _speedups(middle=statistics.fmean)),
        "best": Mistake("that is the best run: take the median", _speedups(middle=max)),
        "mean baseline": Mistake("the baseline is the mean of one process's runs: take the median",
            _speedups(baseline=statistics.fmean)),
        "slowest baseline": Mistake("the baseline is one process's slowest run: take the median", _speedups(baseline=max)),
        "first baseline": Mistake("the baseline is one process's first run: take the median of all",
            _speedups(baseline=lambda some: some[0])),
        "turned over": Mistake("it is turned: faster than one process is more than 1",
            _speedups(ratio=lambda alone, each: each / alone)),
        "highest first": Mistake("the lowest comes before the highest", _speedups(spread=lambda every: (max(every), min(every)))),
        "distance": Mistake("that is half the distance between them, not the lowest and the highest speed-up",
            _speedups(spread=lambda every: [(max(every) - min(every)) / 2] * 2)),
    },
)  # fmt: skip

# The judges of the worker and of the program need no reference.
ANSWERS = {
    "sparsity": sparsity, "collision": collision, "sparse": sparse, "network": network, "worker": Answers(), "program": Answers(),
    "speedup": speedup,
}  # fmt: skip
