"""Run a function on several ranks from a notebook cell.

The ranks come from Python's fork server, which has PyTorch imported and holds no threads and no CUDA
context, so that a second launch costs a fraction of a second. Their environment is torchrun's, and so is
their store for the process group, on a port that the system picked. `launch_folder` says how a function
that lives in a cell reaches them, and `monitor` watches them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed import TCPStore

from course_lib.distributed.launching.launch_folder import LaunchFolder
from course_lib.distributed.launching.monitor import LOOK, RankPrinter, launching, watch
from course_lib.distributed.launching.process_state import changing_the_process, environment
from course_lib.distributed.launching.rank_process import forked_rank
from course_lib.live_view.interactive import is_interactive
from course_lib.live_view.listener import PROGRESS_FILE
from course_lib.system.hardware import available_cores

__all__ = ["default_backend", "launch", "threads_per_rank", "warm_up"]

# Imported by the fork server, so that no rank has to. DistributedDataParallel pulls in torch._dynamo, a second's work.
PRELOAD = [
    "course_lib.system.ignore_interrupts",
    "torch._dynamo",
    "course_lib.distributed.launching.rank_process",
    "course_lib.training.loop",
    "course_lib.models",
]


def default_backend(world_size: int) -> str:
    """NCCL where each rank has a GPU of its own, Gloo otherwise (NCCL refuses two ranks on one GPU)."""
    return "nccl" if torch.cuda.device_count() >= world_size else "gloo"


def threads_per_rank(world_size: int) -> int:
    """Cores divided between the ranks, at least one each: more threads than cores make all of them crawl."""
    return max(1, available_cores() // world_size)


def checked_threads(world_size: int, threads: int | None) -> int:
    """CPU threads of each rank. ValueError for what no launch can be; a note where ranks outnumber the cores."""
    for name, value in (("world_size", world_size), ("threads", 1 if threads is None else threads)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    cores = available_cores()
    if threads is None and not torch.cuda.is_available() and world_size > cores:
        print(f"note: {world_size} ranks share {cores} cores; expect no speed-up from the extra ranks")
    return threads or threads_per_rank(world_size)


def warm_up() -> None:
    """Start the fork server in the background, so that the first launch does not wait for PyTorch's import."""
    from multiprocessing import forkserver

    multiprocessing.set_forkserver_preload(PRELOAD)
    # One thread: a library that starts a pool when it is imported would make the fork server unfit to fork.
    with changing_the_process, environment(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1"):
        forkserver.ensure_running()


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
) -> list[Any]:
    """Run ``worker(*args, **kwargs)`` on `world_size` ranks of this machine, with the process group up.

    The worker may be defined in a notebook cell. It asks ``torch.distributed`` for its rank. What the
    ranks print appears here, each line with its rank; where a notebook's page sent the cell, rank by rank,
    and a training by `course_lib.training.loop.fit` as a bar and curves. Interrupting (■) ends all ranks.

    Parameters
    ----------
    worker : callable
    world_size : int
        Number of ranks, at least 1. The cores are divided between them; more ranks than cores are allowed, and a note says so
        unless `threads` is given.
    args, kwargs
        The worker's arguments, the same for each rank; whatever cloudpickle takes.
    timeout : float, optional
        Seconds after which unfinished ranks are ended; None waits for ever.
    backend : str, optional
        ``nccl``, ``gloo``…; by default NCCL where each rank has its own GPU, Gloo otherwise.
    process_group : bool
        False leaves ``init_process_group`` to the worker; the environment (RANK, WORLD_SIZE,
        MASTER_ADDR, MASTER_PORT) is set either way.
    threads : int, optional
        CPU threads a rank; by default the cores divided between the ranks. Give it where several launches run at a
        time: ranks × threads, over all of them, should equal the cores.
    stop : threading.Event, optional
        Set from another thread, it ends the ranks: the interrupt (■) reaches a launch in the main thread only.

    Returns
    -------
    list
        What each rank returned, in order of rank. Tensors are copies.

    Raises
    ------
    RankFailedError
        A rank raised, exited or was killed. The others are ended at once.
    LaunchTimeoutError
        The ranks did not finish within `timeout`; says where each stood.
    LaunchStoppedError
        `stop` was set.
    ValueError
        `world_size` or `threads` below 1.
    TypeError
        Something in the worker or its arguments cannot be sent to another process.
    """
    threads = checked_threads(world_size, threads)
    with launching(world_size) as (folder, signals):
        folder.write_call(worker, args, kwargs or {})
        sys.stdout.flush()
        with signals.hold():  # a server that is half started would be left behind
            warm_up()
        view, in_rank_0 = RankPrinter(folder.logs), {}
        if is_interactive():
            from course_lib.live_view.launch_view import LaunchView

            progress = folder.path / "training.json"
            view, in_rank_0 = LaunchView(progress, lambda: folder.logs), {PROGRESS_FILE: str(progress)}
        group = (backend or default_backend(world_size)) if process_group else None
        ranks = _ForkedRanks(folder, threads=threads, backend=group, environment_of_rank_0=in_rank_0)
        watch(ranks, folder, signals, view, timeout, stop)
        return folder.results()


class _ForkedRanks:
    """Ranks from the fork server, and the store at which they meet."""

    grace = 0.2

    def __init__(self, folder: LaunchFolder, **settings: Any) -> None:
        self._folder, self._settings = folder, settings
        self._processes: list[Any] = []
        self._store: TCPStore | None = None

    def _environment(self) -> dict[str, str]:
        """What torchrun sets for ranks, all but RANK and LOCAL_RANK, on top of this process's environment."""
        variables = dict(os.environ)
        variables.pop(PROGRESS_FILE, None)  # this process may be a rank itself
        if sys.platform == "linux" and any(name == "lo" for _, name in socket.if_nameindex()):
            # One machine: Gloo need not listen on anything that others can reach, nor look up the host's name.
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
        # multiprocessing would run the main script again in each rank, to find functions there. Ours travel by
        # value, so that a script needs no `if __name__ == "__main__"` and standard input may be the script.
        context = multiprocessing.get_context("forkserver")
        with changing_the_process:
            main = sys.modules["__main__"]
            sys.modules["__main__"] = types.ModuleType("__main__")
            try:
                for rank in range(self._folder.world_size):
                    process = context.Process(target=forked_rank, args=(str(self._folder.path), rank))
                    process.start()
                    self._processes.append(process)
            finally:
                sys.modules["__main__"] = main

    def _exit_codes(self) -> list[int | None]:
        with changing_the_process:  # a start in another thread polls all processes, and a code is read but once
            return [process.exitcode for process in self._processes]

    def exits(self) -> dict[int, int]:
        codes, done = self._exit_codes(), self._folder.done()
        return {rank: code for rank, code in enumerate(codes) if code or (code == 0 and rank not in done)}

    def over(self) -> bool:
        return None not in self._exit_codes()

    def end(self, interrupted: bool) -> None:
        # A rank that hears of the interrupt can close what it was writing.
        for number, seconds in ((signal.SIGINT, 2.0), (signal.SIGKILL, 5.0))[not interrupted :]:
            for process, code in zip(self._processes, self._exit_codes(), strict=True):
                if code is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, number)
            end = time.monotonic() + seconds
            while not self.over() and time.monotonic() < end:
                time.sleep(LOOK)
        self._store = None  # its port is open as long as anything refers to it: a traceback would, for long
