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

DIMENSIONS, SIGMA = 6, 0.7


def half_squared_error(predictions, targets):
    return 0.5 * ((predictions - targets) ** 2).sum(1).mean()


def regression(distance, seed=0):
    """A linear model `distance` from the truth 0, and a source of its data: x ~ N(0, 1), y = SIGMA·N(0, 1).

    An image's gradient is x (xᵀδ − ε), δ being the weights. Its mean is δ; by the normal distribution's fourth
    moments tr Σ = (d + 2)|δ|² + dσ² − |δ|².
    """
    torch.manual_seed(seed)
    model = nn.Linear(DIMENSIONS, 1, bias=False).double()
    with torch.no_grad():
        model.weight.mul_(distance / model.weight.norm())
    generator = torch.Generator().manual_seed(seed)

    def batches(count, size):
        for _ in range(count):
            x = torch.randn(size, DIMENSIONS, generator=generator, dtype=torch.float64)
            yield x, SIGMA * torch.randn(size, 1, generator=generator, dtype=torch.float64)

    return model, batches, distance**2, (DIMENSIONS + 1) * distance**2 + DIMENSIONS * SIGMA**2


def mean_and_error(numbers):
    numbers = torch.tensor(numbers)
    return numbers.mean().item(), (numbers.std() / math.sqrt(len(numbers))).item()


def test_expected_norms_give_the_exact_answer():
    squared, trace = 3.0, 50.0
    norms = [squared + trace / batch for batch in (4, 32)]  # E|G_B|²
    found = gradient_noise_scale(4, 32, *norms)
    assert (found.squared_gradient, found.covariance_trace) == pytest.approx((squared, trace))
    assert found.noise_scale == pytest.approx(trace / squared)


@pytest.mark.parametrize("distance", [0.2, 2.0])
def test_linear_regression_within_its_statistical_error(distance):
    model, batches, squared, trace = regression(distance)
    found = [measure_noise_scale(model, batches(8, 5), half_squared_error) for _ in range(400)]
    for name, truth in (("squared_gradient", squared), ("covariance_trace", trace)):
        mean, error = mean_and_error([getattr(one, name) for one in found])
        assert abs(mean - truth) < 4 * error and error < 0.1 * truth + 0.02, name
    assert average_noise(found).noise_scale == pytest.approx(trace / squared, rel=0.4 if distance < 1 else 0.1)


def test_gaussian_gradients_of_unequal_variances():
    class Offset(nn.Module):  # with half the squared error, an image's gradient is w − x
        def __init__(self, w):
            super().__init__()
            self.w = nn.Parameter(w)
            self.unused = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.w.expand_as(x)

    deviations, w = torch.tensor([0.1, 1.0, 3.0]), torch.tensor([0.5, -1.0, 0.2])
    generator = torch.Generator().manual_seed(0)
    samples = ((deviations * torch.randn(4, 3, generator=generator),) * 2 for _ in range(3000))
    found = measure_noise_scale(Offset(w), samples, half_squared_error)
    # var(trace) = 2 tr Σ² / (n − 1); |G|² has the error of 2wᵀx̄.
    trace_error = math.sqrt(2 * (deviations**4).sum() / 2999)
    assert abs(found.covariance_trace - (deviations**2).sum().item()) < 4 * trace_error
    squared_error = 2 * math.sqrt((w**2 * deviations**2).sum() / 12000)
    assert abs(found.squared_gradient - (w**2).sum().item()) < 4 * squared_error


def test_it_is_the_sample_variance_of_the_micro_batches_gradients():
    model, batches, *_ = regression(1.0)
    data = list(batches(7, 3))
    gradients = []
    for x, y in data:
        twin = copy.deepcopy(model)
        half_squared_error(twin(x), y).backward()
        gradients.append(twin.weight.grad.flatten())
    gradients = torch.stack(gradients)
    found = measure_noise_scale(model, data, half_squared_error)
    trace = 3 * gradients.var(0).sum().item()
    assert found.covariance_trace == pytest.approx(trace)
    assert found.squared_gradient == pytest.approx(gradients.mean(0).square().sum().item() - trace / 21)


def test_the_ratio_of_means_is_right_where_the_mean_of_ratios_is_not():
    model, batches, squared, trace = regression(0.5)
    found = [measure_noise_scale(model, batches(4, 4), half_squared_error) for _ in range(1500)]
    ratios = [one.covariance_trace / one.squared_gradient for one in found]
    assert average_noise(found).noise_scale == pytest.approx(trace / squared, rel=0.15)
    assert abs(sum(ratios) / len(ratios) - trace / squared) > 0.3 * trace / squared
    assert any(one.squared_gradient < 0 for one in found)
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
    found = measure_noise_scale(model, data, nn.CrossEntropyLoss())
    assert torch.equal(torch.get_rng_state(), random_state)  # no dropout
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    assert [m.training for m in model] == [True, False, True, True] and model.training
    assert torch.equal(model[0].weight.grad, torch.full((5, 6), 7.0)) and model[3].weight.grad is None
    short = [*data, (torch.randn(2, 6), torch.randint(3, (2,)))]
    assert measure_noise_scale(model, short, nn.CrossEntropyLoss()) == found
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
