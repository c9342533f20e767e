"""The inverses of all layers' factors: which rank computes them, which keeps them, and what they do to the gradients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.optim.kfac_distribution import assign_greedily, send_from_owners
from course_lib.optim.kronecker_factors import KroneckerFactors
from course_lib.optim.kronecker_inverse import (
    damped_inverse,
    eigendecomposition,
    pi_split,
    precondition_by_eigen,
    precondition_by_inverse,
)

__all__ = ["LayerInverses"]

INVERSES = ("eigen", "cholesky")
DISTRIBUTIONS = ("comm-opt", "mem-opt")
Key = tuple[str, str]  # the layer's name, and "A" or "G"


class LayerInverses:
    """What `KFAC` multiplies gradients with.

    Parameters
    ----------
    layers : mapping of str to KroneckerFactors
    method : {"eigen", "cholesky"}
        See `kronecker_inverse`.
    distribution : {"comm-opt", "mem-opt"}
        See `kfac_distribution`.
    ranks : int
        1 without a process group.

    Attributes
    ----------
    owners : dict of (str, str) to int
        The rank that inverts a factor.
    held : dict of (str, str) to Tensor
        What this rank has: an `eigendecomposition` or a `damped_inverse` for each factor.
    inverted : set of str
        Layers that have inverses, on this rank or on another.
    """

    def __init__(self, layers: Mapping[str, KroneckerFactors], method: str, distribution: str, ranks: int) -> None:
        if method not in INVERSES:
            raise ValueError(f"inverse must be 'eigen' or 'cholesky', got {method!r}")
        if distribution not in DISTRIBUTIONS:
            raise ValueError(f"distribution must be 'comm-opt' or 'mem-opt', got {distribution!r}")
        self.layers, self.method, self.distribution, self.ranks = layers, method, distribution, ranks
        self.owners = self._assign()
        self.held: dict[Key, Tensor] = {}
        self.inverted: set[str] = set()

    def _assign(self) -> dict[Key, int]:
        costs = {
            (name, side): float(n) ** 3
            for name, layer in self.layers.items()
            for side, n in zip("AG", layer.shape, strict=True)
        }
        if self.distribution == "comm-opt":
            return assign_greedily(costs, self.ranks)
        whole = assign_greedily({name: costs[name, "A"] + costs[name, "G"] for name in self.layers}, self.ranks)
        return {key: whole[key[0]] for key in costs}

    def update(self, damping: float) -> None:
        """Invert the factors as they are now. Ranks call it together."""
        self.inverted = {name for name, layer in self.layers.items() if layer.updates}
        owners = {key: owner for key, owner in self.owners.items() if key[0] in self.inverted}
        self.held = {key: self._invert(*key, damping) for key, owner in owners.items() if owner == self._rank}
        if self.ranks > 1 and self.distribution == "comm-opt":
            shapes = {key: self._shape(*key) for key in owners}
            self.held = send_from_owners(self.held, owners, shapes, self._like)

    def precondition(self, gradients: Mapping[str, Tensor], damping: float) -> dict[str, Tensor]:
        """The preconditioned gradients of the layers that have inverses. Ranks call it together.

        Parameters
        ----------
        gradients : mapping of str to Tensor ``(fan_out, fan_in + 1)``
            The same layers on every rank.
        """
        done = {name: self._apply(name, g, damping) for name, g in gradients.items() if (name, "A") in self.held}
        if self.ranks == 1 or self.distribution == "comm-opt":
            return done
        # A layer without a gradient sends zeros: the others expect the same sizes at every step.
        owners = {name: self.owners[name, "A"] for name in self.layers if name in self.inverted}
        shapes = {name: self.layers[name].shape[::-1] for name in owners}
        mine = {
            name: done[name] if name in done else self._like.new_zeros(shapes[name])
            for name, owner in owners.items()
            if owner == self._rank
        }
        received = send_from_owners(mine, owners, shapes, self._like)
        return {name: gradient for name, gradient in received.items() if name in gradients}

    def _invert(self, name: str, side: str, damping: float) -> Tensor:
        layer = self.layers[name]
        if self.method == "eigen":
            return eigendecomposition(getattr(layer, side))
        return damped_inverse(getattr(layer, side), pi_split(layer.A, layer.G, damping)["AG".index(side)])

    def _shape(self, name: str, side: str) -> tuple[int, int]:
        size = self.layers[name].shape["AG".index(side)]
        return (size + 1, size) if self.method == "eigen" else (size, size)

    def _apply(self, name: str, gradient: Tensor, damping: float) -> Tensor:
        A, G = self.held[name, "A"], self.held[name, "G"]
        if self.method == "eigen":
            return precondition_by_eigen(gradient, A, G, damping)
        return precondition_by_inverse(gradient, A, G)

    @property
    def _rank(self) -> int:
        return dist.get_rank() if self.ranks > 1 else 0

    @property
    def _like(self) -> Tensor:
        """A tensor of the messages' dtype, on their device."""
        dtypes = [layer.dtype for layer in self.layers.values()]
        device = next(iter(self.layers.values())).module.weight.device
        return torch.empty(0, dtype=torch.float64 if torch.float64 in dtypes else torch.float32, device=device)

    def message_bytes(self) -> dict[str, int]:
        """See `KFAC.message_bytes`."""
        if self.ranks == 1:
            return {"factors": 0, "inverses": 0, "step": 0}
        numbers = {
            "factors": sum(n * (n + 1) // 2 for layer in self.layers.values() for n in layer.shape) + len(self.layers),
            "inverses": sum(rows * columns for rows, columns in (self._shape(*key) for key in self.owners)),
            "step": sum(fan_in * fan_out for fan_in, fan_out in (layer.shape for layer in self.layers.values())),
        }
        numbers["step" if self.distribution == "comm-opt" else "inverses"] = 0
        return {what: count * self._like.element_size() for what, count in numbers.items()}
