"""Join a process group in PyTorch's three ways, and leave it without a port or a file.

Each way answers one question: how do ranks find each other? By a TCP address, by a file that all of them see, or by the
address that a launcher has put into the environment. Each way has a *store*, a small shared dictionary. When all ranks
have joined there, they connect to each other directly.

``dist.init_process_group(init_method=…)`` is the short form. It waits half an hour for a missing rank and does not name
it; here the ranks report at the store first, so that an error can name the missing ones.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from course_lib.distributed.launching.rank_process import quiet_stdout

__all__ = [
    "PortInUseError",
    "RanksMissingError",
    "StaleFileError",
    "environment_group",
    "file_group",
    "store_on_free_port",
    "tcp_group",
]

TIMEOUT = 30.0  # seconds
POLL = 0.01  # seconds between two polls of the store
LEAVE = 5.0  # seconds that the rank with the store waits for the others to leave


class PortInUseError(OSError):
    """Another process listens on the port that rank 0 should open."""


class StaleFileError(RuntimeError):
    """The file remains from an earlier group."""


class RanksMissingError(TimeoutError):
    """Ranks did not report in time.

    Attributes
    ----------
    missing : list of int
    """

    def __init__(self, message: str, missing: list[int]) -> None:
        super().__init__(message)
        self.missing = missing

    def __reduce__(self):
        return type(self), (str(self), self.missing)


@contextlib.contextmanager
def store_on_free_port(host: str = "127.0.0.1") -> Iterator[int]:
    """Open a store on a port that the system picks; ranks join it by `tcp_group(..., hosted=True)`.

    A free port that is found, closed and sent to the ranks may be taken by another process meanwhile. This port is held
    from the start, and free again after the block.

    Yields
    ------
    int
        The port.
    """
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    try:
        yield store.port
    finally:
        del store


@contextlib.contextmanager
def tcp_group(
    host: str,
    port: int,
    rank: int,
    world_size: int,
    *,
    hosted: bool = False,
    backend: str = "gloo",
    timeout: float = TIMEOUT,
) -> Iterator[None]:
    """TCP initialisation, ``tcp://host:port``: the ranks join at an address that all of them know.

    Parameters
    ----------
    host, port
        The address of rank 0, or of the process that holds the store.
    rank, world_size : int
    hosted : bool
        The store exists already (`store_on_free_port`); else rank 0 opens it.
    backend : str
    timeout : float
        Seconds to wait for the other ranks, and for a message later on.

    Raises
    ------
    PortInUseError
        On rank 0: the port is taken.
    RanksMissingError
        Not all ranks came in time.
    """
    opens = rank == 0 and not hosted
    try:
        store = dist.TCPStore(
            host, port, world_size, opens, timedelta(seconds=timeout), wait_for_workers=False, multi_tenant=False
        )
    except dist.DistError as error:
        if opens and ("EADDRINUSE" in str(error) or "already in use" in str(error)):
            raise PortInUseError(
                f"port {port} of {host} is in use by another process; take another one, or let the system choose "
                "(store_on_free_port, torchrun, launch)"
            ) from None
        raise RanksMissingError(
            f"rank {rank} got no answer at {host}:{port} within {timeout:g} s: rank 0 should listen there; it has not "
            "started, or the address is wrong",
            [0],
        ) from None
    with _member(store, rank, world_size, backend, timeout, keeper=opens):
        yield


@contextlib.contextmanager
def file_group(
    path: str | os.PathLike[str], rank: int, world_size: int, *, backend: str = "gloo", timeout: float = TIMEOUT
) -> Iterator[None]:
    """Shared file-system initialisation, ``file:///path``: the ranks join through a file that all of them see.

    The file must be new. It is removed in the end, by rank 0.

    Parameters
    ----------
    path : path
        In a folder that exists and that all ranks see; NFS needs working locks.
    rank, world_size, backend, timeout
        As in `tcp_group`.

    Raises
    ------
    FileNotFoundError
        The folder is missing.
    StaleFileError
        An earlier group has used this file.
    RanksMissingError
        Not all ranks came in time.
    """
    path = Path(path).absolute()
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"the folder {path.parent} does not exist on this node; ranks join through a file in it"
        )
    store = dist.FileStore(str(path), world_size)
    ours = True
    try:
        with _member(store, rank, world_size, backend, timeout, keeper=rank == 0, where=str(path)):
            yield
    except StaleFileError:
        ours = False  # it may be the file of a job that is running
        raise
    finally:
        del store
        if rank == 0 and ours:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def environment_group(*, backend: str = "gloo", timeout: float = TIMEOUT) -> Iterator[None]:
    """Environment initialisation, ``env://``: the ranks read their number and the address from the environment.

    ``MASTER_ADDR`` and ``MASTER_PORT`` are rank 0's address, ``RANK`` and ``WORLD_SIZE`` this rank's number and the number
    of ranks. torchrun and `launch` set them, and hold the store themselves.

    Raises
    ------
    KeyError
        A variable is missing.
    PortInUseError, RanksMissingError
        As in `tcp_group`.
    """
    names = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise KeyError(f"the environment lacks {', '.join(missing)}; torchrun and launch set them")
    host, port, rank, world_size = (os.environ[name] for name in names)
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    with tcp_group(host, int(port), int(rank), int(world_size), hosted=hosted, backend=backend, timeout=timeout):
        yield


@contextlib.contextmanager
def _member(
    store: dist.Store, rank: int, world_size: int, backend: str, timeout: float, keeper: bool, where: str = ""
) -> Iterator[None]:
    """Report at the store, wait for the others, join the group for the block, and leave it."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} does not exist among {world_size} ranks, 0…{world_size - 1}")
    number = store.add(f"arrivals of {rank}", 1)
    if where and number > 1:
        raise StaleFileError(
            f"{where} remains from an earlier group (rank {rank} reported twice); remove it, or name a new file"
        )
    store = dist.PrefixStore(f"meeting {number}", store)  # a second meeting does not see the first
    store.set(f"here {rank}", b"")
    _await(store, "here", rank, world_size, timeout)
    with quiet_stdout():
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("group", store),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout),
        )
    try:
        yield
    finally:
        gc.collect()  # as in `leave_process_group`
        dist.destroy_process_group()
        with contextlib.suppress(dist.DistError, RanksMissingError):  # the other ranks may have died
            store.set(f"gone {rank}", b"")
            if keeper:  # the store ends with this process, and the others still use it
                _await(store, "gone", rank, world_size, LEAVE)


def _await(store: dist.Store, word: str, rank: int, world_size: int, timeout: float) -> None:
    missing = [peer for peer in range(world_size) if peer != rank]
    end = time.monotonic() + timeout
    while missing := [peer for peer in missing if not store.check([f"{word} {peer}"])]:
        if time.monotonic() > end:
            present = world_size - len(missing)
            raise RanksMissingError(
                f"{present} of {world_size} ranks came within {timeout:g} s; missing: {', '.join(map(str, missing))}. "
                "Have they started, with the same address and world size?",
                missing,
            )
        time.sleep(POLL)
