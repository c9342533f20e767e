"""HogWild: processes that train one model in shared memory, without locks (Niu et al. 2011).

Each process reads the weights while others write them, and adds its update without synchronisation. An update is lost
when two processes read the same number before either has written it back. The paper's proof does not cover that: it
assumes atomic additions to single components, sparse updates and a strongly convex loss, and bounds the cost of stale
reads. Lost updates are measured (`lost_updates`, `SharedRun.lost`). They are few, because two processes seldom write
the same weight at the same moment.

The weights may also change between a gradient's forward and its backward. Autograd keeps a reference to a shared
weight, not a copy, and does not notice another process's writes. Such a gradient belongs to no single point, with or
without a lock around the updates.

The processes come from `launch` and its fork server. torch.multiprocessing's ``spawn`` cannot send a function of a
notebook; a plain fork of a process that has used OpenMP threads or a GPU hangs.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from course_lib.distributed.launching.launch import launch
from course_lib.distributed.shared_memory.tensors import FileLock, pack_shared, share_memory

__all__ = ["barrier", "hogwild", "shard_indices"]


def hogwild(
    worker: Callable[..., Any],
    model: nn.Module | torch.Tensor,
    processes: int,
    args: Sequence[Any] = (),
    *,
    locked: bool = False,
    timeout: float | None = 1800.0,
) -> list[Any]:
    """Run ``worker(model, rank, lock, *args)`` in `processes` processes that share the model's memory.

    ::

        def worker(model, rank, lock, images, labels, processes):
            for batch in shard_indices(len(images), processes, rank).split(32):
                loss = cross_entropy(model(images[batch]), labels[batch])
                model.zero_grad()
                loss.backward()
                with lock:
                    for parameter in model.parameters():
                        parameter.data -= 0.1 * parameter.grad

        hogwild(worker, model, 2, (images, labels, 2))

    Parameters
    ----------
    worker : callable
        May be defined in a notebook cell. The workers start together, once all have the model; each has one thread.
    model : nn.Module or Tensor
        On the CPU. Its parameters and buffers are moved to shared memory and stay there, so that the caller's model is
        trained. Each worker has its own gradients.
    processes : int
        At least 1. The caller divides the work: see `shard_indices`.
    args : sequence
        The workers' further arguments. Tensors after ``share_memory_()`` are shared, everything else is copied.
    locked : bool
        `lock` admits one process at a time into ``with lock:``. Without it, `lock` is a context manager that does
        nothing, so that the same worker can be used for both.
    timeout : float or None
        As for `launch`.

    Returns
    -------
    list
        What the workers returned, in order of rank. Tensors are copies.

    Raises
    ------
    RankFailedError, LaunchTimeoutError
        As for `launch`: a worker raised or was killed, or the workers took too long. No worker is left
        running, and a killed worker's lock is free again.
    ValueError
        `processes` below 1, or a model that is not on the CPU.
    TypeError
        Something in the worker or its arguments cannot be sent to another process.
    """
    if not isinstance(processes, int) or processes < 1:
        raise ValueError(f"processes must be a whole number of at least 1, got {processes!r}")
    tensors = [model] if isinstance(model, torch.Tensor) else [*model.parameters(), *model.buffers()]
    elsewhere = {str(tensor.device) for tensor in tensors if tensor.device.type != "cpu"}
    if elsewhere:
        raise ValueError(f"HogWild's processes share memory of the CPU, but the model is on {', '.join(elsewhere)}")
    for tensor in tensors:
        if tensor.numel():
            share_memory(tensor)
    present = share_memory(torch.zeros(processes, dtype=torch.uint8))
    with tempfile.NamedTemporaryFile(prefix="hogwild-") if locked else contextlib.nullcontext() as file:
        lock = FileLock(file.name) if locked else contextlib.nullcontext()
        call = pack_shared((worker, model, lock, tuple(args), present))
        return launch(_run, processes, (call,), timeout=timeout, process_group=False, threads=1)


def _run(call: bytes) -> Any:
    worker, model, lock, args, present = pickle.loads(call)
    rank = int(os.environ["RANK"])
    barrier(present, rank)
    return worker(model, rank, lock, *args)


def barrier(ready: torch.Tensor, rank: int) -> None:
    """Wait until all workers have called it, for example after a warm-up and before they start their clocks.

    Parameters
    ----------
    ready : Tensor ``(processes,)``
        Zeros in shared memory, one for each worker; each tensor can be used once.
    rank : int
    """
    ready[rank] = 1
    while not ready.all():
        time.sleep(0.0005)


def shard_indices(samples: int, processes: int, rank: int, epoch: int = 0, seed: int = 0) -> torch.Tensor:
    """The samples of this process in this epoch, in order: int64 ``(samples / processes,)``, rounded.

    One permutation, drawn from ``seed + epoch``, is dealt to the processes in turn, like `DistributedSampler`'s but
    without its padding. Each sample is in exactly one shard: the work of an epoch is the same for any number of
    processes.
    """
    if not 0 <= rank < processes:
        raise ValueError(f"rank must be in 0…{processes - 1}, got {rank}")
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed + epoch))
    return order[rank::processes]
