"""MPI's calls that the grader combines: the same results as from a real communicator, and ranks that wait for ever are stopped."""

import importlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from autograde.checks.described import observer_source
from course_lib.exercises import exercises_of
from course_lib.exercises.ranks import mpi_comm as ranks_half
from course_lib.exercises.ranks.mpi_broker import MPIBroker

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "course_lib")]
generic = importlib.import_module("test_generic")
programs = importlib.import_module("communicator_programs")
LAB = "lab08"


def on_threads(worker, size):
    """What each rank returns, and the broker."""
    broker = MPIBroker(size)

    def rank(number):
        def outside(name, *args):
            return broker.answer(name, number, *args)

        with ranks_half.mpi_comm(number, size, outside) as comm:
            return worker(comm)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(rank, range(size))), broker


def test_it_does_what_a_real_communicator_does():
    """`test_mpi_launch` runs the same programs under mpirun."""
    assert on_threads(programs.both, 3)[0] == [programs.expected(rank) for rank in range(3)]


def test_calls_and_bytes_are_counted():
    def worker(comm):
        comm.Allreduce(np.zeros(5, dtype=np.float32), np.zeros(5, dtype=np.float32))
        comm.Bcast(torch.zeros(3), root=1)
        return comm.allreduce(comm.rank)

    found, broker = on_threads(worker, 2)
    calls = broker.evidence()["calls"]
    assert found == [1, 1] and [name for name, *_ in calls] == ["Allreduce", "Bcast", "allreduce"]
    assert calls[0][3] == [20, 20] and calls[1][3] == [0, 12] and 0 < calls[2][3][0] < 100


@pytest.mark.parametrize("worker, words", [
    (lambda comm: comm.Barrier() if comm.rank else None, "deadlock: rank 1 waits in comm.Barrier, rank 0 has left"),
    (lambda comm: comm.bcast(1) if comm.rank else comm.reduce(1), "one is in comm.bcast, another in comm.reduce"),
    (lambda comm: comm.bcast(1, root=comm.rank), "comm.bcast with different roots"),
    (lambda comm: (comm.send(1, 1 - comm.rank), comm.recv()), "deadlock"),
    (lambda comm: comm.Allreduce(np.zeros(2 + comm.rank), np.zeros(3)), "different lengths or types to comm.Allreduce"),
    (lambda comm: comm.Allreduce(np.zeros((4, 4))[:, 0], np.zeros(4)), "not contiguous"),
    (lambda comm: comm.Bcast(np.zeros(2 + comm.rank)), "message truncated"),
])  # fmt: skip
def test_what_cannot_end_well_is_an_error(worker, words):
    with pytest.raises(Exception, match=words.replace("(", r"\(")):
        on_threads(worker, 2)


@pytest.mark.parametrize("call", [
    ("Alltoall", -1, "", []), ("Bcast", 7, "", []), ("Bcast", True, "", []), (["Bcast"], 0, "", []),
    ("Allreduce", -1, "BAND", []), ("Allreduce", -1, "SUM", [1.0]), ("Allreduce", -1, "SUM", None),
])  # fmt: skip
def test_odd_calls_are_refused(call):
    broker = MPIBroker(2)
    assert isinstance(broker.answer("join", 0, *call), str) and not broker.collectives


def test_other_brokers_questions_are_not_answered():
    with pytest.raises(KeyError):
        MPIBroker(2).answer("group", 0, [0, 1])


def test_a_receive_of_any_tag_takes_no_part_of_another_message():
    broker = MPIBroker(3)
    first = broker.expect(0, -2, -1)
    assert broker.collect(0, first) is None
    broker.post(2, 0, 7, number := torch.ones(1))
    assert broker.collect(0, first) is number


@pytest.mark.parametrize("name", ["start", "averaging", "reduce", "program"])
def test_a_rank_has_nothing_that_is_to_come_from_another(name):
    exercise = exercises_of(LAB)[name]
    for case in (case for some in exercise.draw(np.random.default_rng(1)).values() for case in some):
        size = exercise.world(case) if exercise.world else exercise.ranks
        each = [set(_numbers(exercise.share(case, rank))) for rank in range(size)]
        assert all(each[0] - other for other in each[1:])


def _numbers(value):
    if isinstance(value, torch.Tensor):
        return value.flatten().tolist()
    if isinstance(value, dict | list | tuple):
        return [number for item in (value.values() if isinstance(value, dict) else value) for number in _numbers(item)]
    return [value] if isinstance(value, float) else []


def test_the_stand_ins_are_beside_the_program_alone():
    beside = {name: "stand_in_average_models" in observer_source(f"{LAB}.{name}") for name in exercises_of(LAB)}
    assert [name for name in beside if beside[name]] == ["program"]


def test_wrong_exercises_cost_the_program_nothing():
    (main,) = generic.functions_of(LAB, "program")
    for name in ("partition", "broadcast_state", "train_local", "average_models", "reduce_results", "pack", "unpack"):
        main.__globals__[name] = None
    (findings,) = generic.verdicts(LAB, "program", (main,), range(1))
    assert all(finding.passed for finding in findings.values()), findings


def test_a_wrong_pack_costs_the_average_nothing():
    (average,) = generic.functions_of(LAB, "averaging")
    average.__globals__["pack"] = average.__globals__["unpack"] = None
    (findings,) = generic.verdicts(LAB, "averaging", (average,), range(1))
    assert all(finding.passed for finding in findings.values()), findings


def test_steps_that_an_answer_writes_into_the_batches_count_for_nothing():
    forged = """
def train_local(comm, model, batches, lr, epochs, average, every):
    comm.barriers = [0]
    total = len(epochs) * len(batches)
    for batches.steps in sorted({*range(every, total + 1, every), total} if every else {total}):
        with torch.no_grad():
            [p.mul_(0.99) for p in model.parameters()]
        average(model)
    return 1.0, 1.0
"""
    for findings in generic.verdicts(LAB, "worker", generic.functions_of(LAB, "worker", forged), range(3)):
        assert not any(finding.passed for finding in findings.values()), findings


@pytest.mark.parametrize("seconds", ["(0.0, 0.0)", "(0.01, 0.01)", "(3600.0, 60.0)", "(float('inf'), 0.0)"])
def test_seconds_that_nobody_measured_earn_nothing(seconds):
    source = generic.TABLES[LAB].edited(
        "worker", "return time.process_time() - start - not_mine, averaging", f"return {seconds}"
    )
    for findings in generic.verdicts(LAB, "worker", generic.functions_of(LAB, "worker", source), range(3)):
        assert {part for part, finding in findings.items() if not finding.passed} == {"time"}


def test_the_notebook_s_clock_is_back_afterwards():
    import time

    (train,) = generic.functions_of(LAB, "worker")
    list(generic.verdicts(LAB, "worker", (train,), range(1)))
    assert train.__globals__["time"] is time is sys.modules["time"]
