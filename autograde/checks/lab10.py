"""Hidden checks of lab 10."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from ..criteria import Finding
from .compare import same_tensor
from .registry import AnswerError, Ask, Findings, HiddenCheck, shape_of

__all__ = ["CHECKS"]

LARGE = (700, 500)  # inputs and outputs of a layer whose Kronecker product has 10¹¹ entries


def _draw(random: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(random.normal(0, 1, shape))


def _int(random: np.random.Generator, low: int, high: int) -> int:
    return int(random.integers(low, high))


def _vec(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.T.reshape(-1)


def _same(found: Any, wanted: torch.Tensor) -> bool:
    """Relative to the largest entry, so that small factors are compared as closely as large ones."""
    scale = wanted.abs().max()
    return (
        isinstance(found, torch.Tensor)
        and found.is_floating_point()
        and same_tensor(found / scale, wanted / scale, 2e-5)
    )


def _pair(found: Any) -> tuple[Any, Any]:
    return (found[0], found[1]) if isinstance(found, tuple | list) and len(found) == 2 else (None, None)


def _list(found: Any, length: int) -> list[Any]:
    return list(found) if isinstance(found, list | tuple) and len(found) == length else [None] * length


def fisher(ask: Ask) -> Findings:
    """One input, and several; the reference is the Hessian, which does not depend on labels."""
    random = ask.random
    classes, features = _int(random, 3, 6), _int(random, 3, 6)
    cases = [(_draw(random, classes, features), _draw(random, n, features)) for n in (1, _int(random, 4, 9))]
    found = _list(ask.call("fisher", cases), 2)
    columns = (
        torch.arange(classes * features).view(features, classes).T.flatten()
    )  # the place by columns of each by rows

    def hessian(weight: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        labels = torch.zeros(len(inputs), dtype=torch.long)
        loss = lambda v: F.cross_entropy(inputs @ v.view(features, classes), labels)  # noqa: E731
        return torch.autograd.functional.hessian(loss, _vec(weight))

    wanted = [hessian(*case) for case in cases]
    by_rows = [matrix[columns][:, columns] for matrix in wanted]
    ordered = [_same(a, b) for a, b in zip(found, wanted, strict=True)]
    either = [right or _same(a, b) for right, a, b in zip(ordered, found, by_rows, strict=True)]
    odd = "" if isinstance(found[0], torch.Tensor) else f"should return a matrix, it returned {shape_of(found[0])}"
    look = "compare with torch.func.hessian of the mean cross-entropy, first for a single input"
    return {
        "value": Finding(either[0], "right for one input" if either[0] else odd or "for one input it is not the Fisher", look),
        "order": Finding(ordered[0], "the weights are in the order of vec" if ordered[0] else
                         "the entries are not in the order of vec, which stacks columns" if either[0] else
                         odd or "for one input it is not the Fisher", look),
        "mean": Finding(either[1], "the mean over several inputs" if either[1] else
                        odd or "for several inputs it is not the mean of their Fishers", look),
    }  # fmt: skip


def kron(ask: Ask) -> Findings:
    """Factors that are not symmetric, of two shapes; then ones whose product no machine holds."""
    random, cases = ask.random, []
    for _ in range(2):
        n, m = _int(random, 3, 7), _int(random, 2, 6)
        eyes = 2 * torch.eye(n).double(), 2 * torch.eye(m).double()  # away from singular
        cases.append((_draw(random, n, n) + eyes[0], _draw(random, m, m) + eyes[1], _draw(random, m, n)))
    found = ask.call("kron", cases)
    found = found if isinstance(found, dict) else {}
    right = {}
    for name in ("times", "solve"):
        right[name] = True
        for (a, g, x), matrix in zip(cases, _list(found.get(name), 2), strict=True):
            product = torch.kron(a, g)
            wanted = product @ _vec(x) if name == "times" else torch.linalg.solve(product, _vec(x))
            right[name] &= _same(matrix, wanted.view(x.T.shape).T)
    n, m = LARGE
    a, g = (_draw(random, k, k) / k + torch.eye(k).double() for k in LARGE)
    x = _draw(random, m, n)
    try:
        large = _list(ask.call("large_kron", [a, g, x]), 2)
    except AnswerError:
        large = [None, None]
    size = _same(large[0], g @ x @ a.T) and _same(large[1], torch.linalg.inv(g) @ x @ torch.linalg.inv(a).T)
    look = "compare with torch.kron on small matrices that are not symmetric"
    return {
        "times": Finding(right["times"], "the product with vec(X)" if right["times"] else "it is not (A ⊗ G) vec(X) as a matrix", look),
        "solve": Finding(right["solve"], "the product with the inverse" if right["solve"] else "it is not (A ⊗ G)⁻¹ vec(X) as a matrix", look),
        "size": Finding(size, "right for a layer of 700×500" if size else
                        "for a layer of 700×500 there is no right result: is A ⊗ G itself made?", "work with A, G and X alone"),
    }  # fmt: skip


def factors(ask: Ask) -> Findings:
    """A batch of a linear layer: output gradients of the mean loss."""
    random = ask.random
    cases = []
    for _ in range(2):
        n, inputs, outputs = _int(random, 6, 15), _int(random, 2, 5), _int(random, 2, 5)
        cases.append((_draw(random, n, inputs), _draw(random, n, outputs) / n))
    found = _list(ask.call("factors", cases), 2)
    right = {"a": True, "bias": True, "g": True}
    for (activations, gradients), pair in zip(cases, found, strict=True):
        n = len(activations)
        a, g = _pair(pair)
        with_bias = torch.cat([activations, torch.ones(n, 1).double()], 1)
        inner = activations.T @ activations / n
        blocks = [a, a[:-1, :-1], a[1:, 1:]] if isinstance(a, torch.Tensor) and a.dim() == 2 and len(a) else []
        right["a"] &= any(_same(block, inner) for block in blocks)
        right["bias"] &= _same(a, with_bias.T @ with_bias / n)
        right["g"] &= _same(g, n * gradients.T @ gradients)
    odd = (
        ""
        if isinstance(_pair(found[0])[0], torch.Tensor)
        else f"should return the pair (A, G), it returned {shape_of(found[0])}"
    )
    look = "take two samples of one number each, and write both factors down by hand"
    return {
        "a": Finding(right["a"], "the mean of a aᵀ" if right["a"] else odd or "the activations' part of A is not the mean of a aᵀ", look),
        "bias": Finding(right["bias"], "the bias's row and column come last" if right["bias"] else
                        odd or ("A lacks the row and column of a last activation that is always 1" if right["a"] else "A is not right"), look),
        "g": Finding(right["g"], "the mean of the samples' own g gᵀ" if right["g"] else
                     odd or "G is not the mean of g gᵀ over the samples' own gradients: is it scaled as the mean loss asks?", look),
    }  # fmt: skip


def precondition(ask: Ask) -> Findings:
    """Hardly damped, damped, and without a bias; the reference is the whole Kronecker matrix."""
    random = ask.random
    tiny = 1e-20
    gammas = [tiny, float(random.uniform(0.05, 0.5)), float(random.uniform(0.001, 0.02))]
    problems = []
    for gamma in [*gammas, tiny]:
        inputs, outputs = _int(random, 3, 6), _int(random, 2, 5)
        samples, gradients = _draw(random, 20, inputs), 0.1 * _draw(random, 20, outputs)
        a, g = samples.T @ samples / 20, gradients.T @ gradients / 20
        problems.append((_draw(random, outputs, inputs), a, g, gamma))
    given = [(grad[:, :-1].clone(), grad[:, -1].clone(), a, g, gamma) for grad, a, g, gamma in problems[:3]]
    found = ask.call("precondition", {"bias": given, "without": problems[3]})
    found = found if isinstance(found, dict) else {}
    answers = [_pair(pair) for pair in _list(found.get("bias"), 3)]
    steps = [_whole_matrix(*problem) for problem in problems]
    weights = [_same(pair[0], step[:, :-1]) for pair, step in zip(answers, steps[:3], strict=True)]
    bias = _same(answers[0][1], steps[0][:, -1])
    weight, nothing = _pair(found.get("without"))
    without = _same(weight, steps[3]) and nothing is None
    damped = weights[1] and weights[2]
    odd = "" if isinstance(answers[0][0], torch.Tensor) else "should return the pair (weight, bias) of tensors"
    look = "build the damped A ⊗ G with torch.kron for a tiny layer, and solve with it"
    return {
        "product": Finding(weights[0], "G⁻¹ ∇ A⁻¹" if weights[0] else
                           odd or "with hardly any damping the weight's step is not that of G⁻¹ [∇W | ∇b] A⁻¹", look),
        "damping": Finding(damped, "both factors are damped before they are inverted" if damped else
                           odd or "with damping the weight's step is not right: π√γ on A, √γ/π on G, then the inverses", look),
        "bias": Finding(bias, "the bias is the last column" if bias else odd or "the bias's step is not the product's last column", look),
        "without": Finding(without, "right for a layer without bias" if without else
                           "for a layer without bias (None) it is not the pair (weight, None)", "call it with bias_grad=None"),
    }  # fmt: skip


def _whole_matrix(gradient: torch.Tensor, a: torch.Tensor, g: torch.Tensor, gamma: float) -> torch.Tensor:
    pi = (a.trace() / len(a) / (g.trace() / len(g))).sqrt()
    a = a + pi * gamma**0.5 * torch.eye(len(a)).double()
    g = g + gamma**0.5 / pi * torch.eye(len(g)).double()
    return torch.linalg.solve(torch.kron(a, g), _vec(gradient)).view(gradient.T.shape).T


def conv_factors(ask: Ask) -> Findings:
    """Strides, paddings and kernels drawn; the patches are cut by hand."""
    random, cases = ask.random, []
    for kernel, stride, padding in ((3, 1, 1), (3, 2, 1), (_int(random, 1, 4), 1, 0), (2, 2, 1)):
        n, channels, height, width = _int(random, 2, 6), _int(random, 2, 4), _int(random, 5, 9), _int(random, 5, 9)
        size = [(side + 2 * padding - kernel) // stride + 1 for side in (height, width)]
        images, gradients = _draw(random, n, channels, height, width), _draw(random, n, _int(random, 2, 5), *size) / n
        cases.append((images, gradients, (kernel, stride, padding)))
    found = _list(ask.call("conv_factors", cases), len(cases))
    right = {"a": True, "g": True}
    for (images, gradients, (kernel, stride, padding)), pair in zip(cases, found, strict=True):
        a, g = _pair(pair)
        n = len(images)
        padded = F.pad(images, (padding,) * 4)
        rows = torch.cat([
            padded[:, :, stride * i : stride * i + kernel, stride * j : stride * j + kernel].flatten(1)
            for i in range(gradients.shape[2]) for j in range(gradients.shape[3])
        ])  # fmt: skip
        own = n * gradients.transpose(0, 1).flatten(1)
        right["a"] &= _same(a, rows.T @ rows / len(rows))
        right["g"] &= _same(g, own @ own.T / n)
    odd = (
        ""
        if isinstance(_pair(found[0])[0], torch.Tensor)
        else f"should return the pair (A, G), it returned {shape_of(found[0])}"
    )
    look = "compare with nn.functional.unfold on one image, and look at scale and order apart"
    return {
        "a": Finding(right["a"], "the patches' factor" if right["a"] else
                     odd or "A is not the patches' second moment, the mean over samples and positions", look),
        "g": Finding(right["g"], "the gradients' factor" if right["g"] else
                     odd or "G is not the mean over samples of the sum over positions of their own g gᵀ", look),
    }  # fmt: skip


CHECKS = {
    "fisher": HiddenCheck(
        fisher,
        {
            "value": "The Fisher of one input",
            "order": "The weights in the order of vec",
            "mean": "The mean over several inputs",
        },
    ),
    "kron": HiddenCheck(
        kron,
        {
            "times": "The product with vec(X)",
            "solve": "The product with the inverse",
            "size": "Never a matrix larger than the factors",
        },
    ),
    "factors": HiddenCheck(
        factors,
        {
            "a": "Second moment of the activations",
            "bias": "A row and a column for the bias",
            "g": "Second moment of the samples' own gradients",
        },
    ),
    "precondition": HiddenCheck(
        precondition,
        {
            "product": "The product of inverses and gradient",
            "damping": "Damping, shared by both factors",
            "bias": "The bias as the last column",
            "without": "A layer without bias",
        },
    ),
    "conv-factors": HiddenCheck(
        conv_factors,
        {"a": "The patches' factor", "g": "The gradients' factor"},
    ),
}
