"""Namespaces for one execution of student code. bubblewrap makes them, and they end with it.

A `Sandbox` is a process that only waits, inside fresh namespaces. They have an empty root with the system, the Python
environment and the course's public packages, all read-only. They have a private ``/tmp`` and ``/dev/shm`` of bounded
size, no network except loopback, and no other process. The warm interpreter that runs the student's code joins them
(`autograde.sandbox.warm`), so no new interpreter must start. When the keeper ends, every process in them ends,
detached ones too: that is the kernel's rule for the first process of a process namespace.

What is *not* there: this package, the labs' sources, the course folder, other submissions, any home folder, the
environment's variables, the host's processes and its network.

If root starts the grader, the namespaces are root's. The student's code then runs as a separate unprivileged user
(`FIRST_UID` + slot), so that the limit on processes counts. Otherwise it runs in a user namespace, where it has the
keeper's own user id and may write into the keeper's memory. So the keeper has the same system-call filter.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from autograde.sandbox.inside.confine import filter_program
from autograde.sandbox.limits import SandboxError

if TYPE_CHECKING:
    from autograde.sandbox.gpus import Gpu

__all__ = ["DATA", "FOLDER", "Sandbox", "SandboxError", "installed", "missing_sandbox", "python_paths"]

FOLDER = "/tmp/lab"  # the working folder inside
DATA = "/data"  # staged data sets inside
PUBLIC = ("course_lib", "data_prep", "assessment_print")  # the course's own, for students
FIRST_UID = 61_000
_INSIDE = Path(__file__).resolve().parent / "inside"
MISSING = (
    "no sandbox: bubblewrap is not installed, or this kernel does not let it make namespaces ({why}); "
    "install it (Debian: apt-get install bubblewrap) or, knowing that students' code then runs with your rights, "
    "pass --no-sandbox"
)


class Sandbox:
    """Fresh namespaces.

    Parameters
    ----------
    slot : int
        Number of the worker. It sets the user id if root starts the grader.
    disk_bytes : int
        Size of ``/tmp``, and of ``/dev/shm``.
    replaced : mapping of Path to Path
        Python files to replace, and the text files that replace them. The compiled files beside them are hidden.
    hidden : sequence of Path
        Folders that look empty inside.
    gpu : Gpu, optional
        The GPU whose device files are inside. By default nothing of any GPU is.

    Attributes
    ----------
    pidfd : int
        Of the process that holds the namespaces.
    user_namespace : bool
        Whether they are in a user namespace.
    folder, port : str, int
        The working folder, and a port that is free inside.
    uid : int or None
        The user that a joining process must become; None in a user namespace.

    Raises `SandboxError`: bubblewrap is missing, or cannot make the namespaces.
    """

    folder, port = FOLDER, 29_400
    environment: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        slot: int = 0,
        data: Mapping[str, Path] | None = None,
        disk_bytes: int = 512 << 20,
        replaced: Mapping[Path, Path] = MappingProxyType({}),
        hidden: Sequence[Path] = (),
        gpu: Gpu | None = None,
    ) -> None:
        self.user_namespace = os.geteuid() != 0
        self.uid = None if self.user_namespace else FIRST_UID + slot
        self.disk_bytes = disk_bytes
        bubblewrap = shutil.which("bwrap")
        if bubblewrap is None:
            raise SandboxError(MISSING.format(why="bwrap is not on PATH"))
        reader, writer = os.pipe()
        # Through a file, so that no process inside can read the host's paths from the command line.
        options = tempfile.TemporaryFile()  # noqa: SIM115 (closed once bubblewrap has it)
        arguments = self._arguments(data or {}, disk_bytes, replaced, hidden, gpu)
        options.write("".join(f"{option}\0" for option in arguments).encode())
        options.seek(0)
        calls = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the options)
        calls.write(filter_program(gpu=gpu is not None))
        calls.seek(0)
        command = [bubblewrap, "--args", str(options.fileno()), "--info-fd", str(writer)]
        command += ["--seccomp", str(calls.fileno()), "--", "/bin/cat"]
        try:
            self._keeper = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(writer, options.fileno(), calls.fileno()),
                env={"PATH": "/usr/bin:/bin"},
                cwd="/",
            )
        finally:
            os.close(writer)
            options.close()
            calls.close()
        try:
            with os.fdopen(reader) as info:
                text = info.read()
            # Its echo says that the root is in place.
            self._keeper.stdin.write(b"\n")
            self._keeper.stdin.flush()
            if not text or self._keeper.stdout.readline() != b"\n":
                raise BrokenPipeError
            self.pid = int(json.loads(text)["child-pid"])
            self.pidfd = os.pidfd_open(self.pid)
        except (OSError, ValueError):
            self._keeper.kill()
            said = self._keeper.communicate()[1].decode(errors="replace").strip().splitlines()
            raise SandboxError(MISSING.format(why=said[-1] if said else "bwrap ended at once")) from None

    def _arguments(
        self,
        data: Mapping[str, Path],
        disk_bytes: int,
        replaced: Mapping[Path, Path],
        hidden: Sequence[Path],
        gpu: Gpu | None,
    ) -> list[str]:
        arguments = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        arguments += ["--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox"]
        if self.user_namespace:
            arguments += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
        shown = {Path("/usr"): Path("/usr"), Path("/sys/devices/system/cpu"): Path("/sys/devices/system/cpu")}
        for name in ("bin", "sbin", "lib", "lib32", "lib64"):
            path = Path("/", name)
            if path.is_symlink():
                arguments += ["--symlink", os.readlink(path), f"/{name}"]
            elif path.is_dir():
                shown[path] = path
        shown |= {Path("/etc", name): Path("/etc", name) for name in ("ld.so.cache", "localtime", "alternatives")}
        shown |= {Path("/etc", name): _INSIDE / "etc" / name for name in ("passwd", "hosts")}
        shown |= {path: path for path in python_paths()}
        shown |= {Path(DATA, name): path for name, path in data.items()}
        if gpu is not None:
            roots = tuple(shown)
            shown |= {inside: path for inside, path in gpu.shown.items() if not any(map(inside.is_relative_to, roots))}
        # The writable places come first: the environment may itself be below /tmp.
        size = ["--size", str(disk_bytes)]
        arguments += ["--proc", "/proc", "--dev", "/dev"]
        arguments += [*size, "--perms", "1777", "--tmpfs", "/tmp", *size, "--perms", "1777", "--tmpfs", "/dev/shm"]
        arguments += ["--perms", "1777", "--dir", FOLDER]
        # bubblewrap makes the folders on the way for its own user alone.
        for folder in sorted({folder for path in shown for folder in path.parents if folder != Path("/")}):
            arguments += ["--perms", "0755", "--dir", str(folder)]
        for inside, path in shown.items():
            arguments += ["--ro-bind-try", str(path), str(inside)]
        for node in gpu.nodes if gpu is not None else ():
            arguments += ["--dev-bind", str(node), f"/dev/{node.name}"]  # any other bind refuses to open devices
        for path in (*_masked(), *hidden):
            arguments += ["--tmpfs", str(path), "--remount-ro", str(path)]
        for path, text in replaced.items():
            arguments += ["--ro-bind", str(text), str(path)]
        for folder in sorted({path.parent / "__pycache__" for path in replaced}):
            with contextlib.suppress(OSError):
                folder.mkdir(exist_ok=True)  # a missing folder cannot be covered, and may appear later
            if folder.is_dir():
                arguments += ["--tmpfs", str(folder), "--remount-ro", str(folder)]
        # Root and /dev are bubblewrap's own tmpfs, writable by the owner of the namespace.
        return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/"]

    @property
    def alive(self) -> bool:
        """Whether the namespaces still exist."""
        return self._keeper.poll() is None

    def bytes_on_loopback(self) -> int:
        """Bytes sent over the sandbox's only network interface so far, each counted once."""
        for line in Path(f"/proc/{self.pid}/net/dev").read_text().splitlines():
            name, _, counts = line.partition(":")
            if name.strip() == "lo":
                return int(counts.split()[0])
        return 0

    def disk_used(self) -> float:
        """The fraction in use of the fullest writable folder, 0…1."""
        shares = [0.0]
        for place in ("tmp", "dev/shm"):
            with contextlib.suppress(OSError):
                status = os.statvfs(f"/proc/{self.pid}/root/{place}")
                shares.append(1 - status.f_bavail / max(1, status.f_blocks))
        return max(shares)

    def close(self) -> None:
        """End every process in the namespaces, and wait for their end."""
        if self._keeper.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, 9)  # the namespace's first process: the kernel ends all others with it
            self._keeper.kill()
        self._keeper.wait()
        for stream in (self._keeper.stdin, self._keeper.stdout, self._keeper.stderr):
            with contextlib.suppress(OSError):
                stream.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


