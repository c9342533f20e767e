"""The fork server: it imports modules, and forks a keeper for each connection. The keeper forks the process that works.

The server has one thread and no OpenMP pool or CUDA context, so it can be forked. Connections come from a Unix socket in
a folder that only its account may enter, or as descriptors over the control socket, which connects the server with the
process that started it.

A connection carries one request: standard input, output and error, a file with a JSON object (an environment may be too
large for a message), and the descriptors for the work. The keeper answers ``{"pid": …}`` or ``{"error": …}``, and when the
process has ended ``{"status": …}``, the status of ``waitpid``. When the connection closes, or the server ends in whatever
way, the keeper kills the process and the rest of its process group.
"""

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
    """Import those of `modules` that are installed, and `serve`. The last four arguments come from `ForkServer.start`.

    At the end it removes `folder`, if given: the process that made it may have been killed. After an error the folder
    stays, because the client reads the log there.
    """
    gc.disable()  # imports make little garbage, and to look for it takes a fifth of their time
    for name in modules:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    os.chdir("/")
    serve(socket.socket(fileno=int(control)), run, path=path, idle=float(idle))
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def serve(control: socket.socket, run: Hook, enter: Hook | None = None, path: str = "", idle: float = 0.0) -> None:
    """Fork for each connection.

    Parameters
    ----------
    control : socket
        The server sends a message when it is ready, and receives connections. It ends when the socket closes.
    run : callable
        ``run(request, descriptors)`` does the work, in a process that leads a session. It returns the exit code.
    enter : callable, optional
        ``enter(request, descriptors)`` runs in the keeper before it forks that process, for example to join namespaces.
    path : str
        A socket on which the server listens as well; empty: none.
    idle : float
        If not 0, the server ends after so many seconds without a fork, and not with `control`.

    Raises
    ------
    RuntimeError
        This process has more than one thread.
    """
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError(f"{threads} threads after the imports: a library has started some, and forks would hang")
    gc.collect()
    gc.freeze()  # a collection in a fork would otherwise copy every page that holds an object
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the client, and that its forks
    sources = [control]
    if path:
        sources.append(listener := socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind(path)
        listener.listen(64)
        inode = os.stat(path).st_ino
    with contextlib.suppress(BrokenPipeError):  # its owner has been killed
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
        if os.stat(path).st_ino == inode:  # a new server may listen there by now
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
            for source in sources:  # the clients see the server's end only when every copy is closed
                source.close()
            _keep(connection, server, run, enter)
        finally:
            os._exit(0)


def _keep(connection: socket.socket, server: int, run: Hook, enter: Hook | None) -> None:
    """In the keeper: receive the request, fork the process that works, and end it."""
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
    # Kill the rest of its group before waiting for the process: after that its number, the group's, may be another's.
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
    """In the process that works: set up its session, signals and streams, run, and end."""
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
        # What an interpreter does at its end. This one must not return to the keeper.
        for last in (atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush):
            with contextlib.suppress(Exception):
                last()
        os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))
