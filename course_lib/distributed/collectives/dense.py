"""A tensor of any layout as the flat, contiguous one that messages need."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["require_strided", "written_through"]


def require_strided(tensor: torch.Tensor) -> None:
    """Raise TypeError for what has no plain memory to send: sparse and quantised tensors, and things that are none."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a tensor is needed, got {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise TypeError(f"a dense tensor is needed, got one of layout {tensor.layout}; send its parts, or to_dense()")


@contextlib.contextmanager
def written_through(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A flat view of `tensor`, or where its memory allows none, a flat copy that is written back afterwards.

    An error in the block leaves a copied tensor as it was, a viewed one with what had arrived.

    Raises
    ------
    TypeError
        It is not dense.
    """
    require_strided(tensor)
    if tensor.is_contiguous():
        yield tensor.view(-1)
        return
    flat = tensor.contiguous().view(-1)
    yield flat
    tensor.copy_(flat.view(tensor.shape))
