"""Hashed logistic regression: the sparse problem that HogWild is about (Niu et al. 2011, section 2).

A sample is a short text: a few words, hashed to a few of many features (Weinberger et al. 2009). Its gradient is
nonzero at those features only, so two processes at work on different samples seldom touch the same weight.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from course_lib.distributed.shared_memory.hogwild import barrier, hogwild, shard_indices
from course_lib.distributed.shared_memory.lost_updates import LostUpdates, measure_lost_updates
from course_lib.distributed.shared_memory.tensors import share_memory

__all__ = [
    "SparseData",
    "SparseRun",
    "dense_update",
    "evaluate_sparse",
    "make_sparse_data",
    "sparse_update",
    "train_sparse",
    "train_sparse_serial",
]


@dataclass(frozen=True)
class SparseData:
    """Samples that have the value 1 at a few features and 0 elsewhere.

    Attributes
    ----------
    indices : Tensor ``(N, active)``, int64
        The features of each sample. One that occurs twice has the value 2.
    labels : Tensor ``(N,)``, float64
        0 or 1.
    features : int
        How many there are.
    """

    indices: torch.Tensor
    labels: torch.Tensor
    features: int

    def __len__(self) -> int:
        return len(self.labels)

    def split(self, test: int) -> tuple[SparseData, SparseData]:
        """All but the last `test` samples, and those."""
        cut = len(self) - test
        return (
            SparseData(self.indices[:cut].clone(), self.labels[:cut].clone(), self.features),
            SparseData(self.indices[cut:].clone(), self.labels[cut:].clone(), self.features),
        )


def make_sparse_data(
    samples: int = 200_000,
    features: int = 2**18,
    active: int = 20,
    *,
    words: int = 50_000,
    skew: float = 0.5,
    seed: int = 0,
) -> SparseData:
    """Made-up texts with a label that their words decide, the same on every machine.

    Parameters
    ----------
    samples, features : int
    active : int
        Words in a sample.
    words : int
        Size of the vocabulary, which is hashed to the features: different words may collide.
    skew : float
        Word number t is drawn with probability about ∝ t^−skew, 0 ≤ skew < 1. 0: all alike. Text has about 1. The most
        frequent word is words^−(1 − skew) of all.
    seed : int

    Notes
    -----
    Each word has a weight drawn from a normal distribution; a text's label is 1 with probability σ(4·mean·√active) of its
    words' weights, so that about one label in eight is noise.
    """
    if not 0 <= skew < 1:
        raise ValueError(f"skew must be in 0 ≤ skew < 1, got {skew}")
    generator = np.random.default_rng(seed)
    word = (words * generator.random((samples, active)) ** (1 / (1 - skew))).astype(np.uint64)
    meaning = generator.standard_normal(words)
    margin = 4 * meaning[word].sum(axis=1) / np.sqrt(active)
    labels = generator.random(samples) < 1 / (1 + np.exp(-margin))
    indices = (_hash(word) % np.uint64(features)).astype(np.int64)
    return SparseData(torch.from_numpy(indices), torch.from_numpy(labels.astype(np.float64)), features)


def _hash(numbers: np.ndarray) -> np.ndarray:
    """64 bits of which each depends on every bit of the number: splitmix64's last step (Steele et al. 2014)."""
    numbers = (numbers ^ numbers >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ numbers >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return numbers ^ numbers >> np.uint64(31)


def dense_update(weights: torch.Tensor, indices: torch.Tensor, labels: torch.Tensor, lr: float) -> torch.Tensor:
    """The update of one mini-batch as a dense problem has it: ``(features,)``, for ``weights += update``.

    Right, and slow: nearly all of it is zeros. In a race it is worse than slow, for ``+=`` writes back what it read at
    coordinates that it does not change. Parameters as for `sparse_update`.
    """
    return torch.zeros_like(weights).index_add_(0, *sparse_update(weights, indices, labels, lr))


def sparse_update(
    weights: torch.Tensor, indices: torch.Tensor, labels: torch.Tensor, lr: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The update of one mini-batch: which weights change, and by how much.

    Parameters
    ----------
    weights : Tensor ``(features,)``, float64
        Only those of the batch's features are read.
    indices : Tensor ``(B, active)``; labels : Tensor ``(B,)``
    lr : float
        For a sample; the samples' updates are summed, not averaged.

    Returns
    -------
    coordinates : Tensor ``(B·active,)``, int64, with repetitions
    amounts : Tensor ``(B·active,)``
        −lr · (σ(x·w) − y), to be added with ``weights.index_add_(0, coordinates, amounts)``. (``weights[coordinates] +=
        amounts`` would add only one of several amounts for the same coordinate.)
    """
    coordinates = indices.reshape(-1)
    margins = weights.index_select(0, coordinates).view(indices.shape).sum(1)
    amounts = torch.sigmoid(margins).sub_(labels).mul_(-lr)
    return coordinates, amounts.repeat_interleave(indices.shape[1])


@torch.no_grad()
def evaluate_sparse(weights: torch.Tensor, data: SparseData) -> tuple[float, float]:
    """Mean logistic loss and accuracy."""
    margins = weights[data.indices].sum(1)
    loss = F.binary_cross_entropy_with_logits(margins, data.labels.to(margins.dtype))
    return loss.item(), ((margins > 0) == (data.labels > 0.5)).double().mean().item()


@dataclass(frozen=True)
class SparseRun:
    """A trained model and what the training took.

    Attributes
    ----------
    weights : Tensor ``(features,)``, float64
    seconds : float
        From the first worker's start to the last one's end; they start when all have computed a first update. Starting the
        processes is not in it.
    processor_seconds : float
        Of all workers together.
    samples : list of int
        Each worker's.
    lost : LostUpdates or None
        With ``count_lost``.
    """

    weights: torch.Tensor
    seconds: float
    processor_seconds: float
    samples: list[int]
    lost: LostUpdates | None = None


def train_sparse_serial(data: SparseData, **options: Any) -> SparseRun:
    """The same training in this process, one thread, no shared memory. Options as for `train_sparse`."""
    return _train(data, 0, False, **options)


def train_sparse(data: SparseData, processes: int, *, locked: bool = False, **options: Any) -> SparseRun:
    """Train by SGD from zero in `processes` processes on shared weights, each sample once per epoch.

    Parameters
    ----------
    data : SparseData
        Moved to shared memory, so that no worker copies it.
    processes : int
    locked : bool
        One worker at a time adds its update; the update is computed outside the lock.

    Other Parameters
    ----------------
    epochs, batch_size : int
    lr : float
    seed : int
        Order of the samples.
    dense : bool
        Update by `dense_update`.
    count_lost : bool
        Measure lost updates, which takes time.
    timeout : float or None
        Seconds for `hogwild`, whose errors it raises.
    """
    return _train(data, processes, locked, **options)


@dataclass(frozen=True)
class _Options:
    epochs: int = 1
    batch_size: int = 64
    lr: float = 0.1
    seed: int = 0
    dense: bool = False
    count_lost: bool = False


def _train(
    data: SparseData, processes: int, locked: bool, timeout: float | None = 1800.0, **settings: Any
) -> SparseRun:
    """Train in so many processes; 0: in this one."""
    options = _Options(**settings)
    if processes > len(data):
        raise ValueError(f"{processes} processes cannot share {len(data)} samples; use fewer processes")
    if options.epochs < 1 or options.batch_size < 1:
        raise ValueError(f"epochs and batch_size must be at least 1, got {options.epochs} and {options.batch_size}")
    weights = torch.zeros(data.features, dtype=torch.float64)
    ready = share_memory(torch.zeros(max(processes, 1), dtype=torch.uint8))
    if processes:
        share_memory(data.indices)
        share_memory(data.labels)
        reports = hogwild(_worker, weights, processes, (data, ready, options), locked=locked, timeout=timeout)
    else:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            reports = [_worker(weights, 0, contextlib.nullcontext(), data, ready, options)]
        finally:
            torch.set_num_threads(threads)
    starts, ends, processor, samples, added, absolute = zip(*reports, strict=True)
    return SparseRun(
        weights=weights.clone(),
        seconds=max(ends) - min(starts),
        processor_seconds=sum(processor),
        samples=list(samples),
        lost=measure_lost_updates(torch.zeros_like(weights), weights, added, absolute) if options.count_lost else None,
    )


def _worker(
    weights: torch.Tensor,
    rank: int,
    lock: contextlib.AbstractContextManager,
    data: SparseData,
    ready: torch.Tensor,
    options: _Options,
) -> tuple[float, float, float, int, torch.Tensor | None, float]:
    added = torch.zeros_like(weights) if options.count_lost else None
    absolute, samples = 0.0, 0
    batch_size, lr, dense = options.batch_size, options.lr, options.dense
    spare = (dense_update if dense else sparse_update)(weights, data.indices[:batch_size], data.labels[:batch_size], lr)
    if not dense:
        weights.clone().index_add_(0, *spare)
    barrier(ready, rank)
    start, processor = time.monotonic(), time.process_time()
    for epoch in range(options.epochs):
        mine = shard_indices(len(data), len(ready), rank, epoch, options.seed)
        # Gathered at once: row by row in random order, the data's pages are looked up again for every batch.
        batches = zip(data.indices[mine].split(batch_size), data.labels[mine].split(batch_size), strict=True)
        for indices, labels in batches:
            if dense:
                amounts = dense_update(weights, indices, labels, lr)
                with lock:
                    weights += amounts
            else:
                coordinates, amounts = sparse_update(weights, indices, labels, lr)
                with lock:
                    weights.index_add_(0, coordinates, amounts)
            samples += len(labels)
            if added is not None:
                added = added + amounts if dense else added.index_add_(0, coordinates, amounts)
                absolute += amounts.abs().sum().item()
    end = time.monotonic()
    return start, end, time.process_time() - processor, samples, added, absolute
