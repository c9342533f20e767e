"""Lab 10's answers, right and wrong. The right ones go the long way: Hessian, whole matrix, patches by hand."""

from __future__ import annotations

import torch
from torch.linalg import inv
from torch.nn import functional as F

from course_lib.exercises.description import Answers, Mistake

__all__ = ["ANSWERS"]


def _vec(matrix):
    return matrix.T.reshape(-1)


def _hessian(weight, inputs):
    """Of the mean cross-entropy: for this layer the same matrix, whatever the labels."""
    labels = torch.zeros(len(inputs), dtype=torch.long)
    return torch.autograd.functional.hessian(
        lambda columns: F.cross_entropy(inputs @ columns.view(weight.T.shape), labels), _vec(weight)
    )


def _mean_product(pairs):
    return sum(torch.kron(*pair) for pair in pairs) / len(pairs)


def _fisher(spread=lambda p: p.diag() - p.outer(p), mean=_mean_product):
    """From x xᵀ and the spread of the classes' gradients, for each input."""
    return lambda weight, inputs: mean([(x.outer(x), spread((weight @ x).softmax(0))) for x in inputs])


fisher = Answers((_hessian,), {
    "by rows": Mistake("the entries are ordered by rows, as flatten() does; in the order of vec it is x ⊗ (p − e)",
        _fisher(mean=lambda pairs: _mean_product([pair[::-1] for pair in pairs]))),
    "a sum": Mistake("that is the sum over inputs, not their mean",
        _fisher(mean=lambda pairs: len(pairs) * _mean_product(pairs))),
    "product of means": Mistake("that is the product of the means, K-FAC's approximation, not the mean of products",
        _fisher(mean=lambda pairs: torch.kron(*(sum(each) / len(pairs) for each in zip(*pairs, strict=True))))),
    "diagonal": Mistake("−p pᵀ is missing: diag(p) is the second moment of e, not of p − e", _fisher(torch.diag)),
    "classes alike": Mistake("every class counts alike; weigh class y by the model's probability of it, p_y",
        _fisher(lambda p: (torch.eye(len(p)) - p).T @ (torch.eye(len(p)) - p) / len(p))),
    "sign": Mistake("the sign is turned: no mean of g gᵀ is negative", _fisher(lambda p: p.outer(p) - p.diag())),
    "zero": Mistake("the gradients of the classes were averaged before their outer product: their mean is 0",
        _fisher(lambda p: 0 * p.outer(p))),
})  # fmt: skip


def _times(A, G, X):
    return G @ X @ A.T


def _both(times):
    """For both functions, the second with the inverses."""
    return times, lambda A, G, X: times(inv(A), inv(G), X)


kron = Answers(_both(_times), {
    "not transposed": Mistake("the second factor is transposed: it is G X Aᵀ, or G⁻¹ X (A⁻¹)ᵀ (symmetry hides it)",
        *_both(lambda A, G, X: G @ X @ A)),
    "the slides'": Mistake("that is the TACC slides' Bᵀ c A, right for symmetric factors only: it is G X Aᵀ, or "
        "G⁻¹ X (A⁻¹)ᵀ", *_both(lambda A, G, X: G.T @ X @ A)),
    "both transposed": Mistake("both factors are transposed, not A alone", *_both(lambda A, G, X: G.T @ X @ A.T)),
    "stacked by rows": Mistake("X was stacked by rows (flatten) for the product; vec stacks columns",
        *_both(lambda A, G, X: (torch.kron(A, G) @ X.flatten()).view(X.shape))),
    "unstacked by rows": Mistake("the result was unstacked by rows; vec stacks columns",
        *_both(lambda A, G, X: (torch.kron(A, G) @ _vec(X)).view(X.shape))),
    "multiplied": Mistake("that multiplies; solve asks for the inverses of both factors", None, _times),
    "G alone": Mistake("only G is inverted, A is not", None, lambda A, G, X: inv(G) @ X @ A.T),
    "A alone": Mistake("only A is inverted, G is not", None, lambda A, G, X: G @ X @ inv(A).T),
})  # fmt: skip


def _patches(images, kernel, stride, padding):
    """``(N, T, C·k·k)``, the channel first as in ``weight.flatten(1)``."""
    padded = F.pad(images, (padding,) * 4)
    tops, lefts = (range(0, side - kernel + 1, stride) for side in padded.shape[2:])
    return torch.stack([padded[:, :, i : i + kernel, j : j + kernel].flatten(1) for i in tops for j in lefts], 1)


def _linear(inputs, ones=(0, 1)):
    """A linear layer is a convolution of one position, T = 1."""
    return F.pad(inputs, ones, value=1)[:, None]


