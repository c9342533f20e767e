"""Processes of `multiprocessing` that do not run the main script again.

`multiprocessing` imports the main script in each new process, to find the functions that it defines. A script without
``if __name__ == "__main__"`` would start its processes again there, without end. A program that sends only functions of
importable modules, or functions by value, does not need that import.
"""

import contextlib
import sys
import threading
import types
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

__all__ = ["ForkServerWithoutMainScript", "process_lock", "without_main_script"]

# Threads may start processes at the same time. What a start changes in this process, it changes under this lock.
process_lock = threading.RLock()


@contextlib.contextmanager
def without_main_script() -> Iterator[None]:
    """Processes that are started in the block do not import the main script."""
    with process_lock:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


class _Process(ForkServerProcess):
    @staticmethod
    def _Popen(process: ForkServerProcess) -> Any:
        with without_main_script():
            return ForkServerProcess._Popen(process)


class ForkServerWithoutMainScript(ForkServerContext):
    """`multiprocessing`'s ``forkserver``, for pools that start their processes whenever they need them."""

    Process = _Process
