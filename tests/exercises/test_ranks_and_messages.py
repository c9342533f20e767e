"""Exercises on several ranks: what a rank is given, who delivers, and what the visible check says of a deadlock."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from autograde.checks import described
from autograde.checks.described import observer_source
from course_lib.checks import CheckFailed
from course_lib.distributed import LaunchTimeoutError, launch
from course_lib.exercises import exercises_of
from course_lib.exercises.ranks import launched_ranks, message_broker

sys.path[:0] = [str(Path(__file__).resolve().parent)]
generic = importlib.import_module("test_generic")
SEND_FIRST = """
def swap(outgoing, to, incoming, source):
    dist.send(outgoing, to)
    dist.recv(incoming, source)

def pass_around(tensor, compute):
    return tensor, compute()
"""
TREE_TO = """
def tree_broadcast(tensor, src):
    if dist.get_rank() == src:
        dist.isend(tensor, {peer}).wait()
"""
BY_THE_STORE = """
def reduce_scatter(output, input):
    store, rank = dist.FileStore("PATH"), dist.get_rank()
    store.set(f"halves {rank}", str(input.tolist()))
    parts = [eval(store.get(f"halves {each}")) for each in range(dist.get_world_size())]
    output.copy_(torch.tensor(parts).sum(0).chunk(len(parts))[rank])

def all_gather(output, input):
    store = dist.FileStore("PATH")
    store.set(f"own {dist.get_rank()}", str(input.tolist()))
    output.copy_(torch.cat([torch.tensor(eval(store.get(f"own {each}"))) for each in range(dist.get_world_size())]))
def ring_all_reduce(tensor):
    store, group = dist.FileStore("PATH"), range(dist.get_world_size())
    store.set(f"{len(tensor)} {len(group)} {dist.get_rank()}", str(tensor.tolist()))
    parts = [eval(store.get(f"{len(tensor)} {len(group)} {rank}")) for rank in group]
    tensor.copy_(torch.tensor(parts).sum(0))
"""


@pytest.mark.parametrize("name", ["exchange", "tree-broadcast", "ring", "two-level"])
def test_a_rank_has_nothing_that_is_to_come_by_messages(name):
    exercise = exercises_of("lab06")[name]
    cases = exercise.draw(np.random.default_rng(1))

    class Ask:
        def call(self, function, given, answers):
            for rank, item in enumerate(given[: len(case["tensors"])]):
                tensors = [value for value in item["case"].values() if isinstance(value, torch.Tensor)]
                assert len(tensors) == 1 and tensors[0] is case["tensors"][rank]
                assert not any(isinstance(value, list | dict) for value in item["case"].values())
            return [None] * len(given)

    for case in (case for some in cases.values() for case in some):
        described._watched(Ask(), exercise, case)


def test_the_stand_in_is_beside_the_ring_alone():
    beside = {name: "batch_isend_irecv" in observer_source(f"lab06.{name}") for name in exercises_of("lab06")}
    assert [name for name in beside if beside[name]] == ["ring"]


def test_a_wrong_first_exercise_costs_the_ring_nothing():
    functions = generic.functions_of("lab06", "ring")
    functions[0].__globals__["swap"] = None
    (findings,) = generic.verdicts("lab06", "ring", functions, range(1))
    assert all(finding.passed for finding in findings.values())


def test_where_the_ranks_stood_in_a_deadlock():
    with pytest.raises(CheckFailed, match=r"(?s)rank 1 waits in a send to rank 0\..*line 3, in swap"):
        generic.visible("lab06", "exchange", generic.functions_of("lab06", "exchange", SEND_FIRST))


@pytest.mark.parametrize(
    "peer, said",
    [
        ("dist.get_world_size()", "sends to rank 7, and the ranks are 0 to 6"),
        ("src", "sends to itself; the world size is 7"),
    ],
)
def test_a_message_to_no_other_rank_is_named(peer, said):
    with pytest.raises(CheckFailed, match=rf"rank \d {said}"):
        generic.visible(
            "lab06", "tree-broadcast", generic.functions_of("lab06", "tree-broadcast", TREE_TO.format(peer=peer))
        )


def test_what_passes_beside_the_messages_is_not_counted(tmp_path):
    beside = BY_THE_STORE.replace("PATH", str(tmp_path / "store"))
    with pytest.raises(CheckFailed, match=r"(?s)send \[0, 0, 0, 0, 0\] messages.*fewer bytes than possible"):
        generic.visible("lab06", "ring", generic.functions_of("lab06", "ring", beside))


def test_ranks_that_begin_late_are_no_deadlock():
    broker = message_broker.MessageBroker(2)
    receives = [broker.answer("expect", rank, 1 - rank, 0) for rank in range(2)]

    def asks(rank):
        return {str(broker.answer("collect", rank, receives[rank])) for _ in range(message_broker.PATIENCE + 1)}

    assert asks(1) == asks(1) == {"None"}  # the other may still send
    assert any("deadlock" in each for each in asks(0) | asks(1))
    assert broker.fault == "deadlock: rank 0 waits in a receive from rank 1, rank 1 waits in a receive from rank 0"


def test_a_message_that_comes_late_is_no_deadlock():
    broker = message_broker.MessageBroker(2)
    receive = broker.answer("expect", 1, 0, 0)
    assert all(broker.answer("collect", 1, receive) is None for _ in range(3 * message_broker.PATIENCE))
    broker.answer("post", 0, 1, 0, torch.ones(3))
    assert broker.answer("collect", 1, receive).tolist() == [1, 1, 1] and not broker.fault


@pytest.mark.parametrize("tag", [1 << 31, -(1 << 31) - 1, int.from_bytes(b"data beside the message"), True, 1.0, None])
def test_a_tag_has_32_bits_and_carries_no_data(tag):
    broker = message_broker.MessageBroker(2)
    refused = "a tag is a whole number of 32 bits"
    assert broker.post(0, 1, tag, torch.ones(3)) == broker.expect(1, 0, tag) == refused
    assert broker.messages == []
    assert [broker.post(0, 1, known, torch.ones(3)) for known in ((1 << 31) - 1, 0, -(1 << 31))] == [0, 1, 2]


@pytest.mark.parametrize(("lab", "exercise"), [("lab06", "exchange"), ("lab07", "average")])
def test_ranks_on_a_busy_machine_are_no_deadlock(monkeypatch, lab, exercise):
    def on_a_busy_machine(*args, timeout, own_time=False, **options):
        """By the clock every limit passes before a rank has started; tests/course_lib/test_own_time.py has the other way."""
        if not own_time:
            raise LaunchTimeoutError(timeout, {})
        return launch(*args, timeout=600.0, **options)

    monkeypatch.setattr(launched_ranks, "launch", on_a_busy_machine)
    generic.visible(lab, exercise, generic.functions_of(lab, exercise))
