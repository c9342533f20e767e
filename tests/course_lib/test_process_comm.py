"""mpi4py's methods on processes: a wait for ever is an error. `test_mpi_launch` compares them with the real mpirun."""

import numpy as np
import pytest
import torch

from course_lib.distributed import RankFailedError
from course_lib.distributed.launching.process_comm import run_ranks


def test_buffers_copies_and_calls():
    def worker(comm):
        comm.Barrier()
        comm.barrier()
        carried = [comm.carried_data]  # a barrier carries no data
        largest, received = np.zeros(1), torch.zeros(2)
        comm.Reduce([np.array([float(comm.rank)]), "MPI.DOUBLE"], largest, op=np.maximum, root=1)
        if comm.rank == 0:
            comm.Send(torch.tensor([1.0, 2.0]), 1)
        else:
            comm.Recv(received, source=0)
        carried.append(comm.carried_data)
        with pytest.raises(TypeError, match="not a str"):
            comm.Bcast("no buffer")
        mine = torch.zeros(2)
        comm.allgather(mine)[comm.rank].add_(5)
        if comm.rank == 0:
            sent = comm.isend(mine, 1)
            mine += 1  # after the send
            sent.wait()
        else:
            received += comm.recv(source=0) + mine
        return largest.item(), received.tolist(), comm.calls[2:4], carried

    assert run_ranks(worker, 2) == [
        (0.0, [0, 0], ["Reduce", "send"], [False, True]),
        (1.0, [1, 2], ["Reduce", "recv"], [False, True]),
    ]


@pytest.mark.parametrize(
    "timeout, worker, message",
    [
        (300, lambda comm: comm.recv(source=1) if comm.rank == 0 else None, "rank 0 waits in recv from rank 1, for ever; rank 1 has returned"),
        (300, lambda comm: comm.barrier() if comm.rank == 1 else None, "rank 1 waits in barrier for rank 0, for ever; rank 0 has returned"),
        (300, lambda comm: comm.send(1, 2), "sends to rank 2; there are ranks 0 to 1"),
        (300, lambda comm: comm.bcast(1) if comm.rank == 0 else comm.gather(1), r"rank \d calls \w+ where rank \d calls \w+"),
        (300, lambda comm: comm.allgather(b"0" * 9_000_000), r"a message of 9\d* bytes; here at most 8000000 pass"),
        (0.5, lambda comm: comm.recv(source=1 - comm.rank), r"rank \d waits in recv from rank \d, for ever"),
        (0.5, lambda comm: (comm.send(1, 1 - comm.rank), comm.recv()), r"rank \d waits in send to rank \d, for ever"),
        (0.5, lambda comm: comm.isend(1, 1 - comm.rank).wait(), "waits in isend to rank"),
        (0.5, lambda comm: comm.sendrecv(1, 1 - comm.rank, source=1 - comm.rank, recvtag=7), "waits in sendrecv from rank"),
    ],
    ids=["recv", "barrier", "no such rank", "other calls", "too large", "both receive", "both send", "isend", "sendrecv"],
)  # fmt: skip
def test_what_cannot_end_is_an_error(timeout, worker, message):
    with pytest.raises(RankFailedError, match=f"CommunicationError: .*{message}"):
        run_ranks(worker, 2, timeout=timeout)


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
