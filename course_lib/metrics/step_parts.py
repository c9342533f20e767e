"""Where the time of a training step goes: its parts are measured inside the same step, so that they add up to it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["StepParts", "kfac_multiplications", "kfac_step_parts"]


class StepParts:
    """Seconds of each part of a step. A part inside another one counts for itself alone.

    ::

        parts = StepParts(device)
        parts.watch(kfac, "invert", "inverses")  # every call of kfac.invert
        with parts("forward"):
            loss = loss_fn(model(images), labels)

    On a GPU every boundary waits for the device. The parts are then right, and the step is slower than without.

    Parameters
    ----------
    device : torch.device or str

    Attributes
    ----------
    seconds : dict of str to float
        The sum over all calls, by part.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device, self.seconds = torch.device(device), {}
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Count what is inside as `name`."""
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def watch(self, owner: Any, attribute: str, name: str) -> None:
        """Count every call of ``owner.attribute`` as `name`, from now on."""
        function = getattr(owner, attribute)

        def counted(*args: Any, **options: Any) -> Any:
            with self(name):
                return function(*args, **options)

        setattr(owner, attribute, counted)

    def _turn(self) -> None:
        """Give the time since the last boundary to the innermost part that is open."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now


def kfac_step_parts(
    model: nn.Module, kfac: Any, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor, steps: int = 4
) -> dict[str, float]:
    """Milliseconds per step of each part of a K-FAC training on one batch, after two steps to warm up.

    Parameters
    ----------
    kfac
        With `average`, which makes the factors, `invert`, and ``step(lr)``. The calls of the first two are watched, and every
        ``dist.all_reduce`` and ``dist.broadcast``.

    Returns
    -------
    dict
        ``forward``, ``backward``, ``factors``, ``inverses``, ``update`` (the rest of both steps) and ``messages``.
    """
    lr, kept = optimizer.param_groups[0]["lr"], (dist.all_reduce, dist.broadcast)
    parts = StepParts(images.device)
    for owner, attribute, name in (
        (kfac, "average", "factors"),
        (kfac, "invert", "inverses"),
        (dist, "all_reduce", "messages"),
        (dist, "broadcast", "messages"),
    ):
        parts.watch(owner, attribute, name)
    try:
        for step in range(steps + 2):
            if step == 2:
                parts.seconds.clear()
            with parts("forward"):
                loss = nn.functional.cross_entropy(model(images), labels)
            with parts("backward"):
                optimizer.zero_grad()
                loss.backward()
            with parts("update"):
                kfac.step(lr)
                optimizer.step()
    finally:
        dist.all_reduce, dist.broadcast = kept
    names = ("forward", "backward", "factors", "inverses", "update", "messages")
    return {name: 1000 * parts.seconds.get(name, 0.0) / steps for name in names}


def kfac_multiplications(model: nn.Module, images: Tensor) -> tuple[float, float, float]:
    """Multiplications of a network's Linear and Conv2d layers, of one image's or of one update's.

    A layer with n inputs (a convolution: the numbers under its kernel), m outputs and T positions takes 3 T n m forward and
    backward, T (n² + m²) for K-FAC's factors, and n³ + m³ for their inverses. Biases are left out.

    Parameters
    ----------
    images : Tensor
        What the model takes; its values do not matter.

    Returns
    -------
    forward_and_backward, factors : float
        Per image.
    inverses : float
        Per update.
    """
    shapes: list[tuple[int, int, int]] = []

    def keep(layer: nn.Module, inputs: Any, output: Tensor) -> None:
        positions = output[0, 0].numel() if output.dim() == 4 else 1
        shapes.append((positions, layer.weight[0].numel(), len(layer.weight)))

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    hooks = [layer.register_forward_hook(keep) for layer in layers]
    with torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    return (
        sum(3.0 * positions * n * m for positions, n, m in shapes),
        sum(1.0 * positions * (n * n + m * m) for positions, n, m in shapes),
        sum(1.0 * n**3 + m**3 for _, n, m in shapes),
    )
