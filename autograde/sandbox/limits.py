"""An execution's limits, and the watch that enforces them.

Time has three clocks. An execution's *own clock* is the wall clock without the time in which its processes waited for a
processor, so other processes of the machine cost a student nothing. *Processor time* limits an execution that is busy
in many processes, whose own clock may stop. The *wall clock* limits what the other two miss.

The kernel limits a single process (`autograde.sandbox.inside.confine`). A `Watch` sums over all processes of a sandbox,
several times per second. It reads the process table *of the sandbox*, which still holds a child that detaches itself.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autograde.sandbox.cgroup import ControlGroup

__all__ = ["Exceeded", "Limits", "SandboxError", "Watch"]

MIB = 1 << 20
TICKS = os.sysconf("SC_CLK_TCK")
WALL = 10.0  # wall clock to an execution's own clock, at most
DISTURBED = 0.25  # of a time limit: after waiting so long for processors, an execution may be late because of others
CROWD = 64  # processes and threads of a sandbox; with more, all of them wait for everybody else's


@dataclass(frozen=True)
class Limits:
    """The limits of one execution."""

    # By its own clock, from the first process to the last answer. Processor time may be `processors` times as long, the
    # wall clock `WALL` times.
    seconds: float = 60.0
    processors: int = 2  # the most processors that it uses at the same time
    memory_bytes: int = 4 << 30  # of all processes together; shared pages count once
    disk_bytes: int = 512 * MIB  # of ``/tmp``, of ``/dev/shm``, and of any one file
    tasks: int = 256  # processes and threads together
    output_bytes: int = 1 * MIB  # printed output of all processes
    answer_bytes: int = 64 * MIB  # of one answer
    # In each of ``/tmp`` and ``/dev/shm``: an empty file takes no disk, but a kilobyte of the kernel's memory
    files: int = 100_000
    sockets: int = 2_048  # all of them together: data in their buffers belongs to no process's memory

    @classmethod
    def of(cls, seconds: float, memory_gib: float) -> Limits:
        """A rubric's limits."""
        return cls(seconds, memory_bytes=int(memory_gib * (1 << 30)))


class SandboxError(RuntimeError):
    """No sandbox could be made. The message is one line with the remedy."""


