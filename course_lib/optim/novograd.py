"""NovoGrad: momentum over gradients that each layer divides by their own running norm (Ginsburg et al. 2019).

Adam keeps a second moment per weight; NovoGrad keeps one number per parameter tensor (the paper's "layer"), so it
needs half of Adam's memory, and a layer's step does not depend on the scale of its gradient.

Other libraries under the same name
-----------------------------------
With a constant gradient and no weight decay, step t moves a tensor by lr·(1 − β1ᵗ)/(1 − β1): 20·lr in the end for
β1 = 0.95. With gradient averaging it is lr·(1 − β1ᵗ): lr in the end. The same lr is 20 times another step.

- timm 1.0.31, ``NvNovoGrad``: the same formula as here with every setting (amsgrad and decoupled decay left off); a
  test holds the two together. It visits the tensors one by one and waits for the device at each, and keeps the second
  moment in 32 bits also for 64-bit weights.
- pytorch-optimizer 4.1.0, ``NovoGrad``: the same without averaging. With averaging its first term is not multiplied by
  (1 − β1), so it begins 20 times as far as here and steps by lr from the start. After a first gradient of zero its
  next step is up to 1/√(1 − β2) = 7 times too long. It overwrites ``p.grad``.
- torch_optimizer 0.3.0 (jettify), ``NovoGrad``: the formula of here, but β2 = 0 by default: each gradient is divided by
  its own norm only. It overwrites ``p.grad``.

None of them corrects the bias by default; starting v at the first gradient's norm makes that unnecessary. In all, the
betas have the same meaning: β1 the momentum, β2 the second moment's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["NovoGrad"]


class NovoGrad(torch.optim.Optimizer):
    """Stochastic gradient descent with layer-wise adaptive moments (arXiv 1905.11286, algorithm 1).

    For each parameter tensor w with gradient g, in step t::

        v ← β2 v + (1 − β2) ‖g‖²                        (v ← ‖g‖² at the first gradient that is not zero)
        m ← β1 m + (g / (√v + ε) + λ w)                 (m ← the bracket in the first step)
        w ← w − lr m

    A parameter without a gradient stays as it is, and its first step is the first that finds one. A layer is what the
    optimiser sees as one tensor: with parameters that are themselves cut up over ranks, v would be the piece's.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dicts
        As of any ``torch.optim.Optimizer``; each group may have its own settings. Real floating-point only.
    lr : float or Tensor ``()``
        Step length. While the gradient keeps its norm, whatever it is, a tensor moves by up to lr / (1 − β1) per step.
    betas : (float, float)
        β1 of the momentum, β2 of the second moment, both in [0, 1). The paper's are (0.95, 0.98).
    eps : float
        Added to √v.
    weight_decay : float
        λ. It enters the momentum beside the normalised gradient, and not the gradient's norm (the paper's decoupling).
    grad_averaging : bool
        Multiply the bracket by (1 − β1), in every step: m is then an average, and steps are (1 − β1) times as long.
    foreach : bool, optional
        One call for all tensors of a group instead of a loop over them. None: yes for plain tensors.

    Raises
    ------
    ValueError
        A setting outside its range, or complex parameters.
    RuntimeError
        In `step`: a sparse gradient. No weight has changed then.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.95, 0.98),
        eps: float = 1e-8,
        weight_decay: float = 0,
        grad_averaging: bool = False,
        *,
        foreach: bool | None = None,
    ):
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "foreach": foreach,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with settings of their own; raises as the constructor does, which calls this."""
        _check({**self.defaults, **param_group})
        super().add_param_group(param_group)
        if any(param.is_complex() for param in self.param_groups[-1]["params"]):
            self.param_groups.pop()
            raise ValueError("NovoGrad does not support complex parameters")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters once; returns what `closure` (which recomputes the gradients) returned, or None."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        chosen = [[param for param in group["params"] if param.grad is not None] for group in self.param_groups]
        if any(param.grad.is_sparse for params in chosen for param in params):
            raise RuntimeError("NovoGrad does not support sparse gradients; torch.optim.SparseAdam does")
        for group, params in zip(self.param_groups, chosen, strict=True):
            for param in params:
                if not self.state[param]:
                    # Zeros make the first step's m the bracket itself, as the paper starts it.
                    self.state[param]["first_moment"] = torch.zeros_like(param)
                    self.state[param]["second_moment"] = param.new_zeros((), dtype=_norm_dtype(param))
            foreach = group["foreach"]
            if foreach is None:
                foreach = all(type(param) in (Tensor, nn.Parameter) for param in params)
            beta1, beta2 = group["betas"]
            update = _update_together if foreach else _update_one_by_one
            update(
                params,
                [self.state[param]["first_moment"] for param in params],
                [self.state[param]["second_moment"] for param in params],
                lr=float(group["lr"]),
                beta1=beta1,
                beta2=beta2,
                eps=group["eps"],
                weight_decay=group["weight_decay"],
                share=1 - beta1 if group["grad_averaging"] else 1.0,
            )
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` gave; state follows the parameters' dtype and device."""
        super().load_state_dict(state_dict)
        # PyTorch casts all state to the parameter's dtype, and a running norm in 16 bits would be another number.
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for number, param in zip(saved, params, strict=True):
            if number in state_dict["state"]:
                second = state_dict["state"][number]["second_moment"]
                self.state[param]["second_moment"] = second.to(param.device, _norm_dtype(param))


