"""Data parallelism, second version: start averaging a gradient as soon as backward has computed it.

Backward computes the last layer's gradients first. While it works on the earlier layers, the network can already sum
the later ones'.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch.distributed as dist
from torch import nn

from course_lib.distributed.data_parallel.naive import drop_unused
from course_lib.distributed.data_parallel.replicas import Replica, gradient_memory

__all__ = ["OverlappedDataParallel", "call_when_accumulated"]


class OverlappedDataParallel(Replica):
    """Average each gradient by an asynchronous all-reduce that a hook starts during backward.

    `finish_gradient_synchronization` starts what no hook has started, and waits. The all-reduces begin in one order on
    every rank, from the last parameter to the first, though backward may deliver in another: collectives match by the
    order of their calls, and a rank that skips a layer would otherwise add one tensor to another.

    Use and errors as for `NaiveDataParallel`. A second backward before `finish_gradient_synchronization` would add to
    a gradient that is on its way: RuntimeError, `no_sync` is for that.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._order = self.trainable[::-1]
        self._ready: set[nn.Parameter] = set()
        self._works: list[dist.Work] = []
        call_when_accumulated(self._order, self._on_gradient)

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        if not self.synchronises:
            return
        if parameter in self._ready:
            raise RuntimeError(
                "backward ran twice before finish_gradient_synchronization(); "
                "put every backward of a step but the last into no_sync()"
            )
        self._ready.add(parameter)
        while len(self._works) < len(self._order) and self._order[len(self._works)] in self._ready:
            self._start_next()

    def _start_next(self) -> None:
        gradient = gradient_memory(self._order[len(self._works)])
        gradient /= dist.get_world_size()
        self._works.append(dist.all_reduce(gradient, async_op=True))

    def _average_gradients(self) -> None:
        used = [parameter.grad is not None for parameter in self._order]
        while len(self._works) < len(self._order):
            self._start_next()
        for work in self._works:
            work.wait()
        self._works.clear()
        self._ready.clear()
        drop_unused(self._order, used)


def call_when_accumulated(parameters: list[nn.Parameter], method: Callable[[nn.Parameter], None]) -> None:
    """Call the bound method with each of the parameters when a backward has added to its ``grad``.

    Once a backward, also for a parameter that is used in several places. The parameters do not keep the method's object
    alive, and the hooks go with it, so that a module can be wrapped again.
    """
    reference = weakref.WeakMethod(method)

    def hook(parameter: nn.Parameter) -> None:
        alive = reference()
        if alive is not None:
            alive(parameter)

    handles = [parameter.register_post_accumulate_grad_hook(hook) for parameter in parameters]
    weakref.finalize(method.__self__, _remove, handles).atexit = False


def _remove(handles: list) -> None:
    for handle in handles:
        handle.remove()
