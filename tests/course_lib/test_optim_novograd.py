"""NovoGrad against the paper written out in NumPy, and against timm."""

import io

import numpy as np
import pytest
import torch
from torch import nn

from course_lib.optim import NovoGrad
from course_lib.system.torchvision_import import import_torchvision

SHAPES = [(3, 4), (5,), (), (2, 3, 2, 2), (0,)]
both_paths = pytest.mark.parametrize("foreach", [False, True])
settings = pytest.mark.parametrize(
    "options",
    [
        {},
        {"grad_averaging": True},
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "grad_averaging": True, "betas": (0.8, 0.3)},
        {"eps": 0.5},  # large, so that its place matters
        {"betas": (0.95, 0.0)},  # the first NVIDIA code's
        {"betas": (0.0, 0.9)},
    ],
    ids=str,
)


def parameters(dtype=torch.float64, seed=0, shapes=SHAPES):
    generator = torch.Generator().manual_seed(seed)
    return [
        nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)) for shape in shapes
    ]  # fmt: skip


def give_gradients(params, seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    for number, param in enumerate(params):
        gradient = torch.randn(param.shape, generator=generator, dtype=torch.float64)
        param.grad = (gradient * scale * 10.0 ** (number - 1)).to(param.dtype)


def values(params):
    return [param.detach().clone() for param in params]


def paper(w, gradients, lr, betas=(0.95, 0.98), eps=1e-8, weight_decay=0.0, grad_averaging=False):
    """Algorithm 1 of arXiv 1905.11286 on NumPy arrays, first step apart as it stands there."""
    beta1, beta2 = betas
    share = 1 - beta1 if grad_averaging else 1
    for t, g in enumerate(gradients, 1):
        v = np.sum(g**2) if t == 1 else beta2 * v + (1 - beta2) * np.sum(g**2)  # noqa: F821
        bracket = share * (g / (np.sqrt(v) + eps) + weight_decay * w)
        m = bracket if t == 1 else beta1 * m + bracket  # noqa: F821
        w = w - lr * m
    return w


@both_paths
@settings
def test_it_is_the_papers_algorithm(options, foreach):
    params = parameters()
    start, gradients = [p.detach().numpy().copy() for p in params], [[] for _ in params]
    lr = torch.tensor(0.03, dtype=torch.float64) if foreach else 0.03  # either may be a tensor or a number
    optimizer = NovoGrad(params, lr=lr, foreach=foreach, **options)
    for step in range(12):

        def closure(step=step):
            give_gradients(params, step, scale=1 + step % 3)
            for seen, param in zip(gradients, params, strict=True):
                seen.append(param.grad.numpy().copy())
            return torch.is_grad_enabled()

        assert optimizer.step(closure) is True
        assert all(np.array_equal(param.grad, seen[-1]) for param, seen in zip(params, gradients, strict=True))
    for param, w, seen in zip(params, start, gradients, strict=True):
        np.testing.assert_allclose(param.detach().numpy(), paper(w, seen, 0.03, **options), rtol=1e-12, atol=1e-14)


@settings
@both_paths
def test_it_is_timms_novograd(options, foreach):
    import_torchvision()
    from timm.optim import NvNovoGrad

    ours, theirs = parameters(torch.float32), parameters(torch.float32)
    optimizer = NovoGrad(ours, lr=0.03, foreach=foreach, **options)
    reference = NvNovoGrad(theirs, lr=0.03, **options)
    for step in range(12):
        for params in (ours, theirs):
            give_gradients(params, step, scale=step)  # the first is zero
        optimizer.step()
        reference.step()
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=2e-5, atol=2e-6)


def test_the_loop_and_foreach_agree_over_mixed_dtypes():
    def mixed():
        return [p for d in (torch.float32, torch.float64, torch.bfloat16) for p in parameters(d)]

    loop, together = mixed(), mixed()
    optimizers = [
        NovoGrad(params, lr=0.05, weight_decay=0.02, grad_averaging=True, foreach=foreach)
        for params, foreach in ((loop, False), (together, True))
    ]
    start = values(loop)
    for step in range(8):
        for params, optimizer in zip((loop, together), optimizers, strict=True):
            give_gradients(params, step)
            optimizer.step()
    for a, b, first in zip(loop, together, start, strict=True):
        assert a.dtype == b.dtype == first.dtype and (a.numel() == 0 or not torch.equal(a, first))
        torch.testing.assert_close(a, b, rtol=1e-6 if a.dtype != torch.bfloat16 else 1e-2, atol=1e-7)


def test_default_path_is_foreach_for_plain_tensors_only(monkeypatch):
    class Other(nn.Parameter):
        pass

    import course_lib.optim.novograd as module

    calls = []
    for name in ("_update_one_by_one", "_update_together"):
        monkeypatch.setattr(module, name, lambda *a, name=name, **k: calls.append(name))
    plain, other = nn.Parameter(torch.zeros(2)), Other(torch.zeros(2))
    for params, foreach in (([plain], None), ([plain, other], None), ([plain], False), ([other], True)):
        for param in params:
            param.grad = torch.ones(2)
        NovoGrad(params, lr=1.0, foreach=foreach).step()
    assert calls == ["_update_together", "_update_one_by_one", "_update_one_by_one", "_update_together"]


