"""Parameter averaging, parallel SGD and local SGD against closed forms, plain trainings and torch.distributed."""

import itertools
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from gloo_ranks import on_ranks
from process_comm import run_ranks
from torch import nn

from course_lib.data.batches import Split, load
from course_lib.distributed import RankFailedError
from course_lib.distributed.local_sgd import parallel_sgd as module
from course_lib.distributed.local_sgd.parallel_sgd import (
    WorkerReport,
    critical_path,
    make_shards,
    parallel_sgd,
    worker_batches,
)
from course_lib.distributed.local_sgd.parameter_averaging import (
    MPIPeers,
    TorchPeers,
    average_on_master,
    average_parameters,
)
from course_lib.models import ParallelSGDNet

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a rank would import this file


def network(seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3)).to(dtype)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) * 10 + 1)
    return model


def averaged(models, weights=None, average=None):
    """The ranks' state dicts after `average_parameters`, or another function of communicator and model."""

    def worker(comm):
        model = models[comm.rank]
        if average is None:
            average_parameters(MPIPeers(comm), model, *([] if weights is None else [weights[comm.rank]]))
        else:
            average(comm, model)
        return model.state_dict()

    return run_ranks(worker, len(models))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_average_is_weighted_and_covers_the_buffers(dtype):
    models, weights = [network(seed, dtype) for seed in range(3)], [1.0, 5.0, 2.0]
    for model, steps in zip(models, (1, 2, 2), strict=True):
        model[1].num_batches_tracked.fill_(steps)  # 15/8 of them are nearly 2
    before = [model.state_dict() for model in models]
    after = averaged(models, weights)
    for name, first in after[0].items():
        mean = sum(w * b[name].double() for w, b in zip(weights, before, strict=True)) / 8
        if not first.is_floating_point():
            mean = mean.round()
        assert first.dtype == before[0][name].dtype
        torch.testing.assert_close(
            first, mean.to(first.dtype), rtol={torch.bfloat16: 1e-2, torch.float32: 1e-6}.get(dtype, 1e-14), atol=0
        )
        for other in after[1:]:
            assert torch.equal(first, other[name])
    assert not torch.equal(before[0]["1.num_batches_tracked"], before[1]["1.num_batches_tracked"])


def test_the_average_is_one_all_reduce():
    def worker(comm):
        average_parameters(MPIPeers(comm), ParallelSGDNet())
        return comm.calls

    assert run_ranks(worker, 2) == [["Allreduce"]] * 2


@pytest.mark.parametrize("weights", [(1.0, -1.0, 1.0), (0.0, 0.0, 0.0)])
def test_weights_that_make_no_mean_are_an_error_on_every_rank(weights):
    def worker(comm):
        with pytest.raises(ValueError, match="weights of an average"):
            average_parameters(MPIPeers(comm), network(0), weights[comm.rank])
        return "refused"

    assert run_ranks(worker, 3) == ["refused"] * 3


def test_a_weight_of_nothing_counts_for_nothing():
    models = [network(seed) for seed in range(2)]
    after = averaged(models, [0.0, 1.0])
    assert all(torch.equal(after[0][name], tensor) for name, tensor in models[1].state_dict().items())


def test_the_parallel_sgd_lab_s_way_gives_the_master_the_mean_and_nobody_else():
    models = [network(seed) for seed in range(3)]
    before = [model.state_dict() for model in models]
    after = averaged(models, average=average_on_master)
    for name, _ in models[0].named_parameters():
        torch.testing.assert_close(after[0][name], sum(b[name] for b in before) / 3)
        assert torch.equal(after[1][name], before[1][name])
    assert torch.equal(after[0]["1.running_mean"], before[0]["1.running_mean"])  # forgotten, as its docstring says


