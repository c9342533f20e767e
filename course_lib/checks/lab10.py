"""Checks of lab 10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.checks.lab10_layers import conv_factors, factors, precondition
from course_lib.checks.lab10_matrices import matrix_of, same, vec
from course_lib.checks.registry import CheckFailed
from course_lib.checks.run_evidence import check_run

__all__ = ["CHECKS"]


def _draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def fisher(answer: Callable[..., Any]) -> None:
    for samples in (1, 5):
        weight, inputs = _draw(3, 4, seed=1), _draw(samples, 4, seed=2)
        told = f"{samples} input{'s' if samples > 1 else ''} of 4 numbers, 3 classes"
        found = matrix_of(answer(weight.clone(), inputs.clone()), (12, 12), f"{told}: the Fisher of a 3×4 weight")
        right = _hessian(weight, inputs)
        if not same(found, right):
            raise CheckFailed(f"{told}: it differs from the Hessian of the mean cross-entropy, which for this layer is the same "
                              f"matrix, by up to {(found - right).abs().max():.2g}. {_why_fisher(found, weight, inputs)}")  # fmt: skip
    print("softmax_fisher: equals the Hessian of the mean cross-entropy, for 1 input and for 5")


def _hessian(weight: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """By automatic differentiation, in the order of vec: the labels do not matter."""
    classes, features = weight.shape
    labels = torch.zeros(len(inputs), dtype=torch.long)

    def loss(columns: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(inputs @ columns.view(features, classes), labels)

    return torch.autograd.functional.hessian(loss, vec(weight))


def _why_fisher(found: torch.Tensor, weight: torch.Tensor, inputs: torch.Tensor) -> str:
    n, p = len(inputs), torch.softmax(inputs @ weight.T, 1)
    spread = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]

    def mean(columns: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        return sum(torch.kron(torch.outer(x, x), s) for x, s in zip(columns, classes, strict=True)) / n

    right = mean(inputs, spread)
    uniform = torch.stack([(torch.eye(3) - q).T @ (torch.eye(3) - q) / 3 for q in p[:, None, :]])
    reasons = {
        "the entries are ordered by rows, as flatten() orders them; vec stacks columns: x ⊗ (p − e), not (p − e) ⊗ x":
            sum(torch.kron(s, torch.outer(x, x)) for x, s in zip(inputs, spread, strict=True)) / n,
        "it is the sum over inputs; the expectation is their mean": n * right,
        "it is the product of the means, K-FAC's approximation; the Fisher is the mean of the products":
            torch.kron(inputs.T @ inputs / n, spread.mean(0)),
        "the part −p pᵀ is missing: diag(p) alone is the second moment of e, not of p − e": mean(inputs, torch.diag_embed(p)),
        "every class counts alike; weigh class y by the model's probability of it, p_y": mean(inputs, uniform),
        "the sign is turned: it is the mean of outer products, which is never negative": -right,
        "the gradients of the classes were averaged before their outer product; their mean is 0 (the model expects no change)":
            torch.zeros_like(right),
    }  # fmt: skip
    for reason, wrong in reasons.items():
        if same(found, wrong):
            return "Yours: " + reason
    if not same(found, found.T):
        return "Yours is not symmetric; a mean of outer products g gᵀ is"
    return "For one input it is (x xᵀ) ⊗ (diag(p) − p pᵀ), with p = softmax(W x)"


class _Watch(TorchDispatchMode):
    """Remembers the largest tensor that any operation returns."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        return result


def kron(answer: tuple[Callable[..., Any], Callable[..., Any]]) -> None:
    times, solve = answer
    a, g, x = _draw(4, 4, seed=3), _draw(3, 3, seed=4), _draw(3, 4, seed=5)
    big = torch.kron(a, g)
    for name, function, wanted in (
        ("kron_times", times, big @ vec(x)),
        ("kron_solve", solve, torch.linalg.solve(big, vec(x))),
    ):
        right = wanted.view(4, 3).T
        told = f"{name} with A 4×4, G 3×3, neither symmetric, X 3×4"
        found = matrix_of(function(a.clone(), g.clone(), x.clone()), (3, 4), told)
        if not same(found, right):
            raise CheckFailed(f"{told}: it differs from what torch.kron gives by up to {(found - right).abs().max():.2g}. "
                              + _why_kron(found, a, g, x, name == "kron_solve"))  # fmt: skip
    a, g, x = _draw(40, 40, seed=6), _draw(30, 30, seed=7), _draw(30, 40, seed=8)
    for name, function in (("kron_times", times), ("kron_solve", solve)):
        with _Watch() as watch:
            function(a, g, x)
        if watch.largest > 10 * a.numel():
            raise CheckFailed(f"{name} with A 40×40 and G 30×30 makes a tensor of {watch.largest:,} numbers; A, G and X have "
                              f"{a.numel() + g.numel() + x.numel():,} together. Do without the Kronecker product itself: "
                              "for a layer of 1000×1000 it has 10¹² entries")  # fmt: skip
    print("kron_times, kron_solve: torch.kron's results, without a matrix larger than the factors")


def _why_kron(found: torch.Tensor, a: torch.Tensor, g: torch.Tensor, x: torch.Tensor, inverse: bool) -> str:
    ia, ig = (torch.linalg.inv(a), torch.linalg.inv(g)) if inverse else (a, g)
    left, right = ("G⁻¹", "A⁻¹") if inverse else ("G", "A")
    reasons = {
        f"Yours is {left} X {right}: the second factor is transposed, {left} X ({right})ᵀ. For symmetric A nobody sees it": ig @ x @ ia,
        f"Yours is ({left})ᵀ X {right}, the TACC slides' Bᵀ c A, which holds for symmetric factors only; in general {left} X ({right})ᵀ": ig.T @ x @ ia,
        f"Yours transposes both factors; only {right} is transposed": ig.T @ x @ ia.T,
        "Yours multiplies; solve asks for the inverses of both factors": g @ x @ a.T,
        "Only G is inverted; (A ⊗ G)⁻¹ = A⁻¹ ⊗ G⁻¹": torch.linalg.inv(g) @ x @ a.T,
        "Only A is inverted; (A ⊗ G)⁻¹ = A⁻¹ ⊗ G⁻¹": g @ x @ torch.linalg.inv(a).T,
        "X was stacked by rows (flatten) for the product; vec stacks columns": (torch.kron(ia, ig) @ x.flatten()).view(3, 4),
        "The result was unstacked by rows; vec stacks columns": (torch.kron(ia, ig) @ vec(x)).view(3, 4),
    }  # fmt: skip
    for reason, wrong in reasons.items():
        if same(found, wrong):
            return reason
    return "(A ⊗ G) vec(X) = vec(G X Aᵀ), and (A ⊗ G)⁻¹ = A⁻¹ ⊗ G⁻¹"


CHECKS = {
    "fisher": fisher,
    "kron": kron,
    "factors": factors,
    "precondition": precondition,
    "conv-factors": conv_factors,
    "run": lambda folder: check_run(folder, "10_kfac"),
}
