"""The client's end: start a fork server, have it fork, and hold the process that it forked."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["ForkServerError", "ForkedProcess", "fork", "private_server", "start", "wait_until_ready"]

START_SECONDS = 120.0
FORK_SECONDS = 60.0  # far more than it takes, for a machine that is busy with other things


class ForkServerError(RuntimeError):
    """The fork server cannot be started or reached; one line."""


def start(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], *arguments: object
) -> tuple[subprocess.Popen, socket.socket]:
    """Start a server; it is ready when `wait_until_ready` returns.

    Parameters
    ----------
    command : sequence of str
        A program that calls `course_lib.prefork.server.main` with its arguments.
    folder : Path
        For ``log``, what the server and its forks write.
    environment : mapping
        The server's.
    arguments : object
        Of `server.main`, from `folder` on.

    Returns
    -------
    Popen, socket
        The process, and the control socket.
    """
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Pools that libraries start when they are imported would be lost in a fork.
    single = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    single["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
    with theirs, open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [*command, str(theirs.fileno()), *map(str, arguments)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**environment, **single}, start_new_session=True,
            pass_fds=(theirs.fileno(),),
        )  # fmt: skip
    return process, control


def wait_until_ready(control: socket.socket, log: Path) -> None:
    """Wait until a server has imported what it needs.

    Raises
    ------
    ForkServerError
        It has ended, or takes too long; with the last line of its log.
    """
    control.settimeout(START_SECONDS)
    with contextlib.suppress(OSError):
        if control.recv(16):
            return
    lines = log.read_text(errors="replace").strip().splitlines()
    raise ForkServerError(f"the warm process did not start ({lines[-1] if lines else 'it said nothing'})")


@contextlib.contextmanager
def private_server(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], *arguments: object
) -> Iterator[tuple[subprocess.Popen, socket.socket]]:
    """As `start`: a server that ends with the block, or with this process, however it ends, and removes its folder."""
    process, control = start(command, folder, environment, folder, *arguments)
    try:
        with control:
            yield process, control
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()


def fork(
    server: str | socket.socket,
    request: Mapping[str, Any],
    descriptors: Sequence[int] = (),
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> ForkedProcess:
    """Have a server fork a process.

    It leads a session of its own. It is killed, with its process group, when the `ForkedProcess` is closed, this process
    ends, or the server ends.

    Parameters
    ----------
    server : str or socket
        Path of its socket, or the control socket.
    request : mapping
        Plain data for the server's hooks.
    descriptors : sequence of int
        For the hooks, too.
    stdin, stdout, stderr : int, optional
        By default nothing, and this process's.

    Raises
    ------
    ForkServerError
    """
    name = server if isinstance(server, str) else "our end"
    connection = None
    with open(os.memfd_create("request"), "r+b") as file, open(os.devnull, "rb") as null:
        file.write(json.dumps(request).encode())
        file.flush()
        streams = [null.fileno() if stdin is None else stdin]
        streams += [1 if stdout is None else stdout, 2 if stderr is None else stderr]
        try:
            connection = _connect(server)
            connection.settimeout(FORK_SECONDS)
            socket.send_fds(connection, [b"fork"], [*streams, file.fileno(), *descriptors])
            answer = json.loads(connection.recv(65536) or b'{"error": "no answer"}')
        except OSError as error:
            if connection is not None:
                connection.close()
            raise ForkServerError(f"the warm process at {name} does not answer ({error})") from None
    if "pid" not in answer:
        connection.close()
        raise ForkServerError(f"the warm process at {name} cannot fork: {answer['error']}")
    return ForkedProcess(answer["pid"], connection)


def _connect(server: str | socket.socket) -> socket.socket:
    if isinstance(server, str):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(FORK_SECONDS)
        connection.connect(server)
        return connection
    connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        socket.send_fds(server, [b"connection"], [theirs.fileno()])
    return connection


class ForkedProcess:
    """A process that a server has forked, with the methods of `subprocess.Popen` that kernel managers use."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._connection = connection

    def fileno(self) -> int:
        """Readable once the process has ended, for `select`."""
        return self._connection.fileno()

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._read(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises `subprocess.TimeoutExpired`."""
        code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"warm process {self.pid}", timeout or 0)
        return code

    def _read(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                answer = self._connection.recv(65536)
            except (TimeoutError, BlockingIOError):
                return None
            except OSError:
                answer = b""
            # No answer: the keeper has been killed, and the process with it.
            self.returncode = os.waitstatus_to_exitcode(json.loads(answer)["status"]) if answer else -signal.SIGKILL
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signal it, if it still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Let go of it; if it still runs, it is killed with its process group."""
        self._connection.close()
        if self.returncode is None:
            self.returncode = -signal.SIGKILL
