"""mpi4py's methods on processes: the same programs under the real mpirun give the same, and a wait for ever is an error."""

import numpy as np
import pytest
import torch

from course_lib.distributed import MPINotFoundError, RankFailedError, mpi_launch
from course_lib.distributed.launching.communicator import Communicator
from course_lib.distributed.launching.process_comm import run_ranks
from course_lib.system.mpi_command import find_mpi


def in_place(comm):
    if isinstance(comm, Communicator):
        return "IN_PLACE"  # anything that is no buffer
    from mpi4py import MPI

    return MPI.IN_PLACE


def collectives(comm):
    mine = comm.Get_rank() + 1
    total, sums = np.zeros(2), np.zeros(1)
    comm.Allreduce(np.array([mine, 10.0 * mine]), total)
    comm.Reduce(np.array([float(mine)]), sums, root=2)
    place = torch.tensor([float(mine)])
    comm.Allreduce(in_place(comm), place.numpy())
    table = np.zeros((3, 1))
    comm.Allgather(np.array([float(mine)]), table)
    first = np.zeros((3, 1)) if comm.rank == 0 else None
    comm.Gather(np.array([float(mine)]), first)
    told = np.array([float(comm.rank)])
    comm.Bcast(told, root=1)
    comm.Barrier()
    return {
        "bcast": comm.bcast({"w": mine} if comm.rank == 1 else None, root=1),
        "gather": comm.gather(mine, root=2),
        "allgather": comm.allgather(mine),
        "scatter": comm.scatter([1, 4, 9] if comm.rank == 0 else None),
        "reduce": comm.reduce(mine),
        "allreduce": comm.allreduce(mine),
        "max": comm.allreduce(mine, op=max),
        "Allreduce": total.tolist(),
        "Reduce": sums.item(),
        "in place": place.item(),
        "Allgather": table.tolist(),
        "Gather": None if first is None else first.tolist(),
        "Bcast": told.item(),
        "rank": (comm.Get_rank(), comm.Get_size(), comm.size),
    }


def messages(comm):
    """Exchanges of two ranks: by tag, from any source, by turns, in posted order; the third rank looks on."""
    if comm.rank == 2:
        return comm.allgather(None)
    other, found = 1 - comm.rank, []
    posted = comm.irecv(source=other)
    comm.send(comm.rank, other)
    found += [posted.wait(), comm.sendrecv(10 + comm.rank, other, source=other)]
    if comm.rank == 1:
        late = comm.isend("late", 0, tag=5)
        comm.send(["early"], 0, tag=4)
        late.wait()
        comm.Send(np.arange(3.0), 0)
        sent = [comm.isend(number, 0, tag=number) for number in range(3)]
        found.append(comm.recv())
        for request in sent:
            request.wait()
    else:
        later = comm.irecv(source=1, tag=5)  # nobody waits for it while the other sends
        early = comm.recv(source=1, tag=4)
        numbers = np.zeros(3)
        found += [early, later.wait()]
        comm.Recv(numbers, source=1)
        posted = [comm.irecv(source=1) for _ in range(3)]
        found.append(numbers.tolist())
        comm.send("pong", 1)
        found += [request.wait() for request in reversed(posted)]
    comm.allgather(None)
    return found


def test_the_same_programs_under_mpirun_give_the_same():
    try:
        find_mpi()
    except MPINotFoundError as error:
        pytest.skip(str(error))

    def both(comm):
        return collectives(comm), messages(comm)

    assert run_ranks(both, 3) == mpi_launch(both, 3, timeout=300)


def test_buffers_with_a_type_and_an_operation_and_tensors():
    def worker(comm):
        largest, received = np.zeros(1), torch.zeros(2)
        comm.Reduce([np.array([float(comm.rank)]), "MPI.DOUBLE"], largest, op=np.maximum, root=1)
        if comm.rank == 0:
            comm.Send(torch.tensor([1.0, 2.0]), 1)
        else:
            comm.Recv(received, source=0)
        with pytest.raises(TypeError, match="not a str"):
            comm.Bcast("no buffer")
        return largest.item(), received.tolist(), comm.calls, comm.carried_data

    assert run_ranks(worker, 2) == [
        (0.0, [0, 0], ["Reduce", "send"], True),
        (1.0, [1, 2], ["Reduce", "recv"], True),
    ]


def test_what_is_sent_is_a_copy_of_the_moment():
    def worker(comm):
        mine = torch.zeros(2)
        everybody = comm.allgather(mine)
        everybody[comm.rank] += 5
        if comm.rank == 1:
            return mine.tolist(), comm.recv(source=0).tolist()
        sent = comm.isend(mine, 1)
        mine += 1
        return sent.wait()

    assert run_ranks(worker, 2) == [None, ([0, 0], [0, 0])]


def test_a_barrier_carries_no_data():
    def worker(comm):
        before = comm.carried_data
        comm.Barrier()
        comm.barrier()
        then = comm.carried_data
        comm.allgather(None)
        return before, then, comm.carried_data

    assert run_ranks(worker, 2) == [(False, False, True)] * 2


@pytest.mark.parametrize(
    "worker, words",
    [
        (lambda comm: comm.recv(source=1) if comm.rank == 0 else None, "rank 0 waits in recv from rank 1, for ever; rank 1 has returned"),
        (lambda comm: comm.barrier() if comm.rank == 1 else None, "rank 1 waits in barrier for rank 0, for ever; rank 0 has returned"),
        (lambda comm: comm.recv(source=1 - comm.rank), r"rank \d waits in recv from rank \d, for ever"),
        (lambda comm: (comm.send(1, 1 - comm.rank), comm.recv()), r"rank \d waits in send to rank \d, for ever"),
        (lambda comm: comm.isend(1, 1 - comm.rank).wait(), "waits in isend to rank"),
        (lambda comm: comm.sendrecv(1, 1 - comm.rank, source=1 - comm.rank, recvtag=7), "waits in sendrecv from rank"),
        (lambda comm: comm.send(1, 2), "sends to rank 2; there are ranks 0 to 1"),
        (lambda comm: comm.bcast(1) if comm.rank == 0 else comm.gather(1), r"rank \d calls \w+ where rank \d calls \w+"),
        (lambda comm: comm.allgather(b"0" * 9_000_000), r"a message of 9\d* bytes; here at most 8000000 pass"),
    ],
    ids=["recv", "barrier", "both receive", "both send", "isend", "sendrecv", "no such rank", "other calls", "too large"],
)  # fmt: skip
def test_what_cannot_end_is_an_error(worker, words):
    with pytest.raises(RankFailedError, match=f"CommunicationError: .*{words}"):
        run_ranks(worker, 2, timeout=0.5)


def test_a_rank_s_own_error_comes_before_what_it_does_to_the_others():
    def worker(comm):
        if comm.rank == 2:
            raise ZeroDivisionError("mine")
        comm.barrier()

    with pytest.raises(RankFailedError, match="rank 2 of 3 failed: ZeroDivisionError: mine"):
        run_ranks(worker, 3)


def test_a_rank_without_an_end_says_in_which_line():
    def endless(comm):
        while comm.rank == 0:
            pass

    with pytest.raises(RankFailedError, match=r"CommunicationError: rank 0 does not end within 1\.5 s") as raised:
        run_ranks(endless, 2, timeout=0.5)
    assert "while comm.rank == 0" in raised.value.rank_traceback or "pass" in raised.value.rank_traceback
