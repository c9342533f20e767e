"""The asking end of the warm process."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["WarmProcess", "WarmServer", "WarmServerError"]

START_SECONDS = 120.0
IDLE_SECONDS = 900.0
LONGEST_PATH = 107 - len(".4194304")  # a socket's, less what the server adds while it starts


class WarmServerError(RuntimeError):
    """The warm process cannot be started or reached; one line."""


class WarmServer:
    """A warm process and the way to it.

    Parameters
    ----------
    path : path
        Its Unix socket.

    Use `WarmServer.private` for one that lives as long as the block, and `WarmServer.shared` for the one of this
    account and environment, which is started at need and goes after a quarter of an hour without work.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)

    @classmethod
    @contextlib.contextmanager
    def private(cls):
        """A server of one's own, ended with the block (or with this process, however it ends)."""
        _check_system()
        made = tempfile.TemporaryDirectory(prefix="lab-", ignore_cleanup_errors=True)
        with made as folder, open(Path(folder) / "log", "w+b") as log:
            path = Path(folder) / "warm"
            ours, theirs = socket.socketpair()
            with ours:
                with theirs:
                    process = _start(path, 0, log, theirs.fileno())
                try:
                    _wait(path, process, Path(log.name))
                    yield cls(path)
                finally:
                    ours.close()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(10)
                    process.kill()
                    process.wait()

    @classmethod
    def shared(cls) -> WarmServer:
        """This account's server for this Python environment and this state of the library; started if there is none."""
        _check_system()
        folder = _folder()
        path = folder / f"warm-{_state()}"
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _listens(path):
                path.unlink(missing_ok=True)  # of one that was killed; it would be taken for the new one's
                with open(folder / "log", "w+b") as log:
                    process = _start(path, IDLE_SECONDS, log, None)
                    _wait(path, process, Path(log.name))
        return cls(path)

    def fork(
        self,
        module: str,
        function: str,
        arguments: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        folder: str | Path | None = None,
        cpus: Sequence[int] = (),
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> WarmProcess:
        """Fork a process that calls ``module.function()`` with ``sys.argv[1:] = arguments``.

        It leads a session of its own. It is killed, with its process group, when the `WarmProcess` is closed or this
        process ends.

        Parameters
        ----------
        environment : mapping, optional
            The whole environment; by default this process's.
        folder : path, optional
            Working folder; by default this process's.
        cpus : sequence of int, optional
            The cores that it may use; by default this process's.
        stdin, stdout, stderr : int, optional
            Descriptors; by default nothing, and this process's.

        Raises
        ------
        WarmServerError
        """
        request = {
            "module": module,
            "function": function,
            "arguments": list(arguments),
            "environment": dict(os.environ if environment is None else environment),
            "folder": os.path.abspath(folder or "."),
            "cpus": list(cpus) or sorted(os.sched_getaffinity(0)),  # not those of who started the warm process
        }
        null = os.open(os.devnull, os.O_RDWR)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            streams = [
                null if stdin is None else stdin,
                1 if stdout is None else stdout,
                2 if stderr is None else stderr,
            ]
            connection.settimeout(60)
            connection.connect(self.path)
            with tempfile.TemporaryFile(dir=os.path.dirname(self.path)) as file:
                file.write(json.dumps(request).encode())
                file.flush()
                socket.send_fds(connection, [b"fork"], [*streams, file.fileno()])
            answer = connection.recv(65536)
            reply: dict[str, Any] = json.loads(answer) if answer else {"error": "no answer"}
        except OSError as error:
            connection.close()
            raise WarmServerError(f"the warm process at {self.path} does not answer ({error})") from None
        finally:
            os.close(null)
        if "pid" not in reply:
            connection.close()
            raise WarmServerError(f"the warm process at {self.path} cannot fork: {reply['error']}")
        return WarmProcess(reply["pid"], connection)


class WarmProcess:
    """A fork of the warm process, with the methods of `subprocess.Popen` that kernel managers use."""

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
            # No answer: the server has gone, and its forks with it.
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
        """Let go of it; if it still runs, the server kills it and its process group."""
        self._connection.close()
        if self.returncode is None:
            self.returncode = -signal.SIGKILL


def _check_system() -> None:
    if sys.platform != "linux":
        raise WarmServerError(f"warm kernels need Linux, this is {sys.platform}; run notebooks one by one, by lab run")


def _start(path: Path, idle: float, log: Any, parent: int | None) -> subprocess.Popen:
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise WarmServerError(f"{path} is too long for a socket; set TMPDIR to a shorter path, as in TMPDIR=/tmp")
    environment = dict(os.environ)
    # Pools that libraries start when they are imported would be lost in a fork.
    environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    environment.pop("MPLBACKEND", None)  # each fork chooses its own
    environment["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
    return subprocess.Popen(
        [sys.executable, "-m", "course_lib.warm_kernels.server", str(path), str(idle), *([] if parent is None else [str(parent)])],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
        pass_fds=() if parent is None else (parent,),
    )  # fmt: skip


def _wait(path: Path, process: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while not path.exists():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            lines = log.read_text(errors="replace").strip().splitlines()
            raise WarmServerError(f"the warm process did not start ({lines[-1] if lines else 'it said nothing'})")
        time.sleep(0.02)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _folder() -> Path:
    """A folder that only this account may enter: $XDG_RUNTIME_DIR, else one below the system's temporary folder."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = (
        Path(base) / "lab" if base and os.access(base, os.W_OK) else Path(tempfile.gettempdir()) / f"lab-{os.getuid()}"
    )
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise WarmServerError(f"{folder} cannot be made ({error.strerror}); remove it or set XDG_RUNTIME_DIR") from None
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or folder.is_symlink():
        raise WarmServerError(f"{folder} is not a folder of yours alone; remove it, or set XDG_RUNTIME_DIR")
    return folder


def _state() -> str:
    """What a warm process has imported and lives in: another interpreter, or an edited library, needs another."""
    parts = [sys.executable, sys.version]
    # What is read at the start only; and a Slurm job's processes have its cores, memory and GPUs, and end with it.
    parts += [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith("PYTHON") or name in ("LD_LIBRARY_PATH", "LD_PRELOAD", "SLURM_JOB_ID")
    ]
    for package in ("course_lib", "data_prep", "torch"):
        spec = find_spec(package)
        root = Path(spec.origin).parent if spec and spec.origin else None
        if root is not None:
            # Beside torch lie all packages; each that is installed changes their folder.
            files = [root / "version.py", root.parent] if package == "torch" else sorted(root.rglob("*.py"))
            parts += [f"{file} {file.stat().st_mtime_ns}" for file in files if file.exists()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
