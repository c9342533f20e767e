"""The client: start a fork server, request a fork, and control the forked process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

__all__ = ["ForkServer", "ForkServerError", "ForkedProcess"]

START_SECONDS = 120.0
FORK_SECONDS = 60.0  # far more than a fork takes, for a busy machine
# A fork would lose the threads of a pool that a library starts at its import.
SINGLE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class ForkServerError(RuntimeError):
    """The fork server cannot be started or reached; one line."""


class ForkServer:
    """The connection to a fork server: the path of its socket, or the control socket if this process started it.

    A server that this process started ends with `close`, or with this process, in whatever way that ends.
    """

    def __init__(self, path: str | Path = "") -> None:
        self.path = str(path)
        self.control: socket.socket | None = None
        self.process: subprocess.Popen | ForkedProcess | None = None
        self._ready = False

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        path: str | Path = "",
        idle: float = 0.0,
    ) -> Self:
        """Start a server.

        Parameters
        ----------
        command : sequence of str
            A program that calls `course_lib.system.prefork.server.main` with its arguments.
        folder : Path
            For ``log``, the server's output. The server removes the folder at its end, unless it has an `idle`.
        environment : mapping
            The server's environment.
        path, idle : str, float
            See `course_lib.system.prefork.server.serve`.
        """

        def start(theirs: int, log: int) -> subprocess.Popen:
            arguments = map(str, (theirs, "" if idle else folder, path, idle))
            return subprocess.Popen(
                [*command, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[theirs],
                env={**environment, **SINGLE_THREAD, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}, start_new_session=True,
            )  # fmt: skip

        return cls(path)._begin(start, folder)

    def branch(self, request: Mapping[str, Any], folder: Path) -> ForkServer:
        """Request a fork that is a server in its turn; the first descriptor is its control socket."""
        return ForkServer()._begin(lambda theirs, log: self.request(request, [theirs], stdout=log, stderr=log), folder)

    def _begin(self, start: Callable[[int, int], subprocess.Popen | ForkedProcess], folder: Path) -> Self:
        self._log = folder / "log"
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, open(self._log, "wb") as log:
            self.process = start(theirs.fileno(), log.fileno())
        return self

    def wait_until_ready(self) -> None:
        """Wait until a server that this process started has imported its modules.

        Raises
        ------
        ForkServerError
            It ended, or takes too long; shows the last line of its log.
        """
        self.control.settimeout(START_SECONDS)
        with contextlib.suppress(OSError):
            self._ready = self._ready or bool(self.control.recv(16))
        if not self._ready:
            lines = self._log.read_text(errors="replace").strip().splitlines()
            raise ForkServerError(f"the warm process did not start ({lines[-1] if lines else 'it said nothing'})")

    def request(
        self,
        request: Mapping[str, Any],
        descriptors: Sequence[int] = (),
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> ForkedProcess:
        """Have the server fork a process.

        The process leads a session of its own. It is killed, with its process group, when the `ForkedProcess` is closed,
        this process ends, or the server ends.

        Parameters
        ----------
        request : mapping
            Plain data for the server's hooks.
        descriptors : sequence of int
            Descriptors for the hooks.
        stdout, stderr : int, optional
            Descriptors; by default this process's.

        Raises
        ------
        ForkServerError
        """
        connection = None
        with open(os.memfd_create("request"), "r+b") as file, open(os.devnull, "rb") as null:
            file.write(json.dumps(request).encode())
            file.flush()
            streams = [null.fileno(), 1 if stdout is None else stdout, 2 if stderr is None else stderr]
            try:
                connection = self._connect()
                connection.settimeout(FORK_SECONDS)
                socket.send_fds(connection, [b"fork"], [*streams, file.fileno(), *descriptors])
                answer = json.loads(connection.recv(65536) or b'{"error": "it ended"}')
            except OSError as error:
                if connection is not None:
                    connection.close()
                raise ForkServerError(f"the warm process {self.path} does not answer ({error})") from None
        if "pid" not in answer:
            connection.close()
            raise ForkServerError(f"the warm process {self.path} cannot fork: {answer['error']}")
        return ForkedProcess(answer["pid"], connection)

    def _connect(self) -> socket.socket:
        if self.control is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.settimeout(FORK_SECONDS)
            connection.connect(self.path)
            return connection
        connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self.control, [b"connection"], [theirs.fileno()])
        return connection

    def close(self) -> None:
        """End a server that this process started, and its forks."""
        self.control.close()
        if not self._ready:
            self.process.kill()  # it notices the closed socket only after its imports
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class ForkedProcess:
    """A process that a server forked, with the methods of `subprocess.Popen` that kernel managers use."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._connection = connection

    def fileno(self) -> int:
        """Readable once the process has ended, for `select`."""
        return self._connection.fileno()

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._read(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process's end; raises `subprocess.TimeoutExpired`."""
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
            # No answer: the keeper was killed, and the process with it.
            self.returncode = os.waitstatus_to_exitcode(json.loads(answer)["status"]) if answer else -signal.SIGKILL
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, if it still runs."""
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
        """Close the connection; a process that still runs is killed with its process group."""
        self._connection.close()
        if self.returncode is None:
            self.returncode = -signal.SIGKILL