def linear():
    """The same on every rank."""
    model, generator = nn.Linear(6, 3).double(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def batches_of(samples, seed=1):
    """Batches of four; the last one may be smaller."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(samples, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (samples,), generator=generator)
    return list(zip(images.split(4), labels.split(4), strict=True))


def alone(model, batches, epochs, lr=0.3):
    sgd = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(epochs):
        for images, labels in batches:
            sgd.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            sgd.step()
    return model


def agrees(model, models, weights):
    """The model's parameters are the weighted mean of the models'."""
    for name, parameter in model.named_parameters():
        total = sum(weight * other.get_parameter(name) for weight, other in zip(weights, models, strict=True))
        torch.testing.assert_close(parameter, total / sum(weights), rtol=1e-10, atol=1e-12)


def trained(shares, epochs, lr=0.3, **options):
    """The workers' models and reports after `parallel_sgd` from one initialisation."""

    def worker(comm):
        model = linear()
        sgd = torch.optim.SGD(model.parameters(), lr=lr)
        mine = {name: value[comm.rank] if name == "weight" else value for name, value in options.items()}
        return model, parallel_sgd(MPIPeers(comm), model, shares[comm.rank], sgd, epochs=epochs, **mine)

    models, reports = zip(*run_ranks(worker, len(shares)), strict=True)
    for model in models[1:]:
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), models[0].parameters(), strict=True))
    return models[0], reports


def test_averaging_once_is_the_mean_of_trainings_that_know_nothing_of_each_other():
    shares = [batches_of(24, seed) for seed in range(3)]
    model, reports = trained(shares, epochs=2)
    agrees(model, [alone(linear(), share, 2) for share in shares], [1, 1, 1])
    assert [len(report.averaging) for report in reports] == [1, 1, 1]
    assert [(report.rank, report.steps, report.samples) for report in reports] == [(r, 12, 48) for r in range(3)]
    assert reports[0].bytes_averaged == 8 * 21


def test_averaging_after_every_step_is_synchronous_sgd():
    """With plain SGD and equal batches: one process on the workers' batches side by side."""
    shares = [batches_of(20, seed) for seed in range(2)]
    model, reports = trained(shares, epochs=3, average_every=1)
    together = [tuple(map(torch.cat, zip(*batches, strict=True))) for batches in zip(*shares, strict=True)]
    agrees(model, [alone(linear(), together, 3)], [1])
    assert len(reports[0].averaging) == 15


@pytest.mark.parametrize("every, rounds", [(4, 4), (5, 3), (7, 3), (15, 1), (100, 1), (0, 1)])
def test_local_sgd_on_parabolas_is_its_closed_form(every, rounds):
    """Worker r pulls towards c_r: n steps from w give c_r + (1 − η)ⁿ (w − c_r). H counts on over the epochs' ends."""
    centres, lr, steps = [1.0, -4.0, 9.0], 0.1, 15

    def worker(comm):
        model = nn.Linear(1, 1, bias=False).double()
        nn.init.constant_(model.weight, 2.0)
        sgd = torch.optim.SGD(model.parameters(), lr=lr)
        pull = [(torch.full((1, 1), centres[comm.rank], dtype=torch.float64), torch.zeros(1))] * 5

        def loss(out, _):
            return 0.5 * (model.weight - centres[comm.rank]).square().sum()

        report = parallel_sgd(MPIPeers(comm), model, pull, sgd, epochs=3, average_every=every, loss_fn=loss)
        return model.weight.item(), report

    weight, mean, done = 2.0, sum(centres) / 3, 0
    while done < steps:
        n = min(every or steps, steps - done)
        weight, done = mean + (1 - lr) ** n * (weight - mean), done + n
    for result, report in run_ranks(worker, 3):
        assert result == pytest.approx(weight, rel=1e-12)
        assert len(report.averaging) == len(report.compute) == rounds


def test_uneven_shares_keep_step_and_are_weighed():
    shares = [batches_of(24, 0), batches_of(9, 1), batches_of(4, 2)]  # 6, 3 and 1 batches
    model, reports = trained(shares, epochs=1, weight=[24, 9, 4])
    agrees(model, [alone(linear(), share, 1) for share in shares], [24, 9, 4])
    assert [(report.steps, report.samples) for report in reports] == [(6, 24), (3, 9), (1, 4)]
    _, reports = trained(shares, epochs=2, average_every=2)
    assert {len(report.averaging) for report in reports} == {6}


class Clock:
    """A clock that only `after_epoch` moves."""

    now = 0.0

    def perf_counter(self):
        return self.now

    process_time = perf_counter


