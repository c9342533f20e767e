"""K-FAC on one process: against the full Kronecker matrix, against per-sample gradients, and its rules."""

import copy
import math

import pytest
import torch
from torch import nn

from course_lib.optim import KFAC
from course_lib.optim.kronecker_factors import KroneckerFactors
from course_lib.optim.kronecker_inverse import eigendecomposition, pi_split, precondition_by_eigen

EVERY_STEP = {"factor_update_steps": 1, "inverse_update_steps": 1}
GAMMA = 0.07

CONVOLUTIONS = {
    "plain": {},
    "stride": {"stride": (2, 3)},
    "padding": {"padding": (2, 1)},
    "dilation": {"dilation": (1, 2), "kernel_size": (3, 2)},
    "all": {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 2), "dilation": (2, 1)},
    "same": {"kernel_size": (4, 3), "padding": "same", "dilation": (1, 2)},
    "valid": {"padding": "valid"},
    "circular": {"padding": (1, 2), "padding_mode": "circular"},
}


class Both(nn.Module):
    """A convolution and two linear layers, an in-place ReLU behind each of the first two."""

    def __init__(self, bias=True, **convolution):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, **{"kernel_size": 3, "bias": bias, **convolution})
        self.head = nn.Sequential(nn.LazyLinear(4, bias=bias), nn.ReLU(inplace=True), nn.Linear(4, 3, bias=bias))

    def forward(self, x):
        return self.head(torch.relu_(self.conv(x)).flatten(1))


def problem(bias=True, samples=7, seed=0, **convolution):
    """A model in float64 with its materialised layers, images and labels."""
    torch.manual_seed(seed)
    model = Both(bias, **convolution)
    x, y = torch.randn(samples, 2, 8, 7, dtype=torch.float64), torch.randint(3, (samples,))
    model(x.float())
    return model.double(), x, y


def backward(model, x, y, scale=1.0):
    model.zero_grad()
    (scale * nn.functional.cross_entropy(model(x), y)).backward()


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def matrix_of(grads, name):
    """A layer's gradient as ``(fan_out, fan_in + 1)``."""
    matrix = grads[f"{name}.weight"].flatten(1)
    bias = grads.get(f"{name}.bias")
    return matrix if bias is None else torch.cat([matrix, bias[:, None]], 1)


def per_sample_factors(model, x, y):
    """A and G from autograd alone: what goes into each layer, and each sample's gradients at its output.

    A convolution's patches are what one-hot kernels pick out of its input.
    """
    layers = {name: m for name, m in model.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))}
    A, G = dict.fromkeys(layers, 0), dict.fromkeys(layers, 0)
    seen = {}

    def keep(layer, args, output):
        seen[layer] = (args[0].clone(), output)
        return output.clone()  # which an in-place ReLU may overwrite

    for image, label in zip(x, y, strict=True):
        hooks = [layer.register_forward_hook(keep) for layer in layers.values()]
        loss = nn.functional.cross_entropy(model(image[None]), label[None])
        outputs = torch.autograd.grad(loss, [seen[layer][1] for layer in layers.values()])
        for hook in hooks:
            hook.remove()
        for (name, m), at_output in zip(layers.items(), outputs, strict=True):
            columns = places(m, seen[m][0])
            A[name] = A[name] + columns @ columns.T / columns.shape[1] / len(x)
            g = at_output.reshape(m.weight.shape[0], -1)
            G[name] = G[name] + g @ g.T / len(x)
    return A, G


def places(layer, inputs):
    """Columns ā of one sample."""
    if isinstance(layer, nn.Linear):
        columns = inputs.reshape(-1, 1)
    else:
        pick = copy.deepcopy(layer)
        fan_in = layer.weight[0].numel()
        pick.out_channels, pick.bias = fan_in, None
        pick.weight = nn.Parameter(torch.eye(fan_in, dtype=inputs.dtype).view(fan_in, *layer.weight.shape[1:]))
        pick._forward_hooks.clear()
        columns = pick(inputs)[0].flatten(1).detach()
    return columns if layer.bias is None else torch.cat([columns, columns.new_ones(1, columns.shape[1])])


