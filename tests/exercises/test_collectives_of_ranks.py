"""Collectives that the grader combines: what each rank leaves with, what is counted, and how ranks that wait for ever are stopped."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from autograde.checks import described
from autograde.checks.described import observer_source
from course_lib.checks import CheckFailed
from course_lib.exercises import exercises_of
from course_lib.exercises.ranks.collective_broker import NAMES, CollectiveBroker
from course_lib.exercises.ranks.message_broker import PATIENCE

sys.path[:0] = [str(Path(__file__).resolve().parent)]
generic = importlib.import_module("test_generic")
LAB = "lab02"


def joined(broker, kind, tensors, root=-1, operation=""):
    """Every rank joins; what each leaves with."""
    numbers = [broker.answer("join", rank, kind, root, operation, mine) for rank, mine in enumerate(tensors)]
    return [broker.answer("result", rank, number) for rank, number in enumerate(numbers)]


@pytest.mark.parametrize("kind, root, operation, ends", [
    ("allreduce", -1, "SUM", [[6.0], [6.0], [6.0]]),
    ("allreduce", -1, "AVG", [[2.0], [2.0], [2.0]]),
    ("allreduce", -1, "MAX", [[3.0], [3.0], [3.0]]),
    ("allreduce", -1, "MIN", [[1.0], [1.0], [1.0]]),
    ("allreduce", -1, "PRODUCT", [[6.0], [6.0], [6.0]]),
    ("broadcast", 1, "", [[2.0], [2.0], [2.0]]),
    ("allgather", -1, "", [[1.0, 2.0, 3.0]] * 3),
    ("gather", 2, "", [[], [], [1.0, 2.0, 3.0]]),
    ("reduce", 0, "SUM", [[6.0], [], []]),
    ("barrier", -1, "", [[], [], []]),
])  # fmt: skip
def test_what_ranks_leave_with(kind, root, operation, ends):
    brought = [
        [] if kind == "barrier" or (kind == "broadcast" and rank != root) else [torch.tensor([rank + 1.0])]
        for rank in range(3)
    ]
    found = joined(CollectiveBroker(3), kind, brought, root, operation)
    assert [[tensor.item() for tensor in each] for each in found] == ends


def test_bytes_are_counted():
    broker = CollectiveBroker(2)
    joined(broker, "allreduce", [[torch.zeros(5)]] * 2, operation="SUM")
    joined(broker, "allgather", [[torch.zeros(3, dtype=torch.float64)]] * 2)
    broker.post(0, 1, 0, torch.zeros(2))
    assert broker.evidence() == {
        "reduced": [20, 20], "carried": [44, 44], "ended": 2, "kinds": ["allreduce", "allgather"], "messages": 1, "passed": 96,
    }  # fmt: skip


def test_each_rank_leaves_a_reduce_scatter_with_its_part():
    found = joined(
        CollectiveBroker(2), "reducescatter", [[torch.tensor([1.0]), torch.tensor([2.0])]] * 2, operation="SUM"
    )
    assert [[tensor.item() for tensor in each] for each in found] == [[2.0], [4.0]]


def test_groups_have_collectives_of_their_own():
    broker = CollectiveBroker(4)
    for rank in range(4):
        for members in ([0, 1], [2, 3]):
            assert broker.answer("group", rank, members) is None
    ends = {}
    for rank in (2, 0, 3, 1):  # interleaved
        members = [0, 1] if rank < 2 else [2, 3]
        mine = [torch.tensor([float(rank)])] if rank == members[1] else []
        ends[rank] = broker.answer("join_group", rank, members, "broadcast", 1, "", mine)
    assert [broker.answer("result", rank, ends[rank])[0].item() for rank in range(4)] == [1.0, 1.0, 3.0, 3.0]
    assert broker.groups == [[(0, 1), (2, 3)]] * 4 and [each.members for each in broker.collectives] == [(2, 3), (0, 1)]
    assert [
        broker.collectives[1].nbytes(1),
        broker.collectives[1].left_with(0),
        broker.collectives[1].left_with(2),
    ] == [4, 4, 0]


def test_different_groups_are_named():
    broker = CollectiveBroker(4)
    assert broker.answer("group", 0, [0, 1]) is None
    fault = broker.answer("group", 2, [2, 3])
    assert "one calls dist.new_group([0, 1]) where another calls dist.new_group([2, 3])" in fault
    assert fault == broker.fault


@pytest.mark.parametrize("members", [[0, 0], [], [4], [True], None, "01", [[0]]])
def test_odd_groups_are_refused(members):
    broker = CollectiveBroker(4)
    assert (
        broker.new_group(0, members) == "there is no such group" == broker.join_group(0, members, "barrier", -1, "", [])
    )
    assert broker.join_group(0, [0, 1], "barrier", -1, "", []) == "there is no such group"  # nobody made it


def test_ranks_that_make_different_calls_are_stopped_at_once():
    broker = CollectiveBroker(2)
    number = broker.answer("join", 0, "barrier", -1, "", [])
    fault = broker.answer("join", 1, "broadcast", 0, "", [])
    assert "one is in dist.barrier, another in dist.broadcast (root 0)" in fault
    assert broker.answer("result", 0, number) == fault == broker.fault


def test_ranks_that_wait_for_ever_are_stopped():
    broker = CollectiveBroker(3)
    number = broker.answer("join", 0, "barrier", -1, "", [])
    for _ in range(3 * PATIENCE):
        assert broker.answer("result", 0, number) is None  # the others may still come
    broker.answer("left", 1)
    broker.answer("left", 2)
    answers = [broker.answer("result", 0, number) for _ in range(PATIENCE + 1)]
    assert answers[-1] == "deadlock: rank 0 waits in dist.barrier, rank 1, 2 have left the function"


def test_different_shapes_are_named():
    broker = CollectiveBroker(2)
    joined(broker, "allreduce", [[torch.zeros(2)], [torch.zeros(3)]], operation="SUM")
    assert "different shapes or types to dist.all_reduce" in broker.fault


@pytest.mark.parametrize("kind, root, operation, tensors", [
    ("all_to_all", -1, "", []), ("broadcast", 7, "", []), ("broadcast", True, "", []), ("allreduce", -1, "BAND", []),
    (["barrier"], -1, "", []), ("allreduce", -1, "SUM", [1.0]), ("allreduce", -1, "SUM", None),
])  # fmt: skip
def test_odd_calls_are_refused(kind, root, operation, tensors):
    broker = CollectiveBroker(2)
    assert isinstance(broker.join(0, kind, root, operation, tensors), str) and not broker.collectives


@pytest.mark.parametrize("number", [-1, 1, True, None, "0"])
def test_there_is_no_result_of_another_number(number):
    broker = CollectiveBroker(2)
    broker.join(0, "barrier", -1, "", [])
    assert broker.result(0, number) == "there is no such collective"


def test_every_collective_has_pytorch_s_name():
    assert all(callable(getattr(torch.distributed, name)) for name in NAMES.values())


@pytest.mark.parametrize("name", ["wrap", "accumulate", "buffers", "reductions"])
def test_a_rank_has_nothing_that_is_to_come_from_another(name):
    """What the grader sends one rank does not have the numbers of the others."""
    exercise = exercises_of(LAB)[name]
    cases = exercise.draw(np.random.default_rng(1))

    class Ask:
        def call(self, function, given, answers):
            self.given = given
            return [None] * len(given)

    for case in (case for some in cases.values() for case in some):
        described._watched(ask := Ask(), exercise, case)
        each = [numbers(item["case"]) for item in ask.given if item is not None]
        if len(each) > 1:
            assert all(set(each[0]) - set(other) for other in each[1:])


def numbers(value):
    """Floats, large integers, and tensors' entries, in plain data."""
    if isinstance(value, torch.Tensor):
        return value.flatten().tolist()
    if isinstance(value, dict | list | tuple):
        return [number for item in (value.values() if isinstance(value, dict) else value) for number in numbers(item)]
    return [value] if isinstance(value, float) or (isinstance(value, int) and value > 1000) else []


