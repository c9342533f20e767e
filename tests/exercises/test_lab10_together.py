"""Lab 10's answers together are a step of the library's K-FAC, on a convolution and a linear layer."""

import pytest
import torch
from torch import nn

from course_lib.exercises import answers_of
from course_lib.optim.kfac import KFAC


@pytest.mark.parametrize("bias", [True, False])
def test_the_answers_together_are_the_library_s_step(bias):
    factors, conv_factors = (answers_of("lab10")[name].reference[0] for name in ("factors", "conv-factors"))
    damped_inverses, apply = answers_of("lab10")["precondition"].reference

    def precondition(weight, bias, A, G, damping):
        return apply(weight, bias, *damped_inverses(A, G, damping))

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


@pytest.mark.parametrize("clip", [None, 1e-3])
def test_the_answers_class_takes_the_library_s_steps(clip):
    """With intervals, a clip and the first average as it is; from the second on the library weighs the first few alike."""
    ours, theirs = (
        [nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 4)] for _ in range(2)
    )
    ours, theirs = nn.Sequential(*ours).double(), nn.Sequential(*theirs).double()
    theirs.load_state_dict(ours.state_dict())
    mine = answers_of("lab10")["kfac"].reference[0](ours, 0.05, 0.0, 1, 2, clip)
    library = KFAC(theirs, 0.05, 0.0, 1, 2, inverse="cholesky", kl_clip=clip, lr=0.1)
    torch.manual_seed(0)
    for _ in range(3):
        images, labels = torch.randn(6, 2, 6, 6).double(), torch.arange(6) % 4
        for model in (ours, theirs):
            model.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
        mine.step(0.1)
        library.step()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
