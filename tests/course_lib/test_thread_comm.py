"""MPI among threads: what each method returns, and the errors that MPI would not give."""

import time

import numpy as np
import pytest
import torch

from course_lib.distributed.thread_comm import CommunicationError, run_threads


def collectives(comm):
    mine = comm.rank + 1
    total, largest = np.zeros(2), np.zeros(1)
    comm.Allreduce(np.array([mine, 10.0 * mine]), total)
    comm.Reduce([np.array([float(mine)]), "MPI.DOUBLE"], largest, op=np.maximum, root=2)
    place = torch.tensor([float(mine)])
    comm.Allreduce("IN_PLACE", place)  # mpi4py's constant: anything that is no buffer
    table = np.zeros((3, 1))
    comm.Allgather(np.array([float(mine)]), table)
    first = np.zeros((3, 1)) if comm.rank == 0 else None
    comm.Gather(np.array([float(mine)]), first)
    told = np.array([float(comm.rank)])
    comm.Bcast(told, root=1)
    return {
        "bcast": comm.bcast({"w": mine} if comm.rank == 1 else None, root=1),
        "gather": comm.gather(mine, root=2),
        "allgather": comm.allgather(mine),
        "scatter": comm.scatter([1, 4, 9] if comm.rank == 0 else None),
        "reduce": comm.reduce(mine),
        "allreduce": comm.allreduce(mine),
        "max": comm.allreduce(mine, op=max),
        "Allreduce": total.tolist(),
        "Reduce": largest.item(),
        "in place": place.item(),
        "Allgather": table.tolist(),
        "Gather": None if first is None else first.tolist(),
        "Bcast": told.item(),
        "who": (comm.Get_rank(), comm.Get_size(), comm.size),
    }


def test_every_collective_on_three_ranks():
    for rank, found in enumerate(run_threads(collectives, 3)):
        assert found == {
            "bcast": {"w": 2},
            "gather": [1, 2, 3] if rank == 2 else None,
            "allgather": [1, 2, 3],
            "scatter": (rank + 1) ** 2,
            "reduce": 6 if rank == 0 else None,
            "allreduce": 6,
            "max": 3,
            "Allreduce": [6.0, 60.0],
            "Reduce": 3.0 if rank == 2 else 0.0,
            "in place": 6.0,
            "Allgather": [[1.0], [2.0], [3.0]],
            "Gather": [[1.0], [2.0], [3.0]] if rank == 0 else None,
            "Bcast": 1.0,
            "who": (rank, 3, 3),
        }


def test_messages_by_source_and_tag():
    def worker(comm):
        if comm.rank == 1:
            comm.send("late", 0, tag=5)
            comm.isend(["early"], 0, tag=4).wait()
            comm.Send(np.arange(3.0), 0)
            return comm.sendrecv("ping", 0, source=0)
        early, late = comm.recv(source=1, tag=4), comm.irecv(source=1, tag=5).wait()
        numbers = torch.zeros(3)
        comm.Recv(numbers, source=1, tag=0)
        return early, late, numbers.tolist(), comm.sendrecv("pong", 1), comm.calls[0]

    assert run_threads(worker, 2) == [(["early"], "late", [0.0, 1.0, 2.0], "ping", "recv"), "pong"]


def test_what_is_sent_is_a_copy():
    def worker(comm):
        mine = torch.ones(2)
        everybody = comm.allgather(mine)
        everybody[comm.rank] += 5
        return mine.tolist()

    assert run_threads(worker, 2) == [[1, 1], [1, 1]]


def test_different_calls_are_an_error():
    def worker(comm):
        return comm.bcast(1) if comm.rank == 0 else comm.gather(1)

    with pytest.raises(CommunicationError, match=r"rank \d calls (bcast|gather) where rank \d calls (gather|bcast)"):
        run_threads(worker, 2)


@pytest.mark.parametrize(
    "worker, words",
    [
        (lambda comm: comm.recv(source=1) if comm.rank == 0 else None, "rank 0 stands in recv from rank 1 and waits for ever; rank 1 has"),
        (lambda comm: comm.barrier() if comm.rank == 1 else None, "rank 1 stands in barrier and waits for ever; rank 0 has returned"),
        (lambda comm: comm.recv(source=1 - comm.rank), "stands in recv"),
        (lambda comm: comm.send(1, 2), "sends to rank 2; there are ranks 0 to 1"),
    ],
    ids=["recv", "barrier", "both receive", "no such rank"],
)  # fmt: skip
def test_waiting_for_ever_is_an_error(worker, words):
    start = time.monotonic()
    with pytest.raises(CommunicationError, match=words):
        run_threads(worker, 2, timeout=1.0)
    assert time.monotonic() - start < 5


def test_a_rank_s_own_error_comes_before_what_it_does_to_the_others():
    def worker(comm):
        if comm.rank == 2:
            raise ZeroDivisionError("mine")
        comm.barrier()

    with pytest.raises(ZeroDivisionError, match="mine"):
        run_threads(worker, 3)
