"""LARS and LAMB: each layer's step is a fraction of the layer's own weights. Both are timm's.

timm 1.0.31 was taken over pytorch-optimizer 4.1.0 because it computes what the papers say. The latter's LAMB divides
the step by (1 − β1ᵗ) after the trust ratio, so that the first step is 10 times the paper's, never corrects the second
moment's bias, and clips the weights' norm at 10; its LARS leaves the momentum in ``p.grad``. timm costs more to install
and over a second to import, so that it is imported only when one of these is called.

Conventions, timm's where not said otherwise
--------------------------------------------
- A layer is a parameter tensor; a tensor whose weights or update are all zero gets the ratio 1.
- The momentum holds the scaled gradients, and lr multiplies it outside, as in ``torch.optim.SGD``. You et al. put lr
  inside: the two differ only while lr changes.
- Ours: every tensor is adapted unless its group says ``always_adapt=False`` (timm skips those without weight decay,
  so that LARS without decay would quietly be plain SGD). `no_decay_groups` says so for biases and norm parameters, as
  both papers' experiments do.
- Ours: LAMB does not clip the global gradient norm (timm clips at 1, as NVIDIA's LAMB does).
- LAMB corrects the bias of both moments (algorithm 2), and φ is the identity: the weights' norm is not clipped. The
  steps are counted per group, not per tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch
from torch import nn

from course_lib.system.torchvision_import import import_torchvision

__all__ = ["LAMB", "LARS", "no_decay_groups"]


def LARS(
    params: Iterable[Any],
    lr: float,
    *,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    trust_coefficient: float = 0.001,
) -> torch.optim.Optimizer:
    """Layer-wise adaptive rate scaling (You et al. 2017, arXiv 1708.03888, algorithm 1).

    For each tensor, with λ the weight decay and η the trust coefficient::

        r = η ‖w‖ / (‖g‖ + λ ‖w‖ + ε)      ε = 1e-8 is timm's, against a division by 0
        m ← momentum·m + r (g + λ w)
        w ← w − lr m

    Parameters
    ----------
    params : iterable of Tensor or of dicts
        `no_decay_groups` makes groups that leave biases and norm parameters to plain SGD.
    lr : float
        Multiplies a step that is already about η ‖w‖ long, hence far larger than SGD's: 1 to 30.

    Returns
    -------
    timm.optim.Lars

    Raises
    ------
    ValueError
        A setting outside its range.
    """
    return _timm_optim().Lars(
        params,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        trust_coeff=trust_coefficient,
        always_adapt=True,
    )


def LAMB(
    params: Iterable[Any],
    lr: float = 1e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Adam whose step each layer scales to its own weights (You et al. 2019, arXiv 1904.00962, algorithm 2).

    For each tensor, with m̂ and v̂ Adam's bias-corrected moments and λ the weight decay::

        u = m̂ / (√v̂ + ε) + λ w
        w ← w − lr (‖w‖ / ‖u‖) u

    Parameters
    ----------
    params : iterable of Tensor or of dicts
        `no_decay_groups` makes groups that leave biases and norm parameters to plain Adam.

    Returns
    -------
    timm.optim.Lamb

    Raises
    ------
    ValueError
        A setting outside its range.
    """
    return _timm_optim().Lamb(
        params,
        lr=lr,
        betas=betas,
        eps=eps,
        weight_decay=weight_decay,
        max_grad_norm=None,
        always_adapt=True,
    )


def no_decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two parameter groups: weights with decay, and biases and norm parameters (tensors of up to one dimension) without.

    The second group also asks `LARS` and `LAMB` not to adapt it; other optimisers ignore that. Frozen parameters are
    left out, and an empty group too.
    """
    params = [param for param in model.parameters() if param.requires_grad]
    groups = [
        {"params": [param for param in params if param.ndim > 1], "weight_decay": weight_decay},
        {"params": [param for param in params if param.ndim <= 1], "weight_decay": 0.0, "always_adapt": False},
    ]
    return [group for group in groups if group["params"]]


def _timm_optim() -> ModuleType:
    import_torchvision()  # timm imports it, and needs it to work beside a CPU build of PyTorch
    import timm.optim

    return timm.optim