def test_evaluating_the_average_changes_nothing_and_costs_no_time():
    shares = [batches_of(12, seed) for seed in range(2)]

    def worker(comm):
        seen, module.time = [], Clock()

        def evaluate(epoch, average):
            module.time.now += 1000.0
            seen.append((epoch, average.weight.detach().clone()))
            average.weight.data.zero_()

        model = linear()
        sgd = torch.optim.SGD(model.parameters(), lr=0.3)
        report = parallel_sgd(MPIPeers(comm), model, shares[comm.rank], sgd, epochs=3, after_epoch=evaluate)
        return model.weight, seen, report

    plain, _ = trained(shares, epochs=3)
    singles = [alone(linear(), share, 1) for share in shares]
    for weight, seen, report in run_ranks(worker, 2):
        assert torch.equal(plain.weight, weight)
        assert [epoch for epoch, _ in seen] == [1, 2, 3]
        torch.testing.assert_close(seen[0][1], (singles[0].weight + singles[1].weight).detach() / 2)
        assert report.seconds == sum(report.compute) == sum(report.averaging) == 0


def test_each_epoch_has_its_order_and_trains_in_training_mode():
    class Ordered(list):
        epochs = ()

        def set_epoch(self, epoch):
            self.epochs = (*self.epochs, epoch)

    def worker(comm):
        model, batches = linear().eval(), Ordered(batches_of(8))
        parallel_sgd(MPIPeers(comm), model, batches, torch.optim.SGD(model.parameters(), lr=0.1), epochs=3)
        return batches.epochs, model.training

    assert run_ranks(worker, 1) == [((0, 1, 2), True)]


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"epochs": 1, "average_every": -1}])
def test_nothing_to_do_is_an_error(wrong):
    with pytest.raises(RankFailedError, match="ValueError: nothing to do"):
        trained([batches_of(8)] * 2, **wrong)


def test_a_missing_worker_is_missed():
    def worker(comm):
        if comm.rank == 0:
            average_parameters(MPIPeers(comm), linear())

    with pytest.raises(RankFailedError, match="rank 0 waits in Allreduce for rank 1, for ever; rank 1 has returned"):
        run_ranks(worker, 2)


@pytest.mark.parametrize("samples, workers", [(10, 1), (10, 3), (11, 4), (5, 5), (1000, 7)])
def test_shares_are_disjoint_complete_and_even(samples, workers):
    labels = torch.arange(samples).flip(0) // 3
    for options in ({}, {"labels": labels}):
        shares = make_shards(samples, workers, seed=3, **options)
        assert sorted(torch.cat(shares).tolist()) == list(range(samples))
        sizes = [len(share) for share in shares]
        assert len(sizes) == workers and max(sizes) - min(sizes) <= 1
    for before, after in itertools.pairwise(shares):  # by label
        assert labels[before].max() <= labels[after].min()
    if samples == 1000:
        assert torch.equal(make_shards(1000, 7, seed=3)[1], make_shards(1000, 7, seed=3)[1])
        assert not torch.equal(make_shards(1000, 7, seed=3)[0], make_shards(1000, 7, seed=2)[0])


@pytest.mark.parametrize("samples, workers", [(3, 4), (0, 1), (5, 0)])
def test_more_workers_than_samples_are_one_line(samples, workers):
    with pytest.raises(ValueError, match=rf"^{workers} workers cannot share {samples} samples: take at most"):
        make_shards(samples, workers)


def test_a_worker_s_batches_are_of_its_share_alone():
    small = load("fashion-mnist-small", train_samples=100)
    marked = Split(torch.arange(100, dtype=torch.uint8).view(100, 1, 1, 1), small.train.labels[:100])

    def worker(comm):
        batches = worker_batches(MPIPeers(comm), marked, 10, mean=(0.0,), std=(1.0,), seed=4)
        orders = []
        for epoch in range(2):
            batches.set_epoch(epoch)
            orders.append([round(float(x) * 255) for images, _ in batches for x in images])
        return orders

    first, second, third = run_ranks(worker, 3)
    shares = [share.tolist() for share in make_shards(100, 3, seed=4)]
    orders = [[share.index(i) for i in epochs[0]] for epochs, share in zip((second, third), shares[1:], strict=True)]
    assert orders[0] != orders[1]
    for epochs, share in zip((first, second, third), shares, strict=True):
        assert all(len(epoch) == len(set(epoch)) == 30 and set(epoch) <= set(share) for epoch in epochs)
        assert epochs[0] != epochs[1]


