"""`GlooSyncBatchNorm` on ranks against PyTorch's batch norm on all their images at once."""

import copy
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.distributed import convert_sync_batchnorm, launch
from course_lib.distributed.data_parallel.sync_batchnorm import GlooSyncBatchNorm

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CHANNELS = 3


def problem(images=11, steps=2):
    """A layer with uneven parameters and statistics, `steps` batches and the gradients that come back."""
    generator = torch.Generator().manual_seed(3)
    layer = nn.BatchNorm2d(CHANNELS, eps=1e-4, momentum=0.3).double()
    layer.weight.data = torch.rand(CHANNELS, generator=generator, dtype=torch.float64) + 0.5
    layer.bias.data = torch.randn(CHANNELS, generator=generator, dtype=torch.float64)
    layer.running_mean = torch.randn(CHANNELS, generator=generator, dtype=torch.float64)
    shape = (steps, images, CHANNELS, 4, 5)
    x = 2 * torch.randn(shape, generator=generator, dtype=torch.float64) + 7
    return layer, x, torch.randn(shape, generator=generator, dtype=torch.float64)


def train(layer, x, gradients):
    """Forward and backward through each batch: outputs, gradients and statistics."""
    layer.train()
    outputs, inputs = [], []
    for batch, gradient in zip(x, gradients, strict=True):
        batch = batch.clone().requires_grad_()
        output = layer(batch)
        output.backward(gradient)
        outputs.append(output.detach())
        inputs.append(batch.grad)
    return {
        "output": torch.stack(outputs),
        "input gradient": torch.stack(inputs),
        "weight gradient": None if layer.weight is None else layer.weight.grad,
        "bias gradient": None if layer.bias is None else layer.bias.grad,
        **{name: buffer.clone() for name, buffer in layer.named_buffers()},
    }


def on_a_rank(layer, x, gradients, cuts, convert):
    mine = slice(cuts[dist.get_rank()], cuts[dist.get_rank() + 1])
    if convert:
        layer = convert_sync_batchnorm(layer, "cpu")
    return type(layer).__name__, train(layer, x[:, mine], gradients[:, mine])


def distance(a, b):
    return (a - b).abs().max().item()


@pytest.mark.parametrize("cuts", [(0, 5, 11), (0, 1, 11), (0, 4, 7, 11)], ids=["5+6", "1+10", "4+3+4"])
def test_equals_batch_norm_on_the_concatenated_batch(cuts):
    layer, x, gradients = problem()
    truth = train(copy.deepcopy(layer), x, gradients)
    ranks = [result for _, result in launch(on_a_rank, len(cuts) - 1, (layer, x, gradients, cuts, True), timeout=600)]
    for name in ("output", "input gradient"):
        assert distance(torch.cat([rank[name] for rank in ranks], dim=1), truth[name]) < 1e-10, name
    for name in ("weight gradient", "bias gradient"):  # each rank holds its own images' part; DDP would average them
        assert distance(sum(rank[name] for rank in ranks), truth[name]) < 1e-10, name
    for rank in ranks:
        for name in ("running_mean", "running_var"):
            assert distance(rank[name], truth[name]) < 1e-10, name
        assert rank["num_batches_tracked"] == truth["num_batches_tracked"] == 2


def test_the_ordinary_layer_does_not_pass_that_test():
    layer, x, gradients = problem()
    truth = train(copy.deepcopy(layer), x, gradients)
    ranks = [result for _, result in launch(on_a_rank, 2, (layer, x, gradients, (0, 5, 11), False), timeout=600)]
    assert distance(torch.cat([rank["output"] for rank in ranks], dim=1), truth["output"]) > 1e-3
    assert distance(torch.cat([rank["input gradient"] for rank in ranks], dim=1), truth["input gradient"]) > 1e-3


@pytest.mark.parametrize("options", [{"momentum": None}, {"affine": False}, {"track_running_stats": False}], ids=str)
def test_the_stock_layers_options_keep_their_meaning(options):
    _, x, gradients = problem()
    layer = nn.BatchNorm2d(CHANNELS, **options).double()
    truth = train(copy.deepcopy(layer), x, gradients)
    ranks = launch(on_a_rank, 2, (layer, x, gradients, (0, 4, 11), True), timeout=600)
    assert [name for name, _ in ranks] == ["GlooSyncBatchNorm"] * 2
    assert distance(torch.cat([rank["output"] for _, rank in ranks], dim=1), truth["output"]) < 1e-10
    for _, rank in ranks:
        assert rank.keys() == truth.keys()
        for name in {"running_mean", "running_var"} & truth.keys():
            assert rank[name].dtype == truth[name].dtype and distance(rank[name], truth[name]) < 1e-10, name