def test_a_program_s_numbers_stay_outside():
    exercise = exercises_of(LAB)["program"]
    for case in (case for some in exercise.draw(np.random.default_rng(2)).values() for case in some):
        sent = numbers(exercise.share(case, 0))
        secret = numbers(case["epochs"])
        assert secret and not set(secret) & set(sent)


def test_the_stand_ins_are_beside_the_program_alone():
    beside = {name: "stand_in_reduce_metrics" in observer_source(f"{LAB}.{name}") for name in exercises_of(LAB)}
    assert [name for name in beside if beside[name]] == ["program"]


def test_a_wrong_exercise_costs_the_program_nothing():
    (main,) = generic.functions_of(LAB, "program")
    for name in ("train_epoch", "wrap", "make_loaders", "reduce_metrics", "stop_together", "set_up", "prepare_once"):
        main.__globals__[name] = None
    (findings,) = generic.verdicts(LAB, "program", (main,), range(1))
    assert all(finding.passed for finding in findings.values()), findings


def test_a_wrapped_model_on_one_rank_hangs_with_a_clear_message():
    source = """
def accumulated_step(model, micro_batches, optimizer, loss_fn):
    if dist.get_rank() == 0:
        loss_fn(model(micro_batches[0][0]), micro_batches[0][1]).backward()
    dist.barrier()
"""
    with pytest.raises(
        CheckFailed, match=r"(?s)make different calls: one is in dist.all_reduce \(SUM\), another in dist.barrier"
    ):
        generic.visible(LAB, "accumulate", generic.functions_of(LAB, "accumulate", source))


def test_a_rank_that_raises_is_reported_rather_than_the_one_that_waits():
    source = (
        "def stop_together(wish, device):\n    assert dist.get_rank() != 1, 'an error of rank 1'\n    dist.barrier()\n"
    )
    (findings,) = generic.verdicts(LAB, "stop", generic.functions_of(LAB, "stop", source), range(1))
    assert all("an error of rank 1" in finding.reason for finding in findings.values())
    with pytest.raises(CheckFailed, match=r"\Aon \d ranks your function failed: AssertionError: an error of rank 1\.\n"):
        generic.visible(LAB, "stop", generic.functions_of(LAB, "stop", source))


def test_a_group_that_is_up_in_the_notebook_is_named():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(CheckFailed, match="a process group is up in this notebook"):
            generic.visible(LAB, "set-up", generic.functions_of(LAB, "set-up"))
    finally:
        torch.distributed.destroy_process_group()