def full_matrix_solution(A, G, gradient, inverse, damping=GAMMA):
    """(A ⊗ G + γI)⁻¹ vec(gradient) by one dense solve; for Cholesky with the damped factors."""
    if inverse == "eigen":
        matrix = torch.kron(A, G) + damping * torch.eye(A.shape[0] * G.shape[0], dtype=A.dtype)
    else:
        pi = math.sqrt((A.trace() / len(A) * len(G) / G.trace()).item())
        matrix = torch.kron(
            A + pi * math.sqrt(damping) * torch.eye(len(A), dtype=A.dtype),
            G + math.sqrt(damping) / pi * torch.eye(len(G), dtype=A.dtype),
        )
    return torch.linalg.solve(matrix, gradient.T.reshape(-1)).view(gradient.T.shape).T  # vec stacks columns


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # an even kernel, on purpose
@pytest.mark.parametrize("inverse", ["eigen", "cholesky"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_it_is_the_inverse_of_the_full_kronecker_matrix(convolution, bias, inverse):
    model, x, y = problem(bias, **CONVOLUTIONS[convolution])
    A, G = per_sample_factors(model, x, y)
    kfac = KFAC(model, GAMMA, **EVERY_STEP, inverse=inverse)
    assert set(kfac.layers) == {"conv", "head.0", "head.2"} and not kfac.skipped
    backward(model, x, y)
    before = gradients(model)
    kfac.step()
    for name, layer in kfac.layers.items():
        torch.testing.assert_close(layer.A, A[name], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(layer.G, G[name], rtol=1e-10, atol=1e-12)
        expected = full_matrix_solution(A[name], G[name], matrix_of(before, name), inverse)
        assert (matrix_of(gradients(model), name) - expected).abs().max() < 1e-8 * expected.abs().max(), name


def test_pi_splits_the_damping_evenly_whatever_the_factors_scales():
    A, G = torch.diag(torch.tensor([4.0, 8.0])), torch.diag(torch.tensor([0.5, 1.0, 1.5]))
    a, g = pi_split(A, G, 0.09)
    assert a * g == pytest.approx(0.09) and a / 6 == pytest.approx(g / 1)  # the same share of each mean eigenvalue
    assert pi_split(torch.zeros(2, 2), G, 0.09) == pytest.approx((0.3, 0.3))


def test_rounding_makes_no_negative_curvature():
    """A factor of rank 1 in float32 has eigenvalues of rounding, some below 0; with little damping they would rule."""
    torch.manual_seed(0)
    factor = torch.outer(a := 100 * torch.randn(30), a)
    assert torch.linalg.eigvalsh(factor)[0] < -1e-6
    eigen = eigendecomposition(factor)
    gradient = torch.randn(30, 30)
    step = precondition_by_eigen(gradient, eigen, eigen, 1e-8)
    assert eigen[-1].min() == 0 and (step * gradient).sum() > 0


def test_running_averages_and_update_intervals():
    model, x, y = problem()
    kfac = KFAC(model, GAMMA, factor_decay=0.6, factor_update_steps=2, inverse_update_steps=4)
    averages, inverted, twin = None, None, copy.deepcopy(model)
    for step in range(10):
        x = torch.randn_like(x)
        A, G = per_sample_factors(twin, x, y)
        backward(model, x, y)
        before = gradients(model)
        kfac.step()
        if step % 2 == 0:
            decay = min(0.6, 1 - 1 / (step // 2 + 1))
            new = {name: (A[name], G[name]) for name in A}
            averages = {
                name: new[name]
                if step == 0
                else tuple(decay * o + (1 - decay) * n for o, n in zip(averages[name], new[name], strict=True))
                for name in new
            }
        if step % 4 == 0:
            inverted = averages
        for name, layer in kfac.layers.items():
            torch.testing.assert_close((layer.A, layer.G), averages[name])
            expected = full_matrix_solution(*inverted[name], matrix_of(before, name), "eigen")
            torch.testing.assert_close(matrix_of(gradients(model), name), expected)


def test_micro_batches_are_one_batch():
    model, x, y = problem(samples=9)
    twin = copy.deepcopy(model)
    kfac = KFAC(model, GAMMA)
    backward(model, x, y)
    kfac.step()
    kfac = KFAC(twin, GAMMA)
    twin.zero_grad()
    for start, stop in ((0, 2), (2, 5), (5, 9)):  # each loss weighted by its share
        (nn.functional.cross_entropy(twin(x[start:stop]), y[start:stop]) * (stop - start) / 9).backward()
    kfac.step()
    for name, gradient in gradients(twin).items():
        torch.testing.assert_close(gradient, gradients(model)[name], rtol=1e-10, atol=1e-12)


def test_only_what_trains_is_counted():
    model, x, y = problem()
    expected = list(zip(*(factors.values() for factors in per_sample_factors(model, x, y)), strict=True))
    kfac = KFAC(model, GAMMA, **EVERY_STEP)
    model.eval()
    nn.functional.cross_entropy(model(x + 3), y).backward()
    model.train()
    with torch.no_grad():
        model(x - 1)
    model(2 * x)  # no backward comes of it
    backward(model, x, y)
    late = model(5 * x).sum()
    kfac.step()
    torch.testing.assert_close([(layer.A, layer.G) for layer in kfac.layers.values()], expected)
    late.backward()  # of a forward before the step: its batch is closed
    backward(model, x, y)
    kfac.step()
    torch.testing.assert_close([(layer.A, layer.G) for layer in kfac.layers.values()], expected)


def test_places_between_samples_and_features_are_summed():
    """A linear layer on (samples, places, features) is a 1×1 convolution on (samples, features, places, 1)."""
    torch.manual_seed(0)
    x, y = torch.randn(5, 4, 6, dtype=torch.float64), torch.randint(3, (5,))
    linear, conv = nn.Linear(6, 3).double(), nn.Conv2d(6, 3, 1).double()
    conv.weight.data, conv.bias.data = linear.weight.data[:, :, None, None].clone(), linear.bias.data.clone()
    preconditioned = []
    for layer, inputs, pool in ((linear, x, (1,)), (conv, x.mT[..., None], (2, 3))):
        kfac = KFAC(layer, GAMMA)
        nn.functional.cross_entropy(layer(inputs).mean(pool), y).backward()
        kfac.step()
        preconditioned.append(torch.cat([layer.weight.grad.flatten(), layer.bias.grad]))
    torch.testing.assert_close(*preconditioned)


class Twice(nn.Module):
    """The layer `shared` is used on both halves of the input; `sometimes` only when asked."""

    def __init__(self):
        super().__init__()
        self.shared, self.sometimes, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(8, 3)
        self.ask = True

    def forward(self, x):
        parts = [torch.tanh(self.shared(part)) for part in x.split(4, 1)]
        return self.out(torch.cat([self.sometimes(parts[0]) if self.ask else parts[0], parts[1]], 1))


def test_a_layer_used_twice_has_its_uses_as_places():
    torch.manual_seed(0)
    model = Twice().double()
    x, y = torch.randn(6, 8, dtype=torch.float64), torch.randint(3, (6,))

    class AtOnce(nn.Module):
        def __init__(self):
            super().__init__()
            self.twice = copy.deepcopy(model)

        def forward(self, x):
            parts = torch.tanh(self.twice.shared(x.view(6, 2, 4))).unbind(1)
            return self.twice.out(torch.cat([self.twice.sometimes(parts[0]), parts[1]], 1))

    other = AtOnce()
    for m in (model, other):
        kfac = KFAC(m, GAMMA)
        backward(m, x, y)
        kfac.step()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_an_unused_layer_keeps_its_factors_and_a_never_used_one_its_gradient():
    torch.manual_seed(0)
    model = Twice().double()
    x, y = torch.randn(6, 8, dtype=torch.float64), torch.randint(3, (6,))
    kfac = KFAC(model, GAMMA, **EVERY_STEP)
    model.ask = False
    backward(model, x, y)
    kfac.step()
    assert model.sometimes.weight.grad is None and kfac.layers["sometimes"].A is None
    kfac.inverse_update_steps = 2
    model.ask = True
    backward(model, x, y)
    before = model.sometimes.weight.grad.clone()
    kfac.step()  # it has factors now, and no inverses before the next step
    assert torch.equal(model.sometimes.weight.grad, before) and kfac.layers["sometimes"].updates == 1
    factors = kfac.layers["sometimes"].A.clone()
    model.ask = False
    backward(model, x, y)
    kfac.step()
    assert torch.equal(kfac.layers["sometimes"].A, factors) and kfac.layers["shared"].updates == 3


def test_skipped_layers_say_why_and_keep_their_gradients():
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("grouped", nn.Conv2d(4, 4, 3, groups=2))
    model.add_module("norm", nn.BatchNorm2d(4))
    model.add_module("conv", nn.Conv2d(4, 2, 3))
    model.add_module("flat", nn.Flatten())
    model.add_module("frozen", nn.Linear(8, 6))
    model.add_module("computed", nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)))
    model.add_module("tied", nn.Linear(6, 6))
    model.add_module("tied_too", nn.Linear(6, 6))
    model.add_module("narrow", nn.Linear(6, 3))
    model.frozen.weight.requires_grad_(False)
    model.narrow.bias.requires_grad_(False)
    model.tied_too.weight = model.tied.weight
    kfac = KFAC(model, GAMMA)
    reasons = {
        "grouped": "2 groups",
        "norm": "BatchNorm2d is neither",
        "frozen": "frozen",
        "computed": "parametrisation",
        "tied": "shares a parameter with tied_too",
        "tied_too": "shares a parameter with tied",
    }
    assert set(kfac.layers) == {"conv", "narrow"}
    assert all(words in kfac.skipped[name] for name, words in reasons.items())
    assert kfac.layers["narrow"].shape == (6, 3)  # a frozen bias has no column
    x, y = torch.randn(5, 4, 6, 6), torch.randint(3, (5,))
    backward(model, x, y)
    before = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    kfac.step()
    changed = {name for name, grad in before.items() if not torch.equal(grad, model.get_parameter(name).grad)}
    assert changed == {"conv.weight", "conv.bias", "narrow.weight"}


def test_the_kl_clip_bounds_the_step():
    clips = []
    for kl_clip in (None, 1e6, 1e-4):
        model, x, y = problem()
        kfac = KFAC(model, GAMMA, kl_clip=kl_clip, lr=lambda: 0.3)
        backward(model, x, y)
        before = gradients(model)
        kfac.step()
        change = 0.09 * sum((gradient * before[name]).sum().item() for name, gradient in gradients(model).items())
        clips.append((kfac.clip_factor, change))
    (none, free), (loose, still), (tight, bounded) = clips
    assert none == loose == 1 and free == still > 1e-4
    # the step is scaled by ν, so lr² Σ⟨·,·⟩ with ν² in it is κ
    assert tight == pytest.approx(math.sqrt(1e-4 / free)) and bounded * tight == pytest.approx(1e-4)


def test_half_precision_gives_float32_factors():
    model, x, y = problem()
    exact, model = KFAC(copy.deepcopy(model), GAMMA), model.float()
    backward(exact._model, x, y)
    exact.step()
    kfac = KFAC(model, GAMMA)
    seen = []
    model.head[0].register_forward_hook(lambda m, args, out: seen.append(out.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        nn.functional.cross_entropy(model(x.float()), y).backward()
    kfac.step()
    assert seen == [torch.bfloat16]
    for name, layer in kfac.layers.items():
        assert layer.A.dtype == layer.G.dtype == torch.float32
        # bfloat16 has 8 bits; what is summed from its numbers must not lose more
        torch.testing.assert_close(layer.A.double(), exact.layers[name].A, rtol=0.05, atol=0.02)
        assert torch.equal(layer.A, layer.A.T)
    conv = KroneckerFactors("", model.conv)
    with torch.autocast("cpu", torch.bfloat16):
        moment, columns, _ = conv.input_moment(x.float())
    torch.testing.assert_close((moment / columns).double(), exact.layers["conv"].A, rtol=1e-5, atol=1e-6)
    whole = copy.deepcopy(model).bfloat16()
    kfac = KFAC(whole, GAMMA)
    backward(whole, x.bfloat16(), y)
    kfac.step()
    assert whole.conv.weight.grad.dtype == torch.bfloat16 and kfac.layers["conv"].G.dtype == torch.float32


def test_a_batch_that_overflows_is_left_out():
    model, x, y = problem()
    kfac = KFAC(model, GAMMA, **EVERY_STEP)
    backward(model, x, y)
    kfac.step()
    before = [layer.A.clone() for layer in kfac.layers.values()]
    backward(model, x, y, scale=math.inf)
    kfac.step()
    assert all(torch.equal(a, layer.A) for a, layer in zip(before, kfac.layers.values(), strict=True))
    assert [layer.updates for layer in kfac.layers.values()] == [1, 1, 1]


def test_gradients_keep_their_memory_and_layout():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).to(
        memory_format=torch.channels_last
    )
    twin = copy.deepcopy(model).to(memory_format=torch.contiguous_format)
    x, y = torch.randn(5, 3, 6, 6), torch.randint(3, (5,))
    for m, inputs in ((model, x.to(memory_format=torch.channels_last)), (twin, x)):
        kfac = KFAC(m, GAMMA)
        backward(m, inputs, y)
        places = {p: (p.grad.data_ptr(), p.grad.stride()) for p in m.parameters()}
        kfac.step()
        assert all((p.grad.data_ptr(), p.grad.stride()) == place for p, place in places.items())
    assert model[0].weight.grad.stride() == model[0].weight.stride() != twin[0].weight.stride()
    torch.testing.assert_close(model[0].weight.grad, twin[0].weight.grad.contiguous())


def test_a_second_one_takes_over_and_copies_do_not_disturb():
    model, x, y = problem()
    first = KFAC(model, GAMMA)
    second = KFAC(model, GAMMA)
    clone = copy.deepcopy(model)
    hooks = [len(m._forward_hooks) for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    assert hooks == [1, 1, 1]
    backward(clone, x * 3, y)
    backward(model, x, y)
    with pytest.raises(RuntimeError, match="has no model any more"):
        first.step()
    second.step()
    first.remove_hooks()
    A, _ = per_sample_factors(model, x, y)
    torch.testing.assert_close(second.layers["conv"].A, A["conv"])
    second.remove_hooks()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"damping": 0}, "damping must be above 0"),
        ({"damping": math.nan}, "damping must be above 0"),
        ({"factor_decay": 1.0}, "factor_decay must be in"),
        ({"factor_decay": -0.1}, "factor_decay must be in"),
        ({"factor_update_steps": 0}, "factor_update_steps must be a whole number"),
        ({"inverse_update_steps": 2.5}, "inverse_update_steps must be a whole number"),
        ({"kl_clip": 0.0, "lr": 0.1}, "kl_clip must be above 0"),
        ({"kl_clip": 0.1}, "give lr"),
        ({"inverse": "qr"}, "'eigen' or 'cholesky'"),
        ({"distribution": "memopt"}, "'comm-opt' or 'mem-opt'"),
    ],
)
def test_nonsense_is_one_line(settings, words):
    model, *_ = problem()
    with pytest.raises(ValueError, match=words) as raised:
        KFAC(model, **settings)
    assert "\n" not in str(raised.value)


def test_a_model_without_a_suitable_layer_is_refused():
    with pytest.raises(ValueError, match="BatchNorm1d has no layer that K-FAC can work on"):
        KFAC(nn.BatchNorm1d(3))


def test_a_step_without_a_training_pass_says_so():
    model, x, y = problem()
    kfac = KFAC(model.eval(), GAMMA)
    backward(model, x, y)
    with pytest.raises(RuntimeError, match=r"call model\.train\(\)"):
        kfac.step()


def test_a_factor_that_is_not_positive_definite_says_so():
    model, x, y = problem()
    model, x = model.float(), x.float() * 1e6
    kfac = KFAC(model, 1e-12, inverse="cholesky")
    backward(model, x, y)
    with pytest.raises(torch.linalg.LinAlgError, match="raise damping"):
        kfac.step()


@pytest.mark.gpu
@pytest.mark.parametrize("inverse", ["eigen", "cholesky"])
def test_a_gpu_computes_the_same(inverse):
    model, x, y = problem(stride=2, padding=1)
    gradients_of = []
    for device in ("cpu", "cuda"):
        m = copy.deepcopy(model).to(device)
        kfac = KFAC(m, GAMMA, **EVERY_STEP, inverse=inverse, kl_clip=1e-3, lr=0.1)
        backward(m, x.to(device), y.to(device))
        kfac.step()
        gradients_of.append({name: gradient.cpu() for name, gradient in gradients(m).items()})
    for name, gradient in gradients_of[0].items():
        torch.testing.assert_close(gradients_of[1][name], gradient, rtol=1e-8, atol=1e-10)
