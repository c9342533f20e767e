"""Lab 02's visible checks: the reference passes, and typical mistakes are told apart, hangs included."""

import argparse
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from notebook_answers import answers
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from course_lib.checks import CheckFailed, check, lab02
from course_lib.distributed import convert_sync_batchnorm

cloudpickle.register_pickle_by_value(sys.modules[__name__])

REFERENCE = answers("02_ddp")


@pytest.mark.parametrize(
    "exercise, names",
    [
        ("arguments", ["parse_arguments", "world_size", "global_rank"]),
        ("process-group", ["start_process_group"]),
        ("prepare-once", ["prepare_once"]),
        ("samplers", ["make_loaders"]),
        ("wrap", ["wrap"]),
        ("throughput", ["reduce_throughput"]),
        ("metrics", ["reduce_metrics"]),
        ("early-stop", ["should_stop"]),
    ],
)
def test_the_reference_passes(exercise, names, capsys):
    functions = tuple(REFERENCE[name] for name in names)
    assert check(f"lab02.{exercise}", functions if len(functions) > 1 else functions[0]) is None
    assert len(capsys.readouterr().out.strip().splitlines()) == 1


def refused(exercise, answer, *words, **context):
    with pytest.raises(CheckFailed) as raised:
        check(f"lab02.{exercise}", answer, **context)
    assert all(word in str(raised.value) for word in words), str(raised.value)


# Arguments


def parser(*options, **changes):
    def parse(argv=None):
        made = argparse.ArgumentParser()
        for name, default in (("--num-nodes", 1), ("--node-id", 0), ("--num-gpus", 1)):
            if name not in options:
                made.add_argument(
                    name, **{"type": int, "default": changes.get(name, default), **changes.get("all", {})}
                )
        return made.parse_args(argv)

    return parse


def size(args):
    return args.num_nodes * args.num_gpus


def rank(args, local_rank):
    return args.node_id * args.num_gpus + local_rank


@pytest.mark.parametrize(
    "answer, words",
    [
        ((parser("--num-gpus"), size, rank), ("--num-gpus",)),
        ((parser(**{"--node-id": 1}), size, rank), ("--node-id", "default to 0")),
        ((parser(all={"type": str}), size, rank), ("type=int",)),
        ((parser(), lambda args: args.num_nodes + args.num_gpus, rank), ("12 ranks", "7")),
        ((parser(), size, lambda args, local_rank: args.node_id * args.num_nodes + local_rank), ("rank 9", "gave 7")),
        ((parser(), size, lambda args, local_rank: local_rank), ("rank 9", "gave 1")),
        ((lambda argv=None: {}, size, rank), ("parse_args",)),
    ],
    ids=["missing", "default", "no type", "added", "nodes for gpus", "local rank", "no namespace"],
)
def test_wrong_arguments(answer, words):
    refused("arguments", answer, *words)


# Process group


def returns_nothing(backend):
    dist.init_process_group(backend)


def returns_size(backend):
    dist.init_process_group(backend)
    return dist.get_world_size()


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda backend: 0, ("no process group", "init_process_group")),
        (returns_nothing, ("get_rank()",)),
        (returns_size, ("get_rank()", "returned 2")),
    ],
    ids=["not started", "no return", "world size"],
)
def test_wrong_process_groups(answer, words):
    refused("process-group", answer, *words)


# One first


def no_barrier(prepare, rank):
    return prepare()


def barrier_inside_if(prepare, rank):
    if rank == 0:
        result = prepare()
        dist.barrier()
    if rank != 0:
        result = prepare()
    return result


def all_after_barrier(prepare, rank):
    dist.barrier()
    return prepare()


def only_rank_0(prepare, rank):
    result = prepare() if rank == 0 else None
    dist.barrier()
    return result


def twice(prepare, rank):
    if rank == 0:
        prepare()
    dist.barrier()
    return prepare()


@pytest.mark.parametrize(
    "answer, words",
    [
        (no_barrier, ("barrier",)),
        (all_after_barrier, ("barrier",)),
        (only_rank_0, ("exactly once",)),
        (twice, ("exactly once",)),
    ],
)
def test_wrong_preparations(answer, words):
    refused("prepare-once", answer, *words)


def test_a_hang_is_said_with_where_each_rank_stood(monkeypatch):
    monkeypatch.setattr(lab02, "TIMEOUT", 3.0)

    def hangs(prepare, rank):
        if rank == 0:
            dist.barrier()
        else:
            dist.recv(torch.ones(1), src=0)
        return prepare()

    refused("prepare-once", hangs, "it hangs", "rank 0", "barrier", "rank 1", "recv")


