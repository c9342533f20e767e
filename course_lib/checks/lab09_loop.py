"""Lab 09's check of the training loop: what it computes, where it holds the lock, whose memory it changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from course_lib.checks.registry import CheckFailed

__all__ = ["loop"]

LR = 0.05
OTHERS = 0.25  # what another process adds to every weight while this one waits for the lock


class _WatchedLock:
    """Notes what happens inside and outside; another process may have been in before."""

    def __init__(self, model: nn.Module, others: float) -> None:
        self.model, self.others = model, others
        self.held, self.entries = False, 0
        self.changed_outside = self.computed_inside = False
        self.last = self._weights()
        model.register_forward_hook(lambda *_: self._computing())
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: self._computing())

    def _weights(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def _computing(self) -> None:
        self.computed_inside |= self.held

    def see(self) -> None:
        """Whether the weights changed since the lock was last let go."""
        now = self._weights()
        self.changed_outside |= any(not torch.equal(a, b) for a, b in zip(now, self.last, strict=True))

    def __enter__(self) -> None:
        self.see()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter += self.others
        self.held, self.entries = True, self.entries + 1

    def __exit__(self, *exc_info: object) -> None:
        self.held, self.last = False, self._weights()


def _problem() -> tuple[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    generator = torch.Generator().manual_seed(9)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
            parameter.grad = torch.ones_like(parameter)  # left from an earlier training
    sizes = (4, 4, 3)
    batches = [
        (torch.randn(size, 6, generator=generator, dtype=torch.float64), torch.randint(3, (size,), generator=generator))
        for size in sizes
    ]
    return model, batches


def _trained(
    others: float, *, accumulate: bool = False, left: bool = False, reduction: str = "mean", lr: float = LR
) -> torch.Tensor:
    """`accumulate`: no gradient is ever cleared; `left`: the one that the model came with is not."""
    model, batches = _problem()
    parameters = list(model.parameters())
    totals = [parameter.grad.clone() for parameter in parameters]
    for images, labels in batches:
        gradients = torch.autograd.grad(F.cross_entropy(model(images), labels, reduction=reduction), parameters)
        totals = [t + g for t, g in zip(totals, gradients, strict=True)] if accumulate or left else list(gradients)
        left = False
        with torch.no_grad():
            for parameter, gradient in zip(parameters, totals, strict=True):
                parameter += others - lr * gradient
    return _flat(parameters)


def _flat(tensors: Any) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def loop(answer: Callable[..., Any]) -> None:
    found, watched, samples = _run(answer, 0.0)
    right = _trained(0.0)
    if not torch.allclose(found, right, rtol=0, atol=1e-9):
        raise CheckFailed(_why(found, right))
    if watched.computed_inside:
        raise CheckFailed(
            "a gradient was computed while the lock was held: then the processes take turns, and two are no faster than one. Take "
            "the lock for the update only"
        )
    if watched.entries == 0:
        raise CheckFailed("the lock was never taken: put the update into `with lock:`")
    if watched.changed_outside:
        raise CheckFailed(
            "weights were changed outside of `with lock:`; the locked variant then loses updates like the other"
        )
    if watched.entries != 3:
        raise CheckFailed(
            f"3 batches took the lock {watched.entries} times: take it once a batch, around the update of all parameters"
        )
    found, _, _ = _run(answer, OTHERS)
    if not torch.allclose(found, _trained(OTHERS), rtol=0, atol=1e-9):
        raise CheckFailed(
            f"while your process waited for the lock, another one added {OTHERS} to every weight; after your update that is gone. "
            "Subtract from what stands there now (parameter -= …), do not write back what you had read before"
        )
    if type(samples) is not int:
        raise CheckFailed(
            f"return the number of samples, an int; yours returned {samples!r}. int(…) makes one of a tensor or a float"
        )
    if samples != 11:
        raise CheckFailed(
            f"three batches of 4, 4 and 3 images are 11; yours returned {samples!r}. Count the labels of each batch"
        )
    print("train_share: SGD's steps, in the model's own memory, the lock around the updates and nothing else")


def _run(answer: Callable[..., Any], others: float) -> tuple[torch.Tensor, _WatchedLock, Any]:
    model, batches = _problem()
    memory = [parameter.data for parameter in model.parameters()]  # what other processes see
    lock = _WatchedLock(model, others)
    samples = answer(model, [(images.clone(), labels.clone()) for images, labels in batches], LR, lock)
    lock.see()
    seen, own = _flat(memory), _flat(model.parameters())
    if not torch.equal(seen, own):
        raise CheckFailed(
            "the model has new tensors now, and the shared memory still holds the old weights: parameter.data = … gives this "
            "process a tensor of its own. Change it in place: parameter -= … under torch.no_grad()"
        )
    return seen, lock, samples


def _why(found: torch.Tensor, right: torch.Tensor) -> str:
    before = _flat(_problem()[0].parameters())
    if torch.equal(found, before):
        return "the weights did not change. Is it the model that was given which is trained, or a copy of it?"
    reasons = {
        "gradients of earlier batches are still in .grad, and add up: clear them before each backward": _trained(0.0, accumulate=True),
        "the gradient that the model came with went into the first step: clear before the first backward": _trained(0.0, left=True),
        "that is the gradient of the summed loss: take the mean over the batch, which is cross_entropy's default": _trained(
            0.0, reduction="sum"
        ),
        "the weights went up the gradient: subtract it": _trained(0.0, lr=-LR),
        "the learning rate is missing": _trained(0.0, lr=1.0),
    }  # fmt: skip
    told = "three batches of plain SGD end elsewhere"
    for reason, value in reasons.items():
        if torch.allclose(found, value, rtol=0, atol=1e-9):
            return f"{told}: {reason}"
    distance = (found - right).abs().max().item()
    return f"{told} (largest difference of a weight {distance:.2g}): w ← w − lr · ∇(mean cross-entropy), batch after batch, no momentum"
