"""Lab 10's answers, right and wrong. The right ones go the long way: Hessian, whole matrix, patches by hand."""

from __future__ import annotations

import torch
from torch import nn
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


def _product(step, A_inverse, G_inverse):
    """By the whole Kronecker matrix."""
    return (torch.kron(A_inverse, G_inverse) @ _vec(step)).view(step.T.shape).T


def _damped(
    share=lambda pi, root: (pi * root, root / pi),
    mean=lambda factor: factor.diag().mean(),
    inverse=lambda F, on: inv(F + on),
):
    """The damped inverses; `share` is what each factor gets of the damping, `mean` what π compares."""

    def damped_inverses(A, G, damping):
        on_A, on_G = share((mean(A) / mean(G)) ** 0.5, damping**0.5)
        return tuple(inverse(F, on * torch.eye(len(F)).to(F)) for F, on in ((A, on_A), (G, on_G)))

    return damped_inverses


def _applied(product=_product):
    def precondition(weight, bias, A_inverse, G_inverse):
        step = product(weight if bias is None else torch.column_stack([weight, bias]), A_inverse, G_inverse)
        return (step, None) if bias is None else (step[:, :-1], step[:, -1])

    return precondition


_inverses, _step = _damped(), _applied()


def _at_a_bias(answer):
    return lambda weight, bias, *rest: (_step if bias is None else answer)(weight, bias, *rest)


def _apart(step, A_inverse, G_inverse):
    weight = G_inverse @ step[:, :-1] @ A_inverse[:-1, :-1]
    return torch.column_stack([weight, G_inverse @ step[:, -1] * A_inverse[-1, -1]])


_SHARED = "γ is shared between them, π√γ on A, √γ/π on G"

precondition = Answers((_inverses, _step), {
    "A damped": Mistake(f"A is damped, G is not: {_SHARED}", _damped(lambda pi, root: (pi * root, 0)), None),
    "G damped": Mistake(f"G is damped, A is not: {_SHARED}", _damped(lambda pi, root: (0, root / pi)), None),
    "undamped": Mistake(f"there is no damping in it: {_SHARED}", _damped(lambda pi, root: (0, 0)), None),
    "each γ": Mistake(f"each factor got γ: {_SHARED}", _damped(lambda pi, root: (root**2, root**2)), None),
    "no root": Mistake(f"each factor got its share of γ, not of √γ: {_SHARED}",
        _damped(lambda pi, root: (pi * root**2, root**2 / pi)), None),
    "no π": Mistake(f"the factor π is missing: {_SHARED}", _damped(lambda pi, root: (root, root)), None),
    "π upside down": Mistake("the shares are swapped: π√γ is A's", _damped(lambda pi, root: (root / pi, pi * root)), None),
    "π²": Mistake("the square root is missing in π", _damped(lambda pi, root: (pi**2 * root, root / pi**2)), None),
    "traces": Mistake("the mean eigenvalues give π: divide each trace by its dimension", _damped(mean=torch.trace), None),
    "damped after": Mistake("the damping was added to the inverses; invert the damped matrices",
        _damped(inverse=lambda F, on: inv(F) + on), None),
    "multiplied": Mistake("that multiplies by the damped factors; multiply by their inverses",
        _damped(inverse=lambda F, on: F + on), None),
    "bias as it was": Mistake("the bias's gradient came back as it was; its step is the product's last column",
        None, lambda weight, bias, *rest: (_step(weight, bias, *rest)[0], bias)),
    "the gradient": Mistake("that is the gradient itself", None, lambda *given: given[:2]),
    "bias apart": Mistake("weight and bias belong to one matrix [∇W | ∇b]: A has a row and a column for the bias",
        None, _at_a_bias(_applied(_apart))),
    "bias first": Mistake("the bias comes first in your matrix; A's last row and column are the bias's",
        None, _at_a_bias(_applied(lambda step, *given: _product(step.roll(1, 1), *given).roll(-1, 1)))),
    "two dimensions": Mistake("a bias has one dimension: [:, -1], not [:, -1:]",
        None, _at_a_bias(lambda *given: (_step(*given)[0], _step(*given)[1][:, None]))),
    "transposed": Mistake("the weight's part is transposed",
        None, lambda *given: (_step(*given)[0].T, _step(*given)[1])),
    "needs a bias": Mistake("it stopped with an error at a layer without bias, where bias_grad is None",
        None, lambda weight, bias, *rest: _step(weight, bias + 0, *rest)),
    "damps in place": Mistake("the layer still needs its factors and gradients: no +=, *=, add_ on them",
        lambda A, G, damping: (_inverses(A, G, damping), A.diagonal().add_(damping))[0], None),
    "no pair": Mistake("it did not return the pair (weight's part, bias's part), or nothing at all",
        None, lambda *given: _step(*given)[0]),
})  # fmt: skip


