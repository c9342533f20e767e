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
            late = comm.isend("late", 0, tag=5)
            comm.send(["early"], 0, tag=4)
            late.wait()
            comm.Send(np.arange(3.0), 0)
            return comm.sendrecv("ping", 0, source=0)
        later = comm.irecv(source=1, tag=5)  # nobody waits for it while the other sends
        early, late = comm.recv(source=1, tag=4), later.wait()
        numbers = torch.zeros(3)
        comm.Recv(numbers, source=1, tag=0)
        return early, late, numbers.tolist(), comm.sendrecv("pong", 1), comm.calls[0]

    assert run_threads(worker, 2) == [(["early"], "late", [0.0, 1.0, 2.0], "ping", "irecv"), "pong"]


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
        (lambda comm: (comm.send(1, 1 - comm.rank), comm.recv()), r"rank \d stands in send to rank \d and waits for ever$"),
        (lambda comm: comm.send(1, 1) if comm.rank == 0 else None, "rank 0 stands in send to rank 1 and waits for ever; rank 1 has returned"),
        (lambda comm: comm.isend(1, 1 - comm.rank).wait(), "stands in isend to rank"),
        (lambda comm: comm.sendrecv(1, 1 - comm.rank, source=1 - comm.rank, recvtag=7), "stands in sendrecv from rank"),
        (lambda comm: comm.send(1, 2), "sends to rank 2; there are ranks 0 to 1"),
    ],
    ids=["recv", "barrier", "both receive", "both send", "send", "isend", "sendrecv", "no such rank"],
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


def test_right_programs_that_wait_for_each_other_end():
    """Both exchange: by a receive that is posted first, by sendrecv, by turns, in a ring."""

    def worker(comm):
        other = 1 - comm.rank
        posted = comm.irecv(source=other)
        comm.send(comm.rank, other)
        found = [posted.wait(), comm.sendrecv(10 + comm.rank, other, source=other)]
        if comm.rank == 0:
            comm.send(20, other)
            return [*found, comm.recv()]
        found.append(comm.recv())
        comm.send(21, other)
        return found

    assert run_threads(worker, 2) == [[1, 11, 21], [0, 10, 20]]


def test_messages_are_taken_in_the_order_in_which_they_were_sent():
    def worker(comm):
        if comm.rank == 0:
            sent = [comm.isend(number, 1) for number in range(3)]
            return [request.wait() for request in sent]
        posted = [comm.irecv(source=0) for _ in range(3)]
        return [request.wait() for request in reversed(posted)]

    assert run_threads(worker, 2) == [[None] * 3, [2, 1, 0]]


def test_a_message_is_of_the_moment_at_which_it_was_sent():
    def worker(comm):
        if comm.rank == 1:
            return comm.recv(source=0)
        mine = torch.zeros(2)
        sent = comm.isend(mine, 1)
        mine += 1
        return sent.wait()

    assert run_threads(worker, 2)[1].tolist() == [0, 0]


@pytest.mark.parametrize("others", [lambda comm: comm.barrier(), lambda comm: None], ids=["waits", "has returned"])
def test_a_rank_without_an_end_is_told_in_one_deadline_for_all(others):
    stop = []

    def worker(comm):
        if comm.rank:
            return others(comm)
        while not stop:
            time.sleep(0.01)

    start = time.monotonic()
    try:
        with pytest.raises(CommunicationError, match=r"^rank 0 does not end: is there a loop without an end"):
            run_threads(worker, 3, timeout=0.3)
        assert time.monotonic() - start < 3
    finally:
        stop.append(True)


def test_a_barrier_carries_no_data():
    def worker(comm):
        before = comm.carried_data
        comm.Barrier()
        comm.barrier()
        then = comm.carried_data
        comm.allgather(None)
        return before, then, comm.carried_data

    assert run_threads(worker, 2) == [(False, False, True)] * 2


def test_a_function_s_globals_can_be_each_rank_s_own():
    from course_lib.distributed.separate_globals import as_another_process

    cell = {"__name__": "__main__"}
    exec(
        "box = {}\ndef helper(r): box[r] = r\ndef fill(comm):\n    helper(comm.rank)\n    comm.barrier()\n    return sorted(box)",
        cell,
    )
    assert run_threads(cell["fill"], 2) == [[0, 1]] * 2
    cell["box"].clear()
    own = run_threads(lambda comm: as_another_process(cell["fill"])(comm), 2)
    assert own == [[0], [1]] and cell["box"] == {}
    cell["box"][9] = time.monotonic  # what a process finds when it starts
    assert run_threads(lambda comm: as_another_process(cell["fill"])(comm), 2) == [[0, 9], [1, 9]]
    cell["box"][9] = (n for n in range(2))  # cannot be sent
    assert as_another_process(cell["fill"]) is cell["fill"]
