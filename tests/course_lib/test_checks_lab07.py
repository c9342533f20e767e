"""Lab 07's visible checks: the reference passes, and typical mistakes are told apart, hangs included."""

import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from notebook_answers import answers

from course_lib.checks import CheckFailed, check, lab07_server

cloudpickle.register_pickle_by_value(sys.modules[__name__])

GIVEN = answers("07_sync_async_sgd")
GRADIENT, GOODBYE = 1.0, 2.0


@pytest.mark.parametrize(
    "exercise, name",
    [
        ("initial", "synchronise"),
        ("average", "average_gradients"),
        ("statistics", "average_statistics"),
    ],
)
def test_the_reference_passes(exercise, name, capsys):
    assert check(f"lab07.{exercise}", GIVEN[name]) is None
    assert len(capsys.readouterr().out.strip().splitlines()) == 1


def refused(exercise, answer, *words):
    with pytest.raises(CheckFailed) as raised:
        check(f"lab07.{exercise}", answer)
    assert all(word in str(raised.value) for word in words), str(raised.value)


# The beginning


def parameters_only(model):
    for p in model.parameters():
        dist.broadcast(p.data, src=0)


def from_rank_1(model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=1)


def mean_of_all(model):
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            dist.all_reduce(tensor)
            tensor /= 2


@pytest.mark.parametrize(
    "answer, words",
    [
        (parameters_only, ("1.running_mean", "buffers are not")),
        (from_rank_1, ("rank 0 it is 8", "keeps its model")),
        (mean_of_all, ("6.5", "that is the mean")),
        (lambda model: None, ("on rank 1 it is 8", "overwrites")),
    ],
    ids=["parameters only", "rank 1", "mean", "nothing"],
)
def test_wrong_beginnings(answer, words):
    refused("initial", answer, *words)


# The mean


def parts(model):
    return [p for p in model.parameters() if p.requires_grad]


def each(weigh, divide):
    """One collective a parameter."""

    def average(model, samples):
        total = torch.tensor(float(samples))
        dist.all_reduce(total)
        for p in parts(model):
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            p.grad *= weigh(samples)
            dist.all_reduce(p.grad)
            p.grad /= divide(total)

    return average


def frozen_too(model, samples):
    for p in model.parameters():
        p.requires_grad_(True)
    GIVEN["average_gradients"](model, samples)


def joined_backwards(model, samples):
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parts(model)]
    vector = torch.cat([samples * g.flatten() for g in reversed(gradients)] + [torch.tensor([float(samples)])])
    dist.all_reduce(vector)
    pieces = (vector[:-1] / vector[-1]).split([p.numel() for p in parts(model)])
    for p, piece in zip(parts(model), pieces, strict=True):
        p.grad = piece.view_as(p).clone()


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda model, samples: None, ("rank 0's own", "nothing was summed")),
        (each(lambda n: 1, lambda total: 1), ("has 6", "the sum")),
        (each(lambda n: 1, lambda total: 2), ("= 2", "has 3", "mean of the two ranks")),
        (each(lambda n: n, lambda total: 32), ("has 6", "divide")),
        (each(lambda n: n, lambda total: 1), ("has 192", "that is the weighted sum; divide it")),
        (each(lambda n: n, lambda total: 2), ("has 96", "divided by the number of ranks, not by their images")),
        (each(lambda n: n, lambda total: 64), ("= 2", "has 4")),
        (each(lambda n: n, lambda total: total), ("6 collectives", "one vector")),
        (frozen_too, ("frozen",)),
        (joined_backwards, ("cut at the right places",)),
    ],
    ids=[
        "nothing",
        "sum",
        "plain mean",
        "not divided",
        "weighted sum",
        "by the ranks",
        "fixed divisor",
        "one a parameter",
        "frozen",
        "backwards",
    ],
)
def test_wrong_means(answer, words):
    refused("average", answer, *words)


def flattened(flatten, give):
    """The right mean, over vectors made by `flatten` and brought back by `give`."""

    def average(model, samples):
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parts(model)]
        vector = torch.cat([samples * flatten(g) for g in gradients] + [torch.tensor([float(samples)])])
        dist.all_reduce(vector)
        pieces = (vector[:-1] / vector[-1]).split([p.numel() for p in parts(model)])
        for p, gradient, piece in zip(parts(model), gradients, pieces, strict=True):
            give(p, gradient, piece)

    return average


def contiguous(p, gradient, piece):
    p.grad = piece.view_as(p).clone()


def in_place(p, gradient, piece):
    p.grad = gradient
    gradient.data.copy_(piece.view(p.shape))


def by_memory(p, gradient, piece):
    p.grad = torch.empty_like(p)
    p.grad.as_strided((p.numel(),), (1,)).copy_(piece)


def in_memory_order(tensor):
    return tensor.as_strided((tensor.numel(),), (1,))


@pytest.mark.parametrize(
    "answer",
    [
        flattened(torch.flatten, contiguous),
        flattened(lambda g: g.reshape(-1), in_place),
        flattened(lambda g: g.contiguous().view(-1), contiguous),
        flattened(in_memory_order, by_memory),
    ],
    ids=["contiguous", "in place", "contiguous before", "all in memory order"],
)
def test_right_means_pass_whatever_the_order_in_memory(answer):
    assert check("lab07.average", answer) is None


