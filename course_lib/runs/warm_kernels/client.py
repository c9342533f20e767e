"""The client of the warm process: a private one, or the one that the account shares."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from course_lib.system.prefork import ForkedProcess, ForkServer, ForkServerError

__all__ = ["WarmServer"]

IDLE_SECONDS = 900.0
LONGEST_PATH = 107  # a socket's


class WarmServer(ForkServer):
    """The connection to a warm process.

    Use `WarmServer.private` for a process that lives as long as the block, and `WarmServer.shared` for the process of
    this account and environment, which starts when needed and ends after a quarter of an hour without work.

    Parameters
    ----------
    path : path
        The process's Unix socket.
    """

    @classmethod
    @contextlib.contextmanager
    def private(cls) -> Iterator[WarmServer]:
        """A server that ends with the block, or with this process in whatever way it ends."""
        made = tempfile.TemporaryDirectory(prefix="lab-", ignore_cleanup_errors=True)
        with made as folder, contextlib.closing(cls._start(Path(folder), "warm")) as server:
            server.wait_until_ready()
            yield server

    @classmethod
    def shared(cls) -> WarmServer:
        """This account's server for this Python environment and state of the library; started if there is none."""
        folder = _folder()
        name = f"warm-{_state()}"
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _listens(folder / name):
                (folder / name).unlink(missing_ok=True)  # a server that was killed left it
                server = cls._start(folder, name, IDLE_SECONDS)
                with server.control:
                    server.wait_until_ready()
        return cls(folder / name)

    @classmethod
    def _start(cls, folder: Path, name: str, idle: float = 0.0) -> WarmServer:
        if sys.platform != "linux":
            why = f"warm kernels need Linux, this is {sys.platform}; run notebooks one by one, by lab run"
            raise ForkServerError(why)
        if len(os.fsencode(path := folder / name)) > LONGEST_PATH:
            raise ForkServerError(f"{path} is too long for a socket; set TMPDIR to a shorter path, as in TMPDIR=/tmp")
        command = [sys.executable, "-m", "course_lib.runs.warm_kernels.server"]
        environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}  # each fork's own
        return cls.start(command, folder, environment, path, idle)

    def fork(
        self,
        module: str,
        function: str,
        arguments: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        folder: str | Path | None = None,
        cpus: Sequence[int] = (),
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> ForkedProcess:
        """Fork a process that calls ``module.function()`` with ``sys.argv[1:] = arguments``; see `ForkServer.request`.

        Parameters
        ----------
        environment : mapping, optional
            The whole environment. It, the working `folder`, the cores and the streams are this process's by default.
        cpus : sequence of int, optional
            The cores that it may use.
        stdout, stderr : int, optional
            Descriptors.

        Raises
        ------
        ForkServerError
        """
        request = {
            "module": module,
            "function": function,
            "arguments": list(arguments),
            "environment": dict(os.environ if environment is None else environment),
            "folder": os.path.abspath(folder or "."),
            "cpus": list(cpus) or sorted(os.sched_getaffinity(0)),  # a shared server may have been started with others
        }
        return self.request(request, (), stdout, stderr)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        return probe.connect_ex(str(path)) == 0


def _folder() -> Path:
    """A folder that only this account may enter: $XDG_RUNTIME_DIR, else one below the system's temporary folder."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = (
        Path(base) / "lab" if base and os.access(base, os.W_OK) else Path(tempfile.gettempdir()) / f"lab-{os.getuid()}"
    )
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ForkServerError(f"{folder} cannot be made ({error.strerror}); remove it or set XDG_RUNTIME_DIR") from None
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        raise ForkServerError(f"{folder} is not a folder of yours alone; remove it, or set XDG_RUNTIME_DIR")
    return folder


def _state() -> str:
    """A hash of the interpreter, the library's files and the fixed environment: a change needs a new warm process."""
    # Python and the loader read these only at the start. A Slurm job's processes have its cores and GPUs, and end with it.
    fixed = ("LD_LIBRARY_PATH", "LD_PRELOAD", "SLURM_JOB_ID")
    parts = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(("PYTHON", *fixed))]
    for package in ("course_lib", "data_prep", "torch"):
        root = Path(find_spec(package).origin).parent
        # The folder above torch has all packages; an installation changes its time.
        files = [root / "version.py", root.parent] if package == "torch" else sorted(root.rglob("*.py"))
        parts += [f"{file} {file.stat().st_mtime_ns}" for file in files]
    return hashlib.sha256("\n".join([sys.executable, sys.version, *parts]).encode()).hexdigest()[:16]
