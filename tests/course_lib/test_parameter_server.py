"""The parameter server against a simulation in one process, worker by worker, and against counts of bytes."""

import itertools
import time

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import on_ranks
from torch import nn
from torch.nn import functional as F

from course_lib.distributed.messages.message_trace import trace_messages
from course_lib.distributed.parameter_server import ParameterServerWorker, messages, serve, staleness_of_order
from course_lib.distributed.parameter_server.messages import Kind, Message, SentTensors


def network(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    model[1].running_mean.fill_(seed)
    return model


def batch(worker, step):
    generator = torch.Generator().manual_seed(1000 * worker + step)
    return torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-3)


def gradient(model, worker, step):
    model.zero_grad()
    F.cross_entropy(model(batch(worker, step)[0]), batch(worker, step)[1]).backward()


def simulated(order):
    """What the parameters, statistics and stalenesses must be when the workers' gradients arrive in this order."""
    model = network()
    optimizer = optimizer_of(model)
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
        staleness.append(place - taken[worker])
        taken[worker] = place + 1
        with torch.no_grad():
            for ours, theirs in zip(model.parameters(), replica.parameters(), strict=True):
                theirs.copy_(ours)
    statistics = [torch.stack([replica[1].state_dict()[name] for replica in replicas.values()]).mean(0)
                  for name in ("running_mean", "running_var")]  # fmt: skip
    return {"tensors": [*(p.detach() for p in model.parameters()), *statistics], "staleness": staleness}


def in_this_order(order, folder):
    """A rank's part in a training whose updates come in a given order, with its messages' bytes."""
    rank, turns = dist.get_rank(), dist.FileStore(f"{folder}/turns", dist.get_world_size())
    model = network(seed=rank)  # the server's is the one that counts
    with trace_messages() as trace:
        if rank == 0:
            seen = []
            record = serve(model, optimizer_of(model), on_update=seen.append)
            assert seen == record.updates
            tensors = [*(p.detach() for p in model.parameters()), model[1].running_mean, model[1].running_var]
            return {"record": record, "tensors": tensors, "sent": trace.bytes_sent}
        worker = ParameterServerWorker(model)
        start, versions = [p.detach().clone() for p in model.parameters()], []
        for step, turn in enumerate(turn for turn, whose in enumerate(order) if whose == rank):
            versions.append(worker.version)
            gradient(model, rank, step)
            while turns.add("turn", 0) < turn:
                time.sleep(0.0005)
            worker.exchange()
            turns.add("turn", 1)
        worker.finish()
    return {"start": start, "versions": versions, "sent": trace.bytes_sent}


@pytest.mark.parametrize("workers", [1, 3])
def test_every_update_is_the_one_that_a_single_process_computes(workers, tmp_path):
    generator = torch.Generator().manual_seed(workers)
    order = (torch.randint(workers, (24,), generator=generator) + 1).tolist()
    server, *others = on_ranks(in_this_order, workers + 1, order, str(tmp_path))
    expected = simulated(order)
    record = server["record"]
    assert [update.worker for update in record.updates] == order and record.version == 24
    assert record.staleness == expected["staleness"] == staleness_of_order(order)
    assert [update.version for update in record.updates] == list(range(1, 25))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(server["tensors"], expected["tensors"], strict=True))
    for worker in others:
        assert all(torch.equal(a, b) for a, b in zip(worker["start"], network().parameters(), strict=True))
    computed_on = [place - stale for place, stale in enumerate(expected["staleness"])]
    assert sorted(itertools.chain(*(worker["versions"] for worker in others))) == sorted(computed_on)
    # A header of 24 bytes each way for the greeting; then whole messages: each gradient, a goodbye, and the parameters
    # at the start and after each gradient.
    message = 24 + 4 * (sum(p.numel() for p in network().parameters()) + 2 * 16)
    for rank, worker in enumerate(others, start=1):
        assert worker["sent"] == 24 + (order.count(rank) + 1) * message
    assert server["sent"] == workers * 24 + (24 + workers) * message


def test_one_worker_is_plain_sgd():
    """The simulation with one worker is SGD itself: gradient, step, gradient, step."""
    model = network()
    optimizer = optimizer_of(model)
    for step in range(24):
        gradient(model, 1, step)
        optimizer.step()
    expected = simulated([1] * 24)
    assert expected["staleness"] == [0] * 24
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected["tensors"], strict=False))


class NotGloo:
    """torch.distributed where the default group's messages are the GPUs'."""

    made = ()

    def get_backend():
        return "nccl"

    def new_group(backend):
        NotGloo.made = (*NotGloo.made, dist.new_group(backend=backend))
        return NotGloo.made[-1]


def a_straggler():
    """Rank 1 waits for rank 2's last exchange before its first; the second layer's gradient is None."""
    messages.dist = NotGloo
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    if dist.get_rank() == 0:
        before = model[1].weight.detach().clone()
        record = serve(model, torch.optim.SGD(model.parameters(), lr=1.0))
        return record, torch.equal(model[1].weight, before), len(NotGloo.made)
    turn, worker = dist.PrefixStore("turns", dist.distributed_c10d._get_default_store()), ParameterServerWorker(model)
    if dist.get_rank() == 1:
        turn.wait(["the other has finished"])
    for _ in range(3):
        model.zero_grad()
        model[0](torch.ones(1, 2)).sum().backward()
        worker.exchange()
    worker.finish()
    turn.set("the other has finished", "")
    return None


def test_a_straggler_holds_nobody_up_and_a_layer_without_gradient_is_left_alone():
    record, untouched, groups = on_ranks(a_straggler, 3)[0]
    assert [update.worker for update in record.updates] == [2, 2, 2, 1, 1, 1]
    assert record.staleness == [0, 0, 0, 3, 0, 0]
    assert untouched and groups == 1  # beside NCCL, messages have a group of their own


def test_tied_and_frozen_parameters():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3))
    model[1].weight = model[0].weight
    model[2].bias.requires_grad_(False)
    sent = SentTensors(model)
    assert [id(p) for p in sent.parameters] == [id(model[0].weight), id(model[2].weight)]
    assert len(sent.buffers) == 2  # not the counter


def test_the_header_counts_further_than_float32():
    message = Message()
    message.write(Kind.PUSH, version=2**24 + 1)
    assert message.number(1) == 2**24 + 1 and message.flat.dtype is torch.float32


def test_only_float32_is_sent():
    with pytest.raises(ValueError, match="float32"):
        SentTensors(nn.Linear(2, 2).double())
