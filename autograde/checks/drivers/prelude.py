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
    }
    model = nn.Sequential(*[layers[name](*arguments) for name, arguments in spec])
    if state is not None:
        for tensor, value in zip(model.state_dict().values(), state, strict=True):
            tensor.copy_(value)
    return model


def tensors(model):
    """The model's parameters and buffers, in order."""
    return [tensor.detach().clone() for tensor in model.state_dict().values()]


def join(student, given, outside):
    """Gloo over the ranks of this sandbox, as the environment describes it."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))


def on_pretended_gpus(gpus):
    """Pretend `gpus` GPUs; returns the list of [backend, current GPU] that joining a group appends to. Gloo carries."""
    current, joined, init = [0], [], dist.init_process_group

    def set_device(device):
        current[0] = device if isinstance(device, int) else torch.device(device).index or 0

    def init_process_group(backend=None, *others, device_id=None, **options):
        bound = device_id if device_id is None or isinstance(device_id, int) else torch.device(device_id).index
        joined.append([str(backend), current[0] if bound is None else bound])
        init("gloo", *others, **options)

    for module in (torch.cuda, torch.accelerator):
        module.is_available, module.device_count = lambda: gpus > 0, lambda: gpus
    torch.cuda.set_device, dist.init_process_group = set_device, init_process_group
    return joined
