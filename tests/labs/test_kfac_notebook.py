"""Lab 10's statements about the Fisher matrix and the damping, by the notebook's own functions: the oracle is PyTorch's Hessian."""

import ast

import pytest
import torch
from notebook_cells import cells_of, run_cell
from torch import nn

CLASSES, INPUTS, SAMPLES = 4, 5, 30


@pytest.fixture
def answers():
    names, cells = {"torch": torch}, cells_of("10_kfac")
    for cell in ("ex-fisher", "ex-precondition"):
        run_cell(cells[cell], names, (ast.FunctionDef,))
    return names


@pytest.fixture
def layer():
    """(columns of the weight as a vector, inputs, function from such a vector to the logits)."""
    random = torch.Generator().manual_seed(0)
    vector = torch.randn(CLASSES * INPUTS, generator=random, dtype=torch.float64)
    inputs = torch.randn(SAMPLES, INPUTS, generator=random, dtype=torch.float64)
    return vector, inputs, lambda columns: inputs @ columns.view(INPUTS, CLASSES)


def test_a_single_layers_fisher_matrix_is_the_hessian_of_its_cross_entropy(answers, layer):
    vector, inputs, logits = layer
    labels = torch.arange(SAMPLES) % CLASSES  # any: the Hessian does not depend on them
    hessian = torch.autograd.functional.hessian(lambda w: nn.functional.cross_entropy(logits(w), labels), vector)
    torch.testing.assert_close(answers["softmax_fisher"](vector.view(INPUTS, CLASSES).T, inputs), hessian)


def test_the_kl_divergence_of_a_small_step_is_half_the_fisher_form(answers, layer):
    vector, inputs, logits = layer
    step = 1e-4 * torch.arange(1, len(vector) + 1, dtype=torch.float64).cos()
    before, after = (logits(w).log_softmax(1) for w in (vector, vector + step))
    divergence = (before.exp() * (before - after)).sum(1).mean()
    fisher = answers["softmax_fisher"](vector.view(INPUTS, CLASSES).T, inputs)
    assert divergence.item() == pytest.approx((step @ fisher @ step / 2).item(), rel=1e-3)


def test_the_split_damping_divides_a_direction_by_both_damped_eigenvalues(answers):
    random, damping = torch.Generator().manual_seed(1), 0.3
    A, G = (m @ m.T for m in (torch.randn(n, n, generator=random, dtype=torch.float64) for n in (3, 4)))
    (a, in_A), (g, in_G) = torch.linalg.eigh(A), torch.linalg.eigh(G)
    pi, inverses = (a.mean() / g.mean()).sqrt(), answers["damped_inverses"](A, G, damping)
    for i in range(3):
        for j in range(4):
            direction = torch.outer(in_G[:, j], in_A[:, i])
            step, _ = answers["precondition"](direction, None, *inverses)
            divisor = (a[i] + pi * damping**0.5) * (g[j] + damping**0.5 / pi)
            torch.testing.assert_close(step, direction / divisor)
