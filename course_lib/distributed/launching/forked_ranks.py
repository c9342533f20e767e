"""Ranks that Python's fork server forks.

The server has imported PyTorch and has no threads and no CUDA context, so a second launch takes a fraction of a second.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable
from multiprocessing import forkserver, resource_tracker
from typing import Any

import psutil

from course_lib.distributed.launching.launch_folder import LaunchFolder
from course_lib.distributed.launching.monitor import Ranks
from course_lib.system.fork_server import start_fork_server
from course_lib.system.main_script import process_lock, without_main_script

__all__ = ["ForkedRanks", "end_children_with_kernel", "warm_up"]

# Imported by the fork server, so that no rank has to. DistributedDataParallel pulls in torch._dynamo, a second's work.
PRELOAD = [
    "torch._dynamo",
    "course_lib.distributed.launching.rank_process",
    "course_lib.training.loop",
    "course_lib.models",
]


def warm_up() -> None:
    """Start the fork server in the background, so that the first launch does not wait for PyTorch's import."""
    start_fork_server(PRELOAD)
    end_children_with_kernel()


def end_children_with_kernel() -> None:
    """Let a notebook's kernel end by itself, although it has multiprocessing's servers.

    ipykernel sends SIGTERM to the children in its process group, and looks for half a minute whether they have gone. What
    has ended stays a zombie. The resource tracker ignores the signal; once the kernel has ended, it removes shared memory
    that is left. So Jupyter would kill the kernel before it has done what is to be done at exit, such as removing
    temporary files.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        shell.observe(_end_children, "exit_now")


def _end_children(change: Any) -> None:
    server, tracker = forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid
    ended = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if child.pid != tracker and os.getpgid(child.pid) == os.getpgrp():
                child.send_signal(signal.SIGKILL if child.pid == server else signal.SIGTERM)
                ended.append(child)
    psutil.wait_procs(ended, timeout=1)  # no zombie is left
    kernel = getattr(change.owner, "kernel", None)  # IPython in a terminal has none
    if hasattr(kernel, "_process_children"):  # ipykernel has no public way to leave a process alone
        children = kernel._process_children
        kernel._process_children = lambda: [child for child in children() if child.pid != tracker]


class ForkedRanks(Ranks):
    """Ranks from the fork server; a subclass says when they start."""

    grace = 0.2
    last_signals = ((signal.SIGINT, 2.0), (signal.SIGKILL, 5.0))  # at an interrupt a rank may close its files

    def __init__(self, folder: LaunchFolder) -> None:
        self._folder = folder
        self._processes: dict[int, Any] = {}

    def _fork(self, ranks: Iterable[int], work: Callable[..., None], *args: Any) -> None:
        """Start ``work(folder, rank, *args)`` for each of `ranks`."""
        # The worker travels by value, so a script needs no `if __name__ == "__main__"` and may come by standard input.
        with without_main_script():
            for rank in ranks:
                process = multiprocessing.get_context("forkserver").Process(
                    target=work, args=(str(self._folder.path), rank, *args)
                )
                process.start()
                self._processes[rank] = process

    def _exit_codes(self) -> dict[int, int | None]:
        with process_lock:  # a start in another thread polls all processes, and a code can be read only once
            return {rank: process.exitcode for rank, process in self._processes.items()}

    def running(self) -> list[int]:
        return [self._processes[rank].pid for rank, code in self._exit_codes().items() if code is None]

    def exits(self) -> dict[int, int | None]:
        codes, done = self._exit_codes(), self._folder.done()
        return {rank: code for rank, code in codes.items() if code or (code == 0 and rank not in done)}
