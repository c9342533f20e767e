"""Parallel SGD (Zinkevich et al. 2010; the parallel SGD lab) and its cure, local SGD.

Each of P workers trains its own copy of the model on its own shard of the data, without communication. At the end the
parameters are averaged once. For a convex loss that is sound. A network's loss is not convex: the average of two good
networks may be a bad one. Averaging every H steps, *local SGD*, keeps the copies close enough to be averaged.

The workers may be ranks of an MPI communicator or of torch.distributed: see `parameter_averaging`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from course_lib.data.batches import Batches, Split
from course_lib.distributed.local_sgd.parameter_averaging import Peers, average_parameters

__all__ = [
    "WorkerReport",
    "critical_path",
    "make_shards",
    "parallel_sgd",
    "worker_batches",
]


def make_shards(samples: int, workers: int, *, seed: int = 0, labels: torch.Tensor | None = None) -> list[torch.Tensor]:
    """Indices ``int64`` of each worker's shard: disjoint, together all samples, sizes that differ by at most 1.

    Parameters
    ----------
    seed : int
        Of the permutation that is dealt to the workers in turn (Algorithm 3's random partition).
    labels : Tensor ``(samples,)``, optional
        Sort the samples by label and cut them into contiguous shards, as unshuffled data are; each worker sees only a
        few classes.

    Raises
    ------
    ValueError
        More workers than samples.
    """
    if not 1 <= workers <= samples:
        raise ValueError(
            f"{workers} workers cannot share {samples} samples: take at most {samples} workers, or more samples"
        )
    if labels is not None:
        return [shard.clone() for shard in torch.argsort(labels, stable=True).tensor_split(workers)]
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
    return [order[rank::workers].clone() for rank in range(workers)]


def worker_batches(
    peers: Peers,
    split: Split,
    batch_size: int,
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    seed: int = 0,
    by_label: bool = False,
    device: torch.device | str = "cpu",
) -> Batches:
    """Batches of this worker's shard of `split`, in an order of its own, new in each epoch.

    A shard smaller than `batch_size` is one batch. An incomplete last batch of a larger one is left out; each epoch
    leaves out other samples. Raises as `make_shards` does.
    """
    mine = make_shards(len(split), peers.size, seed=seed, labels=split.labels if by_label else None)[peers.rank]
    shard = Split(split.images[mine], split.labels[mine])
    order = (seed * 1_000_003 + peers.rank) * 1_000  # epochs are added to it: workers' orders differ, and so do epochs'
    return Batches(shard, min(batch_size, len(shard)), device, mean=mean, std=std, shuffle=True, seed=order)


@dataclass(frozen=True)
class WorkerReport:
    """What one worker did.

    Attributes
    ----------
    steps, samples : int
        Batches and samples trained on, all epochs.
    seconds : float
        Wall-clock time from the common start to the end, without the `after_epoch` calls.
    compute : tuple of float
        Processor seconds of training in each round; a round ends with an averaging.
    averaging : tuple of float
        Wall-clock time of each averaging, including the wait for other workers.
    bytes_averaged : int
        Payload of this worker's averagings.
    """

    rank: int
    steps: int
    samples: int
    seconds: float
    compute: tuple[float, ...]
    averaging: tuple[float, ...]
    bytes_averaged: int


def parallel_sgd(
    peers: Peers,
    model: nn.Module,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    optimizer: torch.optim.Optimizer,
    *,
    epochs: int,
    average_every: int = 0,
    weight: float = 1.0,
    loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    after_epoch: Callable[[int, nn.Module], None] | None = None,
) -> WorkerReport:
    """Train this worker's model on its batches; average it with the other workers' at the end, or every H steps.

    All workers call it. Afterwards all have the same model.

    Parameters
    ----------
    batches
        A sized iterable, such as `worker_batches`; ``set_epoch`` is called where there is one. Lengths may differ: a
        worker that has fewer batches waits for the others' at each averaging.
    epochs : int
        At least 1.
    average_every : int
        H, steps between two averagings; 0: once, at the end (Zinkevich et al., Algorithm 3). With 1, plain SGD and
        equal batches this is synchronous SGD.
    weight : float
        This worker's weight in the averages: see `average_parameters`.
    after_epoch : callable, optional
        ``after_epoch(epoch, average)``, epochs from 1, on every worker, with a copy of the model that holds the current
        average of all workers. Training continues from the worker's own weights. Its time is not counted.

    Raises
    ------
    ValueError
        ``epochs`` below 1, ``average_every`` below 0, no batches; on every worker.
    """
    steps_an_epoch = max(peers.gather(len(batches)))
    if epochs < 1 or average_every < 0 or steps_an_epoch < 1:
        raise ValueError(
            f"nothing to do: {epochs} epochs, averaging every {average_every} steps, {steps_an_epoch} batches"
        )
    loss_fn = loss_fn or nn.functional.cross_entropy
    state = model.state_dict().values()
    payload = sum(tensor.numel() for tensor in state) * (
        8 if torch.float64 in {tensor.dtype for tensor in state} else 4
    )
    steps = samples = done = 0
    seconds, computing = 0.0, 0.0
    compute: list[float] = []
    averaging: list[float] = []

    def average() -> None:
        nonlocal computing, seconds
        begin = time.perf_counter()
        average_parameters(peers, model, weight)
        averaging.append(time.perf_counter() - begin)
        compute.append(computing)
        seconds, computing = seconds + averaging[-1], 0.0

    peers.barrier()
    for epoch in range(1, epochs + 1):
        if hasattr(batches, "set_epoch"):
            batches.set_epoch(epoch - 1)
        model.train()
        mine = iter(batches)
        for step in range(steps_an_epoch):
            wall, cpu = time.perf_counter(), time.process_time()
            batch = next(mine, None)
            if batch is not None:
                images, labels = batch
                optimizer.zero_grad()
                loss_fn(model(images), labels).backward()
                optimizer.step()
                steps, samples = steps + 1, samples + len(labels)
            done += 1
            computing += time.process_time() - cpu
            seconds += time.perf_counter() - wall
            last = epoch == epochs and step == steps_an_epoch - 1
            if last or (average_every and done % average_every == 0):
                average()
        if after_epoch is not None:
            snapshot = copy.deepcopy(model)
            average_parameters(peers, snapshot, weight)
            after_epoch(epoch, snapshot)
            peers.barrier()  # the next epoch's clock starts together
    return WorkerReport(peers.rank, steps, samples, seconds, tuple(compute), tuple(averaging), payload * len(averaging))


def critical_path(reports: Sequence[WorkerReport]) -> float:
    """Estimate the seconds that the run takes if every worker has a core of its own.

    A round takes the slowest worker's processor time plus the averaging. The last worker to arrive does not wait, so
    the shortest of the workers' averaging times is the averaging's own. If workers share cores, the wall-clock time,
    the largest of their ``seconds``, is longer.
    """
    rounds = zip(*(zip(report.compute, report.averaging, strict=True) for report in reports), strict=True)
    return sum(max(cpu for cpu, _ in each) + min(averaging for _, averaging in each) for each in rounds)
