"""LARS and LAMB against the papers' formulas in NumPy, and what importing them costs."""

import contextlib
import io
import sys
import warnings

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

from course_lib.distributed import launch
from course_lib.optim import LAMB, LARS, NovoGrad, no_decay_groups

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def parameters():
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 30), (7,), (3, 2, 2)]  # the first one's norm is above 10
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64) * 3) for shape in shapes]


def gradients(step):
    generator = torch.Generator().manual_seed(step + 1)
    return [
        torch.randn(p.shape, generator=generator, dtype=torch.float64) * 10.0**n for n, p in enumerate(parameters())
    ]


def run(make, steps=3):
    """Weights after some steps, per tensor; the gradients must be as they were."""
    params = parameters()
    optimizer = make(params)
    assert isinstance(optimizer, torch.optim.Optimizer)
    for step in range(steps):
        for param, gradient in zip(params, gradients(step), strict=True):
            param.grad = gradient.clone()
        optimizer.step()
        assert all(torch.equal(param.grad, g) for param, g in zip(params, gradients(step), strict=True))
    return [param.detach().numpy() for param in params]


def lars(w, g, m, lr, momentum=0.9, weight_decay=0.0, trust=0.001, adapt=True):
    """You et al. 2017, algorithm 1 (with lr constant, inside or outside of m is the same)."""
    ratio = trust * np.linalg.norm(w) / (np.linalg.norm(g) + weight_decay * np.linalg.norm(w)) if adapt else 1.0
    m = momentum * m + lr * ratio * (g + weight_decay * w)
    return w - m, m


def lamb(w, g, m, v, t, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0, adapt=True):
    """You et al. 2019, algorithm 2, φ the identity."""
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g**2
    r = (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
    u = r + weight_decay * w
    ratio = np.linalg.norm(w) / np.linalg.norm(u) if adapt else 1.0
    return w - lr * ratio * u, m, v


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_they_are_the_papers(weight_decay):
    for_lars = run(lambda params: LARS(params, 2.0, weight_decay=weight_decay, trust_coefficient=0.01))
    for_lamb = run(lambda params: LAMB(params, 0.02, weight_decay=weight_decay))
    for n, param in enumerate(parameters()):
        w = x = param.detach().numpy()
        m = momentum = v = 0.0
        for step in range(3):
            g = gradients(step)[n].numpy()
            w, momentum = lars(w, g, momentum, 2.0, weight_decay=weight_decay, trust=0.01)
            x, m, v = lamb(x, g, m, v, step + 1, 0.02, weight_decay=weight_decay)
        np.testing.assert_allclose(for_lars[n], w, rtol=1e-7)
        np.testing.assert_allclose(for_lamb[n], x, rtol=1e-7)


def test_lamb_does_not_clip():
    free = run(lambda params: LAMB(params, 0.02, eps=1.0), 1)
    for n, param in enumerate(parameters()):
        g = gradients(0)[n].numpy()
        np.testing.assert_allclose(free[n], lamb(param.detach().numpy(), g, 0.0, 0.0, 1, 0.02, eps=1.0)[0])


def test_settings_reach_the_optimizers():
    lars_group = LARS(parameters(), 1.0, momentum=0.5).param_groups[0]
    assert (lars_group["momentum"], lars_group["dampening"]) == (0.5, 0)
    lamb_group = LAMB(parameters(), betas=(0.5, 0.6), eps=0.1).param_groups[0]
    assert (lamb_group["lr"], lamb_group["betas"], lamb_group["eps"]) == (1e-3, (0.5, 0.6), 0.1)
    with pytest.raises(ValueError):
        LARS(parameters(), -1.0)
    with pytest.raises(ValueError):
        LAMB(parameters(), -1.0)


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3, bias=False)).double()
    model[0].bias.requires_grad_(False)
    return model


def test_biases_and_norms_are_neither_decayed_nor_adapted():
    model = network()
    decayed, plain = no_decay_groups(model, 0.1)
    assert [id(p) for p in decayed["params"]] == [id(model[0].weight), id(model[3].weight)]
    assert [id(p) for p in plain["params"]] == [id(model[1].weight), id(model[1].bias)]  # the frozen one is in neither
    assert decayed["weight_decay"] == 0.1 and plain["weight_decay"] == 0.0
    assert len(no_decay_groups(nn.Linear(2, 2, bias=False), 0.1)) == 1

    for make, formula in (
        (lambda groups: LARS(groups, 0.5), lambda w, g, adapt, wd: lars(w, g, 0.0, 0.5, weight_decay=wd, adapt=adapt)),
        (lambda groups: LAMB(groups, 0.5), lambda w, g, adapt, wd: lamb(w, g, 0.0, 0.0, 1, 0.5, weight_decay=wd, adapt=adapt)),
    ):  # fmt: skip
        model = network()
        with torch.no_grad():
            model[1].weight.fill_(3.0)
        optimizer = make(no_decay_groups(model, 0.1))
        model(torch.randn(5, 1, 4, 4, dtype=torch.float64)).square().sum().backward()
        before = {p: p.detach().numpy().copy() for p in model.parameters()}
        optimizer.step()
        for param, w in before.items():
            if param.grad is None:
                assert np.array_equal(param.detach().numpy(), w)
                continue
            weight = param.ndim > 1
            expected = formula(w, param.grad.numpy(), weight, 0.1 if weight else 0.0)[0]
            np.testing.assert_allclose(param.detach().numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("make", [lambda g: torch.optim.AdamW(g, lr=0.1), lambda g: NovoGrad(g, lr=0.1)])
def test_the_groups_serve_other_optimizers(make):
    model = network()
    optimizer = make(no_decay_groups(model, 0.1))
    model(torch.randn(5, 1, 4, 4, dtype=torch.float64)).square().sum().backward()
    optimizer.step()
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]


def imported_by_a_step():
    """timm and torchvision among the modules, before and after the optimisers are used, and what was printed meanwhile."""
    modules, printed = [{"timm", "torchvision"} & set(sys.modules)], io.StringIO()
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    warnings.simplefilter("default")
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        LARS([parameter], 1.0).step()
        LAMB([parameter], 1.0).step()
    return [*modules, {"timm", "torchvision"} & set(sys.modules)], printed.getvalue()


def test_timm_is_imported_only_when_used_and_says_nothing():
    assert launch(imported_by_a_step, 1, process_group=False) == [([set(), {"timm", "torchvision"}], "")]
