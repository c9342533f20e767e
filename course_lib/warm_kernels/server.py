"""The warm process: imports what labs import, once, and forks itself for whoever of its account asks.

Started as ``python -m course_lib.warm_kernels.server SOCKET IDLE [PARENT]``. It listens on the Unix socket `SOCKET`, in
a folder that only its account may enter, and answers one request a connection: four descriptors, the standard input,
output and error of the process to be, and a file that holds a JSON object (a message could not hold every environment).
The answer is ``{"pid": …}``, and once that process has ended ``{"status": …}``, as ``waitpid`` gives it.

A fork lives as long as its connection: when the asking process goes, however it goes, its fork and all that this has
started in its process group are killed. When the server goes, however it goes, its forks are killed. It goes when the
descriptor `PARENT` closes, or after `IDLE` seconds without a fork (0: never).

It has one thread and no OpenMP pool or CUDA context, which is what makes it fit to be forked.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
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

from course_lib.nbformat_import import leave_addresses_out

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
    "course_lib.checks.lab05",
    "course_lib.checks.lab07",
    "course_lib.checks.lab08",
    "course_lib.checks.lab12",
    "course_lib.checks.run_evidence",
    "course_lib.exercises.lab03",
    "course_lib.exercises.lab04",
    "course_lib.exercises.lab06",
    "course_lib.exercises.lab09",
    "course_lib.exercises.lab10",
    "course_lib.exercises.lab11",
    "course_lib.exercises.visible",
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

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>: the signal that a process gets when its parent ends


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
    leave_addresses_out()
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
        self.pid = os.getpid()

    def serve(self) -> None:
        ended, wake = os.pipe()
        os.set_blocking(ended, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asked; that one's end ends its forks
        self.wake = wake
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
                elif key.fileobj.fileno() < 0:
                    continue  # closed in this round already: its process has ended
                elif key.fileobj in self.forks.values():  # nobody sends anything after the request: it has closed
                    self._hang_up(key.fileobj)
                else:
                    self._answer(key.fileobj)
            if self.forks:
                self.used = time.monotonic()
            elif self.idle and time.monotonic() - self.used > self.idle:
                return

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        connection.settimeout(5)
        self.used = time.monotonic()  # who looks whether a server is here will ask it for something
        self.selector.register(connection, selectors.EVENT_READ)  # who says nothing keeps nobody waiting

    def _answer(self, connection: socket.socket) -> None:
        self.selector.unregister(connection)
        descriptors: list[int] = []
        try:
            peer = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            _, descriptors, _, _ = socket.recv_fds(connection, 16, 4)
            if peer[1] != os.getuid() or len(descriptors) != 4:
                connection.close()
                return
            pid = os.fork()
            if pid == 0:
                connection.close()  # else a server that is killed would not be missed while the fork lives
                self._become(descriptors)  # never returns
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
        with contextlib.suppress(OSError):  # who asked may have gone; the selector tells, and the fork is killed
            connection.send(json.dumps({"pid": pid}).encode())

    def _reap(self) -> None:
        while self.forks:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            # Ranks, loaders…: what the process had started and left. It goes before the process is waited for, after
            # which its number, the group's, may be another's.
            self._kill_group(ended.si_pid)
            pid, status = os.waitpid(ended.si_pid, 0)
            connection = self.forks.pop(pid, None)
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

    def _become(self, descriptors: list[int]) -> None:
        """In the fork: be the process that was asked for."""
        code = 1
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != self.pid:  # the server went before that
                os._exit(code)
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.default_int_handler)
            watched = [key.fileobj for key in self.selector.get_map().values()]
            self.selector.close()
            for one in (*self.forks.values(), *watched):
                os.close(one) if isinstance(one, int) else one.close()
            os.close(self.wake)
            with open(descriptors.pop(), "rb") as file:
                file.seek(0)  # the place in the file is shared with who wrote it
                request = json.load(file)
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
            os._exit(code & 0xFF)


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
        sys.exit(getattr(module, request["function"])())
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # `python -m` put the folder there in which the first who asked happened to be
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
