"""The fork server: imports, and forks a keeper for each connection, which forks the process that does the work.

The server has one thread and no OpenMP pool or CUDA context, which is what makes it fit to be forked. Connections come
from a Unix socket in a folder that only its account may enter, or as descriptors over the control socket, the server's
link to the process that started it.

A connection carries one request: standard input, output and error, a file that holds a JSON object (a message could not
hold every environment), and the descriptors that the work needs. The keeper answers ``{"pid": …}`` or ``{"error": …}``,
and ``{"status": …}`` once the process has ended, as ``waitpid`` gives it. When the connection closes, or the server
ends, however it ends, the keeper kills the process and all that this has started in its process group.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["Hook", "main", "serve"]

Hook = Callable[[dict[str, Any], list[int]], Any]
MOST_DESCRIPTORS = 16
PR_SET_PDEATHSIG = 1  # <sys/prctl.h>: the signal that a process gets when its parent ends
_prctl = ctypes.CDLL(None).prctl


def main(modules: Iterable[str], run: Hook, control: str, folder: str, path: str, idle: str) -> None:
    """Import `modules`, of which some may not be installed, and `serve`. The last four come from `ForkServer.start`.

    `folder`, if any, is removed at the end: the process that made it may have been killed.
    """
    for name in modules:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    os.chdir("/")
    try:
        serve(socket.socket(fileno=int(control)), run, path=path, idle=float(idle))
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def serve(control: socket.socket, run: Hook, enter: Hook | None = None, path: str = "", idle: float = 0.0) -> None:
    """Fork for each connection.

    Parameters
    ----------
    control : socket
        Gets a message when the server is ready, and brings connections. The server ends when it closes.
    run : callable
        ``run(request, descriptors)`` does the work, in a process that leads a session. It returns the exit code.
    enter : callable, optional
        The same in the keeper, before it forks that process, as to join namespaces.
    path : str
        Of a socket to listen on as well; empty: none.
    idle : float
        The server ends not with `control`, but after so many seconds without a fork; 0: with `control`.

    Raises
    ------
    RuntimeError
        This process has more than one thread.
    """
    import torch

    torch.set_num_threads(1)
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError(f"{threads} threads after the imports: a library has started some, and forks would hang")
    gc.collect()
    gc.freeze()  # a collection in a fork would otherwise copy every page that holds an object
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the client; its end ends its forks
    sources = [control]
    if path:
        sources.append(listener := socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind(path)
        listener.listen(64)
        inode = os.stat(path).st_ino
    control.send(b"ready")
    if idle:
        sources.remove(control)
        control.close()
    used = time.monotonic()
    while not idle or time.monotonic() - used < idle:
        ready = select.select(sources, [], [], min(30, idle) if idle else None)[0]
        for source in ready:
            if source is not control:
                connection, _ = source.accept()
            elif descriptors := socket.recv_fds(control, 16, 1)[1]:
                connection = socket.socket(fileno=descriptors[0])
            else:
                return
            _fork_keeper(connection, sources, run, enter)
        if ready or _has_children():
            used = time.monotonic()
    with contextlib.suppress(OSError):
        if os.stat(path).st_ino == inode:  # a successor may listen there by now
            os.unlink(path)


def _has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def _fork_keeper(connection: socket.socket, sources: list[socket.socket], run: Hook, enter: Hook | None) -> None:
    server = os.getpid()
    with connection:
        try:
            if os.fork():
                return
        except OSError as error:
            _send(connection, error=os.strerror(error.errno))
            return
        try:
            for source in sources:  # held here too, they would keep others from seeing the server's end
                source.close()
            _keep(connection, server, run, enter)
        finally:
            os._exit(0)


def _keep(connection: socket.socket, server: int, run: Hook, enter: Hook | None) -> None:
    """In the keeper: take the request, fork the process that does the work, see to its end."""
    keeper = os.getpid()
    try:
        _, descriptors, _, _ = socket.recv_fds(connection, 16, MOST_DESCRIPTORS)
        peer = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if peer[1] != os.getuid() or len(descriptors) < 4:
            return
        with open(descriptors.pop(3), "rb") as file:
            file.seek(0)  # the client and this process share the position
            request = json.load(file)
        if enter is not None:
            enter(request, descriptors[3:])
        woken, wake = socket.socketpair()
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # wakes it, as the process's end does
        pid = os.fork()
    except Exception as error:
        _send(connection, error=f"{type(error).__name__}: {error}")
        return
    if pid == 0:
        for each in (connection, woken, wake):
            each.close()
        _work(request, descriptors, run, keeper)  # never returns
    _send(connection, pid=pid)
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if os.getppid() != server or connection in select.select([connection, woken], [], [])[0]:
            _kill(pid)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        else:
            woken.recv(64)
    # What the process has started and left goes before the process is waited for: after that its number, the group's,
    # may be another's.
    _kill(pid)
    _, status = os.waitpid(pid, 0)
    _send(connection, status=status)


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # before its setsid the process has no group of its own
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _send(connection: socket.socket, **answer: Any) -> None:
    with contextlib.suppress(OSError):  # the client may have gone
        connection.send(json.dumps(answer).encode())


def _work(request: dict[str, Any], descriptors: list[int], run: Hook, keeper: int) -> None:
    """In the process that does the work: its session, its signals, its streams, and its end."""
    code: Any = 1
    try:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() not in (keeper, 0):  # 0: the keeper is in another process namespace
            os._exit(1)
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for target, source in enumerate(descriptors[:3]):
            os.dup2(source, target)
            os.close(source)
        code = run(request, descriptors[3:])
    except SystemExit as done:
        code = done.code
    except BaseException:
        traceback.print_exc()
    finally:
        # As at the end of any interpreter; but this one must not return to the keeper.
        for last in (atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush):
            with contextlib.suppress(Exception):
                last()
        os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))
