"""Data parallelism, third version: average the gradients in buckets.

A message takes a latency and a time per byte. Many small gradients in one message pay the latency once. Buckets
that are too large leave nothing to overlap with backward. torch.nn.parallel.DistributedDataParallel works this way (Li
et al. 2020, "PyTorch Distributed", section 3.2), with ``gradient_as_bucket_view=True``.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from course_lib.distributed.data_parallel.overlapped import call_when_accumulated
from course_lib.distributed.data_parallel.replicas import Replica, gradient_memory

__all__ = ["BucketedDataParallel"]


class BucketedDataParallel(Replica):
    """Average the gradients by asynchronous all-reduces of buckets, each started when its last gradient is ready.

    Parameters
    ----------
    module : nn.Module
    bucket_mb : float
        Largest size of a bucket in MiB, above 0. A parameter that is larger has a bucket of its own. Buckets are filled
        from the last parameter to the first, about the order in which backward delivers, and hold one dtype each.

    Notes
    -----
    After `finish_gradient_synchronization` the gradients are views into the buckets, laid out in memory like
    their parameters. Kept by ``zero_grad(set_to_none=False)``, they are summed where backward put them, without a copy;
    after ``zero_grad()`` backward makes new ones, and each is copied into its bucket once.

    A bucket ends with one number for each of its parameters: 1 if this rank used it. The sums show which parameters no
    rank used, without an extra message.

    Use and errors as for `OverlappedDataParallel`; ValueError for a `bucket_mb` of 0 or less.
    """

    def __init__(self, module: nn.Module, bucket_mb: float = 25.0) -> None:
        if not bucket_mb > 0:
            raise ValueError(f"bucket_mb must be above 0, got {bucket_mb}")
        super().__init__(module, f"bucket_mb={bucket_mb:g}")
        self._buckets = [_Bucket(parameters) for parameters in _fill(self.trainable[::-1], bucket_mb * 2**20)]
        self._bucket_of = {parameter: bucket for bucket in self._buckets for parameter in bucket.views}
        self._started = 0
        call_when_accumulated(self.trainable, self._on_gradient)

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        if not self.synchronises:
            return
        self._bucket_of[parameter].collect(parameter)
        while self._started < len(self._buckets) and not self._buckets[self._started].missing:
            self._start_next()  # in one order on every rank; see OverlappedDataParallel

    def _start_next(self) -> None:
        self._buckets[self._started].start()
        self._started += 1

    def _average_gradients(self) -> None:
        for bucket in self._buckets[self._started :]:
            bucket.collect_the_rest()
            self._start_next()
        for bucket in self._buckets:
            bucket.finish()
        self._started = 0


class _Bucket:
    """The gradients of some parameters in one vector, followed by a number for each: 1 if this rank used it."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        first, total = parameters[0], sum(parameter.numel() for parameter in parameters)
        self.flat = torch.zeros(total + len(parameters), dtype=first.dtype, device=first.device)
        self.used = self.flat[total:]
        self.views: dict[nn.Parameter, torch.Tensor] = {}
        offset = 0
        for parameter in parameters:
            strides = torch.empty_like(parameter, device="meta").stride()
            self.views[parameter] = self.flat.as_strided(parameter.shape, strides, offset)
            offset += parameter.numel()
        self.missing = set(parameters)
        self.work: dist.Work | None = None

    def collect(self, parameter: nn.Parameter) -> None:
        """Take the gradient that a backward has delivered."""
        if parameter not in self.missing:
            raise RuntimeError(
                "backward ran twice before finish_gradient_synchronization(); "
                "put every backward of a step but the last into no_sync()"
            )
        self.missing.remove(parameter)
        view = self.views[parameter]
        if parameter.grad is not view:
            gradient_memory(parameter)  # refuses a sparse one
            view.copy_(parameter.grad)
            parameter.grad = view

    def collect_the_rest(self) -> None:
        """Take the gradients accumulated before the last backward, and zeros for parameters that were not used."""
        for parameter in list(self.missing):
            if parameter.grad is not None:
                self.collect(parameter)
        for parameter in self.missing:
            self.views[parameter].zero_()

    def start(self) -> None:
        self.used.fill_(1)
        if self.missing:
            for index, parameter in enumerate(self.views):
                if parameter in self.missing:
                    self.used[index] = 0
        self.flat /= dist.get_world_size()
        self.work = dist.all_reduce(self.flat, async_op=True)

    def finish(self) -> None:
        self.work.wait()
        if self.missing:  # on this rank; another one may have used them
            for parameter, used in zip(self.views, self.used.tolist(), strict=True):
                if parameter in self.missing and used:
                    parameter.grad = self.views[parameter]
        self.missing = set(self.views)
        self.work = None


def _fill(parameters: list[nn.Parameter], most: float) -> list[list[nn.Parameter]]:
    """Fill buckets with the parameters, in order: one dtype and device each, at most `most` bytes."""
    buckets: list[list[nn.Parameter]] = []
    open_buckets: dict[tuple[torch.dtype, torch.device], tuple[list[nn.Parameter], float]] = {}
    for parameter in parameters:
        kind, size = (parameter.dtype, parameter.device), parameter.numel() * parameter.element_size()
        bucket, filled = open_buckets.get(kind, ([], 0))
        if not bucket or filled + size > most:
            bucket, filled = [], 0
            buckets.append(bucket)
        bucket.append(parameter)
        open_buckets[kind] = bucket, filled + size
    return buckets
