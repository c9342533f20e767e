"""Servers on the hub's own machine: each student's a process of that student, with limits.

The limits are the kernel's per-process ones (``setrlimit``): memory that a process may own, and how many processes a
student may have. Eight ranks of a lab are eight processes; what they may have *together* a control group limits, as
systemd's (``user-.slice.d/*.conf``, ``MemoryMax=``) or Slurm's do.

Folders may be hidden: each server then has a mount namespace of its own in which they are empty. The demo hides the
checkout it was started from.
"""

import ctypes
import os
import resource
from collections.abc import Callable

from jupyterhub.spawner import LocalProcessSpawner
from server_ports import ServerPorts
from traitlets import Float, Integer, List, Unicode

_LIBC = ctypes.CDLL(None, use_errno=True)  # loaded before the fork, not after it
_NEW_MOUNTS = 0x20000
_READ_ONLY, _NO_SUID, _NO_DEV, _NO_EXEC = 1, 2, 4, 8
_RECURSIVE, _SLAVE = 1 << 14, 1 << 19
_PORTS = ServerPorts()  # of all spawners


class CourseSpawner(LocalProcessSpawner):
    """JupyterHub's local spawner, with limits and hidden folders; the hub runs as root."""

    memory_gib = Float(0, config=True, help="GiB that each process may own; 0: no limit")
    processes = Integer(0, config=True, help="Processes and threads that a user may have; 0: no limit")
    hidden = List(Unicode(), config=True, help="Folders that are empty for the server")
    first_port = Integer(20000, config=True, help="Servers listen on this port and on those above it")

    async def start(self) -> tuple[str, int]:
        """Start the server on a port that no other has."""
        self.port = _PORTS.of(self._log_name, self.first_port)
        return await super().start()

    def make_preexec_fn(self, name: str) -> Callable[[], None]:
        """What the new process does before it becomes the server."""
        become_user = super().make_preexec_fn(name)
        hidden = [folder for folder in self.hidden if os.path.isdir(folder)]
        memory, processes = int(self.memory_gib * (1 << 30)), self.processes

        def prepare() -> None:
            if hidden:
                hide(hidden)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if memory:
                resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
            if processes:
                resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
            os.umask(0o077)  # what a student writes, in /tmp too, is that student's
            become_user()

        return prepare


def hide(folders: list[str]) -> None:
    """Cover folders by empty ones, for this process and those it starts; needs root.

    Raises
    ------
    OSError
        The kernel does not let us; the server is then not started.
    """
    _call(_LIBC.unshare(_NEW_MOUNTS), "unshare")
    # What is mounted later outside still arrives here (shared file systems), and nothing goes the other way.
    _call(_LIBC.mount(None, b"/", None, _RECURSIVE | _SLAVE, None), "mount /")
    flags = _READ_ONLY | _NO_SUID | _NO_DEV | _NO_EXEC
    for folder in folders:
        _call(_LIBC.mount(b"none", os.fsencode(folder), b"tmpfs", flags, b"size=4k,mode=0755"), f"mount {folder}")


def _call(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