def test_a_barrier_inside_if_is_refused():
    """Rank 0's barrier pairs up with the check's own, so what gives it away is who ran before whom."""
    refused("prepare-once", barrier_inside_if, "barrier")


# Samplers


def loaders(*, train_sampler=True, test_sampler=True, shuffle=True, drop_train=True, drop_test=False, swap=False,
            own_seed=False, test_alone=False):  # fmt: skip
    def answer(train_set, test_set, batch_size, rank, world_size, seed):
        place = dict(num_replicas=world_size, rank=0 if swap else rank)
        train = DistributedSampler(train_set, shuffle=shuffle, seed=seed + (rank if own_seed else 0), **place)
        test = DistributedSampler(test_set, shuffle=False, drop_last=test_alone, **place)
        return (
            DataLoader(
                train_set, batch_size=batch_size, sampler=train if train_sampler else None, drop_last=drop_train
            ),
            DataLoader(test_set, batch_size=250, sampler=test if test_sampler else None, drop_last=drop_test),
        )

    return answer


def test_the_wrong_loaders_are_right_when_nothing_is_wrong():
    check("lab02.samplers", loaders())


@pytest.mark.parametrize(
    "mistake, words",
    [
        ({"train_sampler": False}, ("train loader", "no DistributedSampler")),
        ({"test_sampler": False}, ("test loader", "no DistributedSampler")),
        ({"shuffle": False}, ("shuffle=True",)),
        ({"drop_train": False}, ("drop_last=True",)),
        ({"drop_test": True}, ("test loader", "never be tested")),
        ({"swap": True}, ("rank 1 of 4", "num_replicas and rank")),
        ({"own_seed": True}, ("same images", "same seed")),
        ({"test_alone": True}, ("test images are seen by no rank",)),
    ],
    ids=str,
)
def test_wrong_samplers(mistake, words):
    refused("samplers", loaders(**mistake), *words)


# Wrapping


def never_syncs(model, device, sync_batchnorm):
    return nn.parallel.DistributedDataParallel(model)


def always_syncs(model, device, sync_batchnorm):
    return nn.parallel.DistributedDataParallel(convert_sync_batchnorm(model, device))


def syncs_the_wrapped(model, device, sync_batchnorm):
    wrapped = nn.parallel.DistributedDataParallel(model)
    if sync_batchnorm:
        nn.ModuleList(wrapped.modules())  # the conversion's result is thrown away
        convert_sync_batchnorm(nn.BatchNorm2d(4), device)
    return wrapped


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda model, device, sync: model, ("DistributedDataParallel", "_NormedNet")),
        (lambda model, device, sync: None, ("DistributedDataParallel", "NoneType")),
        (never_syncs, ("sync_batchnorm=True", "convert_sync_batchnorm")),
        (syncs_the_wrapped, ("sync_batchnorm=True", "convert_sync_batchnorm")),
        (always_syncs, ("sync_batchnorm=False",)),
    ],
    ids=["bare", "nothing", "never", "thrown away", "always"],
)
def test_wrong_wrappings(answer, words):
    refused("wrap", answer, *words)


# Reductions


def rates_added(images, seconds, device):
    rate = torch.tensor(images / seconds, dtype=torch.float64)
    slowest = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(rate)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return rate.item(), slowest.item()


def not_reduced(images, seconds, device):
    return images / seconds, seconds


def only_on_rank_0(images, seconds, device):
    total, slowest = torch.tensor(float(images)), torch.tensor(float(seconds))
    dist.reduce(total, 0)
    dist.reduce(slowest, 0, op=dist.ReduceOp.MAX)
    return (total / slowest).item(), slowest.item()


def summed_seconds(images, seconds, device):
    both = torch.tensor([images, seconds], dtype=torch.float64)
    dist.all_reduce(both)
    return (both[0] / both[1]).item(), both[1].item()


@pytest.mark.parametrize(
    "answer, words",
    [
        (rates_added, ("650", "adds rates", "400")),
        (not_reduced, ("slowest", "MAX")),
        (only_on_rank_0, ("rank 1",)),
        (summed_seconds, ("slowest", "6")),
        (lambda *a: 400.0, ("pair",)),
    ],
    ids=["rates added", "not reduced", "reduce to rank 0", "seconds added", "one number"],
)
def test_wrong_throughputs(answer, words):
    refused("throughput", answer, *words)


def mean_of_accuracies(loss_sum, correct, images, device):
    means = torch.tensor([loss_sum / images, correct / images], dtype=torch.float64)
    dist.all_reduce(means)
    return (means / 2).tolist()


