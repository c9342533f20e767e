"""Linear layers whose weight matrix is divided among the ranks (Shoeybi et al. 2019, "Megatron-LM", section 3).

A column-parallel layer gives each rank some of the output features: no message in forward, an all-reduce of the input's
gradient in backward. A row-parallel layer gives each rank some of the input features: an all-reduce of the outputs in
forward, no message in backward. One after the other, with anything element-wise between them, they need one all-reduce
per direction. An MLP is such a pair; so is attention, with whole heads on each rank.

All ranks of the group compute on the same batch, and must agree about the input.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

__all__ = ["ColumnParallelLinear", "RowParallelLinear", "copy_to_ranks", "sum_over_ranks"]


def copy_to_ranks(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """The tensor itself; backward sums its gradient over the group's ranks. Megatron's *f*.

    Each rank uses the same `x` for another part of the output, so each has a part of its gradient.
    """
    return _CopyToRanks.apply(x, group)


def sum_over_ranks(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """The sum over the group's ranks; backward passes the gradient on as it is. Megatron's *g*.

    The sum is the same on every rank, and so is its gradient, which is also that of each rank's part. An all-reduce in
    backward too, as `torch.distributed.nn.all_reduce` does it, would multiply the gradient by the number of ranks.
    """
    return _SumOverRanks.apply(x, group)


class _CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _summed(gradient, ctx.group), None


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        return _summed(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def _summed(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


class _ParallelLinear(nn.Module):
    """This rank's part of a linear layer.

    Attributes
    ----------
    weight : nn.Parameter (rows, columns)
        This rank's part of the whole (out_features, in_features).
    bias : nn.Parameter or None
    """

    divided: str  # the side of the matrix that is divided: "out_features" or "in_features"

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, group: dist.ProcessGroup | None = None
    ) -> None:
        super().__init__()
        ranks, features = dist.get_world_size(group), {"in_features": in_features, "out_features": out_features}
        whole = features[self.divided]
        if whole < ranks:
            raise ValueError(f"{self.divided}={whole} is smaller than the mesh of {ranks} ranks; use at most {whole}")
        if whole % ranks:
            raise ValueError(
                f"{self.divided}={whole} cannot be divided among {ranks} ranks; choose a number of ranks that divides it"
            )
        self.in_features, self.out_features, self.group = in_features, out_features, group
        self._take(nn.Linear(in_features, out_features, bias))

    @classmethod
    def from_linear(cls, linear: nn.Linear, group: dist.ProcessGroup | None = None) -> _ParallelLinear:
        """This rank's part of a layer that all ranks hold with the same values.

        Raises
        ------
        ValueError
            The ranks do not divide the features.
        """
        layer = cls(linear.in_features, linear.out_features, linear.bias is not None, group)
        layer._take(linear)
        return layer

    def _load_from_state_dict(self, state_dict, prefix, *args):
        for name, mine in self.named_parameters():
            saved = state_dict.get(prefix + name)
            if saved is not None and saved.shape != mine.shape:
                ranks = dist.get_world_size(self.group)
                raise ValueError(
                    f"{prefix}{name}: the checkpoint has the shape {tuple(saved.shape)}, a part for {ranks} ranks has "
                    f"{tuple(mine.shape)}; load a checkpoint of the same number of ranks, or the whole layer by from_linear"
                )
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.divided} divided"

    def _take(self, linear: nn.Linear) -> None:
        raise NotImplementedError

    def _part(self, tensor: torch.Tensor, dim: int) -> nn.Parameter:
        mine = tensor.detach().chunk(dist.get_world_size(self.group), dim)[dist.get_rank(self.group)]
        return nn.Parameter(mine.clone(memory_format=torch.contiguous_format))


class ColumnParallelLinear(_ParallelLinear):
    """Each rank computes some of the output features: (…, in_features) → (…, out_features / ranks).

    "Column" is a column of the matrix in y = x·A, as the paper writes it; PyTorch's ``weight`` is its transpose.

    Parameters
    ----------
    in_features, out_features : int
        Of the whole layer. The ranks must divide `out_features`.
    bias : bool
    group : dist.ProcessGroup or None
        The ranks that share the layer; None means all.

    Raises
    ------
    ValueError
        The ranks do not divide `out_features`.

    Notes
    -----
    The first weights are drawn for the whole layer, so that ranks with the same seed hold parts of one matrix.
    """

    divided = "out_features"

    def _take(self, linear: nn.Linear) -> None:
        self.weight = self._part(linear.weight, 0)
        self.bias = None if linear.bias is None else self._part(linear.bias, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(copy_to_ranks(x, self.group), self.weight, self.bias)


class RowParallelLinear(_ParallelLinear):
    """Each rank multiplies some of the input features, and all add up: (…, in_features / ranks) → (…, out_features).

    Parameters
    ----------
    in_features, out_features : int
        Of the whole layer. The ranks must divide `in_features`.
    bias : bool
        The whole bias, on every rank, is added once, after the sum.
    group : dist.ProcessGroup or None
        The ranks that share the layer; None means all.

    Raises
    ------
    ValueError
        The ranks do not divide `in_features`.
    """

    divided = "in_features"

    def _take(self, linear: nn.Linear) -> None:
        self.weight = self._part(linear.weight, 1)
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = sum_over_ranks(F.linear(x, self.weight), self.group)
        return total if self.bias is None else total + self.bias
