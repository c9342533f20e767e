# Drivers run beside the student's code. They hold no expected value: see autograde/checks/__init__.py.
import datetime

import torch
import torch.distributed as dist
from torch import nn


def make_model(spec, state=None):
    """A network from plain data: a list of (layer's name, arguments); `state` are its tensors in order."""
    layers = {
        "flatten": nn.Flatten,
        "linear": nn.Linear,
        "relu": nn.ReLU,
        "tanh": nn.Tanh,
        "dropout": nn.Dropout,
        "conv": nn.Conv2d,
        "norm1d": nn.BatchNorm1d,
        "norm2d": nn.BatchNorm2d,
        "unless_grad": UnlessGrad,
    }
    model = nn.Sequential(*[layers[name](*arguments) for name, arguments in spec])
    if state is not None:
        for tensor, value in zip(model.state_dict().values(), state, strict=True):
            tensor.copy_(value)
    return model


class UnlessGrad(nn.Module):
    """Adds `amount` to its input while a graph is recorded, and nothing otherwise."""

    def __init__(self, amount):
        super().__init__()
        self.amount = amount
        # What is asked is what autograd does, not a function that says so.
        self.probe = torch.ones((), requires_grad=True)

    def forward(self, x):
        return x + self.amount * x.roll(1, dims=1) if (self.probe * 1).requires_grad else x


def tensors(model):
    """The model's parameters and buffers, in order."""
    return [tensor.detach().clone() for tensor in model.state_dict().values()]


def join(student, given, outside):
    """Gloo over the ranks of this sandbox, as the environment describes it."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
