"""Lab 06's visible checks: the reference passes, and typical mistakes are told apart, hangs included."""

import itertools
import json
import sys

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist
from notebook_answers import answers

from course_lib.checks import CheckFailed, check, lab06
from course_lib.distributed import linear_broadcast, linear_reduce, ring_all_reduce, whole_tensor_all_reduce

cloudpickle.register_pickle_by_value(sys.modules[__name__])

REFERENCE = answers("06_communication")
# On their own: a worker that mentions the whole namespace would bring its figures' library along.
TREE, SEND_RECEIVE = REFERENCE["tree_broadcast"], REFERENCE["send_receive"]
ANSWERS = {
    "send-receive": REFERENCE["send_receive"],
    "tree-broadcast": REFERENCE["tree_broadcast"],
    "ring": REFERENCE["ring_all_reduce"],
    "fit": REFERENCE["fit_alpha_beta"],
    "cost": (REFERENCE["all_reduce_seconds"], REFERENCE["bus_bandwidth"]),
}


@pytest.mark.parametrize("exercise", ANSWERS)
def test_the_reference_passes_and_says_so(exercise, capsys):
    assert check(f"lab06.{exercise}", ANSWERS[exercise]) is None
    told = capsys.readouterr()
    assert told.out.count("\n") == 1 and not told.err


def refused(exercise, answer, *words):
    with pytest.raises(CheckFailed) as raised:
        check(f"lab06.{exercise}", answer)
    assert all(word in str(raised.value) for word in words), str(raised.value)


# Send and receive


def both_send_first(outgoing, to, incoming, source):
    dist.send(outgoing, to)
    dist.recv(incoming, source)


def not_waited_for(outgoing, to, incoming, source):
    requests = [dist.isend(outgoing, to), dist.irecv(incoming.clone(), source)]
    for request in requests:
        request.wait()


def into_what_is_sent(outgoing, to, incoming, source):
    going = dist.isend(outgoing.clone(), to)
    dist.recv(outgoing, source)
    incoming.copy_(outgoing)
    going.wait()


def sends_twice(outgoing, to, incoming, source):
    for _ in range(2):
        going = dist.isend(outgoing, to)
        dist.recv(incoming, source)
        going.wait()


def by_a_collective(outgoing, to, incoming, source):
    places = [torch.empty_like(incoming) for _ in range(2)]
    dist.all_gather(places, outgoing)
    incoming.copy_(places[source])


def both_ends_turned_round(outgoing, to, incoming, source):
    SEND_RECEIVE(outgoing, source, incoming, to)


def only_to(outgoing, to, incoming, source):
    SEND_RECEIVE(outgoing, to, incoming, to)


def raises(outgoing, to, incoming, source):
    raise ValueError("what is `to`?")


