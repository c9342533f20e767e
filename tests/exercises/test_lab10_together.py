"""Lab 10's answers together are a step of the library's K-FAC, on a convolution and a linear layer."""

import pytest
import torch
from torch import nn

from course_lib.exercises import answers_of
from course_lib.optim.kfac import KFAC


@pytest.mark.parametrize("bias", [True, False])
def test_the_answers_together_are_the_library_s_step(bias):
    names = ("factors", "conv-factors", "precondition")
    factors, conv_factors, precondition = (answers_of("lab10")[name].reference[0] for name in names)
    torch.manual_seed(0)
    conv, linear = nn.Conv2d(2, 3, 3, 2, 1, bias=False), nn.Linear(27, 4, bias=bias)
    kfac = KFAC(nn.Sequential(conv, linear).double(), damping=0.02, inverse="cholesky")
    images = torch.randn(6, 2, 6, 6).double()
    maps = conv(images)
    scores = linear(maps.flatten(1))
    maps.retain_grad(), scores.retain_grad()
    nn.functional.cross_entropy(scores, torch.arange(6) % 4).backward()
    before = [parameter.grad.clone() for parameter in (conv.weight, *linear.parameters())]
    kfac.step()
    step, _ = precondition(before[0].flatten(1), None, *conv_factors(images, maps.grad, 3, 2, 1), 0.02)
    torch.testing.assert_close(step.view_as(conv.weight), conv.weight.grad)
    A, G = factors(maps.detach().flatten(1), scores.grad)
    step = precondition(before[1], before[2] if bias else None, A if bias else A[:-1, :-1], G, 0.02)
    assert all(torch.allclose(a, b.grad) for a, b in zip(step, linear.parameters(), strict=False))
