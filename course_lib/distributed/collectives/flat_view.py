"""Flat contiguous view of a tensor for messages; a tensor of another layout is copied, and copied back afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["flat_view", "require_strided"]


def require_strided(tensor: torch.Tensor) -> None:
    """Raise TypeError unless `tensor` is a tensor with plain memory: not sparse, not quantised."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a tensor is needed, got {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise TypeError(f"a dense tensor is needed, got one of layout {tensor.layout}; send its parts, or to_dense()")


@contextlib.contextmanager
def flat_view(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A flat view of `tensor`; if its memory layout does not allow one, a flat copy that is written back afterwards.

    After an error in the block, a copied tensor is unchanged; a viewed one contains what had arrived.

    Raises
    ------
    TypeError
        `tensor` is not dense.
    """
    require_strided(tensor)
    if tensor.is_contiguous():
        yield tensor.view(-1)
        return
    flat = tensor.contiguous().view(-1)
    yield flat
    tensor.copy_(flat.view(tensor.shape))
