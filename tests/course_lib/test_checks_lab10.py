"""Lab 10's visible checks: the reference passes, and typical mistakes are told apart."""

import math

import pytest
import torch
from notebook_answers import answers
from torch import nn
from torch.nn import functional as F

from course_lib.checks import CheckFailed, check
from course_lib.checks.lab10_matrices import vec
from course_lib.optim.kfac import KFAC

REFERENCE = answers("10_kfac")
ANSWERS = {
    "fisher": REFERENCE["softmax_fisher"],
    "kron": (REFERENCE["kron_times"], REFERENCE["kron_solve"]),
    "factors": REFERENCE["factors"],
    "precondition": REFERENCE["precondition"],
    "conv-factors": REFERENCE["conv_factors"],
}


@pytest.mark.parametrize("exercise", ANSWERS)
def test_the_reference_passes_and_says_so(exercise, capsys):
    assert check(f"lab10.{exercise}", ANSWERS[exercise]) is None
    told = capsys.readouterr()
    assert told.out.count("\n") == 1 and not told.err


def refused(exercise, answer, *words):
    with pytest.raises(CheckFailed) as raised:
        check(f"lab10.{exercise}", answer)
    assert all(word in str(raised.value) for word in words), str(raised.value)


@pytest.mark.parametrize("bias", [True, False])
def test_the_answers_together_are_the_librarys_step(bias):
    """A linear layer and a convolution, preconditioned by the notebook's functions and by the library's K-FAC."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False), nn.Flatten(), nn.Linear(27, 4, bias=bias)
    )
    model = model.double()
    images, labels = torch.randn(6, 2, 6, 6).double(), torch.arange(6) % 4
    kfac = KFAC(model, damping=0.02, inverse="cholesky")
    outputs = model[0](images)
    logits = model(images)
    F.cross_entropy(logits, labels).backward()
    copies = [layer.weight.grad.clone() for layer in (model[0], model[2])]
    bias_copy = model[2].bias.grad.clone() if bias else None
    kfac.step()
    outputs = model[0](images).detach().requires_grad_()
    flat = model[1](outputs)
    logits = model[2](flat)
    gradients = torch.autograd.grad(F.cross_entropy(logits, labels), [outputs, logits])
    A, G = REFERENCE["conv_factors"](images, gradients[0], 3, 2, 1)
    step, _ = REFERENCE["precondition"](copies[0].flatten(1), None, A, G, 0.02)
    torch.testing.assert_close(step.view_as(copies[0]), model[0].weight.grad)
    A, G = REFERENCE["factors"](flat.detach(), gradients[1])
    if not bias:
        A = A[:-1, :-1]
    step, bias_step = REFERENCE["precondition"](copies[1], bias_copy, A, G, 0.02)
    torch.testing.assert_close(step, model[2].weight.grad)
    if bias:
        torch.testing.assert_close(bias_step, model[2].bias.grad)


# The Fisher


def fisher(weight, inputs, kind="mean", spread="full", order="columns"):
    n, p = len(inputs), torch.softmax(inputs @ weight.T, 1)
    spread = torch.diag_embed(p) - (p[:, :, None] * p[:, None, :] if spread == "full" else 0)
    if kind == "product of means":
        return torch.kron(inputs.T @ inputs / n, spread.mean(0))
    pairs = [(torch.outer(x, x), s) for x, s in zip(inputs, spread, strict=True)]
    total = sum(torch.kron(s, x) if order == "rows" else torch.kron(x, s) for x, s in pairs)
    return total if kind == "sum" else total / n


def every_class_alike(weight, inputs):
    gradients = [
        torch.kron(x, torch.softmax(weight @ x, 0) - e) for x in inputs for e in torch.eye(len(weight)).double()
    ]
    return sum(torch.outer(g, g) for g in gradients) / len(gradients)


def most_likely_class(weight, inputs):
    gradients = [
        torch.kron(x, p - F.one_hot(p.argmax(), len(p))) for x in inputs for p in [torch.softmax(weight @ x, 0)]
    ]
    return sum(torch.outer(g, g) for g in gradients) / len(gradients)


def weighed_outer_products(weight, inputs):  # a right answer, written as the definition has it
    total = torch.zeros(weight.numel(), weight.numel())
    for x in inputs.float():
        p = torch.softmax(weight.float() @ x, 0)
        for y in range(len(p)):
            g = torch.outer(p - F.one_hot(torch.tensor(y), len(p)), x).T.flatten()
            total += p[y] * torch.outer(g, g)
    return total / len(inputs)


def test_a_fisher_by_its_definition_in_float32_passes():
    check("lab10.fisher", weighed_outer_products)


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda w, x: fisher(w, x, order="rows"), ("by rows", "vec stacks columns")),
        (lambda w, x: fisher(w, x, kind="sum"), ("5 inputs", "sum over inputs")),
        (lambda w, x: fisher(w, x, kind="product of means"), ("5 inputs", "K-FAC's approximation")),
        (lambda w, x: fisher(w, x, spread="diagonal"), ("−p pᵀ is missing",)),
        (every_class_alike, ("every class counts alike",)),
        (most_likely_class, ("diag(p) − p pᵀ",)),
        (lambda w, x: -fisher(w, x), ("sign",)),
        (lambda w, x: torch.zeros(12, 12), ("their mean is 0",)),
        (lambda w, x: fisher(w, x).triu(), ("symmetric",)),
        (lambda w, x: fisher(w, x)[:3, :3], ("12×12", "yours 3×3")),
        (lambda w, x: fisher(w, x) * math.nan, ("NaN",)),
        (lambda w, x: None, ("return",)),
        (lambda w, x: fisher(w, x).tolist(), ("a tensor", "list")),
    ],
    ids=["rows", "sum", "product of means", "diagonal", "alike", "likeliest", "sign", "zero", "half", "shape", "nan", "none", "list"],
)  # fmt: skip
def test_wrong_fishers(answer, words):
    refused("fisher", answer, *words)


# Kronecker products


def times(A, G, X):
    return G @ X @ A.T


def solve(A, G, X):
    return torch.linalg.inv(G) @ X @ torch.linalg.inv(A).T


@pytest.mark.parametrize(
    "pair, words",
    [
        ((lambda A, G, X: G @ X @ A, solve), ("kron_times", "transposed", "(A)ᵀ")),
        ((lambda A, G, X: G.T @ X @ A, solve), ("the TACC slides'",)),
        ((lambda A, G, X: G.T @ X @ A.T, solve), ("transposes both",)),
        ((lambda A, G, X: (torch.kron(A, G) @ X.flatten()).view(3, 4), solve), ("stacked by rows",)),
        ((lambda A, G, X: (torch.kron(A, G) @ vec(X)).view(3, 4), solve), ("unstacked by rows",)),
        ((times, lambda A, G, X: torch.linalg.inv(G) @ X @ torch.linalg.inv(A)), ("kron_solve", "(A⁻¹)ᵀ")),
        ((times, times), ("kron_solve", "multiplies")),
        ((times, lambda A, G, X: torch.linalg.solve(G, X) @ A.T), ("Only G is inverted",)),
        ((times, lambda A, G, X: G @ X @ torch.linalg.inv(A).T), ("Only A is inverted",)),
        ((lambda A, G, X: (torch.kron(A, G) @ vec(X)).view(X.T.shape).T, solve), ("1,440,000", "Do without")),
        ((times, lambda A, G, X: torch.linalg.solve(torch.kron(A, G), vec(X)).view(X.T.shape).T), ("kron_solve", "1,440,000")),
        ((lambda A, G, X: X, solve), ("vec(G X Aᵀ)",)),
        ((lambda A, G, X: vec(G @ X @ A.T), solve), ("3×4", "yours 12")),
        ((lambda A, G, X: None, solve), ("return",)),
    ],
)  # fmt: skip
def test_wrong_kronecker_products(pair, words):
    refused("kron", pair, *words)


# Factors


def factors(a, g, bias="last", a_scale=1.0, g_scale=1.0):
    n = len(a)
    ones = a.new_ones(n, 1)
    columns = {"last": [a, ones], "first": [ones, a], "none": [a]}[bias]
    columns = torch.cat(columns, 1)
    return a_scale * columns.T @ columns / n, g_scale * n * g.T @ g


def with_ones(a):
    return torch.cat([a, a.new_ones(len(a), 1)], 1)


def in_place(a, g):
    g *= len(a)
    return with_ones(a).T @ with_ones(a) / len(a), g.T @ g / len(a)


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda a, g: factors(a, g, bias="none"), ("column of ones",)),
        (lambda a, g: factors(a, g, bias="first"), ("bias comes last",)),
        (lambda a, g: factors(a, g, a_scale=7), ("1/N is missing",)),
        (lambda a, g: factors(a, g, a_scale=1 / 7), ("divided by N twice",)),
        (lambda a, g: factors(a, g, a_scale=7 / 6), ("N − 1",)),
        (lambda a, g: (torch.outer(with_ones(a).mean(0), with_ones(a).mean(0)), 7 * g.T @ g), ("mean of the products",)),
        (lambda a, g: (torch.cov(with_ones(a).T, correction=0), 7 * g.T @ g), ("second moment",)),
        (lambda a, g: (with_ones(a) @ with_ones(a).T / 7, 7 * g.T @ g), ("samples by samples",)),
        (lambda a, g: factors(a, g)[::-1], ("order is (A, G)",)),
        (lambda a, g: factors(a, g, g_scale=1 / 49), ("N² = 49 times too small", "1/N already")),
        (lambda a, g: factors(a, g, g_scale=1 / 7), ("N = 7 times too small",)),
        (lambda a, g: factors(a, g, g_scale=7), ("N = 7 times too large",)),
        (lambda a, g: (factors(a, g)[0], torch.outer(7 * g.mean(0), 7 * g.mean(0))), ("before the product",)),
        (lambda a, g: (factors(a, g)[0], g @ g.T), ("samples by samples",)),
        (lambda a, g: (factors(a, g)[0], 0.3 * g.T @ g), ("N times its row",)),
        (in_place, ("has changed a tensor",)),
        (lambda a, g: factors(a, g)[0], ("the pair (A, G)",)),
        (lambda a, g: None, ("return",)),
        (lambda a, g: (None, None), ("return",)),
    ],
)  # fmt: skip
def test_wrong_factors(answer, words):
    refused("factors", answer, *words)


# The preconditioned gradient


def precondition(
    w, b, A, G, gamma, *, share=lambda pi, root, gamma: (pi * root, root / pi), pi=None, after=False, power=-1
):
    gradient = w if b is None else torch.cat([w, b[:, None]], 1)
    pi = pi(A, G) if pi else torch.sqrt(A.trace() / len(A) / (G.trace() / len(G)))
    on_a, on_g = (
        damping * torch.eye(len(matrix)).double()
        for damping, matrix in zip(share(pi, gamma**0.5, gamma), (A, G), strict=True)
    )
    inverse = torch.linalg.inv if power == -1 else (lambda matrix: matrix)
    inverse_a, inverse_g = (inverse(A) + on_a, inverse(G) + on_g) if after else (inverse(A + on_a), inverse(G + on_g))
    step = inverse_g @ gradient @ inverse_a
    return (step, None) if b is None else (step[:, :-1], step[:, -1])


def weight_alone(w, b, A, G, gamma):
    whole = precondition(w, b, A, G, gamma)
    if b is None:
        return whole
    pi = torch.sqrt(A.trace() / len(A) / (G.trace() / len(G)))
    on_a, on_g = pi * gamma**0.5 * torch.eye(len(A)).double(), gamma**0.5 / pi * torch.eye(len(G)).double()
    return torch.linalg.inv(G + on_g) @ w @ torch.linalg.inv((A + on_a)[:-1, :-1]), whole[1]


def bias_first(w, b, A, G, gamma):
    if b is None:
        return precondition(w, b, A, G, gamma)
    first = torch.cat([b[:, None], w], 1)
    weight, bias = precondition(first[:, :-1], first[:, -1], A, G, gamma)
    step = torch.cat([weight, bias[:, None]], 1)
    return step[:, 1:], step[:, 0]


def changed(w, b, A, G, gamma):
    found = precondition(w, b, A, G, gamma)
    A.diagonal().add_(gamma)
    return found


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda *a: precondition(*a, share=lambda pi, root, gamma: (pi * root, 0)), ("A is damped, G is not",)),
        (lambda *a: precondition(*a, share=lambda pi, root, gamma: (0, root / pi)), ("G is damped, A is not",)),
        (lambda *a: precondition(*a, share=lambda pi, root, gamma: (0, 0)), ("no damping",)),
        (lambda *a: precondition(*a, share=lambda pi, root, gamma: (gamma, gamma)), ("Each factor got γ;",)),
        (lambda *a: precondition(*a, share=lambda pi, root, gamma: (pi * gamma, gamma / pi)), ("in place of √γ",)),
        (lambda *a: precondition(*a, share=lambda pi, root, gamma: (root, root)), ("π is missing",)),
        (lambda *a: precondition(*a, share=lambda pi, root, gamma: (root / pi, pi * root)), ("upside down",)),
        (lambda *a: precondition(*a, share=lambda pi, root, gamma: (pi**2 * root, root / pi**2)), ("square root",)),
        (lambda *a: precondition(*a, pi=lambda A, G: torch.sqrt(A.trace() / G.trace())), ("by its dimension",)),
        (lambda *a: precondition(*a, after=True), ("invert the damped matrices",)),
        (lambda *a: precondition(*a, power=1), ("multiply by their inverses",)),
        (lambda w, b, A, G, gamma: (w, b), ("the gradient itself",)),
        (weight_alone, ("one matrix [∇W | ∇b]",)),
        (lambda w, b, A, G, gamma: (precondition(w, b, A, G, gamma)[0], b), ("The weight is right, the bias is not",)),
        (bias_first, ("stands first",)),
        (lambda w, b, A, G, gamma: (precondition(w, b, A, G, gamma)[0].T, b), ("transposed",)),
        (lambda w, b, A, G, gamma: (precondition(w, b, A, G, gamma)[0], precondition(w, b, A, G, gamma)[1][:, None]), ("one dimension",)),
        (lambda w, b, A, G, gamma: precondition(w, b, A, G, gamma) if b is not None else (precondition(w, b, A, G, gamma)[0], 0 * A[0]), ("None too",)),
        (changed, ("has changed a tensor",)),
        (lambda w, b, A, G, gamma: precondition(w, b, A, G, gamma)[0], ("pair",)),
        (lambda *a: None, ("return",)),
        (lambda *a: (math.nan * a[0], a[1]), ("NaN",)),
    ],
)  # fmt: skip
def test_wrong_preconditioned_gradients(answer, words):
    refused("precondition", answer, *words)


def test_a_preconditioned_gradient_by_the_whole_matrix_passes():
    def whole(w, b, A, G, gamma):
        pi = math.sqrt(A.diagonal().mean() / G.diagonal().mean())
        A, G = (m + d * torch.eye(len(m)) for m, d in ((A, pi * gamma**0.5), (G, gamma**0.5 / pi)))
        gradient = w if b is None else torch.column_stack([w, b])
        step = torch.linalg.solve(torch.kron(A, G), gradient.T.flatten()).view(len(A), len(G)).T
        return [step[:, : w.shape[1]], None if b is None else step[:, -1]]

    check("lab10.precondition", whole)


# Convolutions


def conv_factors(images, g, k, s, p, *, a_scale=1.0, g_scale=1.0, order="channels", mix=False, sum_first=False):
    n, positions = len(images), g.shape[2] * g.shape[3]
    patches = F.unfold(images, k, stride=s, padding=p)
    if order == "pixels":
        patches = patches.view(n, -1, k * k, positions).transpose(1, 2).flatten(1, 2)
    rows = patches.transpose(1, 2).flatten(0, 1)
    own = n * (g.reshape(-1, g.shape[1]) if mix else g.permute(0, 2, 3, 1).flatten(0, 2))
    if sum_first:
        own = n * g.sum((2, 3))
    return a_scale * rows.T @ rows / len(rows), g_scale * own.T @ own / n


# The first case has 4 images and 12 positions.
@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda *a: conv_factors(*a, a_scale=a[1].shape[2] * a[1].shape[3]), ("You divided by N;", "4 · 12")),
        (lambda *a: conv_factors(*a, a_scale=4 * a[1].shape[2] * a[1].shape[3]), ("The mean is missing",)),
        (lambda *a: conv_factors(*a, a_scale=4), ("You divided by T;",)),
        (lambda *a: conv_factors(*a, order="pixels"), ("channel first",)),
        (lambda x, g, k, s, p: conv_factors(x, g, k, 1, p), ("stride 2", "rowsᵀ rows")),
        (lambda x, g, k, s, p: conv_factors(x, g, k, s, 0), ("padding 1", "rowsᵀ rows")),
        (lambda *a: conv_factors(*a, g_scale=1 / (a[1].shape[2] * a[1].shape[3])), ("mean over the T positions",)),
        (lambda *a: conv_factors(*a, g_scale=1 / 16), ("N times its part",)),
        (lambda *a: conv_factors(*a, g_scale=1 / 4), ("4 times too small",)),
        (lambda *a: conv_factors(*a, g_scale=4), ("N times too large",)),
        (lambda *a: conv_factors(*a, g_scale=a[1].shape[2] * a[1].shape[3]), ("T times too large",)),
        (lambda *a: conv_factors(*a, mix=True), ("reshape mixes",)),
        (lambda *a: conv_factors(*a, sum_first=True), ("before the product",)),
        (lambda *a: (F.unfold(a[0], a[2]).transpose(1, 2)[0] @ F.unfold(a[0], a[2])[0], 0), ("positions by positions",)),
        (lambda *a: None, ("return",)),
        (lambda *a: (conv_factors(*a)[0], math.nan * conv_factors(*a)[1]), ("NaN",)),
    ],
)  # fmt: skip
def test_wrong_convolutions_factors(answer, words):
    refused("conv-factors", answer, *words)
