"""The parameter server against a simulation in one process, worker by worker, and against counts that nobody sent."""

import itertools
import math
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import on_ranks
from torch import nn
from torch.nn import functional as F

from course_lib.distributed.messages.message_trace import trace_messages
from course_lib.distributed.parameter_server import (
    ParameterServerWorker,
    messages,
    serve,
    served_model,
    shards_of,
    staleness_of_order,
)
from course_lib.distributed.parameter_server import worker as worker_module
from course_lib.distributed.parameter_server.messages import Message, Request, split_by_size


def network(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    model[1].running_mean.fill_(seed)
    return model


def batch(worker, step):
    generator = torch.Generator().manual_seed(1000 * worker + step)
    return torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)


def settings(model):
    """Momentum, decay, and a rate that falls with the number of updates."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-3)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1 / (1 + 0.1 * update))


def gradient(model, worker, step):
    model.zero_grad()
    loss = F.cross_entropy(model(batch(worker, step)[0]), batch(worker, step)[1])
    loss.backward()
    return loss.item()


def simulated(order):
    """What the parameters, statistics and stalenesses must be when the workers' gradients arrive in this order."""
    model = network()
    optimizer, scheduler = settings(model)
    replicas = {worker: network() for worker in set(order)}
    taken = dict.fromkeys(replicas, 0)
    steps, staleness = dict.fromkeys(replicas, 0), []
    for place, worker in enumerate(order):
        replica = replicas[worker]
        gradient(replica, worker, steps[worker])
        steps[worker] += 1
        for ours, theirs in zip(model.parameters(), replica.parameters(), strict=True):
            ours.grad = theirs.grad.clone()
        optimizer.step()
        scheduler.step()
        staleness.append(place - taken[worker])
        taken[worker] = place + 1
        with torch.no_grad():
            for ours, theirs in zip(model.parameters(), replica.parameters(), strict=True):
                theirs.copy_(ours)
    statistics = [torch.stack([replica[1].state_dict()[name] for replica in replicas.values()]).mean(0)
                  for name in ("running_mean", "running_var")]  # fmt: skip
    return {"parameters": [p.detach() for p in model.parameters()], "statistics": statistics, "staleness": staleness}


def in_this_order(order, servers, folder):
    """A rank's part in a training whose updates come in a given order."""
    rank, turns = dist.get_rank(), dist.FileStore(f"{folder}/turns", dist.get_world_size())
    model = network(seed=rank)  # the servers' is the one that counts
    if rank in servers:
        model = network()
        optimizer, scheduler = settings(model)
        record = serve(model, optimizer, servers=servers, scheduler=scheduler, timeout=600)
        return {"record": record, "parameters": [p.detach().clone() for p in model.parameters()],
                "statistics": [model[1].running_mean.clone(), model[1].running_var.clone()]}  # fmt: skip
    worker = ParameterServerWorker(model, servers, timeout=600)
    step = 0
    for turn, whose in enumerate(order):
        if whose != rank:
            continue
        loss = gradient(model, rank, step)
        while turns.add("turn", 0) < turn:
            time.sleep(0.0005)
        assert worker.exchange(samples=8, correct=step, loss_sum=8 * loss)
        turns.add("turn", 1)
        step += 1
    return worker.finish()


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("server_count", [1, 2])
def test_every_update_is_the_one_that_a_single_process_computes(workers, server_count, tmp_path):
    servers = list(range(server_count))
    generator = torch.Generator().manual_seed(workers)
    order = (torch.randint(workers, (24,), generator=generator) + server_count).tolist()
    results = on_ranks(in_this_order, workers + server_count, order, servers, str(tmp_path))
    expected = simulated(order)
    for server in servers:
        record = results[server]["record"]
        assert record.order == order and record.version == 24
        assert record.staleness == expected["staleness"] == staleness_of_order(order)
        assert [update.version for update in record.updates] == list(range(1, 25))
        assert [update.seconds for update in record.updates] == sorted(update.seconds for update in record.updates)
        assert all(update.samples == 8 and update.loss_sum > 0 for update in record.updates)
    first = results[0]
    for name in ("parameters", "statistics"):
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(first[name], expected[name], strict=True)), name
    assert {update.worker: update.correct for update in first["record"].updates} == {
        worker: order.count(worker) - 1 for worker in set(order)
    }
    untouched = network()
    for server, shard in zip(servers[1:], shards_of(untouched, server_count)[1:], strict=True):
        own = {id(p) for p in shard.parameters}
        for found, begun in zip(results[server]["parameters"], untouched.parameters(), strict=True):
            assert id(begun) in own or torch.equal(found, begun)  # another server's
    logs = [results[rank].exchanges for rank in range(server_count, server_count + workers)]
    for server in servers:
        seen = sorted((one.received[server], one.computed_on[server]) for one in itertools.chain(*logs))
        assert [after - 1 - before for after, before in seen] == expected["staleness"]


