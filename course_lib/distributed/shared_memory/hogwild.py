"""HogWild: processes that train one model in shared memory, without locks (Niu et al. 2011).

Each process reads the weights while others write them, and adds its update without asking. An update is lost when
two processes read the same number before either has written it back. The paper's proof does not cover that: it assumes
atomic additions to single components, sparse updates and a strongly convex loss, and bounds what stale reads cost. How
much is lost is measured (`lost_updates`, `SharedRun.lost`): little, because two processes seldom write the same weight
at the same moment.

The weights may also change between a gradient's forward and its backward: autograd keeps a reference to a shared weight,
no copy, and does not see what another process writes. Such a gradient belongs to no one point, with a lock around the
updates or without.

The processes come from `launch` and its fork server. torch.multiprocessing's ``spawn`` cannot send a function of a
notebook; a plain fork of a process that has used OpenMP threads or a GPU hangs.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from course_lib.distributed.launching.launch import launch
from course_lib.distributed.shared_memory.tensors import FileLock, pack_shared, share

__all__ = ["hogwild", "meet", "share_of_epoch"]


def hogwild(
    worker: Callable[..., Any],
    model: nn.Module | torch.Tensor,
    processes: int,
    args: Sequence[Any] = (),
    *,
    locked: bool = False,
    timeout: float | None = 1800.0,
    stop: threading.Event | None = None,
) -> list[Any]:
    """Run ``worker(model, rank, lock, *args)`` in `processes` processes that share the model's memory.

    ::

        def worker(model, rank, lock, images, labels, processes):
            for batch in share_of_epoch(len(images), processes, rank).split(32):
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
        On the CPU. Its parameters and buffers are moved to shared memory and stay there: the caller's model is the
        trained one afterwards. Gradients are each worker's own.
    processes : int
        At least 1. The work is the caller's to divide: see `share_of_epoch`.
    args : sequence
        The workers' further arguments. Tensors after ``share_memory_()`` are shared, everything else is copied.
    locked : bool
        `lock` lets one process at a time into ``with lock:``. Without it `lock` is a context manager that does nothing, so
        that the same worker serves both.
    timeout, stop
        As for `launch`.

    Returns
    -------
    list
        What the workers returned, in order of rank. Tensors are copies.

    Raises
    ------
    RankFailedError, LaunchTimeoutError, LaunchStoppedError
        As for `launch`: a worker raised or was killed, the workers took too long, `stop` was set. No worker is left, and
        a killed worker keeps no lock.
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
            share(tensor)
    present = share(torch.zeros(processes, dtype=torch.uint8))
    with tempfile.NamedTemporaryFile(prefix="hogwild-") if locked else contextlib.nullcontext() as file:
        lock = FileLock(file.name) if locked else contextlib.nullcontext()
        call = pack_shared((worker, model, lock, tuple(args), present))
        return launch(_run, processes, (call,), timeout=timeout, process_group=False, threads=1, stop=stop)


def _run(call: bytes) -> Any:
    worker, model, lock, args, present = pickle.loads(call)
    rank = int(os.environ["RANK"])
    meet(present, rank)
    return worker(model, rank, lock, *args)


def meet(ready: torch.Tensor, rank: int) -> None:
    """Wait for all workers: for those that warm up before they start their clocks.

    Parameters
    ----------
    ready : Tensor ``(processes,)``
        Zeros in shared memory, one place for each worker; good for one meeting.
    rank : int
    """
    ready[rank] = 1
    while not ready.all():
        time.sleep(0.0005)


def share_of_epoch(samples: int, processes: int, rank: int, epoch: int = 0, seed: int = 0) -> torch.Tensor:
    """Which samples this process takes in this epoch, and in what order: int64 ``(samples / processes,)``, rounded.

    One permutation for all, drawn from ``seed + epoch`` and dealt in turn, like `DistributedSampler`'s without its
    padding. Each sample is in exactly one share: the work of an epoch is the same for any number of processes.
    """
    if not 0 <= rank < processes:
        raise ValueError(f"rank must lie in 0…{processes - 1}, got {rank}")
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed + epoch))
    return order[rank::processes]
