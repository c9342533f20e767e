"""Lab 06's hidden checks against right answers in several styles and the mistakes that students make."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from graded_lab import GradedLab, loses

from autograde.checks import lab06_cost, post_office
from autograde.checks.registry import driver_source

LAB = "06_communication"
EXERCISES = ["send-receive", "tree-broadcast", "ring", "fit", "cost"]


@pytest.fixture(scope="module")
def lab(warm):
    return GradedLab(warm, LAB)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Deadlocks are noticed sooner than on a machine where others compute."""
    monkeypatch.setattr(post_office, "STUCK", 1.5)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_source_solution_gets_every_point(lab, exercise):
    for seed in (1, 2):
        judged = lab.judge(exercise, seed=seed)
        assert judged.points == judged.max_points, judged.reasons
        assert not judged.flags


def test_points_are_the_notebooks(lab):
    cells = {cell.id: cell.metadata.nbgrader for cell in lab.source.cells if "nbgrader" in cell.metadata}
    in_notebook = {cell: meta.points for cell, meta in cells.items() if meta.grade and not meta.solution}
    del in_notebook["run-evidence"]
    assert {exercise.cell: exercise.max_points for exercise in lab.rubric.exercises} == in_notebook


@pytest.mark.parametrize("exercise", ["ring", "cost"])
def test_a_blank_gets_nothing(lab, exercise):
    judged = lab.judge(exercise, lab.starter[f"ex-{exercise}"])
    assert judged.points == 0 and all("not answered" in reason for reason in judged.reasons.values())


def test_the_driver_knows_no_answer():
    source = driver_source("lab06.ring")
    assert "sum(" not in source and "log2" not in source


@pytest.mark.parametrize("exercise", ["send_receive", "tree_broadcast", "fit"])
def test_a_stand_in_is_beside_the_exercise_that_needs_it_alone(exercise):
    name = f"lab06.{exercise.replace('_', '-')}"
    assert "batch_isend_irecv" in driver_source("lab06.ring", "ring_all_reduce")
    assert "batch_isend_irecv" in driver_source(name) and "batch_isend_irecv" not in driver_source(name, exercise)


