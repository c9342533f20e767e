"""Data parallelism, first version: average each gradient after backward.

Right, but slow: the network is idle while the ranks compute, the ranks are idle while the network works, and a model of
many small tensors pays the latency of a message for each. `OverlappedDataParallel` solves the first problem,
`BucketedDataParallel` both.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from course_lib.distributed.data_parallel.replicas import Replica, gradient_memory

__all__ = ["NaiveDataParallel", "drop_unused"]


class NaiveDataParallel(Replica):
    """Average the gradients one by one after backward.

    ::

        model = NaiveDataParallel(model)
        loss_fn(model(images), labels).backward()
        model.finish_gradient_synchronization()
        optimizer.step()

    Without the third line each rank trains a model of its own. See `Replica` for errors, buffers and unused
    parameters, and `no_sync` for accumulation.
    """

    def _average_gradients(self) -> None:
        used = [parameter.grad is not None for parameter in self.trainable]
        for parameter in self.trainable:  # zeros where unused: every rank must make the same calls
            gradient = gradient_memory(parameter)
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()
        drop_unused(self.trainable, used)


def drop_unused(parameters: list[torch.nn.Parameter], used: list[bool]) -> None:
    """Set ``grad`` to None where no rank used the parameter; `used` is this rank's view. Every rank must call it."""
    if not parameters:
        return
    counts = torch.tensor(used, dtype=torch.int32, device=parameters[0].device)
    dist.all_reduce(counts)
    if all(used):
        return  # without waiting for the counts on a GPU
    for parameter, count in zip(parameters, counts.tolist(), strict=True):
        if not count:
            parameter.grad = None