@pytest.mark.parametrize(
    "answer, words",
    [
        (both_send_first, ("hangs", "  send (torch", "both_send_first")),
        (not_waited_for, ("100,000 places of `incoming`", "waited for")),
        (into_what_is_sent, ("rank 0's outgoing tensor has changed",)),
        (sends_twice, ("sent 2 messages",)),
        (by_a_collective, ("dist.all_gather", "build it from dist.send")),
        (both_ends_turned_round, ("2 ranks can swap", "receives from `to`, rank 1; receive from `source`, rank 2")),
        (only_to, ("2 ranks can swap", "on 3 ranks it hangs")),
        (raises, ("it raised", "what is `to`?")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_wrong_exchanges(answer, words, monkeypatch):
    monkeypatch.setattr(lab06, "TIMEOUT", 2.0)
    refused("send-receive", answer, *words)


# The tree


def in_a_line(tensor, src):
    linear_broadcast(tensor, src)


def always_from_rank_0(tensor, src):
    in_a_line(tensor, 0)


def everybody_sends_to_the_next(tensor, src):
    rank, size = dist.get_rank(), dist.get_world_size()
    for _ in range(2):
        if rank != src:
            dist.recv(tensor, (rank - 1) % size)
        if (rank + 1) % size != src:
            dist.send(tensor, (rank + 1) % size)


def for_powers_of_two_only(tensor, src):
    rank, size, distance = dist.get_rank(), dist.get_world_size(), 1
    position = (rank - src) % size
    while distance < size:
        if position < distance:
            dist.send(tensor, (position + distance + src) % size)
        elif position < 2 * distance:
            dist.recv(tensor, (position - distance + src) % size)
        distance *= 2


def in_a_line_beyond_4(tensor, src):
    (TREE if dist.get_world_size() == 4 else linear_broadcast)(tensor, src)


@pytest.mark.parametrize(
    "answer, words",
    [
        (in_a_line, ("with src=0 on 4 ranks it takes 3 rounds", "send 3, 0, 0, 0 messages")),
        (always_from_rank_0, ("3 rounds",)),
        (lambda tensor, src: TREE(tensor, 0), ("with src=2 on 5 ranks", "rank 0 holds [0.0]", "counted from the root")),
        (everybody_sends_to_the_next, ("received 0, 2, 2, 2 messages",)),
        (for_powers_of_two_only, ("on 5 ranks it",)),
        (in_a_line_beyond_4, ("on 5 ranks it takes 4 rounds", "⌈log₂ 5⌉ = 3", "Ranks 0…4 send 0, 0, 4, 0, 0 messages")),
        (lambda tensor, src: None, ("rank 1 holds [1.0] where the root sent 0.0",)),
    ],
    ids=["line", "rank 0", "not from the root", "twice", "powers of two", "line on 5", "nothing"],
)  # fmt: skip
def test_wrong_trees(answer, words, monkeypatch):
    monkeypatch.setattr(lab06, "TIMEOUT", 4.0)
    refused("tree-broadcast", answer, *words)


# The ring


def through_rank_0(tensor):
    linear_reduce(tensor, 0)
    linear_broadcast(tensor, 0)


def returned(tensor):
    total = tensor.clone()
    ring_all_reduce(total)
    return total


def one_half(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    bounds = [i * len(tensor) // size for i in range(size + 1)]
    chunks = [tensor[a:b] for a, b in itertools.pairwise(bounds)]
    for step in range(size - 1):
        place = chunks[(rank - step - 1) % size]
        part = torch.empty_like(place)
        SEND_RECEIVE(chunks[(rank - step) % size], (rank + 1) % size, part, (rank - 1) % size)
        place += part


def added_in_the_second_half(tensor):
    ring_all_reduce(tensor)
    tensor += 11


def overwriting(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    chunks = torch.tensor_split(tensor, size)
    for first in (0, 1):
        for step in range(size - 1):
            SEND_RECEIVE(chunks[(rank + first - step) % size], (rank + 1) % size,
                         chunks[(rank + first - step - 1) % size], (rank - 1) % size)  # fmt: skip


def passed_on_too_early(tensor):
    one_half(tensor)
    rank, size = dist.get_rank(), dist.get_world_size()
    chunks = torch.tensor_split(tensor, size)
    for step in range(size - 1):
        SEND_RECEIVE(
            chunks[(rank - step) % size], (rank + 1) % size, chunks[(rank - step - 1) % size], (rank - 1) % size
        )


def into_copies(tensor):
    ring_all_reduce(tensor.clone())


def equal_chunks(tensor):
    ring_all_reduce(tensor[: len(tensor) // 3 * 3])


def to_the_left(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    chunks = torch.tensor_split(tensor, size)
    for half in range(2):
        for step in range(size - 1):
            place = chunks[(rank + step + 1 - half) % size]
            part = torch.empty_like(place)
            SEND_RECEIVE(chunks[(rank + step - half) % size], (rank - 1) % size, part, (rank + 1) % size)
            place.copy_(part if half else place + part)


def straight_to_who_sums_it(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    chunks = torch.tensor_split(tensor, size)
    mine = chunks[rank].clone()
    for step in range(1, size):
        part = torch.empty_like(mine)
        SEND_RECEIVE(chunks[(rank + step) % size], (rank + step) % size, part, (rank - step) % size)
        mine += part
    chunks[rank].copy_(mine)
    for step in range(1, size):
        SEND_RECEIVE(mine, (rank + step) % size, chunks[(rank - step) % size], (rank - step) % size)


def through_the_store(tensor):
    rank, size, name = dist.get_rank(), dist.get_world_size(), f"length {len(tensor)}, rank "
    store = dist.distributed_c10d._get_default_store()
    store.set(name + str(rank), str(tensor.tolist()))
    tensor.copy_(sum(torch.tensor(json.loads(store.get(name + str(peer)))) for peer in range(size)))


def test_a_ring_to_the_left_passes(capsys):
    assert check("lab06.ring", to_the_left) is None
    assert "correct for" in capsys.readouterr().out


@pytest.mark.parametrize(
    "answer, words",
    [
        (
            lambda tensor: whole_tensor_all_reduce(tensor),
            ("values: correct on 3 ranks", "80,056", "53,371", "forward the whole tensor in every round"),
        ),
        (through_rank_0, ("Rank 0 sends for the others",)),
        (returned, ("works in place",)),
        (one_half, ("3 ranks bring 1, 10 and 100", "the sum is 111", "sum over some ranks only")),
        (overwriting, ("No message carried a sum", "add what arrives")),
        (passed_on_too_early, ("sum over some ranks only", "which does it pass on first")),
        (into_copies, ("the tensor is unchanged on every rank", "are your chunks copies")),
        (added_in_the_second_half, ("the first of them 122", "counts some rank twice")),
        (equal_chunks, ("10,007 does not divide by 3",)),
        (lambda tensor: dist.all_reduce(tensor), ("dist.all_reduce", "build it")),
        (straight_to_who_sums_it, ("send to both others", "its right neighbour only")),
        (through_the_store, ("ranks 0…2 sent 0, 0, 0", "Fewer than possible")),
    ],
    ids=[
        "whole",
        "server",
        "returned",
        "half",
        "overwrites",
        "too early",
        "copies",
        "twice",
        "equal chunks",
        "the backend's",
        "straight",
        "beside",
    ],
)
def test_wrong_rings(answer, words):
    refused("ring", answer, *words)


# Fit and cost


def absolute(nbytes, seconds):
    beta, alpha = np.polyfit(nbytes, seconds, 1)
    return alpha, beta


def through_two_points(nbytes, seconds):
    beta = (seconds[-1] - seconds[0]) / (nbytes[-1] - nbytes[0])
    return seconds[0] - beta * nbytes[0], beta


def rough(nbytes, seconds, alpha=1.0, beta=1.0):
    found = REFERENCE["fit_alpha_beta"](nbytes, seconds)
    wobbly = abs(found[0] / 40e-6 - 1) > 1e-6
    return (found[0] * alpha, found[1] * beta) if wobbly else found


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda n, t: None, ("the pair (alpha, beta)", "None")),
        (lambda n, t: REFERENCE["fit_alpha_beta"](n, t)[::-1], ("in this order",)),
        (absolute, ("α = 5 µs", "each off by up to 7 %", "divide each equation")),
        (through_two_points, ("the line through two of them",)),
        (lambda n, t: rough(n, t, alpha=1.06), ("your α is", "divide each equation")),
        (lambda n, t: rough(n, t, beta=1.06), ("your β gives",)),
        (lambda n, t: (1e-3, 1e-9), ("your α is 1000 µs", "right-hand side is t")),
        (lambda n, t: (REFERENCE["fit_alpha_beta"](n, t)[0], 1e-6), ("your β gives 0.001 GB/s",)),
    ],
    ids=[
        "nothing",
        "turned round",
        "absolute errors",
        "two points",
        "rough latency",
        "rough bandwidth",
        "made up",
        "wrong slope",
    ],
)
def test_wrong_fits(answer, words):
    refused("fit", answer, *words)


def predict(name, n, ranks, alpha, beta):
    return REFERENCE["all_reduce_seconds"](name, n, ranks, alpha, beta)


@pytest.mark.parametrize(
    "answer, words",
    [
        ((lambda *a: predict(*a) / 2, REFERENCE["bus_bandwidth"]), ("the ring takes 1.1 ms", "0.55 ms", "2(N−1) messages")),
        ((lambda name, *a: predict("ring", *a), REFERENCE["bus_bandwidth"]), ("the tree takes", "⌈log₂ N⌉ messages up")),
        ((lambda *a: None, REFERENCE["bus_bandwidth"]), ("yours says None",)),
        ((predict, lambda n, t, ranks: n / t), ("2(8−1)/8 GB", "3.5 GB/s", "2000000000.0")),
    ],
    ids=["half", "no tree", "nothing", "n over t"],
)  # fmt: skip
def test_wrong_costs(answer, words):
    refused("cost", answer, *words)