@both_paths
def test_groups_have_their_own_settings(foreach):
    a, b, c = parameters(shapes=[(4,)] * 3)
    own = [
        {"params": [a], "lr": 0.3, "betas": (0.5, 0.5)},
        {"params": [b], "weight_decay": 0.2, "grad_averaging": True},
    ]
    optimizer = NovoGrad(own, lr=0.01, eps=0.1, foreach=foreach)
    optimizer.add_param_group({"params": [c], "eps": 1.0})
    start, seen = [p.detach().numpy().copy() for p in (a, b, c)], []
    for step in range(4):
        give_gradients([a, b, c], step)
        seen.append([p.grad.numpy().copy() for p in (a, b, c)])
        optimizer.step()
    a_seen, b_seen, c_seen = zip(*seen, strict=True)
    expected = [
        paper(start[0], a_seen, 0.3, (0.5, 0.5), eps=0.1),
        paper(start[1], b_seen, 0.01, eps=0.1, weight_decay=0.2, grad_averaging=True),
        paper(start[2], c_seen, 0.01, eps=1.0),
    ]
    for param, value in zip((a, b, c), expected, strict=True):
        np.testing.assert_allclose(param.detach().numpy(), value, rtol=1e-12)


@both_paths
def test_a_parameter_without_gradient_waits_for_its_first(foreach):
    early, late = parameters(shapes=[(3,), (3,)])
    start = late.detach().numpy().copy()
    optimizer = NovoGrad([early, late], lr=0.1, weight_decay=0.5, foreach=foreach)
    for step in range(3):
        give_gradients([early], step)
        optimizer.step()
    assert np.array_equal(late.detach().numpy(), start) and late not in optimizer.state
    seen = []
    for step in range(2):
        give_gradients([early, late], step)
        seen.append(late.grad.numpy().copy())
        optimizer.step()
    np.testing.assert_allclose(late.detach().numpy(), paper(start, seen, 0.1, weight_decay=0.5), rtol=1e-12)


@both_paths
@pytest.mark.parametrize("eps", [0.0, 1e-8])
def test_zero_gradients_move_nothing_and_do_not_count_as_the_first(eps, foreach):
    param, other = (nn.Parameter(torch.ones(4, dtype=torch.float64)) for _ in range(2))
    optimizer = NovoGrad([param, other], lr=0.1, eps=eps, foreach=foreach)
    param.grad, other.grad = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    for _ in range(3):
        optimizer.step()
    assert torch.equal(param.detach(), torch.ones(4, dtype=torch.float64))
    param.grad = torch.full((4,), 3.0, dtype=torch.float64)
    optimizer.step()
    assert (param.detach() - 1).norm().item() == pytest.approx(0.1)


@both_paths
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_resuming_from_a_saved_state_is_bit_equal(dtype, foreach):
    straight = parameters(dtype)
    optimizer = NovoGrad(straight, lr=0.05, weight_decay=0.01, foreach=foreach)
    for step in range(4):
        give_gradients(straight, step)
        optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    resumed = [nn.Parameter(value) for value in values(straight)]
    other = NovoGrad(resumed, lr=1.0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert other.param_groups[0]["lr"] == 0.05 and other.param_groups[0]["foreach"] is foreach
    for step in range(4, 8):
        for params, it in ((straight, optimizer), (resumed, other)):
            give_gradients(params, step)
            it.step()
    assert all(torch.equal(a, b) for a, b in zip(straight, resumed, strict=True))


def test_state_follows_a_cast_and_the_norm_keeps_its_digits():
    params = parameters(torch.float32)
    optimizer = NovoGrad(params, lr=0.05)
    give_gradients(params, 0)
    optimizer.step()
    saved = optimizer.state_dict()
    for dtype, norms in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        cast = [nn.Parameter(param.detach().to(dtype)) for param in params]
        other = NovoGrad(cast, lr=0.05)
        other.load_state_dict(saved)
        for number, param in enumerate(cast):
            state = other.state[param]
            assert state["first_moment"].dtype == dtype and state["second_moment"].dtype == norms
            assert state["second_moment"].item() == saved["state"][number]["second_moment"].item()
        give_gradients(cast, 1)
        other.step()
        assert all(torch.isfinite(param).all() for param in cast)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"lr": -1.0}, "Invalid learning rate: -1.0"),
        ({"lr": float("nan")}, "Invalid learning rate: nan"),
        ({"lr": torch.ones(2)}, "Tensor lr must be 1-element"),
        ({"betas": (1.0, 0.9)}, "Invalid beta parameter at index 0: 1.0"),
        ({"betas": (0.9, -0.1)}, "Invalid beta parameter at index 1: -0.1"),
        ({"betas": (0.9,)}, "betas must be two numbers"),
        ({"eps": -1e-8}, "Invalid epsilon value: -1e-08"),
        ({"weight_decay": -0.1}, "Invalid weight_decay value: -0.1"),
    ],
)
def test_wrong_settings_are_refused_for_all_and_for_a_group(options, words):
    for make in (
        lambda: NovoGrad(parameters(), **{"lr": 0.1, **options}),
        lambda: NovoGrad([{"params": parameters(), **options}], lr=0.1),
    ):
        with pytest.raises(ValueError, match=words) as raised:
            make()
        assert "\n" not in str(raised.value)


def test_sparse_and_complex_are_refused_before_anything_changes():
    dense, table = nn.Parameter(torch.ones(2)), nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    dense.grad = torch.ones(2)
    with pytest.raises(RuntimeError, match="does not support sparse gradients") as raised:
        NovoGrad([{"params": [dense]}, {"params": table.parameters()}], lr=0.1).step()
    assert "\n" not in str(raised.value) and torch.equal(dense.detach(), torch.ones(2))
    optimizer = NovoGrad([dense], lr=0.1)
    with pytest.raises(ValueError, match="complex"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2, dtype=torch.complex64))]})
    assert len(optimizer.param_groups) == 1
