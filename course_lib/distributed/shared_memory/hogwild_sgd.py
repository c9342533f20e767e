"""SGD on a dense network by HogWild, at a fixed amount of work.

N processes divide the samples of every epoch; each sample is used once per epoch, for any N. (N processes that each
train on all samples do N times the work; then a constant time is no speed-up.)
"""

from __future__ import annotations

import contextlib
import copy
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from course_lib.distributed.shared_memory.hogwild import barrier, hogwild, shard_indices
from course_lib.distributed.shared_memory.lost_updates import LostUpdates, measure_lost_updates
from course_lib.distributed.shared_memory.tensors import share_memory

__all__ = ["SharedRun", "train_hogwild", "train_serial"]


@dataclass(frozen=True)
class SharedRun:
    """Measurements of a training in shared memory; the trained weights are in the caller's model.

    Attributes
    ----------
    seconds : float
        From the first worker's start to the last one's end, without the start of the processes. The workers start
        together, when each has made a first step on a copy.
    processor_seconds : float
        Of all workers together.
    samples : list of int
        Images that each worker trained on; they add up to epochs × images.
    lost : LostUpdates or None
        With ``count_lost``.
    """

    seconds: float
    processor_seconds: float
    samples: list[int]
    lost: LostUpdates | None = None


def train_serial(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, **options) -> SharedRun:
    """The same training in this process, one thread, no shared memory. Options as for `train_hogwild`."""
    return _train(model, images, labels, 0, False, **options)


def train_hogwild(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, processes: int, *, locked: bool = False, **options
) -> SharedRun:
    """Train `model` by SGD in `processes` processes that share its memory.

    Parameters
    ----------
    model : nn.Module
        On the CPU; moved to shared memory, and trained in place. Batch norm's running statistics are shared too, and
        written without a lock in every forward.
    images : Tensor ``(N, …)``, ready for the model; labels : Tensor ``(N,)``
        Moved to shared memory, so that no worker copies them.
    processes : int
    locked : bool
        One worker at a time applies its update. Gradients are computed outside the lock, on weights that others may
        change, also between forward and backward.

    Other Parameters
    ----------------
    epochs, batch_size : int
        A worker's last batch of an epoch may be smaller.
    lr : float
        w ← w − lr·∇, with the gradient of the batch's mean cross-entropy.
    decay : bool
        The learning rate falls linearly, from `lr` at a worker's first step to 0 after its last.
    seed : int
        The order of the samples. With more than one process the result differs from run to run all the same.
    count_lost : bool
        Measure lost updates. Each worker then sums its updates in float64, which takes time.
    timeout : float or None
        Seconds for `hogwild`.

    Raises
    ------
    ValueError
        More processes than images.
    And what `hogwild` raises.
    """
    return _train(model, images, labels, processes, locked, **options)


def _train(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    processes: int,  # 0: this one
    locked: bool,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    decay: bool = False,
    seed: int = 0,
    count_lost: bool = False,
    timeout: float | None = 1800.0,
) -> SharedRun:
    if processes > len(images):
        raise ValueError(f"{processes} processes cannot share {len(images)} images; use fewer processes")
    if epochs < 1 or batch_size < 1:
        raise ValueError(f"epochs and batch_size must be at least 1, got {epochs} and {batch_size}")
    before = _flat(model)
    ready = share_memory(torch.zeros(max(processes, 1), dtype=torch.uint8))
    work = _Work(max(processes, 1), epochs, batch_size, lr, decay, seed, count_lost, ready)
    if processes:
        arguments = (share_memory(images), share_memory(labels), work)
        reports = hogwild(_worker, model, processes, arguments, locked=locked, timeout=timeout)
    else:
        with _one_thread():
            reports = [_worker(model, 0, contextlib.nullcontext(), images, labels, work)]
    start = min(report.start for report in reports)
    lost = None
    if count_lost:
        sums, absolute_sums = [report.added for report in reports], [report.absolute for report in reports]
        lost = measure_lost_updates(before, _flat(model), sums, absolute_sums)
    return SharedRun(
        seconds=max(report.end for report in reports) - start,
        processor_seconds=sum(report.processor for report in reports),
        samples=[report.samples for report in reports],
        lost=lost,
    )


@dataclass(frozen=True)
class _Work:
    processes: int
    epochs: int
    batch_size: int
    lr: float
    decay: bool
    seed: int
    count_lost: bool
    ready: torch.Tensor


@dataclass
class _Report:
    start: float  # time.monotonic(), the same clock in all processes of a machine
    end: float = 0.0
    processor: float = 0.0
    samples: int = 0
    added: torch.Tensor | None = None
    absolute: float = 0.0


def _worker(
    model: nn.Module,
    rank: int,
    lock: contextlib.AbstractContextManager,
    images: torch.Tensor,
    labels: torch.Tensor,
    work: _Work,
) -> _Report:
    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    _first_step(model, images[: work.batch_size], labels[: work.batch_size])
    barrier(work.ready, rank)
    report, processor = _Report(start=time.monotonic()), time.process_time()
    if work.count_lost:
        report.added = torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=torch.float64)
    steps = work.epochs * -(-len(range(rank, len(images), work.processes)) // work.batch_size)
    step = 0
    for epoch in range(work.epochs):
        shard = shard_indices(len(images), work.processes, rank, epoch, work.seed)
        for batch in shard.split(work.batch_size):
            lr = work.lr * (1 - step / steps) if work.decay else work.lr
            step += 1
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            gradients = torch.autograd.grad(loss, parameters)
            with lock, torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.add_(gradient, alpha=-lr)
            report.samples += len(batch)
            if report.added is not None:
                update = -lr * torch.cat([gradient.flatten() for gradient in gradients]).double()
                report.added += update
                report.absolute += update.abs().sum().item()
    report.end = time.monotonic()
    report.processor = time.process_time() - processor
    return report


def _first_step(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Compute a gradient on a copy: a process's first step builds its kernels, which takes as long as many others."""
    with torch.random.fork_rng(devices=[]):
        spare = copy.deepcopy(model)
        F.cross_entropy(spare(images), labels).backward()


def _flat(model: nn.Module) -> torch.Tensor:
    """The trainable parameters' values as one vector, a copy."""
    trainable = [parameter.detach().flatten() for parameter in model.parameters() if parameter.requires_grad]
    return torch.cat(trainable)


@contextlib.contextmanager
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
