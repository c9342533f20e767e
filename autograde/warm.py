"""The grader's end of the warm interpreter: starting it, and forking it into sandboxes.

`WarmInterpreter` is one process per worker, started with a clean environment (see `autograde.inside.zygote`).
`WarmInterpreter.execute` makes a sandbox, forks one runner per rank into it and gives an `Execution`, through which
cells are executed and functions called. Everything that comes back is plain data, read with a bound on its size; every
call ends by the deadline.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
START_SECONDS = 120.0
FORK_SECONDS = 60.0  # far more than it takes, for a machine that is busy with other things


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
        self._home = tempfile.TemporaryDirectory(prefix="lab-warm-")
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"]),
            "HOME": self._home.name,
            "MPLCONFIGDIR": self._home.name,
            "MPLBACKEND": "agg",
            "LANG": "C.UTF-8",
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
            # Pools that libraries make when they are imported would be lost in a fork.
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            # Beside other workers, threads that spin while they wait take the time of those that compute.
            "OMP_WAIT_POLICY": "passive",
        }
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(_INSIDE / "zygote.py"), str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                env=environment,
                cwd=self._home.name,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        self._ready = False
        self._redacted: dict[tuple[str, ...], list[tuple[str, str, str]]] = {}
        self._prepared: set[str] = set()

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
        self._wait_until_ready()
        redacted = self._redact(withheld)
        self._prepare(redacted)
        replaced = {Path(path): Path(text) for _, path, text in redacted}
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
                execution.ranks.append(self._fork(execution, rank, ranks, threads, fork_server, redacted, network))
        except BaseException:
            execution.close()
            raise
        return execution

    def _redact(self, withheld: tuple[str, ...]) -> list[tuple[str, str, str]]:
        """Write the texts that stand in for what is withheld; of each its module's name and file, and its own file."""
        if withheld not in self._redacted:
            folder = Path(self._home.name, "withheld", str(len(self._redacted)))
            folder.mkdir(parents=True)
            found = []
            for module in withheld_modules(withheld):
                text = folder / f"{module.name}.py"
                text.write_text(module.text, encoding="utf-8")
                text.chmod(0o644)
                found.append((module.name, str(module.path), str(text)))
            self._redacted[withheld] = found
        return self._redacted[withheld]

    def _prepare(self, redacted: list[tuple[str, str, str]]) -> None:
        """Have the course's library imported before any clock runs: it may take seconds on a busy machine."""
        key = json.dumps(redacted)
        if key in self._prepared:
            return
        with contextlib.suppress(OSError):  # it has ended: the answer that does not come says so
            self._control.send(json.dumps({"prepare": True, "redacted": redacted}).encode())
        if "prepared" not in (answer := self._answer(START_SECONDS)):
            raise SandboxError(f"the warm interpreter cannot import the course's library ({answer.get('error')})")
        self._prepared.add(key)

    def _fork(
        self,
        execution: Execution,
        rank: int,
        ranks: int,
        threads: int,
        fork_server: bool,
        redacted: list[tuple[str, str, str]],
        network: bool,
    ) -> Rank:
        place, limits, group = execution.place, execution.limits, execution.group
        ours, theirs = socket.socketpair()
        reader, writer = os.pipe()
        environment = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"]),
            "HOME": "/tmp",
            "USER": "student",
            "LANG": "C.UTF-8",
            "LAB_DATA": DATA,
            "MPLBACKEND": "agg",
            "MPLCONFIGDIR": "/tmp",
            "OMP_NUM_THREADS": str(threads),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(place.port),
            "GLOO_SOCKET_IFNAME": "lo",
        } | place.environment
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
            "redacted": redacted,
            "environment": environment,
            "limits": {
                "memory": int(1.25 * limits.memory_bytes),
                "file": limits.disk_bytes // ranks,
                "files": limits.files // ranks,
                "processes": limits.tasks,
                "open_files": 1024,
            },
        }
        try:
            descriptors = [theirs.fileno(), writer]
            if place.pidfd >= 0:
                descriptors.append(place.pidfd)
            if group is not None:
                descriptors += group.joining
            with contextlib.suppress(OSError):  # it has ended: the answer that does not come says so
                socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
            answer = self._answer(FORK_SECONDS)
        except BaseException:
            ours.close()
            os.close(reader)
            raise
        finally:
            theirs.close()
            os.close(writer)
        if "pid" not in answer:
            ours.close()
            os.close(reader)
            raise SandboxError(f"the sandbox could not be entered ({answer.get('error')}); run again with --debug")
        place.joined(answer["pid"])
        return Rank(ours, reader, answer["pid"])

    def _wait_until_ready(self) -> None:
        if not self._ready:
            self._answer(START_SECONDS)
            self._ready = True

    def _answer(self, seconds: float) -> dict[str, Any]:
        message = b""
        if select.select([self._control], [], [], seconds)[0]:
            with contextlib.suppress(OSError):
                message = self._control.recv(65536)
        if not message:
            self._process.kill()
            said = self._process.communicate()[1].decode(errors="replace").strip().splitlines()
            last = said[-1] if said else "it did not answer"
            raise SandboxError(f"the warm interpreter ended ({last}); see that `{sys.executable}` imports torch")
        return json.loads(message)

    def close(self) -> None:
        """End it. Executions that are still open end too."""
        self._control.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stderr.close()
        self._home.cleanup()

    def __enter__(self) -> WarmInterpreter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