def test_one_worker_is_plain_sgd():
    """The simulation with one worker is SGD itself: gradient, step, gradient, step."""
    model = network()
    optimizer, scheduler = settings(model)
    for step in range(24):
        gradient(model, 1, step)
        optimizer.step()
        scheduler.step()
    expected = simulated([1] * 24)
    assert expected["staleness"] == [0] * 24
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected["parameters"], strict=True))


# First come, first served

STRAGGLER = 2
DELAY = 0.03  # seconds
LATE = 10  # exchanges of the others that the straggler lets pass before each of its own


def train(name, delay=0.0, **options):
    """A rank's part: rank 0 serves, 1 to 3 train, as long as the server wants; without `updates`, worker r makes 3·r.

    The straggler is late by a number of exchanges, or sleeps for `delay` seconds where the others wait for it.
    """
    rank, model = dist.get_rank(), options.pop("model", None) or network()
    if rank == 0:
        return serve(model, torch.optim.SGD(model.parameters(), lr=0.05), timeout=600, **options)
    others = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
    late, most = rank == STRAGGLER and not delay, 3 * rank if "updates" not in options else None
    worker = ParameterServerWorker(model, delay=delay if rank == STRAGGLER else 0.0, timeout=600)
    step = 0
    while worker.active and step != most:
        gradient(model, rank, step)
        while late and others.add("exchanges", 0) < LATE * (step + 1):
            time.sleep(0.0005)
        worker.exchange()
        step += 1
        others.add("exchanges", rank != STRAGGLER)
    others.add("exchanges", 10**6)  # the straggler waits for no worker that has finished
    return worker.finish()


def cases():
    seen, clock = [], SimpleNamespace(perf_counter=lambda: 1000.0 * (1 + len(seen)))
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        time.sleep(seconds)

    worker_module.time = SimpleNamespace(sleep=sleep, perf_counter=time.perf_counter)

    def traced():
        with trace_messages() as trace:
            record = train("free", updates=40)
        return record, (trace.bytes_sent, trace.bytes_received)

    def beside_nccl():
        messages.dist = NotGloo
        record = train("nccl", updates=4)
        messages.dist = dist
        return record, len(NotGloo.made)

    def by_this_clock():
        served_model.time = clock
        record = train("clock", updates=6, on_update=seen.append)
        served_model.time = time
        return record, seen

    def statistics(policy):
        model = network()
        train(policy, updates=3, buffers=policy, model=model)
        return [model[1].running_mean[0].item(), model[1].running_var[0].item()]

    runs = {
        "free": traced,
        "resumed": lambda: train("resumed", updates=12, version=7),
        "uneven": lambda: train("uneven", delay=DELAY),
        "a group of its own": beside_nccl,
        "unused": unused_layer,
        "on_update": by_this_clock,
        "statistics": lambda: {policy: statistics(policy) for policy in ("mean", "own")},
        "two servers": lambda: [two_servers(updates) for updates in (7, 8, 9, 10, 11, 12)],
    }
    results = {}
    for name, run in runs.items():
        results[name] = run()
        dist.barrier()
    results["free"], results["bytes"] = results["free"]
    return results | {"slept": slept}


class NotGloo:
    """torch.distributed where the default group's messages are the GPUs'."""

    made = ()

    def get_backend():
        return "nccl"

    def new_group(backend):
        NotGloo.made = (*NotGloo.made, dist.new_group(backend=backend))
        return NotGloo.made[-1]


def unused_layer():
    """A layer that the loss does not see has no gradient; the server's stays as it is."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    if dist.get_rank() == 0:
        before = model[1].weight.detach().clone()
        serve(model, torch.optim.SGD(model.parameters(), lr=1.0), updates=6)
        return torch.equal(model[1].weight, before)
    worker = ParameterServerWorker(model)
    while worker.active:
        model.zero_grad()
        model[0](torch.ones(1, 2)).sum().backward()
        worker.exchange()
    worker.finish()
    return None


def two_servers(updates):
    """Ranks 0 and 1 serve, 2 and 3 train; the servers' versions at the end."""
    model, servers = network(), (0, 1)
    if dist.get_rank() in servers:
        return serve(model, torch.optim.SGD(model.parameters(), lr=0.1), servers=servers, updates=updates).version
    worker = ParameterServerWorker(model, servers)
    while worker.active:
        gradient(model, dist.get_rank(), 0)
        worker.exchange()
    return len(worker.finish().exchanges)


@pytest.fixture(scope="module")
def runs():
    return on_ranks(cases, 4)


def test_a_straggler_holds_nobody_up(runs):
    record = runs[0]["free"]
    assert record.version == len(record.updates) == 40
    assert record.count(STRAGGLER) <= 4
    assert record.staleness == staleness_of_order(record.order)
    mine = [update.staleness for update in record.updates if update.worker == STRAGGLER]
    assert sum(mine) / len(mine) > 4  # the others go on meanwhile