def _own(gradients):
    """Each sample's own, ``(N, T, outputs)``."""
    return len(gradients) * gradients[..., None].flatten(2).transpose(1, 2)


def _sum(rows):
    return torch.einsum("nti,ntj->ij", rows, rows)


def _mean(rows):
    return _sum(rows) / len(rows) / rows.shape[1]


def _factors(a=_mean, g=lambda own: _sum(own) / len(own), rows=None, own=_own):
    return lambda inputs, gradients, *settings: (
        a((rows or (_patches if settings else _linear))(inputs, *settings)),
        g(own(gradients)),
    )


_right = _factors()
_OF_BOTH = {
    "N² too small": Mistake("it is N² times too small: under a mean loss output_gradients hold 1/N already, so a "
        "sample's own gradient is N times its part", _factors(g=lambda own: _sum(own) / len(own) ** 3)),
    "N too small": Mistake("it is N times too small: a square is N² times its part's, and the mean divides by N once",
        _factors(g=lambda own: _sum(own) / len(own) ** 2)),
    "N too large": Mistake("it is N times too large: take the mean over the batch", _factors(g=_sum)),
    "no mean": Mistake("the mean is missing: divide by the number of rows", _factors(_sum)),
    "inputs changed": Mistake("the layer still needs its inputs: no +=, *=, mul_ on them",
        lambda *given: (_right(*given), given[0].mul_(2))[0]),
    "gradients changed": Mistake("the layer still needs the gradients: no +=, *=, mul_ on them",
        lambda *given: (_right(*given), given[1].mul_(2))[0]),
    "no pair": Mistake("it did not return the pair (A, G), or nothing at all", lambda *given: _right(*given)[0]),
}  # fmt: skip

factors = Answers((_right,), {
    "no bias": Mistake("A lacks the row and column of the bias: append a column of ones to the activations",
        _factors(rows=lambda inputs: inputs[:, None])),
    "bias first": Mistake("the ones come before the activations; the bias comes last, so append them",
        _factors(rows=lambda inputs: _linear(inputs, (1, 0)))),
    "divided twice": Mistake("it is divided by N twice", _factors(lambda rows: _mean(rows) / len(rows))),
    "N − 1": Mistake("it is divided by N − 1, as for a covariance; it is a mean of N products",
        _factors(lambda rows: _sum(rows) / (len(rows) - 1))),
    "means first": Mistake("the mean over the batch was taken before the product; it is the mean of the products",
        _factors(*2 * [lambda rows: torch.outer(*2 * [rows.mean((0, 1))])])),
    "covariance": Mistake("the mean was subtracted; a factor is the second moment, not the covariance",
        _factors(*2 * [lambda rows: torch.cov(rows.flatten(0, 1).T, correction=0)])),
    "rows by rows": Mistake("that is samples by samples; a factor is numbers by numbers, rowsᵀ rows / N",
        _factors(*2 * [lambda rows: _mean(rows.flatten(0, 1).T[:, None])])),
    "swapped": Mistake("the order is (A, G)", lambda *given: _right(*given)[::-1]),
} | _OF_BOTH)  # fmt: skip

conv = Answers((_right,), {
    "divided by N": Mistake("it is divided by N, not by N T", _factors(lambda rows: _sum(rows) / len(rows))),
    "divided by T": Mistake("it is divided by T, not by N T", _factors(lambda rows: len(rows) * _mean(rows))),
    "pixels first": Mistake("a patch's numbers are in another order: weight.flatten(1) has the channel first",
        _factors(rows=lambda images, *settings:
            _patches(images, *settings).unflatten(2, (images.shape[1], -1)).transpose(2, 3).flatten(2))),
    "added first": Mistake("rows were added up over positions before the product; both factors add up products",
        _factors(lambda rows: _mean(rows.sum(1)[:, None]) / rows.shape[1], lambda own: _mean(own.sum(1)[:, None]))),
    "no stride": Mistake("the stride is not used: unfold takes stride=…",
        _factors(rows=lambda images, kernel, stride, padding: _patches(images, kernel, 1, padding))),
    "no padding": Mistake("the padding is not used: unfold takes padding=…",
        _factors(rows=lambda images, kernel, stride, padding: _patches(images, kernel, stride, 0))),
    "mean over positions": Mistake("that is the mean over positions, G is their sum", _factors(g=_mean)),
    "T too large": Mistake("it is T times too large: there are N T rows, but N samples",
        _factors(g=lambda own: own.shape[1] * _sum(own) / len(own))),
    "mixed": Mistake("reshape mixes channels and positions: bring the channels last first, permute(0, 2, 3, 1)",
        _factors(own=lambda gradients: len(gradients) * gradients.reshape(len(gradients), -1, gradients.shape[1]))),
} | _OF_BOTH)  # fmt: skip


