"""The grader's end of the warm interpreter: starting it, and forking it into sandboxes.

`WarmInterpreter` is one process per worker, started with a clean environment (see `autograde.inside.interpreter`).
`WarmInterpreter.execute` makes a sandbox, forks one runner per rank into it and gives an `Execution`, through which
cells are executed and functions called. Everything that comes back is plain data, read with a bound on its size; every
call ends by the deadline.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from course_lib.prefork import ForkServerError, fork, private_server, wait_until_ready

from .cgroup import control_group
from .execution import Execution, NoSandbox
from .limits import Limits
from .sandbox import DATA, Sandbox, SandboxError
from .talk import Rank
from .withheld import hidden_packages, withheld_modules

__all__ = ["WarmInterpreter"]

_INSIDE = Path(__file__).resolve().parent / "inside"
# What the kernel's count may lie above ours: the group also holds the processes that wait, and their files' pages.
_SPARE = 256 << 20
_WORKERS = 4000  # as many numbers as `autograde.worker` gives workers: no rank is another worker's user
_ENVIRONMENT = {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"]),
    "LANG": "C.UTF-8",
    "MPLBACKEND": "agg",
}


class _Branch:
    """A fork of the warm interpreter that has imported the course's library, and forks in its turn.

    Attributes
    ----------
    redacted : list of tuple
        Name, file and redacted text's file of each module of which something is withheld.

    Raises
    ------
    SandboxError
        The library cannot be imported.
    """

    def __init__(self, server: socket.socket, log: Path, redacted: list[tuple[str, str, str]]) -> None:
        self.redacted = redacted
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, open(log, "wb") as file:
                streams = {"stdout": file.fileno(), "stderr": file.fileno()}
                self.process = fork(server, {"redacted": redacted}, [theirs.fileno()], **streams)
            wait_until_ready(self.control, log)
        except ForkServerError as error:
            raise SandboxError(f"the warm interpreter cannot import the course's library ({error})") from None

    def close(self) -> None:
        """End it."""
        self.control.close()
        self.process.close()


class WarmInterpreter:
    """A Python process that has the labs' libraries imported and forks itself into sandboxes.

    Parameters
    ----------
    slot : int
        Number of the worker.
    sandboxed : bool
        False: forks stay outside of any sandbox, with the grader's rights. For machines where none can be had.

    Raises
    ------
    SandboxError
        It cannot be started.
    """

    def __init__(self, slot: int = 0, sandboxed: bool = True) -> None:
        self.slot, self.sandboxed = slot, sandboxed
        self._open = contextlib.ExitStack()
        folder = tempfile.TemporaryDirectory(prefix="lab-warm-", ignore_cleanup_errors=True)
        self._home = Path(self._open.enter_context(folder))
        environment = _ENVIRONMENT | {
            "HOME": str(self._home),
            "MPLCONFIGDIR": str(self._home),
            # Beside other workers, threads that spin while they wait take the time of those that compute.
            "OMP_WAIT_POLICY": "passive",
        }
        command = [sys.executable, "-I", str(_INSIDE / "interpreter.py")]
        self._process, self._control = self._open.enter_context(private_server(command, self._home, environment))
        self._branches: dict[tuple[str, ...], _Branch] = {}

    @property
    def pid(self) -> int:
        """Its process, for measuring."""
        return self._process.pid

    def execute(
        self,
        limits: Limits,
        ranks: int = 1,
        data: Mapping[str, Path] | None = None,
        threads: int = 1,
        fork_server: bool = False,
        withheld: tuple[str, ...] = (),
        network: bool = True,
    ) -> Execution:
        """Fork into a fresh sandbox, once per rank.

        Several ranks have the sandbox's limits and its end together, and nothing else: each has its own processes,
        ``/tmp`` and ``/dev/shm``.

        Parameters
        ----------
        limits : Limits
        ranks : int
            Processes, each told its rank and the world's size as torchrun does it.
        data : mapping of str to Path
            Staged data sets to show.
        threads : int
            Threads that each computes with.
        fork_server : bool
            Whether the code will call `course_lib.distributed.launch`.
        withheld : tuple of str
            What is not there of the installed packages, as a rubric says it. Without a sandbox it is still in the files.
        network : bool
            Whether several ranks have one loopback device. Without it they have none, and only the grader to talk to.

        Raises
        ------
        SandboxError
            The sandbox or the fork cannot be made.
        WithheldError
            An entry of `withheld` names nothing.
        """
        branch = self._branch(withheld)
        replaced = {Path(path): Path(text) for _, path, text in branch.redacted}
        place: Sandbox | NoSandbox
        place = (
            Sandbox(self.slot, data, limits.disk_bytes, replaced, hidden_packages(withheld))
            if self.sandboxed
            else NoSandbox()
        )
        group = control_group(limits.memory_bytes + _SPARE) if self.sandboxed else None
        execution = Execution(place, limits, group)
        try:
            for rank in range(ranks):
                execution.ranks.append(self._fork(branch, execution, rank, ranks, threads, fork_server, network))
        except BaseException:
            execution.close()
            raise
        return execution

    def _branch(self, withheld: tuple[str, ...]) -> _Branch:
        """The fork that has imported the course's library so: before any clock runs, since that may take seconds."""
        if (branch := self._branches.get(withheld)) is not None:
            if branch.process.poll() is None:
                return branch
            branch.close()  # it has been ended, as for want of memory: once more
        try:
            if not self._branches:
                wait_until_ready(self._control, self._home / "log")
        except ForkServerError as error:
            raise SandboxError(f"{error}; see that `{sys.executable}` imports torch") from None
        folder = Path(tempfile.mkdtemp(dir=self._home))
        folder.chmod(0o755)
        redacted = []
        for module in withheld_modules(withheld):
            text = folder / f"{module.name}.py"
            text.write_text(module.text, encoding="utf-8")
            text.chmod(0o644)
            redacted.append((module.name, str(module.path), str(text)))
        branch = self._branches[withheld] = _Branch(self._control, folder / "log", redacted)
        return branch

    def _fork(
        self,
        branch: _Branch,
        execution: Execution,
        rank: int,
        ranks: int,
        threads: int,
        fork_server: bool,
        network: bool,
    ) -> Rank:
        place, limits, group = execution.place, execution.limits, execution.group
        ours, theirs = socket.socketpair()
        reader, writer = os.pipe()
        environment = (
            _ENVIRONMENT
            | {
                "HOME": "/tmp",
                "USER": "student",
                "LAB_DATA": DATA,
                "MPLCONFIGDIR": "/tmp",
                "OMP_NUM_THREADS": str(threads),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(place.port),
                "GLOO_SOCKET_IFNAME": "lo",
            }
            | place.environment
        )
        request = {
            "user_namespace": place.user_namespace,
            "join": place.pidfd >= 0,
            "apart": ranks > 1,
            "network": network,
            # A user of its own each, so that none counts the others' processes.
            "uid": None if place.uid is None else place.uid + _WORKERS * rank,
            "folder": place.folder,
            "threads": threads,
            "fork_server": fork_server,
            "environment": environment,
            "limits": {
                "memory": int(1.25 * limits.memory_bytes),
                "file": limits.disk_bytes // ranks,
                "files": limits.files // ranks,
                "processes": limits.tasks,
                "open_files": 1024,
            },
        }
        descriptors = [theirs.fileno()]
        if place.pidfd >= 0:
            descriptors.append(place.pidfd)
        if group is not None:
            descriptors += group.joining
        try:
            process = fork(branch.control, request, descriptors, stdout=writer, stderr=writer)
        except BaseException as error:
            ours.close()
            os.close(reader)
            if isinstance(error, ForkServerError):
                raise SandboxError(f"the sandbox could not be entered ({error}); run again with --debug") from None
            raise
        finally:
            theirs.close()
            os.close(writer)
        return Rank(ours, reader, process)

    def close(self) -> None:
        """End it. Executions that are still open end too."""
        for branch in self._branches.values():
            branch.close()
        self._open.close()

    def __enter__(self) -> WarmInterpreter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