@pytest.mark.parametrize(
    "answer, words",
    [
        (flattened(lambda g: g.view(-1), contiguous), ("channels-last", "view size is not compatible", "flatten()")),
        (flattened(in_memory_order, contiguous), ("channels-last", "in other places", "order in memory")),
        (flattened(torch.flatten, by_memory), ("channels-last", "in other places")),
    ],
    ids=["view", "flattened in memory order", "returned in memory order"],
)
def test_a_mean_that_goes_by_memory_is_refused(answer, words):
    refused("average", answer, *words)


# Statistics


def statistics(divide=2, counters=False, copy=False):
    def average(model):
        for buffer in model.buffers():
            if not (buffer.is_floating_point() or counters):
                continue
            if copy:
                dist.broadcast(buffer, src=0)
                continue
            dist.all_reduce(buffer)
            buffer.copy_(buffer / divide)

    return average


@pytest.mark.parametrize(
    "answer, words",
    [
        (statistics(divide=1), ("those are the sums",)),
        (statistics(copy=True), ("rank 0's", "DDP")),
        (statistics(counters=True), ("num_batches_tracked", "15")),
        (lambda model: None, ("rank 0 has 1 and 2", "in place")),
    ],
    ids=["sum", "rank 0", "counters", "nothing"],
)
def test_wrong_statistics(answer, words):
    refused("statistics", answer, *words)


# The worker


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def exchange(kind=GRADIENT, send="grad", off=0, wait=True, keep=True, returns=int):
    def push_and_pull(model, version):
        tensors = [p.grad for p in model.parameters()] if send == "grad" else list(model.parameters())
        question = torch.cat([torch.tensor([kind, version + off]), flat(tensors)])
        answer = torch.zeros_like(question)
        receive = dist.irecv(answer, src=0)
        dist.isend(question, dst=0).wait()
        if wait:
            receive.wait()
        if keep:
            torch.nn.utils.vector_to_parameters(answer[2:].clone(), model.parameters())
        if not wait:
            receive.wait()
        return returns(answer[1])

    return push_and_pull


@pytest.mark.parametrize(
    "answer, words",
    [
        (exchange(kind=GOODBYE), ("GRADIENT, 1; yours is 2",)),
        (exchange(send="parameters"), ("it carries the parameters",)),
        (exchange(off=1), ("computed on, 7; yours is 8",)),
        (exchange(wait=False), ("became 0", "wait()")),
        (exchange(keep=False), ("what they were", "unpack")),
        (exchange(returns=float), ("an int; yours was 9.0",)),
        (exchange(returns=lambda number: 3), ("9, as an int; yours was 3",)),
    ],
    ids=["goodbye", "parameters", "version", "no wait", "not unpacked", "float", "another version"],
)
def test_wrong_workers(answer, words):
    refused("worker", answer, *words)


def test_right_sides_pass(capsys):
    check("lab07.worker", exchange())
    check("lab07.server", server())
    assert len(capsys.readouterr().out.strip().splitlines()) <= 3


# The server


def server(
    late=False, add=False, stale=0, kind=GRADIENT, in_turns=False, first_goodbye=False, returns=lambda updates: updates
):
    def serve(model, optimizer, workers):
        length = 2 + sum(p.numel() for p in model.parameters())
        message, working, updates, version, turn = torch.zeros(length), workers, [], 0, 0
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        while working:
            turn += 1
            worker = dist.recv(message, src=1 + turn % workers if in_turns else None)
            if message[0] == GOODBYE:
                working -= 1
                if first_goodbye:
                    break
                continue
            before = flat(model.parameters())
            pieces = message[2:].split([p.numel() for p in model.parameters()])
            for p, piece in zip(model.parameters(), pieces, strict=True):
                p.grad = p.grad * add + piece.view_as(p)
            optimizer.step()
            updates.append((worker, version - int(message[1]) + stale))
            version += 1
            after = before if late else flat(model.parameters())
            dist.send(torch.cat([torch.tensor([kind, version]), after]), dst=worker)
        return returns(updates)

    return serve


@pytest.mark.parametrize(
    "answer, words",
    [
        (server(late=True), ("*after* the update", "older")),
        (server(add=True), ("after update 2 they are not", "*replaced*")),
        (server(stale=1), ("one too many each",)),
        (server(kind=GOODBYE), ("first number says what it is: GRADIENT, 1; yours is 2",)),
        (server(returns=lambda updates: [(worker, 0) for worker, _ in updates]), ("second number says which version",)),
        (server(returns=lambda updates: None), ("return a list",)),
    ],
    ids=["older", "added", "stale by one", "goodbye", "never stale", "nothing"],
)
def test_wrong_servers(answer, words):
    refused("server", answer, *words)


@pytest.mark.parametrize("options", [{"in_turns": True}, {"first_goodbye": True}], ids=["in turns", "first goodbye"])
def test_servers_that_leave_a_worker_waiting_are_told_why(options, monkeypatch):
    monkeypatch.setattr(lab07_server, "TIMEOUT", 2.0)
    refused("server", server(**options), "both")


def test_the_notebooks_own_two_sides_pass(capsys):
    """They lean on the cell that makes messages."""
    import nbformat
    from notebook_answers import LABS

    namespace = dict(GIVEN)
    notebook = nbformat.read(LABS / "07_sync_async_sgd" / "07_sync_async_sgd.ipynb", as_version=4)
    for id in ("messages", "ex-worker", "ex-server"):
        exec(next(cell.source for cell in notebook.cells if cell.id == id), namespace)
    check("lab07.worker", namespace["push_and_pull"])
    check("lab07.server", namespace["serve"])
    assert "two exchanges" in capsys.readouterr().out