def _solved(step, A, G, on_A, on_G):
    """By the whole Kronecker matrix."""
    return torch.linalg.solve(torch.kron(A + on_A, G + on_G), _vec(step)).view(step.T.shape).T


def _split(share=lambda pi, root: (pi * root, root / pi), mean=lambda factor: factor.diag().mean(), solved=_solved):
    """A damped step; `share` is what each factor gets of the damping, `mean` what π compares."""

    def precondition(weight, bias, A, G, damping):
        step = weight if bias is None else torch.column_stack([weight, bias])
        on_A, on_G = share((mean(A) / mean(G)) ** 0.5, damping**0.5)
        step = solved(step, A, G, on_A * torch.eye(len(A)).double(), on_G * torch.eye(len(G)).double())
        return (step, None) if bias is None else (step[:, :-1], step[:, -1])

    return precondition


_step = _split()


def _at_a_bias(answer):
    return lambda weight, bias, *rest: (_step if bias is None else answer)(weight, bias, *rest)


def _apart(step, A, G, on_A, on_G):
    weight = _solved(step[:, :-1], A[:-1, :-1], G, on_A[:-1, :-1], on_G)
    return torch.column_stack([weight, _solved(step, A, G, on_A, on_G)[:, -1]])


_SHARED = "γ is shared between them, π√γ on A, √γ/π on G"

precondition = Answers((_step,), {
    "A damped": Mistake(f"A is damped, G is not: {_SHARED}", _split(lambda pi, root: (pi * root, 0))),
    "G damped": Mistake(f"G is damped, A is not: {_SHARED}", _split(lambda pi, root: (0, root / pi))),
    "undamped": Mistake(f"there is no damping in it: {_SHARED}", _split(lambda pi, root: (0, 0))),
    "each γ": Mistake(f"each factor got γ: {_SHARED}", _split(lambda pi, root: (root**2, root**2))),
    "no root": Mistake(f"each factor got its share of γ, not of √γ: {_SHARED}",
        _split(lambda pi, root: (pi * root**2, root**2 / pi))),
    "no π": Mistake(f"the factor π is missing: {_SHARED}", _split(lambda pi, root: (root, root))),
    "π upside down": Mistake("the shares are swapped: π√γ is A's", _split(lambda pi, root: (root / pi, pi * root))),
    "π²": Mistake("the square root is missing in π", _split(lambda pi, root: (pi**2 * root, root / pi**2))),
    "traces": Mistake("the mean eigenvalues give π: divide each trace by its dimension", _split(mean=torch.trace)),
    "damped after": Mistake("the damping was added to the inverses; invert the damped matrices",
        _split(solved=lambda step, A, G, on_A, on_G: (inv(G) + on_G) @ step @ (inv(A) + on_A))),
    "multiplied": Mistake("that multiplies by the damped factors; multiply by their inverses",
        _split(solved=lambda step, A, G, on_A, on_G: (G + on_G) @ step @ (A + on_A))),
    "bias as it was": Mistake("the bias's gradient came back as it was; its step is the product's last column",
        lambda weight, bias, *rest: (_step(weight, bias, *rest)[0], bias)),
    "the gradient": Mistake("that is the gradient itself", lambda *given: given[:2]),
    "bias apart": Mistake("weight and bias belong to one matrix [∇W | ∇b]: A has a row and a column for the bias",
        _at_a_bias(_split(solved=_apart))),
    "bias first": Mistake("the bias comes first in your matrix; A's last row and column are the bias's",
        _at_a_bias(_split(solved=lambda step, *given: _solved(step.roll(1, 1), *given).roll(-1, 1)))),
    "two dimensions": Mistake("a bias has one dimension: [:, -1], not [:, -1:]",
        _at_a_bias(lambda *given: (_step(*given)[0], _step(*given)[1][:, None]))),
    "transposed": Mistake("the weight's part is transposed", lambda *given: (_step(*given)[0].T, _step(*given)[1])),
    "needs a bias": Mistake("it stopped with an error at a layer without bias, where bias_grad is None",
        lambda weight, bias, *rest: _step(weight, bias + 0, *rest)),
    "damps in place": Mistake("the layer still needs its factors and gradients: no +=, *=, add_ on them",
        lambda *given: (_step(*given), given[2].diagonal().add_(given[4]))[0]),
    "no pair": Mistake("it did not return the pair (weight's part, bias's part), or nothing at all",
        lambda *given: _step(*given)[0]),
})  # fmt: skip

ANSWERS = {"fisher": fisher, "kron": kron, "factors": factors, "precondition": precondition, "conv-factors": conv}