def test_no_gradient_is_computed_for_nothing(runs):
    for case, updates in (("free", 40), ("resumed", 5)):
        record = runs[0][case]
        assert len(record.updates) == updates
        for worker in (1, 2, 3):
            assert len(runs[worker][case].exchanges) == record.count(worker)


def test_staleness_is_what_the_workers_saw(runs):
    for case in ("free", "uneven"):
        exchanges = itertools.chain(*(runs[worker][case].exchanges for worker in (1, 2, 3)))
        computed_on = sorted(one.computed_on[0] for one in exchanges)
        updates = runs[0][case].updates
        assert sorted(update.version - 1 - update.staleness for update in updates) == computed_on


def test_a_delay_comes_before_each_exchange(runs):
    assert runs[STRAGGLER]["slept"] == [DELAY] * len(runs[STRAGGLER]["uneven"].exchanges)
    assert runs[1]["slept"] == [] and 0 < runs[1]["free"].waited < runs[1]["free"].seconds


def test_a_training_goes_on_from_a_version(runs):
    record = runs[0]["resumed"]
    assert [update.version for update in record.updates] == [8, 9, 10, 11, 12]
    assert runs[1]["resumed"].exchanges[0].computed_on == (7,)


def test_workers_may_finish_unevenly(runs):
    assert [runs[0]["uneven"].count(worker) for worker in (1, 2, 3)] == [3, 6, 9]


def test_the_time_of_on_update_does_not_count(runs):
    record, seen = runs[0]["on_update"]
    assert seen == record.updates and len(seen) == 6
    assert [update.seconds for update in record.updates] == [0.0] * 6  # the clock moves in `on_update` only


def test_statistics_that_are_the_workers_own_do_not_reach_the_server(runs):
    assert runs[0]["statistics"]["own"] == [0.0, 1.0] and runs[0]["statistics"]["mean"] != [0.0, 1.0]


def test_beside_nccl_messages_have_a_group_of_their_own(runs):
    record, groups = runs[0]["a group of its own"]
    assert record.version == 4 and groups == 1


def test_a_layer_without_gradient_is_left_alone(runs):
    assert runs[0]["unused"]


def test_two_servers_end_at_the_same_update(runs):
    for case, updates in enumerate((7, 8, 9, 10, 11, 12)):
        assert runs[0]["two servers"][case] == runs[1]["two servers"][case] == updates
        assert runs[2]["two servers"][case] + runs[3]["two servers"][case] == updates


def test_bytes_are_the_gradient_and_the_parameters_of_each_exchange(runs):
    """A header of 48 bytes each way for the greeting; then whole messages, the first a request, the last a goodbye."""
    numbers = sum(p.numel() for p in network().parameters()) + 2 * 16
    for worker in (1, 2, 3):
        exchanges = len(runs[worker]["free"].exchanges)
        sent, received = runs[worker]["bytes"]
        assert sent == 48 + (exchanges + 2) * (48 + 4 * numbers)
        assert received == 48 + (exchanges + 1) * (48 + 4 * numbers)
    assert runs[0]["bytes"] == tuple(sum(runs[worker]["bytes"][way] for worker in (1, 2, 3)) for way in (1, 0))


# Cutting a model


def heaviest(sizes, piles):
    return max(sum(sizes[item] for item in pile) for pile in piles)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_shards_are_nearly_as_even_as_they_can_be(parts):
    generator = torch.Generator().manual_seed(parts)
    for _ in range(20):
        sizes = torch.randint(1, 100, (7,), generator=generator).tolist()
        piles = split_by_size(sizes, parts)
        assert sorted(itertools.chain(*piles)) == list(range(7)) and all(pile == sorted(pile) for pile in piles)
        best = min(
            heaviest(sizes, [[i for i in range(7) if owner[i] == part] for part in range(parts)])
            for owner in itertools.product(range(parts), repeat=7)
        )
        assert best <= heaviest(sizes, piles) <= math.floor((4 / 3 - 1 / (3 * parts)) * best)


def test_every_server_has_something():
    assert split_by_size([0, 0, 5], 3) == [[2], [0], [1]]
    first, second = shards_of(network(), 2)
    assert len(first.buffers) == 2 and second.buffers == []
    with pytest.raises(ValueError, match="1 parameter tensors cannot be split over 2 servers"):
        shards_of(nn.Linear(3, 3, bias=False), 2)


def test_tied_and_frozen_parameters():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3))
    model[1].weight = model[0].weight
    model[2].bias.requires_grad_(False)
    (shard,) = shards_of(model, 1)
    assert [id(p) for p in shard.parameters] == [id(model[0].weight), id(model[2].weight)]
    assert len(shard.buffers) == 2  # not the counter


def test_the_header_counts_further_than_float32():
    message = Message()
    message.write(Request.PUSH, version=2**24 + 1, samples=3)
    assert message.number(1) == 2**24 + 1 and message.flat.dtype is torch.float32


def test_only_float32_travels():
    with pytest.raises(ValueError, match="float32"):
        shards_of(nn.Linear(2, 2).double(), 1)