def test_a_share_smaller_than_a_batch_is_one_batch():
    small = load("fashion-mnist-small", train_samples=100)
    lengths = run_ranks(
        lambda comm: [len(labels) for _, labels in worker_batches(MPIPeers(comm), small.train, 64, mean=small.mean, std=small.std)], 3
    )  # fmt: skip
    assert lengths == [[34], [33], [33]]


def test_the_critical_path_takes_each_rounds_slowest_worker_and_its_own_averaging():
    def report(rank, compute, averaging):
        return WorkerReport(rank, 0, 0, 99.0, tuple(compute), tuple(averaging), 0)

    reports = [report(0, [1.0, 5.0], [2.25, 0.5]), report(1, [3.0, 4.0], [0.25, 1.5])]
    assert critical_path(reports) == 3.0 + 0.25 + 5.0 + 0.5


def over_gloo(shares, weights):
    peers = TorchPeers()
    model = network(dist.get_rank())
    average_parameters(peers, model, weights[dist.get_rank()])
    trainee = linear()
    sgd = torch.optim.SGD(trainee.parameters(), lr=0.3)
    report = parallel_sgd(peers, trainee, shares[dist.get_rank()], sgd, epochs=2, average_every=4)
    return peers.gather(peers.rank), model.state_dict(), trainee.state_dict(), len(report.averaging)


def test_torch_distributed_gives_what_mpi_gives():
    shares, weights = [batches_of(20, seed) for seed in range(2)], [3.0, 1.0]
    models = [network(seed) for seed in range(2)]
    by_mpi = averaged(models, weights)[0]
    wanted, _ = trained(shares, epochs=2, average_every=4)
    for ranks, over_torch, local, rounds in on_ranks(over_gloo, 2, shares, weights):
        assert ranks == [0, 1] and rounds == 3
        for name, tensor in by_mpi.items():
            torch.testing.assert_close(over_torch[name], tensor, rtol=1e-12, atol=1e-12)
        for name, tensor in wanted.state_dict().items():
            torch.testing.assert_close(local[name], tensor, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [28, 32])
def test_the_network_is_the_parallel_sgd_lab_s(size):
    torch.manual_seed(0)
    model = ParallelSGDNet().eval()
    conv1, conv2 = (model.features[i] for i in (0, 3))
    fc1, fc2, output = (model.classifier[i] for i in (0, 2, 3))
    x = torch.randn(2, 1, size, size)
    # The document's forward, line by line.
    out = F.relu(F.max_pool2d(F.conv2d(x, conv1.weight, conv1.bias), 2))
    out = F.relu(F.max_pool2d(F.conv2d(out, conv2.weight, conv2.bias), 2))
    out = F.max_pool2d(out, 2).view(-1, 32 * 2 * 2)
    out = F.linear(
        F.linear(F.relu(F.linear(out, fc1.weight, fc1.bias)), fc2.weight, fc2.bias), output.weight, output.bias
    )
    torch.testing.assert_close(model(x), out)
    counts = [16 * 1 * 25 + 16, 32 * 16 * 25 + 32, 128 * 512 + 512, 512 * 256 + 256, 256 * 10 + 10]
    assert sum(counts) == sum(p.numel() for p in model.parameters()) == 213_194
    assert list(model.buffers()) == []


def test_the_network_has_the_dropout_and_the_sizes_that_are_asked_for():
    dropouts = [module for module in ParallelSGDNet(dropout=0.25).modules() if isinstance(module, nn.Dropout)]
    assert [module.p for module in dropouts] == [0.25] and ParallelSGDNet().features[6].p == 0.4
    assert ParallelSGDNet(num_classes=7, in_channels=3)(torch.randn(1, 3, 28, 28)).shape == (1, 7)
