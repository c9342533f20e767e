"""Muon: around a function that orthogonalises, and PyTorch's with convolutions as matrices and AdamW for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Muon", "MuonWithAdamW", "muon_groups"]


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) of two functions that somebody else writes.

    For each tensor w of a group with ``hidden=True``, with gradient g, as a matrix (out, in·height·width)::

        V ← momentum V + (1 − momentum) g
        w ← w − lr √max(1, out/in·height·width) orthogonalise((1 − momentum) g + momentum V)

    This is ``torch.optim.Muon`` without weight decay, which takes matrices only and orthogonalises in bfloat16. The other
    groups take ``adamw_step`` at lr/10, without weight decay. A tensor without a gradient stays as it is.

    Parameters
    ----------
    params : iterable of Tensor or of dicts
        As `muon_groups` makes them; a group without ``hidden`` is hidden.
    lr : float
        Learning rate of the hidden layers.
    orthogonalise : callable
        ``orthogonalise(matrix) -> matrix``, float (rows, columns), whose singular values become about 1.
    adamw_step : callable
        ``adamw_step(w, g, state, lr, weight_decay=…)`` changes w in place.
    momentum : float
        In [0, 1).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        orthogonalise: Callable[[Tensor], Tensor],
        adamw_step: Callable[..., Any],
        momentum: float = 0.95,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "hidden": True})
        self.orthogonalise, self.adamw_step = orthogonalise, adamw_step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; returns the closure's loss, if there is a closure."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is None:
                    continue
                if group["hidden"]:
                    self._hidden_step(w, group["lr"], group["momentum"])
                else:
                    self.adamw_step(w, w.grad, self.state[w], 0.1 * group["lr"], weight_decay=0.0)
        return loss

    def _hidden_step(self, w: Tensor, lr: float, momentum: float) -> None:
        state = self.state[w]
        state["V"] = momentum * state.get("V", 0) + (1 - momentum) * w.grad
        matrix = ((1 - momentum) * w.grad + momentum * state["V"]).flatten(1)
        longer = max(1.0, matrix.size(0) / matrix.size(1)) ** 0.5
        w -= lr * longer * self.orthogonalise(matrix).reshape(w.shape)


def muon_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups for `Muon`: the hidden layers' matrices; the first layer, the classifier, biases and norms."""
    weights = list(model.parameters())
    hidden = [w for w in weights if w.dim() > 1][1:-1]
    rest = [w for w in weights if not any(w is matrix for matrix in hidden)]
    return [{"params": hidden, "hidden": True}, {"params": rest, "hidden": False}]


class MuonWithAdamW(torch.optim.Optimizer):
    """``torch.optim.Muon`` for the hidden layers, convolutions as matrices, and ``torch.optim.AdamW`` for the rest.

    AdamW has a tenth of the learning rate. Neither decays the weights.

    Parameters
    ----------
    model : nn.Module
        `muon_groups` says which of its weights are hidden.
    lr : float
        Muon's learning rate; schedulers change it, and AdamW's follows.
    """

    def __init__(self, model: nn.Module, lr: float) -> None:
        hidden, rest = (group["params"] for group in muon_groups(model))
        super().__init__([*hidden, *rest], {"lr": lr})
        self._pairs = [(w, nn.Parameter(w.detach().flatten(1).clone())) for w in hidden]
        self._muon = torch.optim.Muon([matrix for _, matrix in self._pairs], lr, weight_decay=0.0)
        self._adamw = torch.optim.AdamW(rest, 0.1 * lr, weight_decay=0.0)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; returns the closure's loss, if there is a closure."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        lr = self.param_groups[0]["lr"]
        self._muon.param_groups[0]["lr"], self._adamw.param_groups[0]["lr"] = lr, 0.1 * lr
        for weight, matrix in self._pairs:
            matrix.copy_(weight.flatten(1))
            matrix.grad = None if weight.grad is None else weight.grad.flatten(1)
        self._muon.step()
        self._adamw.step()
        for weight, matrix in self._pairs:
            weight.copy_(matrix.view(weight.shape))
        return loss
