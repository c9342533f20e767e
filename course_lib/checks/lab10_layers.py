"""Checks of lab 10's layers: a layer's factors, and its preconditioned gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from course_lib.checks.lab10_matrices import matrix_of, same, vec
from course_lib.checks.registry import CheckFailed

__all__ = ["conv_factors", "factors", "precondition"]


def _draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _pair(found: Any, name: str, names: str) -> tuple[Any, Any]:
    if found is None:
        raise CheckFailed(f"{name} returned nothing (None): is there a return?")
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise CheckFailed(f"{name} returns the pair ({names}); yours returned a {type(found).__name__}")
    return found[0], found[1]


def _first(found: torch.Tensor, reasons: dict[str, torch.Tensor], otherwise: str) -> str:
    return next((reason for reason, wrong in reasons.items() if same(found, wrong)), otherwise)


def _kept(before: list[torch.Tensor], after: list[torch.Tensor], name: str) -> None:
    if not all(torch.equal(a, b) for a, b in zip(before, after, strict=True)):
        raise CheckFailed(f"{name} has changed a tensor that it was given; the layer still needs it: no +=, *=, mul_")


# The factors of a linear layer, from a batch that went through one.


def _linear_batch(n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Activations and output gradients of the mean loss, and the output gradients of each sample's own loss."""
    weight, bias, a = _draw(2, 3, seed=1), _draw(2, seed=2), _draw(n, 3, seed=3)
    labels = torch.arange(n) % 2

    def output_gradients(reduction: str) -> torch.Tensor:
        outputs = (a @ weight.T + bias).requires_grad_()
        loss = F.cross_entropy(outputs, labels, reduction=reduction)
        return torch.autograd.grad(loss, outputs)[0]

    return a, output_gradients("mean"), output_gradients("sum")


def factors(answer: Callable[..., Any]) -> None:
    n = 7
    a, gradients, own = _linear_batch(n)
    given = [a.clone(), gradients.clone()]
    found = _pair(answer(*given), "factors", "A, G")
    _kept([a, gradients], given, "factors")
    ones = torch.ones(n, 1, dtype=torch.float64)
    with_bias = torch.cat([a, ones], 1)
    told = f"a layer of 3 inputs, bias, 2 outputs, and a batch of {n}"
    found_a = matrix_of(found[0], (4, 4), f"{told}: A", {
        (3, 3): "The bias is a weight too: append a column of ones to the activations",
        (n, n): "That is ã ãᵀ, samples by samples; the factor is features by features, ãᵀ ã",
        (2, 2): "The order is (A, G)",
    })  # fmt: skip
    right = with_bias.T @ with_bias / n
    if not same(found_a, right):
        first = torch.cat([ones, a], 1)
        raise CheckFailed(f"{told}: A[0, 0] is {right[0, 0]:.4g}, the mean of the first activation's square, and A[3, 3] is 1; "
                          f"yours are {found_a[0, 0]:.4g} and {found_a[3, 3]:.4g}. " + _first(found_a, {
            "The 1/N is missing: it is a mean over the batch, ãᵀ ã / N": n * right,
            "You divided by N twice": right / n,
            "You divided by N − 1, as for a covariance; it is a mean of N products": right * n / (n - 1),
            "The ones stand before the activations; the bias comes last, so append them": first.T @ first / n,
            "The mean over the batch was taken before the product; it is the mean of the products": torch.outer(with_bias.mean(0), with_bias.mean(0)),
            "The mean was subtracted; A is the second moment, not the covariance": torch.cov(with_bias.T, correction=0),
        }, "A = ãᵀ ã / N, with ã the activations and a column of ones at the end"))  # fmt: skip
    found_g = matrix_of(found[1], (2, 2), f"{told}: G", {
        (3, 3): "G has no bias column: every output gradient counts for weights and bias alike",
        (n, n): "That is samples by samples; the factor is outputs by outputs",
    })  # fmt: skip
    right = own.T @ own / n
    if not same(found_g, right):
        raise CheckFailed(f"{told}: A is right; G[0, 0] is {right[0, 0]:.4g}, yours {found_g[0, 0]:.4g}. " + _first(found_g, {
            f"It is N² = {n * n} times too small: under a mean loss each row of output_gradients holds 1/N already, so a "
            "sample's own gradient is N times its row": gradients.T @ gradients / n,
            f"It is N = {n} times too small: a sample's own gradient is N times its row, its square N² times, and the mean divides by N once": gradients.T @ gradients,
            f"It is N = {n} times too large: take the mean over the batch of the samples' own products": n * right,
            "The mean over the batch was taken before the product; it is the mean of the products": torch.outer(own.mean(0), own.mean(0)),
            "The mean was subtracted; G is the second moment": torch.cov(own.T, correction=0),
        }, "G is the mean over samples of g gᵀ, g a sample's own gradient: N times its row"))  # fmt: skip
    print("factors: A with its bias column, G of the samples' own gradients, both means over the batch")


# The preconditioned gradient of one layer.