def losses_averaged(loss_sum, correct, images, device):
    sums = torch.tensor([loss_sum / images, correct, images], dtype=torch.float64)
    dist.all_reduce(sums)
    return (sums[0] / 2).item(), (sums[1] / sums[2]).item()


@pytest.mark.parametrize(
    "answer, words",
    [
        (mean_of_accuracies, ("mean of the ranks' accuracies", "96")),
        (lambda loss_sum, correct, images, device: (loss_sum / images, correct / images), ("rank 0 says 0.9",)),
        (losses_averaged, ("0.75 each",)),
        (lambda *a: None, ("pair",)),
    ],
    ids=["mean of means", "not reduced", "losses averaged", "nothing"],
)
def test_wrong_metrics(answer, words):
    refused("metrics", answer, *words)


# Stopping


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda a, target, patience: sum(x >= target for x in a) >= patience, ("starts again",)),
        (lambda a, target, patience: all(x >= target for x in a[-patience:]), ("should_stop must be False",)),
        (lambda a, target, patience: bool(a) and a[-1] >= target, ("only the last epoch",)),
        (lambda a, target, patience: len(a) >= patience and all(x > target for x in a[-patience:]), ("exactly 85 %",)),
        (lambda a, target, patience: len(a) >= 2 and all(x >= target for x in a[-2:]), ("patience 1",)),
        (lambda a, target, patience: None, ("must be True",)),
    ],
    ids=["not in a row", "too few", "no patience", "above", "always two", "nothing"],
)
def test_wrong_stopping(answer, words):
    refused("early-stop", answer, *words)


# The worker


def small_worker(*, set_epoch=True, wrapped=True, reduced=True, epochs=None, give=None, own_statistics=False):
    def worker(args, run=None):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed + rank)
        generator = torch.Generator().manual_seed(9)
        images, labels = torch.randn(64, 6, generator=generator), torch.randint(3, (64,), generator=generator)
        sampler = DistributedSampler(range(64), num_replicas=ranks, rank=rank, seed=args.seed)
        model = nn.parallel.DistributedDataParallel(nn.Linear(6, 3)) if wrapped else nn.Linear(6, 3)
        accuracies, orders = [], []
        for epoch in range(epochs or args.epochs):
            if set_epoch:
                sampler.set_epoch(epoch)
            mine = list(sampler)
            model.zero_grad()
            nn.functional.cross_entropy(model(images[mine]), labels[mine]).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= parameter.grad
                correct = (model(images[rank::ranks]).argmax(1) == labels[rank::ranks]).double().sum() + rank
            if reduced:
                dist.all_reduce(correct)
            accuracies.append(correct.item() / 64)
            orders.append(tuple(mine[:16]))
        result = {
            "accuracies": accuracies,
            "orders": orders,
            "fingerprint": [p.double().sum().item() for p in model.parameters()],
            "statistics": [rank * own_statistics],
        }
        return result if give is None else give

    return worker


ARGS = argparse.Namespace(epochs=2, seed=0)


def test_a_right_worker_passes():
    assert check("lab02.worker", small_worker(), args=ARGS) is None


@pytest.mark.parametrize(
    "mistake, words",
    [
        ({"set_epoch": False}, ("same order", "set_epoch")),
        ({"wrapped": False}, ("weights differ", "train the wrapped model")),
        ({"reduced": False}, ("disagree about the accuracy", "reduced")),
        ({"own_statistics": True}, ("batch-norm statistics differ", "broadcast rank 0's buffers")),
        ({"epochs": 1}, ("2 epochs were asked for", "recorded 1")),
        ({"give": 3}, ("returns a dict",)),
    ],
    ids=str,
)
def test_wrong_workers(mistake, words):
    refused("worker", small_worker(**mistake), *words, args=ARGS)


def test_a_worker_that_raises_or_has_no_arguments_is_told():
    def raises(args, run=None):
        if dist.get_rank() == 1:
            raise NameError("name 'seconds' is not defined")
        dist.barrier()

    refused("worker", raises, "it raised", "rank 1", "'seconds' is not defined", args=ARGS)
    refused("worker", small_worker(), "args=tiny")


def test_the_reference_worker_passes():
    tiny = REFERENCE["parse_arguments"](
        ["--dataset", "fashion-mnist-small", "--train-samples", "128", "--epochs", "2", "--batch-size", "32", "--target-accuracy", "0"]
    )  # fmt: skip
    check("lab02.worker", REFERENCE["worker"], args=tiny)