RIGHT = {
    "isend, irecv": ("send-receive", """
from torch.distributed import isend, irecv

def send_receive(outgoing, to, incoming, source):
    going, coming = isend(outgoing, to), irecv(incoming, source)
    coming.wait()
    going.wait()
"""),
    "even ranks first": ("send-receive", """
def send_receive(outgoing, to, incoming, source):
    if dist.get_rank() % 2 == 0 and to != source or dist.get_rank() < to == source:
        dist.send(outgoing, to)
        dist.recv(incoming, source)
    else:
        arrived = torch.empty_like(incoming)
        dist.recv(arrived, source)
        dist.send(outgoing, to)
        incoming.copy_(arrived)
"""),
    "recursion, non-blocking": ("tree-broadcast", """
def tree_broadcast(tensor, src):
    rank, size = dist.get_rank(), dist.get_world_size()
    me = (rank - src) % size
    if me:
        dist.recv(tensor, (me - (1 << (me.bit_length() - 1)) + src) % size)
    k = me.bit_length()
    works = []
    while me + (1 << k) < size:
        works.append(dist.isend(tensor, (me + (1 << k) + src) % size))
        k += 1
    for work in works:
        work.wait()
"""),
    "to the left, by chunk()": ("ring", """
def ring_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank - 1) % size, (rank + 1) % size
    chunks = list(torch.tensor_split(tensor, size))
    for half in range(2):
        for step in range(size - 1):
            out = chunks[(rank + step - half) % size]
            place = chunks[(rank + step - half + 1) % size]
            incoming = torch.zeros_like(place)
            requests = [dist.irecv(incoming, left)] if len(place) else []
            if len(out):
                requests.append(dist.isend(out, right))
            for request in requests:
                request.wait()
            place.copy_(incoming if half else place + incoming)
    return tensor
"""),
    "buffers of float32": ("ring", """
def ring_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    bounds = [i * len(tensor) // size for i in range(size + 1)]
    chunks = [tensor[a:b] for a, b in zip(bounds, bounds[1:])]
    for half in range(2):
        for step in range(size - 1):
            place = chunks[(rank - step - 1 + half) % size]
            part = torch.zeros(len(place))
            send_receive(chunks[(rank - step + half) % size], (rank + 1) % size, part, (rank - 1) % size)
            place.copy_(part if half else place + part)
"""),
    "polyfit, weighted": ("fit", """
def fit_alpha_beta(nbytes, seconds):
    beta, alpha = np.polyfit(nbytes, seconds, 1, w=1 / np.array(seconds))
    return alpha, beta
"""),
    "normal equations": ("fit", """
def fit_alpha_beta(nbytes, seconds):
    n, t = torch.tensor(nbytes, dtype=torch.float64), torch.tensor(seconds, dtype=torch.float64)
    A = torch.stack([1 / t, n / t], 1)
    scale = A.norm(dim=0)
    x = torch.linalg.solve((A / scale).T @ (A / scale), (A / scale).T @ torch.ones(len(t), dtype=torch.float64)) / scale
    return [x[0], x[1].item()]
"""),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_in_other_styles(lab, name):
    exercise, answer = RIGHT[name]
    judged = lab.judge(exercise, answer)
    assert judged.points == judged.max_points, judged.reasons


WRONG = {
    "both send first": ("send-receive", """
def send_receive(outgoing, to, incoming, source):
    dist.send(outgoing, to)
    dist.recv(incoming, source)
""", "deadlock", "deadlock"),
    "not waited for": ("send-receive", """
def send_receive(outgoing, to, incoming, source):
    dist.isend(outgoing, to)
    dist.irecv(incoming, source)
""", "values kept deadlock", "does not hold the source's tensor"),
    "nothing is done": ("send-receive", """
def send_receive(outgoing, to, incoming, source):
    return
""", "values kept deadlock", "does not hold the source's tensor"),
    "rank 0 stays away": ("send-receive", """
def send_receive(outgoing, to, incoming, source):
    if dist.get_rank():
        going = dist.isend(outgoing, to)
        dist.recv(incoming, source)
        going.wait()
""", "values kept deadlock", "no message moves any more"),
    "received over what is sent": ("send-receive", """
def send_receive(outgoing, to, incoming, source):
    going = dist.isend(outgoing.clone(), to)
    dist.recv(incoming, source)
    outgoing.copy_(incoming)
    going.wait()
""", "kept", "overwritten"),
    "a line": ("tree-broadcast", """
def tree_broadcast(tensor, src):
    if dist.get_rank() != src:
        dist.recv(tensor, src)
        return
    for peer in range(dist.get_world_size()):
        if peer != src:
            dist.send(tensor, peer)
""", "rounds", "more than ⌈log₂ N⌉ rounds"),
    "a chain": ("tree-broadcast", """
def tree_broadcast(tensor, src):
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank != src:
        dist.recv(tensor, (rank - 1) % size)
    if (rank + 1) % size != src:
        dist.send(tensor, (rank + 1) % size)
""", "rounds", "more than"),
    "to everybody who has it too": ("tree-broadcast", """
def tree_broadcast(tensor, src):
    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = dist.batch_isend_irecv
    here, ring = (rank - src) % size, torch.empty_like(tensor)
    distance = 1
    while distance < size:
        works = [dist.isend(tensor.clone(), (here + distance + src) % size)] if here < distance else []
        if (here - distance) % size < distance:
            dist.recv(ring, (here - distance + src) % size)
            if here >= distance:
                tensor.copy_(ring)
        for work in works:
            work.wait()
        distance *= 2
""", "messages", "more than once"),
    "from rank 0": ("tree-broadcast", """
def tree_broadcast(tensor, src):
    rank, size, distance = dist.get_rank(), dist.get_world_size(), 1
    while distance < size:
        if rank < distance and rank + distance < size:
            dist.send(tensor, rank + distance)
        elif distance <= rank < 2 * distance:
            dist.recv(tensor, rank - distance)
        distance *= 2
""", "values messages rounds", "root's tensor"),
    "whole tensors": ("ring", """
def ring_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    passing, arriving = tensor.clone(), torch.empty_like(tensor)
    for _ in range(size - 1):
        send_receive(passing, (rank + 1) % size, arriving, (rank - 1) % size)
        tensor += arriving
        passing, arriving = arriving, passing
""", "bytes", "forward the whole tensor in every round"),
    "through rank 0": ("ring", """
def ring_all_reduce(tensor):
    rank, size, part = dist.get_rank(), dist.get_world_size(), torch.empty_like(tensor)
    if rank:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
        return
    for peer in range(1, size):
        dist.recv(part, peer)
        tensor += part
    for peer in range(1, size):
        dist.send(tensor, peer)
""", "bytes neighbours", "one rank sends the whole tensor to all the others"),
    "everybody to everybody": ("ring", """
def ring_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = tensor.clone()
    for step in range(1, size):
        part = torch.empty_like(mine)
        send_receive(mine, (rank + step) % size, part, (rank - step) % size)
        tensor += part
""", "bytes neighbours", "one neighbour"),
    "no all-gather": ("ring", """
def ring_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    bounds = [i * len(tensor) // size for i in range(size + 1)]
    chunks = [tensor[a:b] for a, b in zip(bounds, bounds[1:])]
    for step in range(size - 1):
        place = chunks[(rank - step - 1) % size]
        part = torch.empty_like(place)
        send_receive(chunks[(rank - step) % size], (rank + 1) % size, part, (rank - 1) % size)
        place += part
""", "values lengths bytes neighbours", "do not hold the sum"),
    "the mean": ("ring", None, "values lengths bytes neighbours", "the mean"),
    "returned": ("ring", """
def ring_all_reduce(tensor):
    return in_place(tensor.clone())
""", "values lengths bytes neighbours", "stays as it was"),
    "equal chunks only": ("ring", """
def ring_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    n = len(tensor) // size
    chunks = [tensor[i * n:(i + 1) * n] for i in range(size)]
    for half in range(2):
        for step in range(size - 1):
            place = chunks[(rank - step - 1 + half) % size]
            part = torch.empty_like(place)
            send_receive(chunks[(rank - step + half) % size], (rank + 1) % size, part, (rank - 1) % size)
            place.copy_(part if half else place + part)
""", "lengths", "does not divide"),
    "the backend's": ("ring", """
def ring_all_reduce(tensor):
    dist.all_reduce(tensor)
""", "values lengths bytes neighbours", "build it from send, recv"),
    "absolute errors": ("fit", """
def fit_alpha_beta(nbytes, seconds):
    beta, alpha = np.polyfit(nbytes, seconds, 1)
    return float(alpha), float(beta)
""", "latency", "latency is lost"),
    "two points": ("fit", """
def fit_alpha_beta(nbytes, seconds):
    beta = (seconds[-1] - seconds[0]) / (nbytes[-1] - nbytes[0])
    return seconds[0] - beta * nbytes[0], beta
""", "latency bandwidth", "let all of them count"),
    "no slope": ("fit", ("float(beta)", "0.0"), "line latency bandwidth", "does not find that line"),
    "beta first": ("fit", None, "line latency bandwidth", "(beta, alpha)"),
    "half the rounds": ("cost", ("2 * (ranks - 1) * (alpha", "(ranks - 1) * (alpha"), "ring", "it has N − 1 rounds"),
    "whole tensors predicted": ("cost", ("nbytes / ranks)", "nbytes)"), "ring", "one chunk of N"),
    "one latency": ("cost", ("2 * (ranks - 1) * (alpha + beta * nbytes / ranks)", "alpha + 2 * (ranks - 1) * beta * nbytes / ranks"),
                    "ring", "counts the latency once"),
    "up only": ("cost", ("2 * math.ceil", "math.ceil"), "tree", "up the tree and down"),
    "not rounded": ("cost", ("math.ceil(math.log2(ranks))", "math.log2(ranks)"), "tree", "not rounded up"),
    "n over t": ("cost", ("2 * (ranks - 1) / ranks * nbytes / seconds", "nbytes / seconds"), "bus", "n/t"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_each_mistake_loses_its_part_and_no_other(lab, name):
    exercise, answer, lost, reason = WRONG[name]
    if isinstance(answer, tuple):
        answer = lab.edited(exercise, *answer)
    elif name == "the mean":
        answer = lab.solution("ring") + "\n    tensor.copy_(tensor / size)\n"
    elif name == "returned":
        answer = (
            lab.solution("ring").replace("def ring_all_reduce", "def in_place") + "\n    return tensor\n\n\n" + answer
        )
    elif name == "beta first":
        answer = lab.edited("fit", "return float(alpha), float(beta)", "return float(beta), float(alpha)")
    loses(lab, exercise, answer, lost, reason)


def test_a_wrong_first_exercise_costs_the_ring_nothing(lab):
    blank = lab.starter["ex-send-receive"]
    assert lab.judge("send-receive", blank).points == 0
    judged = lab.judge("ring", send_receive=blank)
    assert judged.points == judged.max_points, judged.reasons


def test_ranks_that_begin_late_are_no_deadlock(monkeypatch):
    monkeypatch.setattr(post_office, "STUCK", -1.0)
    office = post_office.PostOffice(2)
    answers = office.answers
    answers["here"](1)
    number = answers["expect"](1, 0, 0)
    assert answers["collect"](1, number) is None
    answers["here"](0)
    assert answers["collect"](1, number) == "stuck"
    monkeypatch.setattr(post_office, "STUCK", 60.0)
    assert answers["collect"](1, number) is None
    answers["post"](0, 1, 0, torch.ones(3))
    assert answers["collect"](1, number).tolist() == [1, 1, 1]


def test_the_clock_of_a_deadlock_starts_with_the_last_rank(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(post_office.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(post_office, "STUCK", 10.0)
    answers = post_office.PostOffice(2).answers
    number = answers["expect"](1, 0, 0)
    answers["here"](1)
    now[0] = 100.0
    assert answers["collect"](1, number) is None
    answers["here"](0)
    assert answers["collect"](1, number) is None
    now[0] = 111.0
    assert answers["collect"](1, number) == "stuck"


def test_two_points_are_told_so_in_both_parts(lab):
    reasons = lab.judge("fit", WRONG["two points"][1]).reasons
    assert reasons["latency"] == reasons["bandwidth"] and "through two of them" in reasons["latency"]


def test_costs_are_asked_of_every_number_of_ranks():
    asked = {}
    ask = SimpleNamespace(
        random=np.random.default_rng(1), call=lambda name, given: asked.setdefault(name, given) and []
    )
    assert not any(finding.passed for finding in lab06_cost.cost(ask).values())
    assert sorted(ranks for _, _, ranks, _, _ in asked["predict"]) == [2, 3, 5, 8, 12, 64, 100, 2048]
