"""Run a function on several ranks from a notebook cell.

Python's fork server forks the ranks (`forked_ranks`). Their environment is torchrun's, and so is their store for the
process group, on a port that the system picked. `launch_folder` describes how a function of a cell reaches the ranks;
`monitor` watches them.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed import TCPStore

from course_lib.distributed.launching.forked_ranks import ForkedRanks, warm_up
from course_lib.distributed.launching.launch_folder import LaunchFolder
from course_lib.distributed.launching.monitor import RankPrinter, launching, watch
from course_lib.distributed.launching.rank_process import forked_rank
from course_lib.live_view.interactive import is_interactive
from course_lib.live_view.listener import PROGRESS_FILE
from course_lib.system.hardware import available_cores

__all__ = ["default_backend", "launch", "threads_per_rank"]


def default_backend(world_size: int) -> str:
    """NCCL where each rank has a GPU of its own, Gloo otherwise (NCCL refuses two ranks on one GPU)."""
    return "nccl" if torch.cuda.device_count() >= world_size else "gloo"


def threads_per_rank(world_size: int) -> int:
    """Cores divided between the ranks, at least one each: more threads than cores make all of them slow."""
    return max(1, available_cores() // world_size)


def checked_threads(world_size: int, threads: int | None) -> int:
    """CPU threads of each rank. Raises ValueError for bad arguments; prints a note, once, where ranks outnumber the cores."""
    for name, value in (("world_size", world_size), ("threads", 1 if threads is None else threads)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    cores = available_cores()
    if threads is None and not torch.cuda.is_available() and world_size > cores:
        _note_few_cores(world_size, cores)
    return threads or threads_per_rank(world_size)


@functools.cache  # once per process: a lab launches the same number of ranks many times
def _note_few_cores(world_size: int, cores: int) -> None:
    print(f"note: {world_size} ranks share {cores} cores; expect no speed-up from the extra ranks")


@functools.cache
def _note_shared_gpus(world_size: int, gpus: int) -> None:
    print(f"note: {world_size} ranks share {gpus} GPU(s), and NCCL refuses that: messages go by Gloo; expect no speed-up")


def launch(
    worker: Callable[..., Any],
    world_size: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = 1800.0,
    *,
    backend: str | None = None,
    process_group: bool = True,
    threads: int | None = None,
    stop: threading.Event | None = None,
    own_time: bool = False,
) -> list[Any]:
    """Run ``worker(*args, **kwargs)`` on `world_size` ranks of this machine, with the process group up.

    The worker may be defined in a notebook cell. It asks ``torch.distributed`` for its rank. The ranks' output
    appears here, each line with its rank. In a cell that a notebook's page sent, it appears rank by rank, and a
    training by `course_lib.training.loop.fit` as a bar and curves. Interrupting (■) ends all ranks.

    Parameters
    ----------
    worker : callable
    world_size : int
        Number of ranks, at least 1. The cores are divided between them. More ranks than cores are allowed; a note says so
        unless `threads` is given.
    args, kwargs
        The worker's arguments, the same for each rank, pickled by cloudpickle.
    timeout : float, optional
        Seconds after which unfinished ranks are ended; None: no limit.
    backend : str, optional
        ``nccl``, ``gloo``…; by default NCCL where each rank has its own GPU, Gloo otherwise. A note says where ranks share
        a GPU.
    process_group : bool
        False leaves ``init_process_group`` to the worker; the environment (RANK, WORLD_SIZE,
        MASTER_ADDR, MASTER_PORT) is set either way.
    threads : int, optional
        CPU threads per rank; by default the cores divided between the ranks. Where several launches run at the same
        time, the sum of ranks × threads should equal the cores.
    stop : threading.Event, optional
        Another thread sets it to end the ranks. An interrupt (■) reaches only a launch in the main thread.
    own_time : bool
        Do not count the time for which ranks wait for a processor: end them once one has computed for `timeout` seconds,
        or none has for so long. So a busy machine does not end ranks that are only slow. Elsewhere than on Linux the
        clock counts.

    Returns
    -------
    list
        The ranks' results, in order of rank. Tensors are copies.

    Raises
    ------
    RankFailedError
        A rank raised, exited or was killed. The others are ended at once.
    LaunchTimeoutError
        The ranks did not finish within `timeout`; shows each rank's stack.
    LaunchStoppedError
        `stop` was set.
    ValueError
        `world_size` or `threads` below 1.
    TypeError
        The worker or its arguments cannot be sent to another process.
    """
    threads = checked_threads(world_size, threads)
    with launching(world_size) as (folder, signals):
        folder.write_call(worker, args, kwargs or {})
        sys.stdout.flush()
        with signals.hold():  # an interrupt must not leave a half-started server behind
            warm_up()
        view, in_rank_0 = RankPrinter(folder.logs), {}
        if is_interactive():
            from course_lib.live_view.launch_view import LaunchView

            progress = folder.path / "training.json"
            view, in_rank_0 = LaunchView(progress, lambda: folder.logs), {PROGRESS_FILE: str(progress)}
        group = (backend or default_backend(world_size)) if process_group else None
        if backend is None and group == "gloo" and torch.cuda.is_available():
            _note_shared_gpus(world_size, torch.cuda.device_count())
        ranks = _GroupRanks(folder, threads=threads, backend=group, environment_of_rank_0=in_rank_0)
        watch(ranks, folder, signals, view, timeout, stop, own_time)
        return folder.results()


class _GroupRanks(ForkedRanks):
    """Ranks from the fork server, and the store of their process group."""

    def __init__(self, folder: LaunchFolder, **settings: Any) -> None:
        super().__init__(folder)
        self._settings = settings
        self._store: TCPStore | None = None

    def _environment(self) -> dict[str, str]:
        """This process's environment with torchrun's variables, without RANK and LOCAL_RANK."""
        variables = dict(os.environ)
        variables.pop(PROGRESS_FILE, None)  # this process may be a rank itself
        if sys.platform == "linux" and any(name == "lo" for _, name in socket.if_nameindex()):
            # One machine: Gloo need not listen on a network that others can reach, nor look up the host's name.
            variables.setdefault("GLOO_SOCKET_IFNAME", "lo")
        world_size = str(self._folder.world_size)
        return variables | {
            "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size, "GROUP_RANK": "0",
            "MASTER_ADDR": "localhost", "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_RUN_ID": self._folder.path.name, "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OMP_NUM_THREADS": str(self._settings["threads"]),
        }  # fmt: skip

    def start(self) -> None:
        self._store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self._folder.write_settings(
            **self._settings, environment=self._environment(), gpus=torch.cuda.device_count(), folder=os.getcwd()
        )
        self._fork(range(self._folder.world_size), forked_rank)

    def end(self, interrupted: bool) -> None:
        super().end(interrupted)
        self._store = None  # its port stays open while anything refers to it, and a traceback refers to this object