class Preconditioner:
    """The right K-FAC; a mistake changes one thing in it."""

    def __init__(self, model, damping, decay=0.95, factor_interval=1, inverse_interval=1, kl_clip=None):
        self.settings, self.steps = (damping, decay, factor_interval, inverse_interval, kl_clip), 0
        self.layers = [layer for layer in model.modules() if isinstance(layer, self.kinds)]
        self.seen, self.averages, self.inverses = {}, {}, {}
        for layer in self.layers:
            layer.register_forward_hook(self.watch)

    kinds = (nn.Linear, nn.Conv2d)
    counts_from, clip_power, first_weight, least_dimensions = 0, 0.5, 1.0, 1

    def watch(self, layer, inputs, output):
        if output.requires_grad:
            activations = inputs[0].detach().clone()
            output.register_hook(lambda gradient: self.seen.update({layer: (activations, gradient)}))

    def factors_of(self, layer):
        settings = () if isinstance(layer, nn.Linear) else (layer.kernel_size[0], layer.stride[0], layer.padding[0])
        return _right(*self.seen[layer], *settings)

    def moved(self, old, new, decay):
        return decay * old + (1 - decay) * new

    def scale(self, lr, clip, product):
        return min(1.0, float(clip / (lr**2 * product)) ** self.clip_power)

    def write(self, gradient, change):
        gradient.copy_(change)

    def due(self, interval):
        return (self.steps + self.counts_from) % interval == 0

    @torch.no_grad()
    def step(self, lr):
        damping, decay, factor_interval, inverse_interval, clip = self.settings
        if self.due(factor_interval) or not self.averages:
            for layer in self.layers:
                new = self.factors_of(layer)
                old = self.averages.get(layer)
                self.averages[layer] = (
                    [self.moved(a, b, decay) for a, b in zip(old, new, strict=True)] if old
                    else [self.first_weight * b for b in new]
                )  # fmt: skip
        if self.due(inverse_interval) or not self.inverses:
            self.inverses = {layer: _inverses(*self.averages[layer], damping) for layer in self.layers}
        self.steps += 1
        changes = []
        for layer in self.layers:
            bias = None if layer.bias is None else layer.bias.grad
            weight, bias = _step(layer.weight.grad.flatten(1), bias, *self.inverses[layer])
            changes.append((layer.weight.grad, weight.reshape(layer.weight.shape)))
            changes += [] if bias is None else [(layer.bias.grad, bias)]
        counted = [each for each in changes if each[0].dim() >= self.least_dimensions]
        product = sum((gradient * change).sum() for gradient, change in counted)
        scale = 1.0 if clip is None else self.scale(lr, clip, product)
        for gradient, change in changes:
            self.write(gradient, scale * change)


def _wrong(diagnosis, **changed):
    return Mistake(diagnosis, type("Wrong", (Preconditioner,), changed))


kfac = Answers((Preconditioner,), {
    "not written": _wrong(".grad is as backward left it: step has to overwrite it, p.grad.copy_(…)",
        write=lambda self, gradient, change: None),
    "bias not written": _wrong("the biases' gradients are as backward left them: overwrite bias.grad, too",
        write=lambda self, gradient, change: gradient.copy_(change) if gradient.dim() > 1 else None),
    "no convolutions": _wrong("convolutions keep their gradient: K-FAC treats nn.Conv2d, too", kinds=nn.Linear),
    "no average": _wrong("the factors are the last batch's: there is no running average", moved=lambda self, old, new, decay: new),
    "the first for ever": _wrong("the factors stay those of the first batch", moved=lambda self, old, new, decay: old),
    "decay swapped": _wrong("the weights are swapped: decay is what the *old* average keeps",
        moved=lambda self, old, new, decay: decay * new + (1 - decay) * old),
    "sums": _wrong("the factors add up: decay · old + new; the new ones count 1 − decay",
        moved=lambda self, old, new, decay: decay * old + new),
    "every step": _wrong("the intervals are not used: factors and inverses are renewed in every step",
        due=lambda self, interval: True),
    "one late": _wrong("the intervals count from the wrong step: the first step has number 0", counts_from=1),
    "no clip": _wrong("kl_clip is not used", scale=lambda self, *given: 1.0),
    "no root": _wrong("the square root is missing in ν", clip_power=1.0),
    "longer too": _wrong("ν is at most 1: a step below the bound is not made longer",
        scale=lambda self, lr, clip, product: float(clip / (lr**2 * product)) ** 0.5),
    "no lr": _wrong("the learning rate is missing in ν: its square multiplies the sum",
        scale=lambda self, lr, clip, product: min(1.0, float(clip / product) ** 0.5)),
    "weights only": _wrong("the biases are missing in ν's sum: it goes over weights and biases", least_dimensions=2),
    "lr not squared": _wrong("the learning rate is squared in ν",
        scale=lambda self, lr, clip, product: min(1.0, float(clip / (lr * product)) ** 0.5)),
})  # fmt: skip


def _dealt(cost=lambda n, m: n**3 + m**3, order=-1, load=lambda cost: cost):
    def assign_layers(sizes, world_size):
        loads, owners = [0] * world_size, [0] * len(sizes)
        for layer in sorted(range(len(sizes)), key=lambda layer: order * cost(*sizes[layer])):
            owners[layer] = loads.index(min(loads))
            loads[owners[layer]] += load(cost(*sizes[layer]))
        return owners

    return assign_layers


assign = Answers((_dealt(),), {
    "in turn": Mistake("the layers are dealt in turn, whatever they cost",
        lambda sizes, world_size: [layer % world_size for layer in range(len(sizes))]),
    "as they come": Mistake("the layers are dealt in the network's order; deal the costliest first", _dealt(order=0)),
    "smallest first": Mistake("the cheapest layers are dealt first; deal the costliest first", _dealt(order=1)),
    "squares": Mistake("the cost is n² + m²; an inverse costs n³", _dealt(lambda n, m: n**2 + m**2)),
    "sums": Mistake("the cost is n + m; an inverse costs n³", _dealt(lambda n, m: n + m)),
    "one factor": Mistake("only A's cost counts; both factors are inverted", _dealt(lambda n, m: n**3)),
    "weights": Mistake("the cost is n·m, the layer's weights; an inverse costs n³", _dealt(lambda n, m: n * m)),
    "by number": Mistake("each rank gets as many layers; balance the cost, not the number", _dealt(load=lambda cost: 1)),
})  # fmt: skip

ANSWERS = {
    "fisher": fisher, "kron": kron, "factors": factors, "precondition": precondition, "conv-factors": conv,
    "kfac": kfac, "assign": assign, "average": Answers(), "strategies": Answers(),
}  # fmt: skip
