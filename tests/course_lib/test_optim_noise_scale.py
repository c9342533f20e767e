"""The noise scale against gradients whose mean and covariance are known in closed form."""

import copy
import math

import pytest
import torch
from torch import nn

from course_lib.optim import (
    GradientNoise,
    average_noise,
    gradient_noise_scale,
    measure_noise_scale,
    steps_needed,
    useful_batch,
)


def half_squared_error(predictions, targets):
    return 0.5 * ((predictions - targets) ** 2).sum(1).mean()


def test_expected_norms_give_the_exact_answer():
    squared, trace = 3.0, 50.0
    norms = [squared + trace / batch for batch in (4, 32)]  # E|G_B|²
    noise = gradient_noise_scale(4, 32, *norms)
    assert (noise.squared_gradient, noise.covariance_trace) == pytest.approx((squared, trace))
    assert noise.noise_scale == pytest.approx(trace / squared)


def test_it_is_the_sample_variance_of_the_micro_batches_gradients():
    torch.manual_seed(0)
    model = nn.Linear(6, 1, bias=False).double()
    model.unused = nn.Parameter(torch.ones(3))  # its gradient is zero
    data = [(torch.randn(3, 6).double(), torch.randn(3, 1).double()) for _ in range(7)]
    gradients = []
    for x, y in data:
        twin = copy.deepcopy(model)
        half_squared_error(twin(x), y).backward()
        gradients.append(twin.weight.grad.flatten())
    gradients = torch.stack(gradients)
    noise = measure_noise_scale(model, data, half_squared_error)
    trace = 3 * gradients.var(0).sum().item()
    assert noise.covariance_trace == pytest.approx(trace)
    assert noise.squared_gradient == pytest.approx(gradients.mean(0).square().sum().item() - trace / 21)


def test_the_ratio_of_means_is_right_where_the_mean_of_ratios_is_not():
    squared, variance = 0.25, 0.8  # |G|², and the variance of each of the 6 elements of an image's gradient
    torch.manual_seed(0)
    # 1,500 times 4 micro-batches of 4 images
    batches = (squared / 6) ** 0.5 + (variance / 4) ** 0.5 * torch.randn(1500, 4, 6, dtype=torch.float64)
    small, big = batches.square().sum(2).mean(1).tolist(), batches.mean(1).square().sum(1).tolist()
    estimates = [gradient_noise_scale(4, 16, *norms) for norms in zip(small, big, strict=True)]
    ratios = [one.covariance_trace / one.squared_gradient for one in estimates]
    truth = 6 * variance / squared
    assert average_noise(estimates).noise_scale == pytest.approx(truth, rel=0.15)
    assert abs(sum(ratios) / len(ratios) - truth) > 0.3 * truth
    assert any(one.squared_gradient < 0 for one in estimates)
    assert GradientNoise(-0.1, 1.0).noise_scale == GradientNoise(0.0, 1.0).noise_scale == math.inf


def test_measuring_leaves_the_model_as_it_was():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))
    model[3].bias.requires_grad_(False)
    model.train()
    model[1].eval()
    model[0].weight.grad = torch.full((5, 6), 7.0)
    before = copy.deepcopy(model.state_dict())
    data = [(torch.randn(4, 6), torch.randint(3, (4,))) for _ in range(5)]
    random_state = torch.get_rng_state()
    noise = measure_noise_scale(model, data, nn.CrossEntropyLoss())
    assert torch.equal(torch.get_rng_state(), random_state)  # no dropout
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    assert [m.training for m in model] == [True, False, True, True] and model.training
    assert torch.equal(model[0].weight.grad, torch.full((5, 6), 7.0)) and model[3].weight.grad is None
    short = [*data, (torch.randn(2, 6), torch.randint(3, (2,)))]
    assert measure_noise_scale(model, short, nn.CrossEntropyLoss()) == noise
    with pytest.raises(IndexError):
        measure_noise_scale(model, [(data[0][0], data[0][1] + 9)], nn.CrossEntropyLoss())
    assert model.training  # also after an error


def test_steps_and_images_trade_as_the_papers_hyperbola():
    noise, least = 300.0, 40.0
    for batch in (1, 17, 300, 5000):
        steps = steps_needed(batch, noise, least)
        images = steps * batch
        assert (steps / least - 1) * (images / (least * noise) - 1) == pytest.approx(1)  # equation 2.11
    assert steps_needed(300, noise, least) == 80 and steps_needed(1e12, noise, least) == pytest.approx(40)
    assert steps_needed(5, 0.0, least) == 40
    for extra in (0.1, 1.0, 3.0):
        batch = useful_batch(noise, extra)
        assert batch * steps_needed(batch, noise, least) == pytest.approx((1 + extra) * least * noise)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: gradient_noise_scale(8, 8, 1.0, 1.0), "0 < small < big"),
        (lambda: gradient_noise_scale(0, 8, 1.0, 1.0), "0 < small < big"),
        (lambda: average_noise([]), "no estimates"),
        (lambda: measure_noise_scale(nn.Linear(6, 1), [], half_squared_error), "at least two micro-batches"),
        (lambda: steps_needed(0, 1.0, 1.0), "batch must be positive"),
        (lambda: steps_needed(1, -1.0, 1.0), "noise_scale must not be negative"),
        (lambda: steps_needed(1, float("nan"), 1.0), "noise_scale must not be negative"),
        (lambda: steps_needed(1, 1.0, 0), "min_steps must be positive"),
        (lambda: useful_batch(-1.0), "noise_scale must not be negative"),
        (lambda: useful_batch(1.0, 0), "extra_images must be positive"),
    ],
)
def test_nonsense_is_one_line(call, words):
    with pytest.raises(ValueError, match=words) as raised:
        call()
    assert "\n" not in str(raised.value)
