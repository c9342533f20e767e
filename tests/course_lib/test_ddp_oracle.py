"""Two ranks with half of a batch each against one process with all of it."""

import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.distributed import convert_sync_batchnorm, launch
from course_lib.models import WideResNet
from course_lib.training.precision import accelerate_model

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def plain():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(6 * 49, 10)
    )  # fmt: skip


def wide():
    torch.manual_seed(0)
    model = WideResNet((4, 4, 4))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 1, 28, 28, generator=generator), torch.randint(10, (16,), generator=generator)


def gradient(make, how):
    """The gradient, flattened, and each rank's share of it by `how`."""
    images, labels = batch()
    model = make()
    if how != "one process":
        mine = slice(dist.get_rank(), None, dist.get_world_size())
        images, labels = images[mine], labels[mine]
        if how == "SyncBatchNorm":
            model = convert_sync_batchnorm(model, "cpu")
        if how == "accelerated":
            model = accelerate_model(model, "cpu", "float32")
        if how != "alone":
            model = nn.parallel.DistributedDataParallel(model)
    nn.functional.cross_entropy(model(images), labels).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("make, how", [(plain, "DDP"), (plain, "accelerated"), (wide, "SyncBatchNorm")])
def test_two_ranks_compute_the_gradient_of_the_whole_batch(make, how):
    truth = gradient(make, "one process")
    first, second = launch(gradient, 2, (make, how), timeout=600)
    assert torch.equal(first, second)
    assert (first - truth).abs().max() < 1e-5
    assert truth.abs().max() > 1e-2  # or the line above would say nothing


@pytest.mark.parametrize("make, how", [(plain, "alone"), (wide, "DDP")], ids=["no DDP", "no SyncBatchNorm"])
def test_without_the_synchronisation_they_do_not(make, how):
    truth = gradient(make, "one process")
    first, second = launch(gradient, 2, (make, how), timeout=600)
    assert (first - truth).abs().max() > 1e-3
    assert torch.equal(first, second) == (how == "DDP")


def trajectory(steps, distributed):
    """Weights after some steps of SGD with momentum on the whole network."""
    torch.manual_seed(4)
    generator = torch.Generator().manual_seed(5)
    model = wide()
    if distributed:
        model = nn.parallel.DistributedDataParallel(convert_sync_batchnorm(model, "cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(steps):
        images = torch.randn(8, 1, 28, 28, generator=generator)
        labels = torch.randint(10, (8,), generator=generator)
        if distributed:
            images, labels = images[dist.get_rank() :: 2], labels[dist.get_rank() :: 2]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    bare = model.module if distributed else model
    return {name: tensor.detach().clone() for name, tensor in bare.state_dict().items()}


def test_and_so_do_their_weights_and_statistics_after_five_steps():
    truth = trajectory(5, False)
    for weights in launch(trajectory, 2, (5, True), timeout=600):
        assert list(weights) == list(truth)
        for name, tensor in truth.items():
            torch.testing.assert_close(
                weights[name], tensor, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
            )
