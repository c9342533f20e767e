"""The grader's client of the warm interpreter: start it, and fork it into sandboxes.

`WarmInterpreter` is one process per worker, started with a clean environment (see `autograde.sandbox.inside.interpreter`).
`WarmInterpreter.execute` makes a sandbox, forks one runner per rank into it and gives an `Execution`, through which
cells are executed and functions called. All answers are plain data, read with a bound on their size; every call ends by
the deadline.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograde.sandbox.bubblewrap import DATA, Sandbox, SandboxError
from autograde.sandbox.cgroup import control_group
from autograde.sandbox.execution import Execution, NoSandbox
from autograde.sandbox.limits import Limits
from autograde.sandbox.rank_channel import RankChannel
from autograde.sandbox.withheld import hidden_packages, withheld_modules
from course_lib.system.prefork import ForkServer, ForkServerError

if TYPE_CHECKING:
    from autograde.sandbox.gpus import Gpu

__all__ = ["WarmInterpreter"]

_INSIDE = Path(__file__).resolve().parent / "inside"
# The kernel's count may exceed ours by this: the group also includes waiting processes and the pages of files.
_SPARE = 256 << 20
_WORKERS = 4000  # the numbers of `autograde.batch.worker`'s workers: no rank has another worker's user
_ENVIRONMENT = {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"]),
    "LANG": "C.UTF-8",
    "MPLBACKEND": "agg",
}


class WarmInterpreter:
    """A Python process that has the labs' libraries imported and forks itself into sandboxes.

    Parameters
    ----------
    sandboxed : bool
        False: forks run outside of a sandbox, with the grader's rights, on machines without sandboxes.

    Raises `SandboxError`: it cannot be started.
    """

    def __init__(self, slot: int = 0, sandboxed: bool = True) -> None:
        self.slot, self.sandboxed = slot, sandboxed
        self._home = tempfile.TemporaryDirectory(prefix="lab-warm-", ignore_cleanup_errors=True)
        environment = _ENVIRONMENT | {
            "HOME": self._home.name,
            "MPLCONFIGDIR": self._home.name,
            # Threads that spin while they wait would take time from the other workers.
            "OMP_WAIT_POLICY": "passive",
            # An import that asks for GPUs must not start CUDA: no fork could use it then.
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        }
        command = [sys.executable, "-I", str(_INSIDE / "interpreter.py")]
        self._server = ForkServer.start(command, Path(self._home.name), environment)
        self._branches: dict[tuple[str, ...], tuple[ForkServer, dict[Path, Path]]] = {}

    @property
    def pid(self) -> int:
        """The process, for measurements."""
        return self._server.process.pid

    def execute(
        self,
        limits: Limits,
        ranks: int = 1,
        data: Mapping[str, Path] | None = None,
        threads: int = 1,
        fork_server: bool = False,
        withheld: tuple[str, ...] = (),
        network: bool = True,
        gpu: Gpu | None = None,
    ) -> Execution:
        """Fork into a fresh sandbox, once per rank.

        Several ranks share the sandbox's limits and its end, and nothing else: each has its own processes, ``/tmp`` and
        ``/dev/shm``.

        Parameters
        ----------
        ranks : int
            Number of processes; each gets torchrun's variables.
        fork_server : bool
            Whether the code will call `course_lib.distributed.launch`.
        withheld : tuple of str
            Parts of the installed packages that are withheld, in a rubric's form. Without a sandbox the files still have them.
        network : bool
            Whether several ranks share a loopback device. Without it they can reach only the grader.
        gpu : Gpu, optional
            What `autograde.sandbox.gpus.one_gpu` gives. By default there is none.

        Raises
        ------
        SandboxError
            The sandbox or the fork cannot be made.
        WithheldError
            An entry of `withheld` names nothing.
        """
        branch, replaced = self._branch(withheld)
        place: Sandbox | NoSandbox
        place = (
            Sandbox(self.slot, data, limits.disk_bytes, replaced, hidden_packages(withheld), gpu)
            if self.sandboxed
            else NoSandbox()
        )
        group = control_group(limits.memory_bytes + _SPARE) if self.sandboxed else None
        execution = Execution(place, limits, group)
        environment = _ENVIRONMENT | {
            "HOME": "/tmp",
            "USER": "student",
            "LAB_DATA": DATA,
            "MPLCONFIGDIR": "/tmp",
            "OMP_NUM_THREADS": str(threads),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(place.port),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        if gpu is not None:  # CUDA counts the GPUs that it can open
            environment["CUDA_VISIBLE_DEVICES"] = "0" if self.sandboxed else gpu.uuid
        request = {
            "user_namespace": place.user_namespace,
            "join": place.pidfd >= 0,
            "apart": ranks > 1,
            "network": network,
            "gpu": gpu is not None,
            "folder": place.folder,
            "threads": threads,
            "fork_server": fork_server,
            "limits": {
                "memory": int(1.25 * limits.memory_bytes),
                "file": limits.disk_bytes // ranks,
                "files": limits.files // ranks,
                # The `Watch` has the verdict. The kernel counts a user's: in a user namespace our own processes, too, and
                # as root those of another grader on this machine.
                "processes": 2 * limits.tasks,
                "open_files": 1024,
            },
        }
        descriptors = [*([place.pidfd] if place.pidfd >= 0 else []), *(group.joining if group else [])]
        try:
            for rank in range(ranks):
                own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | place.environment
                # Each rank has its own user: the limit of processes counts per user.
                uid = None if place.uid is None else place.uid + _WORKERS * rank
                execution.ranks.append(_fork(branch, request | {"environment": own, "uid": uid}, descriptors))
            execution.wait_until_confined()
        except BaseException:
            execution.close()
            raise
        return execution

    def _branch(self, withheld: tuple[str, ...]) -> tuple[ForkServer, dict[Path, Path]]:
        """The branch for these withheld solutions, and the texts that replace its files in the sandbox.

        Its import may take seconds, so it is made before any time limit begins.
        """
        if withheld in self._branches:
            if self._branches[withheld][0].process.poll() is None:
                return self._branches[withheld]
            self._branches.pop(withheld)[0].close()  # it ended, for example because memory ran out: make a new one
        try:
            self._server.wait_until_ready()
        except ForkServerError as error:
            self._server.process.kill()
            raise SandboxError(f"{error}; see that `{sys.executable}` imports torch") from None
        folder = Path(tempfile.mkdtemp(dir=self._home.name))
        folder.chmod(0o755)
        stand_ins = []
        for module in withheld_modules(withheld):
            text = folder / f"{module.name}.py"
            text.write_text(module.text, encoding="utf-8")
            text.chmod(0o644)
            stand_ins.append((module.name, str(module.path), str(text)))
        try:
            branch = self._server.branch({"stand_ins": stand_ins}, folder)
            branch.wait_until_ready()
        except ForkServerError as error:
            raise SandboxError(f"the warm interpreter cannot import the course's library ({error})") from None
        self._branches[withheld] = branch, {Path(path): Path(text) for _, path, text in stand_ins}
        return self._branches[withheld]

    def close(self) -> None:
        """End the interpreter, and the executions that are still open."""
        for branch, _ in self._branches.values():
            branch.close()
        self._server.close()
        self._home.cleanup()

    def __enter__(self) -> WarmInterpreter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _fork(branch: ForkServer, request: Mapping[str, Any], descriptors: Sequence[int]) -> RankChannel:
    channel, theirs = socket.socketpair()
    output, writer = os.pipe()
    try:
        process = branch.request(request, [theirs.fileno(), *descriptors], stdout=writer, stderr=writer)
    except BaseException as error:
        channel.close()
        os.close(output)
        if isinstance(error, ForkServerError):
            raise SandboxError(f"the sandbox could not be entered ({error}); run again with --debug") from None
        raise
    finally:
        theirs.close()
        os.close(writer)
    return RankChannel(channel, output, process)
