"""A flat tensor of gradients holds what autograd would have put into each parameter's own."""

import copy

import torch
from torch import nn

from course_lib.distributed.data_parallel.flat_gradients import flat_gradients


def test_backward_fills_the_flat_tensor_in_the_parameters_order_and_layout():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    model = model.to(memory_format=torch.channels_last)
    own, images = copy.deepcopy(model), torch.randn(2, 3, 6, 6)
    flat = flat_gradients(model)
    for _ in range(2):
        flat.zero_()
        model(images).square().mean().backward()
    own(images).square().mean().backward()
    assert len(flat) == sum(p.numel() for p in own.parameters())
    start = 0
    for mine, theirs in zip(model.parameters(), own.parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad, atol=1e-6) and mine.grad.stride() == mine.stride()
        assert mine.grad.data_ptr() == flat[start:].data_ptr()
        start += mine.numel()
    before = [p.detach().clone() for p in model.parameters()]
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    for old, new, reference in zip(before, model.parameters(), own.parameters(), strict=True):
        assert torch.allclose(new, old - 0.1 * reference.grad, atol=1e-6)
