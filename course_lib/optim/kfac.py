"""K-FAC: the gradient multiplied by an approximate inverse Fisher matrix, before any optimiser's step.

Martens and Grosse 2015 (arXiv 1503.05671) for linear layers, Grosse and Martens 2016 (arXiv 1602.01407) for convolutions,
Pauloski et al. 2020 (arXiv 2007.00784; the TACC slides) for many ranks. `kronecker_factors` has the factors,
`kronecker_inverse` the damped inverses, `kfac_distribution` and `kfac_inverses` the division of work.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.distributed.data_parallel.replicas import Replica
from course_lib.distributed.launching.rank import world_size
from course_lib.optim.kfac_distribution import mean_over_ranks
from course_lib.optim.kfac_inverses import LayerInverses
from course_lib.optim.kronecker_factors import KroneckerFactors, find_layers

__all__ = ["KFAC"]

_in_charge: weakref.WeakKeyDictionary[nn.Module, weakref.ref[KFAC]] = weakref.WeakKeyDictionary()


class KFAC:
    """Precondition the gradients of a model's Linear and Conv2d layers by Kronecker-factored curvature.

    ::

        kfac = KFAC(model, damping=0.03, lr=lambda: optimizer.param_groups[0]["lr"], kl_clip=0.001)
        for images, labels in batches:
            optimizer.zero_grad()
            loss_fn(model(images), labels).backward()
            kfac.step()  # changes .grad in place
            optimizer.step()

    Parameters
    ----------
    model : nn.Module
        Bare or wrapped for data parallelism. The loss is the mean over the samples, which are the first dimension of
        every layer's input.
    damping : float
        γ, added to the curvature, in the units of the Fisher matrix of one sample's loss. Near 0 the step trusts the
        curvature, far above its eigenvalues it is the gradient divided by γ.
    factor_decay : float
        How much of the running averages of the factors an update keeps, 0 ≤ factor_decay < 1.
    factor_update_steps, inverse_update_steps : int
        Steps between updates of the factors, and of their inverses. The first step does both.
    inverse : {"eigen", "cholesky"}
        How damping enters; see `kronecker_inverse`. The first inverts A ⊗ G + γI exactly, the second splits γ by π.
    kl_clip : float, optional
        κ: scale the preconditioned gradients by ν = min(1, √(κ / (lr² Σ ⟨preconditioned, gradient⟩))), so that a step
        of SGD without momentum changes the model's predictions by a KL divergence of about κ/2 at most (Ba et al. 2017).
        By default nothing is scaled.
    lr : float or callable, optional
        The optimiser's learning rate, or what returns it; `kl_clip` needs it, nothing else does.
    distribution : {"comm-opt", "mem-opt"}
        What ranks send each other; see `kfac_distribution`. The gradients are the same.

    Attributes
    ----------
    layers : dict of str to KroneckerFactors
        By the module's name in the bare model.
    skipped : dict of str to str
        Modules with parameters of their own that keep their plain gradient, and why.
    damping : float
        May be changed between steps (``cholesky``: it counts from the next inverses on).
    owners : dict of (str, str) to int
        The rank that inverts a factor: ``owners["conv1", "A"]``.
    steps : int
        Steps done.
    clip_factor : float
        What the last step was scaled by for `kl_clip`; 1 means that it was not.

    Raises
    ------
    ValueError
        A setting outside its range; no layer that K-FAC can work on.

    Notes
    -----
    *Factors* come from the passes that train: forward with the layer in training mode and with gradients, then
    backward. What runs in eval mode or without gradients changes nothing. They are the empirical Fisher matrix's, from the
    labels as they are.

    *Accumulation.* All backward passes between two steps are one batch. Divide each loss by their number.

    *A layer that the batch did not use* keeps its factors; one that no batch has used yet keeps its gradient. One that
    a forward uses several times has the uses as places, like a convolution's. A parameter that two modules share
    is skipped.

    *Ranks* take equal shares of the batch, call `step` together, and their gradients are averaged before. Without
    a process group nothing is sent.

    *Precision.* Factors and inverses are float32 at least, under autocast too. A batch whose factors are not finite (an
    overflow under float16) is left out of the averages.
    """

    def __init__(
        self,
        model: nn.Module,
        damping: float = 0.03,
        factor_decay: float = 0.95,
        factor_update_steps: int = 10,
        inverse_update_steps: int = 100,
        *,
        inverse: str = "eigen",
        kl_clip: float | None = None,
        lr: float | Callable[[], float] | None = None,
        distribution: str = "comm-opt",
    ) -> None:
        self.damping, self.factor_decay, self.kl_clip, self.lr = damping, factor_decay, kl_clip, lr
        self.factor_update_steps, self.inverse_update_steps = factor_update_steps, inverse_update_steps
        self._check_settings()
        wrappers = (nn.parallel.DistributedDataParallel, Replica)
        self._model = model.module if isinstance(model, wrappers) else model
        self.layers, self.skipped = find_layers(self._model)
        self.steps, self.clip_factor = 0, 1.0
        self._ranks = world_size()
        self._inverses = LayerInverses(self.layers, inverse, distribution, self._ranks)
        self.owners = self._inverses.owners
        self._pass: object | None = None
        self._hooks = self._add_hooks()

    def _check_settings(self) -> None:
        if not self.damping > 0:
            raise ValueError(f"damping must be above 0, got {self.damping}")
        if not 0 <= self.factor_decay < 1:
            raise ValueError(f"factor_decay must be in 0 ≤ factor_decay < 1, got {self.factor_decay}")
        for name in ("factor_update_steps", "inverse_update_steps"):
            steps = getattr(self, name)
            if not isinstance(steps, int) or steps < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {steps}")
        if self.kl_clip is not None and not self.kl_clip > 0:
            raise ValueError(f"kl_clip must be above 0, or None, got {self.kl_clip}")
        if self.kl_clip is not None and self.lr is None:
            raise ValueError("kl_clip bounds a step of the learning rate's length: give lr, a number or a callable")

    # Collecting, while forward and backward run

    def _add_hooks(self) -> list[Any]:
        former = _in_charge.get(self._model)
        if former is not None and former() is not None:
            former().remove_hooks()
        _in_charge[self._model] = weakref.ref(self)

        def on_pass(module: nn.Module, args: Any) -> None:
            if module is self._model:
                self._pass = object()

        hooks = [self._model.register_forward_pre_hook(on_pass)]
        for layer in self.layers.values():
            hooks.append(layer.module.register_forward_hook(self._hook_of(layer), with_kwargs=True))
        return hooks

    def remove_hooks(self) -> None:
        """Let go of the model. A new KFAC on the same model does it to the old one."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _hook_of(self, layer: KroneckerFactors) -> Callable[..., None]:
        def on_forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
            if module is not layer.module:  # a copy.deepcopy takes the hooks along
                return
            if not (self._factors_due and module.training and output.requires_grad):
                return
            # The inputs now, since what comes next may overwrite them; counted only if backward comes by.
            moment = layer.input_moment(args[0] if args else kwargs["input"])
            step, forward_pass = self.steps, self._pass or object()

            def on_backward(gradients: Tensor) -> None:
                if self.steps == step:
                    layer.add(moment, gradients, forward_pass)

            # Of the tensor and not of the module, whose backward hooks refuse an in-place ReLU behind the layer.
            output.register_hook(on_backward)

        return on_forward

    @property
    def _factors_due(self) -> bool:
        return self.steps % self.factor_update_steps == 0

    # The step

    @torch.no_grad()
    def step(self) -> None:
        """Replace the layers' gradients by the preconditioned ones; between ``backward`` and the optimiser's step.

        The gradients are averaged over the ranks already; clip their norm before or after.

        Raises
        ------
        RuntimeError
            No layer was seen in training yet; the hooks were removed; the process group is not that of construction.
        """
        self._check_ready()
        if self._factors_due:
            self._update_factors()
        if self.steps % self.inverse_update_steps == 0:
            self._inverses.update(self.damping)
        self._precondition()
        self.steps += 1
        self._pass = None
        for layer in self.layers.values():
            layer.forget_batch()

    def _check_ready(self) -> None:
        if not self._hooks:
            raise RuntimeError(
                "this KFAC has no model any more (a newer one replaced it, or remove_hooks()); use the newer one"
            )
        if world_size() != self._ranks:
            raise RuntimeError(
                f"KFAC was built with {self._ranks} rank(s) and steps with {world_size()}; "
                "build it after the process group is up"
            )

    def _update_factors(self) -> None:
        layers = list(self.layers.values())
        batch = [layer.batch_factors() for layer in layers]
        if self._ranks > 1:
            matrices = [
                factors
                or [torch.zeros(n, n, dtype=layer.dtype, device=layer.module.weight.device) for n in layer.shape]
                for layer, factors in zip(layers, batch, strict=True)
            ]
            batch = mean_over_ranks(matrices, [factors is not None for factors in batch])
        found = [(layer, factors) for layer, factors in zip(layers, batch, strict=True) if factors is not None]
        if not found and not any(layer.updates for layer in layers):
            raise RuntimeError(
                "KFAC has seen no layer in training: build it before the forward, call model.train(), and step after backward()"
            )
        if all(factor.isfinite().all() for _, factors in found for factor in factors):  # as on every other rank
            for layer, factors in found:
                layer.update(*factors, self.factor_decay)

    def _precondition(self) -> None:
        gradients = {name: layer.gradient() for name, layer in self.layers.items()}
        gradients = {name: gradient for name, gradient in gradients.items() if gradient is not None}
        done = self._inverses.precondition(gradients, self.damping)
        self.clip_factor = self._clip(gradients, done)
        for name, gradient in done.items():
            self.layers[name].write_gradient(gradient * self.clip_factor)

    def _clip(self, gradients: dict[str, Tensor], done: dict[str, Tensor]) -> float:
        if self.kl_clip is None or not done:
            return 1.0
        lr = self.lr() if callable(self.lr) else self.lr
        change = lr**2 * sum((done[name] * gradients[name]).sum() for name in done).item()
        return min(1.0, (self.kl_clip / change) ** 0.5) if change > 0 else 1.0

    def message_bytes(self) -> dict[str, int]:
        """Payload of the collectives in bytes: of each update of the ``factors``, of the ``inverses``, of each ``step``.

        All 0 on one rank. Counted once a layer has been used.
        """
        return self._inverses.message_bytes()