def _update_one_by_one(
    params: list[Tensor],
    first_moments: list[Tensor],
    second_moments: list[Tensor],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    share: float,
) -> None:
    """The algorithm as the paper writes it. `_update_together` does the same and is what runs by default."""
    for param, m, v in zip(params, first_moments, second_moments, strict=True):
        squared = torch.linalg.vector_norm(param.grad, dtype=v.dtype).square()
        v.copy_(torch.where(v == 0, squared, beta2 * v + (1 - beta2) * squared))
        m.mul_(beta1).addcdiv_(param.grad, _divisor(v, eps), value=share)
        if weight_decay:
            m.add_(param, alpha=share * weight_decay)
        param.add_(m, alpha=-lr)


def _update_together(
    params: list[Tensor],
    first_moments: list[Tensor],
    second_moments: list[Tensor],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    share: float,
) -> None:
    """`_update_one_by_one` with a call per operation instead of one per operation and tensor.

    The norms become one vector, so that all of their arithmetic is a handful of small operations; the rest is
    in place, so that it needs no memory of the gradients' size.
    """
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}  # what PyTorch's foreach operations can do at once
    for index, param in enumerate(params):
        alike.setdefault((param.device, param.dtype), []).append(index)
    for indices in alike.values():
        weights = [params[index] for index in indices]
        grads = [params[index].grad for index in indices]
        ms = [first_moments[index] for index in indices]
        vs = [second_moments[index] for index in indices]
        squared = torch.stack(torch._foreach_norm(grads, 2, vs[0].dtype)).square_()
        before = torch.stack(vs)
        v = torch.where(before == 0, squared, beta2 * before + (1 - beta2) * squared)
        torch._foreach_copy_(vs, list(v.unbind()))
        torch._foreach_mul_(ms, beta1)
        torch._foreach_addcdiv_(ms, grads, list(_divisor(v, eps).unbind()), value=share)
        if weight_decay:
            torch._foreach_add_(ms, weights, alpha=share * weight_decay)
        torch._foreach_add_(weights, ms, alpha=-lr)


def _divisor(v: Tensor, eps: float) -> Tensor:
    """√v + ε; 1 where v is 0, so that a gradient of zeros stays one even with ε = 0."""
    return torch.where(v == 0, 1, v.sqrt() + eps)


def _norm_dtype(param: Tensor) -> torch.dtype:
    """A squared norm needs more range and digits than 16 bits have."""
    return torch.float64 if param.dtype == torch.float64 else torch.float32


def _check(settings: dict[str, Any]) -> None:
    lr, betas, eps, weight_decay = (settings[name] for name in ("lr", "betas", "eps", "weight_decay"))
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    if not lr >= 0.0:
        raise ValueError(f"Invalid learning rate: {lr}")
    if len(betas) != 2:
        raise ValueError(f"betas must be two numbers, got {betas}")
    for index, beta in enumerate(betas):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {index}: {beta}")
    if not eps >= 0.0:
        raise ValueError(f"Invalid epsilon value: {eps}")
    if not weight_decay >= 0.0:
        raise ValueError(f"Invalid weight_decay value: {weight_decay}")
