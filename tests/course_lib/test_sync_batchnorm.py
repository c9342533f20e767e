"""`GlooSyncBatchNorm` on ranks against PyTorch's batch norm on all their images at once."""

import copy

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import on_ranks
from torch import nn

from course_lib.distributed import convert_sync_batchnorm
from course_lib.distributed.data_parallel.sync_batchnorm import GlooSyncBatchNorm
from course_lib.models import WideResNet
from course_lib.training.precision import accelerate_model

CHANNELS = 3


def case(layer, cuts, *shape, steps=2):
    """A layer, `steps` batches, the gradients that come back, and where each rank's images end."""
    generator = torch.Generator().manual_seed(3)
    x, gradients = torch.randn(2, steps, cuts[-1], CHANNELS, *shape, generator=generator, dtype=torch.float64)
    return layer, 2 * x + 7, gradients, cuts


def uneven_layer():
    generator = torch.Generator().manual_seed(5)
    layer = nn.BatchNorm2d(CHANNELS, eps=1e-4, momentum=0.3).double()
    layer.weight.data = torch.rand(CHANNELS, generator=generator, dtype=torch.float64) + 0.5
    layer.bias.data = torch.randn(CHANNELS, generator=generator, dtype=torch.float64)
    layer.running_mean = torch.randn(CHANNELS, generator=generator, dtype=torch.float64)
    return layer


EXACT = {
    "5+6": case(uneven_layer(), (0, 5, 11), 4, 5),
    "1+10": case(uneven_layer(), (0, 1, 11), 4, 5),
    "4+3+4": case(uneven_layer(), (0, 4, 7, 11), 4, 5),
    "no momentum": case(nn.BatchNorm2d(CHANNELS, momentum=None).double(), (0, 4, 11), 4, 5),
    "not affine": case(nn.BatchNorm2d(CHANNELS, affine=False).double(), (0, 4, 11), 4, 5),
    "no statistics": case(nn.BatchNorm2d(CHANNELS, track_running_stats=False).double(), (0, 4, 11), 4, 5),
    "(B, C)": case(nn.BatchNorm1d(CHANNELS).double(), (0, 4, 9)),
    "(B, C, L)": case(nn.BatchNorm1d(CHANNELS).double(), (0, 4, 9), 5),
    "(B, C, D, H, W)": case(nn.BatchNorm3d(CHANNELS).double(), (0, 4, 9), 2, 3, 2),
}


def rounded(dtype, shift):
    """A case whose images are in a lower precision; the layer is in single precision."""
    layer, x, gradients, cuts = case(nn.BatchNorm2d(CHANNELS), (0, 5, 12), 6, 6, steps=1)
    return layer, (x + shift).to(dtype), gradients.to(dtype), cuts


# The mean of "far" is 1,500 times the spread: sums of squares in float32 would lose the variance.
ROUNDED = {"far": rounded(torch.float32, 3000), "half": rounded(torch.bfloat16, -4)}


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
        **{f"{name} gradient": parameter.grad for name, parameter in layer.named_parameters()},
        **{name: buffer.clone() for name, buffer in layer.named_buffers()},
    }


def on_a_rank():
    """Each case's results, also those of a layer that is not converted, and an evaluation without the other rank."""
    results, rank = {}, dist.get_rank()
    for name, (layer, x, gradients, cuts) in (EXACT | ROUNDED).items():
        if len(cuts) - 1 != dist.get_world_size():
            continue
        mine = slice(cuts[rank], cuts[rank + 1])
        synced = convert_sync_batchnorm(copy.deepcopy(layer), "cpu")
        assert type(synced) is GlooSyncBatchNorm
        results[name] = train(synced, x[:, mine], gradients[:, mine])
        results["stock", name] = train(copy.deepcopy(layer), x[:, mine], gradients[:, mine])
    layer, x, *_ = EXACT["5+6"]
    results["alone"] = convert_sync_batchnorm(layer, "cpu").eval()(x[0]) if rank == 0 else None
    return results


@pytest.fixture(scope="module")
def runs():
    return {ranks: on_ranks(on_a_rank, ranks) for ranks in (2, 3)}


def results_of(name, runs):
    """The case's results on each rank, those of one process, and the ranks' joined outputs and input gradients."""
    layer, x, gradients, cuts = (EXACT | ROUNDED)[name]
    truth = train(copy.deepcopy(layer).double(), x.double(), gradients.double())
    ranks = [results[name] for results in runs[len(cuts) - 1]]
    return ranks, truth, {key: joined(ranks, key) for key in ("output", "input gradient")}


def joined(ranks, key):
    return torch.cat([rank[key] for rank in ranks], dim=1)


def distance(a, b):
    return (a.double() - b).abs().max().item()


