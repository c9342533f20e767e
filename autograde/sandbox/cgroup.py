"""A control group for one execution's memory and processor time, if this machine allows one.

The kernel then counts every page of the sandbox's processes, also of files in its memory file systems. It ends a
process beyond the limit. It also shares the processor between sandboxes, not between processes: 240 busy processes in
one sandbox take no more than one busy process in another. Two versions are supported: version 2 (a delegated group, as
under a systemd user manager or in a private container) and version 1 (root). Elsewhere there is no control group, and
`autograde.sandbox.limits.Watch` counts.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["ControlGroup", "control_group"]

MOUNT = Path("/sys/fs/cgroup")
_PREFIX = "lab-grade-"
_numbers = itertools.count()


class ControlGroup:
    """A group with a limit on memory and, if possible, a share of the processor.

    Parameters
    ----------
    beside : sequence of Path
        Version 1 has one hierarchy per resource: these are the group's folders in the processor's hierarchies.

    Attributes
    ----------
    joining : list of int
        Descriptors of ``cgroup.procs``, opened here with our rights. A process joins by writing 0 into each.
    """

    def __init__(self, folder: Path, version: int, beside: Sequence[Path] = ()) -> None:
        self.folder, self.version = folder, version
        self._folders = [folder, *beside]
        self.joining: list[int] = []
        try:
            for each in self._folders:
                self.joining.append(os.open(each / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            self.close()
            raise

    def processor_seconds(self) -> float | None:
        """Processor time of all present and past processes of the group; None if the kernel does not count it."""
        for folder in self._folders:
            with contextlib.suppress(OSError, ValueError):
                if self.version == 1:
                    return int((folder / "cpuacct.usage").read_text()) / 1e9
                counts = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
                return int(counts.get("usage_usec", "")) / 1e6
        return None

    def ended_one(self) -> bool:
        """Whether the kernel has ended a process of the group for lack of memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        with contextlib.suppress(OSError):
            for line in (self.folder / name).read_text().splitlines():
                key, _, count = line.partition(" ")
                if key == "oom_kill":
                    return int(count) > 0
        return False

    def close(self) -> None:
        """Remove the group. Its processes must have ended."""
        for descriptor in self.joining:
            os.close(descriptor)
        self.joining = []
        with contextlib.suppress(OSError):
            (self.folder / "cgroup.kill").write_text("1")
        for folder in self._folders:
            for glance in range(500):
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(min(0.001 * (glance + 1), 0.02))  # the kernel is still taking its processes down


def control_group(limit: int) -> ControlGroup | None:
    """Make a group that may use `limit` bytes of memory; None if this machine does not allow it.

    Its share of the processor is that of one process outside, for any number of processes.

    Under version 2 a group that holds processes cannot divide itself, so the new one is made beside our own; under
    version 1 it is made below it.
    """
    for version, parents in ((2, _parents(2)), (1, _parents(1))):
        for parent in parents:
            folder = parent / f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
            try:
                folder.mkdir()
            except OSError:
                continue
            _remove_orphans(parent)
            try:
                if version == 2:
                    (folder / "memory.max").write_text(str(limit))
                    with contextlib.suppress(OSError):
                        (folder / "memory.swap.max").write_text("0")
                    (folder / "memory.oom.group").write_text("0")
                    beside = []
                else:
                    (folder / "memory.limit_in_bytes").write_text(str(limit))
                    with contextlib.suppress(OSError):
                        (folder / "memory.memsw.limit_in_bytes").write_text(str(limit))
                    beside = _processor_groups(folder.name)
                return ControlGroup(folder, version, beside)
            except OSError:
                with contextlib.suppress(OSError):
                    folder.rmdir()
    return None


def _processor_groups(name: str) -> list[Path]:
    """Under version 1: the folders that share the processor and count its time, without those that cannot be made."""
    found = []
    for controller in ("cpu", "cpuacct"):
        for parent in _parents(1, controller):
            with contextlib.suppress(OSError):
                folder = parent / name
                folder.mkdir()
                found.append(folder)
                _remove_orphans(parent)
    return found


def _remove_orphans(parent: Path) -> None:
    """Remove the groups of killed graders. A group that still holds processes stays."""
    for folder in parent.glob(f"{_PREFIX}*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def _parents(version: int, controller: str = "memory") -> list[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        own = path.lstrip("/")
        if version == 2 and number == "0":
            group = MOUNT / own
            return [parent for parent in (group.parent, group) if _divides_memory(parent)]
        if version == 1 and controller in controllers.split(","):
            return [MOUNT / controller / own]
    return []


def _divides_memory(group: Path) -> bool:
    try:
        return group.is_relative_to(MOUNT) and "memory" in (group / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False