def _inverses(a: torch.Tensor, g: torch.Tensor, damp_a: torch.Tensor, damp_g: torch.Tensor) -> tuple[Any, Any]:
    return (
        torch.linalg.inv(a + damp_a * torch.eye(len(a), dtype=a.dtype)),
        torch.linalg.inv(g + damp_g * torch.eye(len(g), dtype=g.dtype)),
    )


def _pi(a: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return (a.trace() / len(a) / (g.trace() / len(g))).sqrt()


def precondition(answer: Callable[..., Any]) -> None:
    for bias, gamma in ((True, 0.3), (True, 0.01), (False, 0.1)):
        inputs, outputs = 3 + bias, 2
        samples = _draw(9, inputs, seed=4)
        if bias:
            samples[:, -1] = 1
        a, g = samples.T @ samples / 9, 0.01 * _draw(2, 5, seed=5) @ _draw(2, 5, seed=5).T
        gradient = _draw(outputs, inputs, seed=6)
        weight_grad, bias_grad = (gradient[:, :-1], gradient[:, -1]) if bias else (gradient, None)
        given = [weight_grad.clone(), a.clone(), g.clone()]
        told = f"3 inputs, {'bias' if bias else 'no bias'}, 2 outputs, γ = {gamma}"
        found = _pair(
            answer(given[0], None if bias_grad is None else bias_grad.clone(), given[1], given[2], gamma),
            "precondition", "weight, bias",
        )  # fmt: skip
        _kept([weight_grad, a, g], given, "precondition")
        if bias_grad is None and found[1] is not None:
            raise CheckFailed(
                f"{told}: for a layer without bias (bias_grad is None) the second of the pair is None too"
            )
        weight = matrix_of(found[0], (2, 3), f"{told}: the weight's preconditioned gradient",
                           {(3, 2): "It is transposed", (2, 4): "The last column is the bias's: return it apart"})  # fmt: skip
        step = weight
        if bias:
            theirs = matrix_of(found[1], (2,), f"{told}: the bias's preconditioned gradient",
                               {(2, 1): "A bias has one dimension: [:, -1], not [:, -1:]"})  # fmt: skip
            step = torch.cat([weight, theirs[:, None]], 1)
        pi, root = _pi(a, g), gamma**0.5
        damped = torch.kron(
            a + pi * root * torch.eye(inputs, dtype=a.dtype), g + root / pi * torch.eye(outputs, dtype=a.dtype)
        )
        right = torch.linalg.solve(damped, vec(gradient)).view(inputs, outputs).T
        if not same(step, right):
            raise CheckFailed(f"{told}: the step's first entry is {right[0, 0]:.4g} with the whole Kronecker matrix, yours "
                              f"{step[0, 0]:.4g}. {_why_step(step, gradient, a, g, gamma, bias)}")  # fmt: skip
    print("precondition: (A ⊗ G, damped)⁻¹ ∇ as the whole matrix gives it, with and without bias")


def _why_step(found: torch.Tensor, gradient: torch.Tensor, a: torch.Tensor, g: torch.Tensor, gamma: float, bias: bool):
    pi, root, one = _pi(a, g), gamma**0.5, torch.ones((), dtype=a.dtype)
    nothing = 0 * one

    def step(damp_a: torch.Tensor, damp_g: torch.Tensor) -> torch.Tensor:
        inverse_a, inverse_g = _inverses(a, g, damp_a, damp_g)
        return inverse_g @ gradient @ inverse_a

    right, bare = step(pi * root, root / pi), _inverses(a, g, nothing, nothing)
    both = pi * root * torch.eye(len(a), dtype=a.dtype), root / pi * torch.eye(len(g), dtype=a.dtype)
    raw_pi = (a.trace() / g.trace()).sqrt()
    reasons = {
        "A is damped, G is not: γ is shared between them, √γ/π on G": step(pi * root, nothing),
        "G is damped, A is not: γ is shared between them, π√γ on A": step(nothing, root / pi),
        "There is no damping in it": step(nothing, nothing),
        "Each factor got γ; the product of the two dampings is γ, so each gets √γ (times π, divided by π)": step(gamma * one, gamma * one),
        "Each factor got its share of γ in place of √γ": step(pi * gamma, gamma / pi),
        "π is missing: A gets π√γ, G gets √γ/π": step(root * one, root * one),
        "π is upside down: the larger factor gets the larger damping, π√γ on A": step(root / pi, pi * root),
        "π lacks its square root": step(pi**2 * root, root / pi**2),
        "π compares mean eigenvalues: divide each trace by its dimension": step(raw_pi * root, root / raw_pi),
        "The damping was added to the inverses; invert the damped matrices": (bare[1] + both[1]) @ gradient @ (bare[0] + both[0]),
        "That multiplies by the damped factors; multiply by their inverses": (g + both[1]) @ gradient @ (a + both[0]),
        "That is the gradient itself": gradient,
    }  # fmt: skip
    if bias:
        inner = _inverses(a, g, pi * root, root / pi)[1] @ gradient[:, :-1] @ torch.linalg.inv((a + both[0])[:-1, :-1])
        if same(found[:, :-1], inner):
            return "Weight and bias belong to one matrix [∇W | ∇b]: A has a row and a column for the bias"
        if same(found[:, :-1], right[:, :-1]):
            return "The weight is right, the bias is not: it is the last column of the same product"
        reasons["The bias stands first in your matrix; A's last row and column are the bias's"] = _bias_first(
            gradient, *_inverses(a, g, pi * root, root / pi)
        )
    return _first(found, reasons, "It is (G + √γ/π I)⁻¹ [∇W | ∇b] (A + π√γ I)⁻¹")


def _bias_first(gradient: torch.Tensor, inverse_a: torch.Tensor, inverse_g: torch.Tensor) -> torch.Tensor:
    return (inverse_g @ gradient.roll(1, 1) @ inverse_a).roll(-1, 1)


# The factors of a convolution.


def _patches(images: torch.Tensor, kernel: int, stride: int, padding: int) -> torch.Tensor:
    """Every position's patch, cut by hand: ``(N, positions, C·k·k)``, channels first as in ``weight.flatten(1)``."""
    padded = F.pad(images, (padding,) * 4)
    rows = []
    for top in range(0, padded.shape[2] - kernel + 1, stride):
        for left in range(0, padded.shape[3] - kernel + 1, stride):
            rows.append(padded[:, :, top : top + kernel, left : left + kernel].flatten(1))
    return torch.stack(rows, 1)


def conv_factors(answer: Callable[..., Any]) -> None:
    for kernel, stride, padding in ((3, 1, 0), (3, 2, 1), (1, 2, 0), (2, 1, 1)):
        n, images = 4, _draw(4, 2, 6, 5, seed=7)
        height, width = ((size + 2 * padding - kernel) // stride + 1 for size in (6, 5))
        gradients = _draw(n, 3, height, width, seed=8) / n
        given = [images.clone(), gradients.clone()]
        told = f"images 4×2×6×5, kernel {kernel}, stride {stride}, padding {padding}, 3 channels out"
        found = _pair(answer(*given, kernel, stride, padding), "conv_factors", "A, G")
        _kept([images, gradients], given, "conv_factors")
        positions, patches, width = height * width, _patches(images, kernel, stride, padding), 2 * kernel * kernel
        rows = patches.flatten(0, 1)
        right = rows.T @ rows / (n * positions)
        found_a = matrix_of(found[0], (width, width), f"{told}: A", {
            (width + 1, width + 1): "There is no bias in these layers, so no column of ones",
            (positions, positions): "That is positions by positions: unfold returns (N, C·k·k, positions); transpose it",
            (n * positions, n * positions): "That is rows by rows; the factor is rowsᵀ rows",
            (2, 2): "A row is a whole patch, C·k·k numbers, not a pixel",
        })  # fmt: skip
        if not same(found_a, right):
            summed = patches.sum(1)
            raise CheckFailed(f"{told}: A[0, 0] is {right[0, 0]:.4g}, yours {found_a[0, 0]:.4g}. " + _first(found_a, {
                f"You divided by N; there are N T = {n} · {positions} rows": positions * right,
                "The mean is missing: divide by the number of rows, N T": n * positions * right,
                f"You divided by T; there are N T = {n} · {positions} rows": n * right,
                "The patches' numbers are in another order: weight.flatten(1) has the channel first, as unfold has it":
                    _pixels_first(right, kernel),
                "The patches of an image were added up before the product; the factor is a mean of products": summed.T @ summed / (n * positions),
            }, f"T = {positions} patches an image, each a row; A = rowsᵀ rows / (N T)"))  # fmt: skip
        own = n * gradients.permute(0, 2, 3, 1).flatten(0, 2)
        right = own.T @ own / n
        found_g = matrix_of(found[1], (3, 3), f"{told}: G")
        if not same(found_g, right):
            scrambled, summed = n * gradients.reshape(-1, 3), n * gradients.sum((2, 3))
            raise CheckFailed(f"{told}: A is right; G[0, 0] is {right[0, 0]:.4g}, yours {found_g[0, 0]:.4g}. " + _first(found_g, {
                "You took the mean over the T positions: an image's gradient is the sum over them, so G sums": right / positions,
                "A sample's own gradient is N times its part of output_gradients, as for the linear layer": right / n**2,
                f"It is N = {n} times too small: the own gradients are N times as large, their squares N²": right / n,
                "It is N times too large: the mean over the samples is missing": n * right,
                "It is T times too large: the number of rows is N T, and the samples are N": positions * right,
                "reshape mixes channels and positions: bring the channels last first, permute(0, 2, 3, 1)": scrambled.T @ scrambled / n,
                "The gradients were added up over positions before the product; it is a sum of products": summed.T @ summed / n,
            }, "G = (1/N) Σ over all rows of g gᵀ, with g = N times output_gradients there"))  # fmt: skip
    print("conv_factors: right for four convolutions, with stride, padding and an even kernel among them")


def _pixels_first(matrix: torch.Tensor, kernel: int) -> torch.Tensor:
    """The same factor with the numbers of a patch ordered (pixel, channel)."""
    order = torch.arange(len(matrix)).view(2, kernel * kernel).T.flatten()
    return matrix[order][:, order]
