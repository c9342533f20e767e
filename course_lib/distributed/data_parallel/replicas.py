"""Base of the three data-parallel wrappers: equal copies of one model on all ranks, checked, with equal buffers.

The wrappers differ in one thing: when, and in what pieces, the gradients are averaged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["ModelMismatchError", "Replica", "broadcast_tensors", "check_same_model", "gradient_memory"]


class ModelMismatchError(ValueError):
    """The ranks wrapped different models; the same error is raised on every rank."""


class Replica(nn.Module):
    """This rank's copy of a model; `forward` is the model's.

    At construction every rank gets rank 0's parameters and buffers. `finish_gradient_synchronization`, called between
    ``backward`` and the optimiser's step, gives every rank the mean of the ranks' gradients, as if the ranks' batches
    were one (equal shares; the loss a mean over the batch).

    Parameters
    ----------
    module : nn.Module
        On its device, with its frozen parameters frozen. A parameter that is used in two places is one parameter.
    settings : str
        Further settings that must be the same on every rank.

    Raises
    ------
    RuntimeError
        No process group is up.
    ModelMismatchError
        The ranks' models differ in a name, a shape, a dtype, a memory layout or in what is frozen.

    Notes
    -----
    *Buffers* (batch norm's running statistics). Each rank's forward changes its own; with every synchronised step all
    get rank 0's. The values are those of DistributedDataParallel's ``broadcast_buffers``, but they are sent at the end
    of the step instead of at the start of the next forward. So `forward` sends no message, and one rank may evaluate
    alone.

    *Unused parameters.* A rank that did not use a parameter contributes zeros to the mean. A parameter that no rank
    used keeps ``grad`` None, so that weight decay and momentum do not change it, as on one process.
    """

    def __init__(self, module: nn.Module, settings: str = "") -> None:
        if not dist.is_initialized():
            raise RuntimeError(
                f"{type(self).__name__} needs a process group: build it in a worker that launch() runs, "
                "or after torch.distributed.init_process_group()"
            )
        super().__init__()
        self.module = module
        check_same_model(module, f"{type(self).__name__}({settings})")
        broadcast_tensors([*module.parameters(), *module.buffers()])
        named = list(module.named_parameters())
        self.trainable = [parameter for _, parameter in named if parameter.requires_grad]
        self.frozen = [(name, parameter) for name, parameter in named if not parameter.requires_grad]
        self.synchronises = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate: gradients of backward passes in this block stay on this rank.

        The first backward after the block, and `finish_gradient_synchronization`, average the sums. Inside the block
        `finish_gradient_synchronization` does nothing.
        """
        before, self.synchronises = self.synchronises, False
        try:
            yield
        finally:
            self.synchronises = before

    def finish_gradient_synchronization(self) -> None:
        """Return once every trainable parameter's ``grad`` is the mean over the ranks. Every rank must call it.

        Raises
        ------
        RuntimeError
            A parameter was unfrozen after the model was wrapped.
        TypeError
            A gradient is sparse.
        """
        if not self.synchronises:
            return
        for name, parameter in self.frozen:
            if parameter.requires_grad:
                raise RuntimeError(f"{name} was unfrozen after the model was wrapped; wrap the model again")
        self._average_gradients()
        broadcast_tensors(self.module.buffers())

    def _average_gradients(self) -> None:
        raise NotImplementedError


def broadcast_tensors(tensors: Iterable[torch.Tensor], src: int = 0) -> None:
    """Overwrite the tensors on every rank with rank `src`'s: a message for each dtype and device, whatever the layout."""
    alike: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        alike.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
    for group in alike.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in group])
        dist.broadcast(flat, src=src)
        if dist.get_rank() != src:
            for tensor, part in zip(group, flat.split([tensor.numel() for tensor in group]), strict=True):
                tensor.copy_(part.view(tensor.shape))


def gradient_memory(parameter: nn.Parameter) -> torch.Tensor:
    """The parameter's gradient as a vector over its own memory, zeros where it has none yet.

    Gloo assumes a contiguous tensor (pytorch/pytorch#192920); a channels-last gradient is not contiguous.
    """
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    gradient = parameter.grad
    if gradient.layout is not torch.strided:
        raise TypeError(
            f"a parameter of shape {tuple(parameter.shape)} has a sparse gradient; build its layer with sparse=False"
        )
    return gradient.as_strided((gradient.numel(),), (1,))


def check_same_model(module: nn.Module, wrapper: str) -> None:
    """Raise `ModelMismatchError` on every rank if one of them differs from rank 0."""
    mine = [wrapper, *_describe(module)]
    everyones: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyones, mine)
    for rank, theirs in enumerate(everyones):
        if theirs == everyones[0]:
            continue
        length = max(len(theirs), len(everyones[0]))
        padded = (entries + ["nothing more"] * (length - len(entries)) for entries in (everyones[0], theirs))
        expected, other = next((a, b) for a, b in zip(*padded, strict=True) if a != b)
        raise ModelMismatchError(
            f"the ranks hold different models: rank 0 has {expected}, rank {rank} has {other}; "
            "build and wrap the same model on every rank"
        )


def _describe(module: nn.Module) -> list[str]:
    entries = [(name, tensor, "" if tensor.requires_grad else " frozen") for name, tensor in module.named_parameters()]
    entries += [(name, tensor, " buffer") for name, tensor in module.named_buffers()]
    return [
        f"{name} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}{kind}"
        + ("" if tensor.is_contiguous() else f" with strides {tensor.stride()}")
        for name, tensor, kind in entries
    ]