def test_large_means_do_not_cancel():
    """Sums of squares in float32 would lose the variance of images whose mean is 1,000 times their spread."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 8, CHANNELS, 6, 6, generator=generator) + 3000
    truth = nn.BatchNorm2d(CHANNELS).double()
    expected = train(truth, x.double(), torch.ones_like(x).double())["output"]
    layer = nn.BatchNorm2d(CHANNELS)
    ranks = launch(on_a_rank, 2, (layer, x, torch.ones_like(x), (0, 4, 8), True), timeout=600)
    assert distance(torch.cat([rank["output"] for _, rank in ranks], dim=1).double(), expected) < 2e-3


def test_half_precision_images_keep_single_precision_statistics():
    generator = torch.Generator().manual_seed(1)
    x = (2 * torch.randn(1, 12, CHANNELS, 6, 6, generator=generator) + 3).bfloat16()
    gradients = torch.randn(x.shape, generator=generator).bfloat16()
    expected = train(nn.BatchNorm2d(CHANNELS).double(), x.double(), gradients.double())
    ranks = [
        r for _, r in launch(on_a_rank, 2, (nn.BatchNorm2d(CHANNELS), x, gradients, (0, 5, 12), True), timeout=600)
    ]
    for name in ("output", "input gradient"):
        found = torch.cat([rank[name] for rank in ranks], dim=1)
        assert found.dtype == torch.bfloat16
        assert distance(found.double(), expected[name]) < 2**-6 * expected[name].abs().max(), name
    for name in ("running_mean", "running_var"):
        assert distance(ranks[0][name].double(), expected[name]) < 1e-5, name
    total = sum(rank["weight gradient"] for rank in ranks)
    assert total.dtype == torch.float32 and distance(total.double(), expected["weight gradient"]) < 0.05


def test_evaluation_and_one_process_are_the_stock_layer_exactly():
    layer, x, gradients = problem()
    synced = convert_sync_batchnorm(copy.deepcopy(layer), "cpu")
    assert type(synced) is GlooSyncBatchNorm
    stock, mine = train(layer, x, gradients), train(synced, x, gradients)  # no group: one process
    assert all(torch.equal(stock[name], mine[name]) for name in stock)
    assert torch.equal(synced.eval()(x[0]), layer.eval()(x[0]))

    def evaluates(layer, x):
        layer = convert_sync_batchnorm(layer, "cpu").eval()
        return layer(x[dist.get_rank()]) if dist.get_rank() == 0 else None  # no message: rank 1 may stay away

    assert torch.equal(launch(evaluates, 2, (layer, x), timeout=600)[0], layer(x[0]))


def test_conversion_keeps_parameters_statistics_mode_and_everything_else():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, CHANNELS, 3), nn.Sequential(nn.BatchNorm2d(CHANNELS), nn.ReLU()), nn.BatchNorm1d(4)
    )
    for _ in range(3):
        model[:2](torch.randn(4, 1, 6, 6))
    model.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    converted = convert_sync_batchnorm(copy.deepcopy(model), "cpu")
    after = converted.state_dict()
    assert list(before) == list(after) and all(torch.equal(before[name], after[name]) for name in before)
    assert type(converted[1][0]) is GlooSyncBatchNorm and not converted[1][0].training
    assert type(convert_sync_batchnorm(nn.Sequential(nn.BatchNorm2d(2)), "cuda")[0]) is nn.SyncBatchNorm


class OwnNorm(nn.BatchNorm2d):
    pass


def test_the_same_layers_are_converted_as_by_pytorch_and_keep_their_tensors():
    model = nn.Sequential(
        nn.BatchNorm1d(2), nn.BatchNorm2d(2, affine=False), nn.Sequential(nn.BatchNorm3d(2, track_running_stats=False)),
        OwnNorm(2), nn.InstanceNorm2d(2, affine=True), nn.GroupNorm(1, 2), nn.LayerNorm(2),
    )  # fmt: skip
    kept = dict(model.state_dict(keep_vars=True))
    stock = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model))
    mine = convert_sync_batchnorm(model, "cpu")
    synced = {name for name, layer in stock.named_modules() if isinstance(layer, nn.SyncBatchNorm)}
    assert synced == {name for name, layer in mine.named_modules() if isinstance(layer, GlooSyncBatchNorm)}
    after = mine.state_dict(keep_vars=True)
    assert list(after) == list(kept) == list(stock.state_dict()) and all(after[name] is kept[name] for name in kept)


@pytest.mark.parametrize("kind, shape", [(nn.BatchNorm1d, ()), (nn.BatchNorm1d, (5,)), (nn.BatchNorm3d, (2, 3, 2))])
def test_other_dimensions_equal_batch_norm_on_the_concatenated_batch(kind, shape):
    generator = torch.Generator().manual_seed(4)
    x, gradients = torch.randn(2, 2, 9, CHANNELS, *shape, generator=generator, dtype=torch.float64)
    layer = kind(CHANNELS).double()
    truth = train(copy.deepcopy(layer), x, gradients)
    ranks = [result for _, result in launch(on_a_rank, 2, (layer, x, gradients, (0, 4, 9), True), timeout=600)]
    for name in ("output", "input gradient"):
        assert distance(torch.cat([rank[name] for rank in ranks], dim=1), truth[name]) < 1e-10, name
    assert all(distance(rank["running_var"], truth["running_var"]) < 1e-10 for rank in ranks)
