"""mpi4py's communicator on ranks of `launch`, for tests: no mpirun starts.

Every rank is a process, as under mpirun. Messages and collectives pass through the key-value store of the launch; one call
moves at most `LARGEST` bytes. Two things differ from MPI. A rank that waits for a message that never comes, or calls
another collective than the others, gets an error. And `send` always waits for its receive; MPI's does so for large
messages only (MPI 4.1, section 3.4: a correct program relies on no buffer).
"""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from course_lib.distributed.launching.communicator import Communicator, Request
from course_lib.distributed.launching.launch import launch

__all__ = ["CommunicationError", "ProcessComm", "run_ranks"]

LARGEST = 8_000_000  # bytes of one value; the store refuses more than 8 MiB
START = 300.0  # seconds for the ranks to start, PyTorch's import included
LONGEST = 3  # timeouts: the limit of a worker
POLL = 0.001  # seconds between two polls of the store


class CommunicationError(RuntimeError):
    """A call of the communicator cannot be completed: a rank is missing, waits for ever or called something else."""


def run_ranks(worker: Callable[..., Any], size: int, *args: Any, timeout: float = 30.0) -> list[Any]:
    """Run ``worker(comm, *args)`` on `size` processes; returns their results in order of rank.

    Parameters
    ----------
    worker : callable
        Gets a `ProcessComm`.
    timeout : float
        Seconds that a rank waits in one call. A worker may take `LONGEST` times as long, from the start of the last rank.

    Raises
    ------
    RankFailedError
        A rank raised: its own error, or `CommunicationError` because it waited too long or does not end. Shows the rank
        and its traceback.
    LaunchTimeoutError
        The ranks do not start.
    """
    limit = LONGEST * timeout
    return launch(_run, size, (worker, args, timeout, limit), timeout=START + limit, process_group=False, threads=1)


def _run(worker: Callable[..., Any], args: tuple[Any, ...], timeout: float, limit: float) -> Any:
    comm = ProcessComm(timeout)

    def stop(*_: Any) -> None:
        raise CommunicationError(f"rank {comm.rank} does not end within {limit:g} s")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit)
    result = worker(comm, *args)
    signal.setitimer(signal.ITIMER_REAL, 0)
    comm.returned()
    return result


class ProcessComm(Communicator):
    """One rank's communicator, over the store of its launch; `run_ranks` makes them.

    Parameters
    ----------
    timeout : float
        Seconds that a call waits for the other ranks. The first barrier waits `START` seconds.
    """

    def __init__(self, timeout: float) -> None:
        self.rank, self.size, self.calls = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), []
        self._timeout = START
        self._store = dist.TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=timedelta(seconds=START)
        )
        self._collectives = self._read = 0
        self._inbox: list[tuple[int, int, int, bytes]] = []  # (number, source, tag, packed), not yet received
        self._receives: list[tuple[int, int, list[bytes]]] = []  # waiting: (source, tag, place for the message)
        self._all("barrier", None)
        self.calls.clear()
        self._timeout = timeout

    def returned(self) -> None:
        """Note that this rank's worker has returned; for the others' error messages."""
        self._store.set(f"returned {self.rank}", b"")

    def _all(self, name: str, value: Any) -> list[Any]:
        self.calls.append(name)
        number, missing, values = self._collectives, set(range(self.size)), {}
        self._collectives += 1
        self._set(f"collective {number} of {self.rank}", (name, value))

        def arrived() -> bool:
            for rank in sorted(missing):
                if self._store.check([f"collective {number} of {rank}"]):
                    called, values[rank] = pickle.loads(self._store.get(f"collective {number} of {rank}"))
                    missing.remove(rank)
                    if called != name:
                        raise CommunicationError(f"rank {self.rank} calls {name} where rank {rank} calls {called}")
            return not missing

        self._wait(arrived, lambda: f"{name} for rank {', '.join(map(str, sorted(missing)))}")
        return [values[rank] for rank in range(self.size)]

    def _post_send(self, name: str, obj: Any, dest: int, tag: int) -> Request:
        self.calls.append(name)
        if not 0 <= dest < self.size:
            raise CommunicationError(f"rank {self.rank} sends to rank {dest}; there are ranks 0 to {self.size - 1}")
        number = self._store.add(f"messages to {dest}", 1)
        self._set(f"message {number} to {dest}", (self.rank, tag, pickle.dumps(obj)))
        key = f"received {number} by {dest}"
        return Request(lambda: self._wait(lambda: self._store.check([key]), lambda: f"{name} to rank {dest}"))

    def _post_receive(self, name: str, source: int, tag: int) -> Request:
        self.calls.append(name)
        place: list[bytes] = []
        self._receives.append((source, tag, place))

        def finish() -> Any:
            sender = f"rank {source}" if source >= 0 else "any rank"
            self._wait(lambda: bool(place), lambda: f"{name} from {sender}")
            return pickle.loads(place[0])

        return Request(finish)

    def _set(self, key: str, value: Any) -> None:
        packed = pickle.dumps(value)
        if len(packed) > LARGEST:
            raise CommunicationError(f"rank {self.rank}: a message of {len(packed)} bytes; here at most {LARGEST} pass")
        self._store.set(key, packed)

    def _match(self) -> None:
        """Give each receive the first message that fits, in MPI's order."""
        while self._store.check([f"message {self._read + 1} to {self.rank}"]):
            self._read += 1
            source, tag, packed = pickle.loads(self._store.get(f"message {self._read} to {self.rank}"))
            self._inbox.append((self._read, source, tag, packed))
        for wanted_source, wanted_tag, place in self._receives:
            for message in self._inbox:
                number, source, tag, packed = message
                if wanted_source in (source, -1, -2) and wanted_tag in (tag, -1, -2):  # -1, -2: MPI's ANY_…
                    place.append(packed)
                    self._inbox.remove(message)
                    self._store.set(f"received {number} by {self.rank}", b"")
                    break
        self._receives = [receive for receive in self._receives if not receive[2]]

    def _wait(self, ready: Callable[[], bool], what: Callable[[], str]) -> None:
        """Wait until `ready`; meanwhile receive what others send, as MPI does in every call."""
        end = time.monotonic() + self._timeout
        while True:
            late = time.monotonic() > end
            returned = [rank for rank in range(self.size) if self._store.check([f"returned {rank}"])]
            self._match()
            if ready():
                return
            if late or (self.size > 1 and len(returned) == self.size - 1):
                note = f"; rank {', '.join(map(str, returned))} has returned" if returned else ""
                raise CommunicationError(f"rank {self.rank} waits in {what()}, for ever{note}")
            time.sleep(POLL)