@cache
def installed(name: str) -> Path | None:
    """The folder of a package, or the file of a module, as the sandbox's interpreter finds it; nothing is executed of it.

    That interpreter is ``python -I``. It ignores the current folder, and ``PYTHONPATH``, where a hub's grader has a
    `course_lib` of its own, with the answers.
    """
    found = subprocess.run([sys.executable, "-I", "-c", _FIND, name], capture_output=True, text=True, check=True)
    return Path(found.stdout) if found.stdout else None


_FIND = """
import importlib.util, sys
spec = importlib.util.find_spec(sys.argv[1])
if spec is not None:
    print([*(spec.submodule_search_locations or ()), spec.origin][0], end="")
"""


@cache
def python_paths() -> tuple[Path, ...]:
    """The folders and files that Python and the course's public packages need: environment, its base, packages."""
    found = {Path(sys.prefix), Path(sys.base_prefix), Path(sysconfig.get_path("purelib"))}
    found |= {Path(os.path.realpath(sys.executable)).parent.parent}
    found |= {place for name in PUBLIC if (place := installed(name)) is not None}
    outer = [path for path in sorted(found) if not path.is_relative_to("/usr")]
    return tuple(path for path in outer if not any(_inside(path, other) for other in outer))


@cache
def _masked() -> tuple[Path, ...]:
    # Where the grader is installed into the environment that the sandbox shows, it is covered by an empty folder. So
    # is a home or a course folder that somebody keeps inside it, and what describes the exercises, with their answers.
    # A grader with a library of its own has it on PYTHONPATH; where somebody keeps that inside, it is covered whole.
    import course_lib

    grader, own, public = Path(__file__).resolve().parents[1], Path(course_lib.__file__).resolve().parent, installed("course_lib")
    shown = (*python_paths(), Path("/usr"))
    hidden = {grader}
    if public is None or public.resolve() == own:
        hidden.add(own / "exercises")
    else:
        hidden |= {own, public.resolve() / "exercises"}
    hidden |= {Path.home().resolve(), Path.cwd().resolve() / "course", grader.parent / "labs"}
    return tuple(sorted(path for path in hidden if path.is_dir() and any(_inside(path, other) for other in shown)))


def _inside(path: Path, other: Path) -> bool:
    return path != other and path.is_relative_to(other)


def missing_sandbox() -> str | None:
    """The reason why no sandbox can be made here, in one line; None if one can."""
    try:
        Sandbox(disk_bytes=1 << 20).close()
    except SandboxError as error:
        return str(error)
    return None
