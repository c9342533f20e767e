"""The warm process: imports what labs import, once, and forks itself for whoever of its account asks.

Started as ``python -m course_lib.warm_kernels.server SOCKET IDLE [PARENT]``. It listens on the Unix socket `SOCKET`, in
a folder that only its account may enter, and answers one request a connection: a JSON object with three descriptors,
the standard input, output and error of the process to be. The answer is ``{"pid": …}``, and once that process has ended
``{"status": …}``, as ``waitpid`` gives it.

A fork lives as long as its connection: when the asking process goes, however it goes, its fork and all that this has
started in its process group are killed. The server itself goes when the descriptor `PARENT` closes, or after `IDLE`
seconds without a fork (0: never).

It has one thread and no OpenMP pool or CUDA context, which is what makes it fit to be forked.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import struct
import sys
import time
from typing import Any

__all__ = ["WARM", "main"]

# What the labs' notebooks and their execution import; a module that is not installed is left out.
WARM = [
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "torch.nn.parallel",
    "torch.optim.lr_scheduler",
    "torch.utils.data",
    "torch.distributed.elastic.multiprocessing.api",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "pandas",
    "matplotlib.pyplot",
    "matplotlib.backends.backend_agg",
    "matplotlib_inline.backend_inline",
    "IPython.core.pylabtools",
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "papermill",
    "papermill.engines",
    "safetensors.torch",
    "psutil",
    "pynvml",
    "tqdm",
    "course_lib.checks",
    "course_lib.checks.lab01",
    "course_lib.checks.lab02",
    "course_lib.checks.lab03",
    "course_lib.checks.lab04",
    "course_lib.data",
    "course_lib.distributed",
    "course_lib.distributed.rank_process",
    "course_lib.hardware",
    "course_lib.models",
    "course_lib.optim",
    "course_lib.parameters",
    "course_lib.plots",
    "course_lib.precision",
    "course_lib.records",
    "course_lib.sweep",
    "course_lib.sweep.run_point",
    "course_lib.training",
    "course_lib.warm_kernels.engine",
    "course_lib.warm_kernels.fork_server",
    "course_lib.warm_kernels.kernel",
    "data_prep.staged",
]


def main(path: str, idle: float, parent: int | None) -> None:
    """Import, listen, fork until nobody needs it."""
    _import()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        # Under another name first: who finds the socket finds a server that is ready.
        temporary = f"{path}.{os.getpid()}"
        listener.bind(temporary)
        listener.listen(64)
        os.rename(temporary, path)
        inode = os.stat(path).st_ino
        try:
            _Server(listener, idle, parent).serve()
        finally:
            with contextlib.suppress(OSError):
                if os.stat(path).st_ino == inode:  # a successor may listen there by now
                    os.unlink(path)
            if parent is not None:  # the folder was made for this server; who made it may have been killed
                shutil.rmtree(os.path.dirname(path), ignore_errors=True)


def _import() -> None:
    for name in WARM:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError(f"{threads} threads after the imports: a library has started some, and forks would hang")
    gc.collect()
    gc.freeze()  # a collection in a fork would otherwise copy every page that holds an object


class _Server:
    def __init__(self, listener: socket.socket, idle: float, parent: int | None) -> None:
        self.listener, self.idle, self.parent = listener, idle, parent
        self.forks: dict[int, socket.socket] = {}  # process → the connection that it lives by
        self.selector = selectors.DefaultSelector()
        self.used = time.monotonic()

    def serve(self) -> None:
        ended, wake = os.pipe()
        os.set_blocking(ended, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asked; that one's end ends its forks
        self.own = (ended, wake)
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(ended, selectors.EVENT_READ)
        if self.parent is not None:
            self.selector.register(self.parent, selectors.EVENT_READ)
        while True:
            for key, _ in self.selector.select(timeout=30 if self.idle else None):
                if key.fileobj is self.listener:
                    self._accept()
                elif key.fileobj == ended:
                    with contextlib.suppress(BlockingIOError):
                        os.read(ended, 4096)
                    self._reap()
                elif key.fileobj == self.parent:
                    for pid in list(self.forks):
                        self._kill(pid)
                    return
                else:  # nobody sends anything after the request: the connection has closed
                    self._hang_up(key.fileobj)
            if self.forks:
                self.used = time.monotonic()
            elif self.idle and time.monotonic() - self.used > self.idle:
                return

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        connection.settimeout(5)
        descriptors: list[int] = []
        try:
            peer = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
            if peer[1] != os.getuid() or not message or len(descriptors) != 3:
                connection.close()
                return
            pid = os.fork()
            if pid == 0:
                self._become(json.loads(message), descriptors)  # never returns
            connection.send(json.dumps({"pid": pid}).encode())
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ENOMEM):
                with contextlib.suppress(OSError):
                    connection.send(json.dumps({"error": os.strerror(error.errno)}).encode())
            connection.close()
            return
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self.forks[pid] = connection
        self.selector.register(connection, selectors.EVENT_READ)

    def _reap(self) -> None:
        while self.forks:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            connection = self.forks.pop(pid, None)
            self._kill_group(pid)  # ranks, loaders…: what the process had started and left
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.send(json.dumps({"status": status}).encode())
                self._forget(connection)

    def _hang_up(self, connection: socket.socket) -> None:
        for pid, other in self.forks.items():
            if other is connection:
                self._kill(pid)
        self.selector.unregister(connection)  # it stays in `forks` until its process has been waited for

    def _forget(self, connection: socket.socket) -> None:
        with contextlib.suppress(KeyError):
            self.selector.unregister(connection)
        connection.close()

    def _kill(self, pid: int) -> None:
        self._kill_group(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # before its setsid it has no group of its own

    def _kill_group(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    def _become(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """In the fork: be the process that was asked for."""
        code = 1
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.default_int_handler)
            self.selector.close()
            self.listener.close()
            for connection in self.forks.values():
                connection.close()
            for descriptor in (*self.own, *([] if self.parent is None else [self.parent])):
                os.close(descriptor)
            for target, source in enumerate(descriptors):
                os.dup2(source, target)
            for descriptor in descriptors:
                os.close(descriptor)
            code = _run(request)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                atexit._run_exitfuncs()  # as at the end of any interpreter; but this one is not to return to the server
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(code)


def _run(request: dict[str, Any]) -> int:
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    if request["cpus"]:
        os.sched_setaffinity(0, request["cpus"])
    import numpy
    import torch

    from course_lib.hardware import available_cores

    numpy.random.seed()  # Python's own generator sees to itself after a fork
    torch.set_num_threads(available_cores())
    module = importlib.import_module(request["module"])
    sys.argv = [request["module"], *request["arguments"]]
    try:
        return getattr(module, request["function"])() or 0
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