@pytest.mark.parametrize("name", EXACT)
def test_equals_batch_norm_on_the_concatenated_batch(name, runs):
    ranks, truth, whole = results_of(name, runs)
    for key, expected in truth.items():
        if key in whole:
            assert distance(whole[key], expected) < 1e-10, key
        elif key.endswith("gradient"):  # each rank holds its own images' part; DDP would average them
            assert distance(sum(rank[key] for rank in ranks), expected) < 1e-10, key
        else:
            assert all(rank[key].dtype == expected.dtype for rank in ranks)
            assert all(distance(rank[key], expected) < 1e-10 for rank in ranks), key
    assert all(rank.keys() == truth.keys() for rank in ranks)
    assert truth.get("num_batches_tracked", 2) == 2


def test_the_ordinary_layer_does_not_pass_that_test(runs):
    _, truth, whole = results_of("5+6", runs)
    stock = [results["stock", "5+6"] for results in runs[2]]
    assert all(distance(joined(stock, key), truth[key]) > 1e-3 for key in whole)


def test_large_means_do_not_cancel(runs):
    _, truth, whole = results_of("far", runs)
    assert distance(whole["output"], truth["output"]) < 2e-3


def test_half_precision_images_keep_single_precision_statistics(runs):
    ranks, truth, whole = results_of("half", runs)
    for key, tensor in whole.items():
        assert tensor.dtype == torch.bfloat16
        assert distance(tensor, truth[key]) < 2**-6 * truth[key].abs().max(), key
    for key in ("running_mean", "running_var"):
        assert distance(ranks[0][key], truth[key]) < 1e-5, key
    total = sum(rank["weight gradient"] for rank in ranks)
    assert total.dtype == torch.float32 and distance(total, truth["weight gradient"]) < 0.05


def test_evaluation_and_one_process_are_the_stock_layer_exactly(runs):
    layer, x, gradients, _ = EXACT["5+6"]
    assert torch.equal(runs[2][0]["alone"], copy.deepcopy(layer).eval()(x[0]))  # no message: rank 1 stayed away
    stock, synced = copy.deepcopy(layer), convert_sync_batchnorm(copy.deepcopy(layer), "cpu")
    expected, results = train(stock, x, gradients), train(synced, x, gradients)  # no group: one process
    assert all(torch.equal(expected[key], results[key]) for key in expected)
    assert torch.equal(synced.eval()(x[0]), stock.eval()(x[0]))


class OwnNorm(nn.BatchNorm2d):
    pass


def test_the_same_layers_are_converted_as_by_pytorch_and_keep_their_tensors_and_mode():
    model = nn.Sequential(
        nn.BatchNorm1d(2), nn.BatchNorm2d(2, affine=False), nn.Sequential(nn.BatchNorm3d(2, track_running_stats=False)),
        OwnNorm(2), nn.InstanceNorm2d(2, affine=True), nn.GroupNorm(1, 2), nn.LayerNorm(2),
    ).eval()  # fmt: skip
    kept = dict(model.state_dict(keep_vars=True))
    stock = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model))
    mine = convert_sync_batchnorm(model, "cpu")
    synced = {name for name, layer in stock.named_modules() if isinstance(layer, nn.SyncBatchNorm)}
    assert synced == {name for name, layer in mine.named_modules() if isinstance(layer, GlooSyncBatchNorm)}
    assert not any(layer.training for layer in mine.modules())
    after = mine.state_dict(keep_vars=True)
    assert list(after) == list(kept) == list(stock.state_dict()) and all(after[name] is kept[name] for name in kept)
    assert type(convert_sync_batchnorm(nn.Sequential(nn.BatchNorm2d(2)), "cuda")[0]) is nn.SyncBatchNorm


def trajectory(how):
    """A wide network's state after five steps of SGD with momentum; two ranks have half of each batch.

    In float64: in float32 five steps enlarge the rounding of some processors' kernels to 1e-3.
    """
    torch.manual_seed(0)
    model = WideResNet((4, 4, 4)).double()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    trained = model
    if how != "one process":
        trained = convert_sync_batchnorm(model, "cpu") if how != "not converted" else model
        if how == "accelerated":
            trained = accelerate_model(trained, "cpu", "float32")
        trained = nn.parallel.DistributedDataParallel(trained)
    part = slice(dist.get_rank(), None, 2) if how != "one process" else slice(None)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(5)
    for _ in range(5):
        images = torch.randn(8, 1, 28, 28, generator=generator, dtype=torch.float64)
        labels = torch.randint(10, (8,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(trained(images[part]), labels[part]).backward()
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def test_a_network_under_ddp_takes_the_steps_of_one_process_on_the_whole_batch():
    truth = trajectory("one process")
    hows = ("converted", "accelerated", "not converted")
    for states in on_ranks(lambda: {how: trajectory(how) for how in hows}, 2):
        for how in ("converted", "accelerated"):
            torch.testing.assert_close(states[how], truth, rtol=1e-9, atol=1e-9)
        apart = [(states["not converted"][name] - tensor).abs().max() for name, tensor in truth.items()]
        assert max(apart) > 1e-2  # or the comparison would say nothing