class Exceeded(Exception):
    """An execution ended before it answered. `kind` is for programs; the message is one line for people.

    Kinds: ``time``, ``memory``, ``disk``, ``tasks``, ``output``, ``answer`` (too large), ``protocol`` (not in the
    format), ``ended`` (the process ended by itself, or was killed). `cell` is the id of the cell that was being executed.
    `disturbed`, of kind ``time``: whether other processes of the machine may be the cause.
    """

    cell = ""
    disturbed = False

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class Watch:
    """Looks at the processes of a sandbox.

    Parameters
    ----------
    pid : int
        The sandbox's first process, in the grader's process namespace.
    group : ControlGroup or None
        With a group the kernel counts the memory too, and ends a process that takes too much. Our figure is then only
        a lower bound, which is cheap to compute. The exact figure of 250 processes that keep forking takes seconds, in
        which nothing else would be checked.

    Attributes
    ----------
    peak_bytes : int
        The most memory seen.
    waited : float
        Seconds for which a process was ready and had no processor; of several at once, the longest wait.
    processor_seconds : float
        Processor time of all processes together. Without a control group, children without a ``wait`` are missing.
    """

    def __init__(self, pid: int, limits: Limits, group: ControlGroup | None = None) -> None:
        self.process = f"/proc/{pid}"
        self.table = f"/proc/{pid}/root/proc"
        self.limits, self.group, self.counted = limits, group, group is not None
        self.peak_bytes = 0
        self.waited = self.processor_seconds = 0.0
        self._looked = time.monotonic()
        self._waits: dict[str, int] = {}

    def look(self) -> None:
        """Look once. Raises `Exceeded`: more memory, tasks, files or sockets than the limits allow."""
        self._look_at_files_and_sockets()
        tasks = resident = tables = largest = 0
        processes = []
        with contextlib.suppress(OSError):  # the sandbox has ended: the caller sees that by itself
            processes = [name for name in os.listdir(self.table) if name.isdigit()]
        for name in processes:
            fields = _fields(f"{self.table}/{name}/status")
            tasks += fields.get(b"Threads", 0)
            own = sum(fields.get(key, 0) for key in (b"RssAnon", b"RssShmem", b"VmSwap", b"VmPTE")) * 1024
            resident, largest = resident + own, max(largest, own)
            tables += fields.get(b"VmPTE", 0) * 1024
        self._look_at_clocks(processes)
        if not self.counted and tasks > CROWD:
            _give_way(self.process)
        if tasks >= self.limits.tasks:
            raise Exceeded("tasks", f"started more than {self.limits.tasks} processes and threads")
        if resident > self.limits.memory_bytes and self.counted:
            resident = largest
        elif resident > self.limits.memory_bytes:
            # Forks share most of their pages, which counts them several times; the exact figure costs more to read.
            resident = tables
            for name in processes:
                fields = _fields(f"{self.table}/{name}/smaps_rollup")
                resident += sum(fields.get(key, 0) for key in (b"Pss_Anon", b"Pss_Shmem", b"SwapPss")) * 1024
        self.peak_bytes = max(self.peak_bytes, resident)
        if resident > self.limits.memory_bytes:
            raise Exceeded("memory", out_of_memory(self.limits))

    def _look_at_clocks(self, processes: list[str]) -> None:
        now = time.monotonic()
        waits: dict[str, int] = {}
        used = 0
        for name in processes:
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"{self.table}/{name}/schedstat") as file:
                    waits[name] = int(file.read().split()[1])  # nanoseconds of waiting for a processor
                if self.group is None:
                    with open(f"{self.table}/{name}/stat", "rb") as file:
                        # Behind the name, which may hold anything: user, system, and those of children that ended.
                        used += sum(map(int, file.read().rpartition(b")")[2].split()[11:15]))
        longest = max((wait - self._waits.get(name, 0) for name, wait in waits.items()), default=0) / 1e9
        self.waited += min(max(longest, 0.0), now - self._looked)
        self._waits, self._looked = waits, now
        counted = None if self.group is None else self.group.processor_seconds()
        self.processor_seconds = max(self.processor_seconds, used / TICKS if counted is None else counted)

    def _look_at_files_and_sockets(self) -> None:
        with contextlib.suppress(OSError):
            for place in ("tmp", "dev/shm"):
                status = os.statvfs(f"{self.process}/root/{place}")
                if status.f_files - status.f_ffree > self.limits.files:
                    raise Exceeded("disk", f"made more than {self.limits.files:,} files")
        with contextlib.suppress(OSError, ValueError), open(f"{self.process}/net/sockstat") as file:
            used = int(file.readline().split()[-1])  # "sockets: used 12", of the sandbox's network
            if used > self.limits.sockets:
                raise Exceeded("tasks", f"opened more than {self.limits.sockets:,} sockets")


def _give_way(process: str) -> None:
    """Give the processes in a namespace the lowest priority. Their children inherit it."""
    with contextlib.suppress(OSError):
        namespace = os.stat(f"{process}/ns/pid").st_ino
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}/ns/pid").st_ino == namespace:
                    os.setpriority(os.PRIO_PROCESS, int(name), 19)


def out_of_memory(limits: Limits) -> str:
    """The verdict on an execution that exceeds its memory limit."""
    return f"out of memory at {limits.memory_bytes / (1 << 30):g} GiB"


def _fields(path: str) -> dict[bytes, int]:
    # Lines such as "RssAnon:	   1234 kB"; others do not matter. A process may end while it is read.
    found = {}
    with contextlib.suppress(OSError), open(path, "rb") as file:
        for line in file:
            key, _, rest = line.partition(b":")
            number = rest.split(maxsplit=1)[:1]
            if number and number[0].isdigit():
                found[key] = int(number[0])
    return found
