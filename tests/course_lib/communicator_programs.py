"""Programs of the communicator's methods on three ranks, and what they return: from the real mpirun and from the grader."""

import numpy as np
import torch

from course_lib.distributed.launching.communicator import Communicator


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
    value = np.array([float(comm.rank)])
    comm.Bcast(value, root=1)
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
        "Bcast": value.item(),
        "rank": (comm.Get_rank(), comm.Get_size(), comm.size),
    }


def messages(comm):
    """Exchanges of two ranks: by tag, from any source, by turns, in posted order. The third rank takes no part."""
    if comm.rank == 2:
        return comm.allgather(None)
    other, received = 1 - comm.rank, []
    posted = comm.irecv(source=other)
    comm.send(comm.rank, other)
    received += [posted.wait(), comm.sendrecv(10 + comm.rank, other, source=other)]
    if comm.rank == 1:
        late = comm.isend("late", 0, tag=5)
        comm.send(["early"], 0, tag=4)
        late.wait()
        comm.Send(np.arange(3.0), 0)
        sent = [comm.isend(number, 0, tag=number) for number in range(3)]
        received.append(comm.recv())
        for request in sent:
            request.wait()
    else:
        early = comm.irecv(source=1, tag=4)  # nobody waits for it while the other sends
        late = comm.recv(source=1, tag=5)
        numbers = np.zeros(3)
        received += [early.wait(), late]
        comm.Recv(numbers, source=1)
        posted = [comm.irecv(source=1) for _ in range(3)]
        received.append(numbers.tolist())
        comm.send("pong", 1)
        received += [request.wait() for request in reversed(posted)]
    comm.allgather(None)
    return received


def both(comm):
    return collectives(comm), messages(comm)


def expected(rank):
    """What MPI's standard says that `both` returns on a rank of three."""
    column = [[1.0], [2.0], [3.0]]
    of_roots = {0: {"Gather": column, "reduce": 6}, 2: {"gather": [1, 2, 3], "Reduce": 6.0}}
    return {
        "bcast": {"w": 2}, "gather": None, "allgather": [1, 2, 3], "scatter": [1, 4, 9][rank], "reduce": None,
        "allreduce": 6, "max": 3, "Allreduce": [6.0, 60.0], "Reduce": 0.0, "in place": 6.0, "Allgather": column,
        "Gather": None, "Bcast": 1.0, "rank": (rank, 3, 3), **of_roots.get(rank, {}),
    }, [[1, 11, ["early"], "late", [0.0, 1.0, 2.0], 2, 1, 0], [0, 10, "pong"], [None] * 3][rank]  # fmt: skip
