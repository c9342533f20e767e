"""The scaling rules: their values, and the steps' statistics that they are made to keep."""

import pytest
import torch

from course_lib.optim import linear_scaling, sqrt_scaling


def test_their_values():
    assert linear_scaling(0.1, 8) == pytest.approx(0.8)  # Goyal et al. 2017: 0.1·kn/256
    assert sqrt_scaling(0.1, 16) == pytest.approx(0.4)
    assert linear_scaling(0.3, 1) == sqrt_scaling(0.3, 1) == 0.3
    assert linear_scaling(0.8, 0.25) == pytest.approx(0.2) and sqrt_scaling(0.8, 0.25) == pytest.approx(0.4)


def test_linear_keeps_the_mean_of_k_steps_and_sqrt_the_covariance_of_one():
    gradients = torch.randn(4000, 8, generator=torch.Generator().manual_seed(0)) + 0.5
    small, big = 0.1 * gradients, gradients.mean(1)
    assert torch.allclose(linear_scaling(0.1, 8) * big, small.sum(1), atol=1e-6)
    assert (sqrt_scaling(0.1, 8) * big).var().item() == pytest.approx(small.var().item(), rel=0.1)
    assert (linear_scaling(0.1, 8) * big).var() > 5 * small.var()


@pytest.mark.parametrize("rule", [linear_scaling, sqrt_scaling])
@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), float("inf")])
def test_nonsense_is_one_line(rule, wrong):
    for arguments, name in (((wrong, 2), "base_lr"), ((0.1, wrong), "factor")):
        with pytest.raises(ValueError, match=f"{name} must be a positive finite number") as raised:
            rule(*arguments)
        assert "\n" not in str(raised.value)
