"""The noise scale from norms in closed form, and the paper's hyperbola of steps and images."""

import math

import pytest

from course_lib.optim import GradientNoise, gradient_noise_scale, steps_needed


def test_expected_norms_give_the_exact_answer():
    squared, trace = 3.0, 50.0
    norms = [squared + trace / batch for batch in (4, 32)]  # E|G_B|²
    noise = gradient_noise_scale(4, 32, *norms)
    assert (noise.squared_gradient, noise.covariance_trace) == pytest.approx((squared, trace))
    assert noise.noise_scale == pytest.approx(trace / squared)
    assert GradientNoise(-0.1, 1.0).noise_scale == GradientNoise(0.0, 1.0).noise_scale == math.inf


def test_steps_and_images_trade_as_the_papers_hyperbola():
    noise, least = 300.0, 40.0
    for batch in (1, 17, 300, 5000):
        steps = steps_needed(batch, noise, least)
        images = steps * batch
        assert (steps / least - 1) * (images / (least * noise) - 1) == pytest.approx(1)  # equation 2.11
    assert steps_needed(300, noise, least) == 80 and steps_needed(1e12, noise, least) == pytest.approx(40)
    assert steps_needed(5, 0.0, least) == 40


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: gradient_noise_scale(8, 8, 1.0, 1.0), "0 < small < big"),
        (lambda: gradient_noise_scale(0, 8, 1.0, 1.0), "0 < small < big"),
        (lambda: steps_needed(0, 1.0, 1.0), "batch must be positive"),
        (lambda: steps_needed(1, -1.0, 1.0), "noise_scale must not be negative"),
        (lambda: steps_needed(1, float("nan"), 1.0), "noise_scale must not be negative"),
        (lambda: steps_needed(1, 1.0, 0), "min_steps must be positive"),
    ],
)
def test_nonsense_is_one_line(call, words):
    with pytest.raises(ValueError, match=words) as raised:
        call()
    assert "\n" not in str(raised.value)
