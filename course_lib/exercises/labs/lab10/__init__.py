"""Lab 10: K-FAC. A layer's Fisher and factors, Kronecker products, the damped step. `training.py` has the optimiser and the ranks."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.exercises.comparing import equal
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.labs.lab10.training import ASSIGN, AVERAGE, KFAC, STRATEGIES, near, pair

__all__ = ["EXERCISES"]


def _normal(random, *shape):
    return torch.from_numpy(random.normal(0, 1, shape))


_part = partial(Part, same=near)

# --- softmax_fisher


def _draw_fishers(random):
    classes, features, several = random.integers((3, 3, 4), (6, 6, 9)).tolist()
    weight = _normal(random, classes, features)

    return {kind: [(weight, _normal(random, n, features))] for kind, n in (("one", 1), ("several", several))}


def observe_fisher(case, softmax_fisher):
    return softmax_fisher(*(tensor.clone() for tensor in case))


fisher = Exercise(("softmax_fisher",), _draw_fishers, observe_fisher, {
    "value": _part("The Fisher of one input",
        "for one input it is not the Fisher, (x xᵀ) ⊗ (diag(p) − p pᵀ) with p = softmax(W x)",
        cases="one", forgives="by rows"),
    "order": _part("The weights in the order of vec", cases="one", needs="value"),
    "mean": _part("The mean over several inputs", "for several inputs it is not the mean of their Fishers",
        cases="several", forgives="by rows"),
}, hint="compare with torch.func.hessian of the mean cross-entropy, first for a single input",
    show="{1.shape[0]} input(s) of {1.shape[1]} numbers, {0.shape[0]} classes")  # fmt: skip

# --- kron_times, kron_solve


def _product(random, n, m):
    """A, G, X, and a seed for larger ones. The factors are not symmetric, and far from singular."""
    A, G = (_normal(random, k, k) / k**0.5 + 2 * torch.eye(k).double() for k in (n, m))
    return A, G, _normal(random, m, n), int(random.integers(2**31))


def _draw_products(random):
    small = [_product(random, *random.integers((3, 2), (7, 6)).tolist()) for _ in range(2)]
    return {"small": small, "large": [_product(random, 24, 20)]}


def _beyond_memory(cases):
    """Factors of a layer of 700×500, whose Kronecker product has 10¹¹ entries."""
    return cases | {"large": [_product(np.random.default_rng(seed), 700, 500) for *_, seed in cases["large"]]}


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that an operation returns."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.size = max(self.size, tensor.numel())
        return result


def observe_products(case, kron_times, kron_solve):
    with Largest() as largest:
        times, solve = (function(*(tensor.clone() for tensor in case[:3])) for function in (kron_times, kron_solve))
    too_large = largest.size > 10 * max(tensor.numel() for tensor in case[:3])
    return {"times": times, "solve": solve, "too_large": largest.size if too_large else 0}


kron = Exercise(("kron_times", "kron_solve"), _draw_products, observe_products, {
    "times": _part("The product with vec(X)", "it is not (A ⊗ G) vec(X) as a matrix, which is G X Aᵀ",
        cases="small", keys="times"),
    "solve": _part("The product with the inverse",
        "it is not (A ⊗ G)⁻¹ vec(X) as a matrix; (A ⊗ G)⁻¹ = A⁻¹ ⊗ G⁻¹", cases="small", keys="solve"),
    "size": _part("Never a matrix larger than the factors",
        "with large factors there is no right result, or a tensor far larger than A, G and X: is A ⊗ G itself "
        "made? For a layer of 1000×1000 it has 10¹² entries", "work with A, G and X alone",
        cases="large", keys="times solve too_large", needs="times solve"),
}, hint="compare with torch.kron on small matrices that are not symmetric",
    show="A {0.shape[0]}×{0.shape[0]} and G {1.shape[0]}×{1.shape[0]}, not symmetric",
    guarded="large", in_sandbox=_beyond_memory)  # fmt: skip

# --- factors, conv_factors


def _draw_batches(random):
    sizes = [random.integers((6, 2, 2), (15, 5, 5)).tolist() for _ in range(2)]
    return {"batch": [(_normal(random, n, inputs), _normal(random, n, outputs) / n) for n, inputs, outputs in sizes]}


def _draw_convolutions(random):
    def case(kernel, stride, padding):
        n, channels, outputs, *sides = random.integers((2, 2, 2, 5, 5), (6, 4, 5, 9, 9)).tolist()
        positions = [(side + 2 * padding - kernel) // stride + 1 for side in sides]
        images = _normal(random, n, channels, *sides)
        return images, _normal(random, n, outputs, *positions) / n, kernel, stride, padding

    return {"images": [case(3, 1, 1), case(3, 2, 1), case(int(random.integers(1, 4)), 1, 0), case(2, 2, 1)]}


def observe_factors(case, answer):
    inputs, gradients = case[0].clone(), case[1].clone()
    A, G = pair(answer(inputs, gradients, *case[2:]))
    kept = torch.equal(inputs, case[0]), torch.equal(gradients, case[1])
    return {"A": A, "G": G, "inputs_kept": kept[0], "gradients_kept": kept[1]}


def _inner(seen, right):
    """The activations' part of A, wherever the bias's row and column are."""
    (A, kept), (wanted, as_kept) = seen, right
    if not isinstance(wanted, torch.Tensor):
        return A is wanted
    blocks = A, A[:-1, :-1], A[1:, 1:]
    return equal(kept, as_kept) and any(near(block, wanted[:-1, :-1]) for block in blocks)


factors = Exercise(("factors",), _draw_batches, observe_factors, {
    "a": Part("Second moment of the activations",
        "the activations' part of A is not the mean of a aᵀ: A = ãᵀ ã / N, features by features",
        cases="batch", keys="A inputs_kept", same=_inner),
    "bias": _part("A row and a column for the bias",
        "A lacks the row and column of a last activation that is always 1", cases="batch", keys="A", needs="a"),
    "g": _part("Second moment of the samples' own gradients",
        "G is not the mean of g gᵀ over the samples' own gradients, outputs by outputs, in the scale that the mean "
        "loss asks for", cases="batch", keys="G gradients_kept"),
}, hint="take two samples of one number each, and write both factors down by hand",
    show="a layer of {0.shape[1]} inputs, bias, {1.shape[1]} outputs, a batch of {0.shape[0]}")  # fmt: skip

conv = Exercise(("conv_factors",), _draw_convolutions, observe_factors, {
    "a": _part("The patches' factor",
        "A is not the patches' second moment, the mean over samples and positions: a row is a whole patch of C·k·k "
        "numbers, and A is rowsᵀ rows / (N T)", cases="images", keys="A inputs_kept"),
    "g": _part("The gradients' factor",
        "G is not the mean over samples of the sum over positions of their own g gᵀ",
        cases="images", keys="G gradients_kept"),
}, hint="compare with nn.functional.unfold on one image, and look at shape, scale and order apart",
    show="{0.shape[0]} images {0.shape[1]}×{0.shape[2]}×{0.shape[3]}, kernel {2}, stride {3}, padding {4}")  # fmt: skip

# --- precondition


def _draw_steps(random):
    def case(damping, bias=True):
        inputs = int(random.integers(3, 6))
        outputs = int(random.integers(2, inputs))  # fewer: where they are equal, π needs no dimensions
        samples, gradients = _normal(random, 20, inputs), 0.1 * _normal(random, 20, outputs)
        A, G = samples.T @ samples / 20, gradients.T @ gradients / 20
        step = _normal(random, outputs, inputs)
        return (*((step[:, :-1].clone(), step[:, -1].clone()) if bias else (step, None)), A, G, damping)

    dampings = float(random.uniform(0.05, 0.5)), float(random.uniform(0.001, 0.02))
    return {"hardly": [case(1e-20)], "damped": [case(each) for each in dampings], "without": [case(1e-20, False)]}


def observe_step(case, damped_inverses, precondition):
    given = [None if each is None else each.clone() for each in case[:4]]
    inverses = pair(damped_inverses(*given[2:], case[4]))
    try:
        weight, bias = pair(precondition(*given[:2], *inverses))
    except Exception:
        if case[1] is not None:
            raise
        weight, bias = "stopped", None  # by a bias that is not there; the other parts have nothing to do with it
    kept = all(a is None or torch.equal(a, b) for a, b in zip(case, given, strict=False))
    return {"weight": weight, "bias": bias, "kept": kept}


precondition = Exercise(("damped_inverses", "precondition"), _draw_steps, observe_step, {
    "product": _part("The product of inverses and gradient",
        "hardly damped, the weight's step is not that of G⁻¹ [∇W | ∇b] A⁻¹", cases="hardly", keys="weight"),
    "damping": _part("Damping, shared by both factors",
        "with damping the weight's step is not right: π√γ on A, √γ/π on G, then the inverses",
        cases="damped", keys="weight kept"),
    "bias": _part("The bias as the last column", "the bias's step is not the product's last column",
        cases="hardly", keys="bias"),
    "without": _part("A layer without bias", "for a layer without bias (None) it is not the pair (weight, None)",
        "call it with bias_grad=None", keys="weight bias"),
}, hint="build the damped A ⊗ G with torch.kron for a tiny layer, and solve with it",
    show="weight {0.shape[0]}×{0.shape[1]}, A {2.shape[0]}×{2.shape[0]}, γ = {4:.2g}")  # fmt: skip

EXERCISES = {
    "fisher": fisher, "kron": kron, "factors": factors, "precondition": precondition, "conv-factors": conv,
    "kfac": KFAC, "assign": ASSIGN, "average": AVERAGE, "strategies": STRATEGIES,
}  # fmt: skip
