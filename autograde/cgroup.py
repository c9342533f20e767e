"""A control group for one execution's memory, where this machine lets us make one.

The kernel then counts every page of the sandbox's processes, files in its memory file systems included, and ends what
goes beyond. Version 2 (a delegated group, as under a systemd user manager or in a container of one's own) and version 1
(root) are known; elsewhere there is none, and `autograde.limits.Watch` is what counts.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from pathlib import Path

__all__ = ["MemoryGroup", "memory_group"]

MOUNT = Path("/sys/fs/cgroup")
_PREFIX = "lab-grade-"
_numbers = itertools.count()


class MemoryGroup:
    """A group with a limit on memory.

    Parameters
    ----------
    folder : Path
        Of the group, made and limited already.
    version : int
        1 or 2.
    """

    def __init__(self, folder: Path, version: int) -> None:
        self.folder, self.version = folder, version
        # Opened here, where we may: a process joins by writing 0 into it.
        self.joining = os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    def ended_one(self) -> bool:
        """Whether the kernel has ended a process of the group for want of memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        with contextlib.suppress(OSError):
            for line in (self.folder / name).read_text().splitlines():
                key, _, count = line.partition(" ")
                if key == "oom_kill":
                    return int(count) > 0
        return False

    def close(self) -> None:
        """Remove the group, whose processes must have been ended."""
        os.close(self.joining)
        with contextlib.suppress(OSError):
            (self.folder / "cgroup.kill").write_text("1")
        for _ in range(50):
            try:
                self.folder.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.02)  # the kernel is still taking its processes down


def memory_group(limit: int) -> MemoryGroup | None:
    """Make a group that may use `limit` bytes, or None where this machine does not let us.

    Under version 2 a group that holds processes cannot divide itself, so the new one stands beside our own; under
    version 1 it stands below it.
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
                else:
                    (folder / "memory.limit_in_bytes").write_text(str(limit))
                    with contextlib.suppress(OSError):
                        (folder / "memory.memsw.limit_in_bytes").write_text(str(limit))
                return MemoryGroup(folder, version)
            except OSError:
                with contextlib.suppress(OSError):
                    folder.rmdir()
    return None


def _remove_orphans(parent: Path) -> None:
    """Remove groups that a grader left which was killed; one that still holds processes stays."""
    for folder in parent.glob(f"{_PREFIX}*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def _parents(version: int) -> list[Path]:
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
        if version == 1 and "memory" in controllers.split(","):
            return [MOUNT / "memory" / own]
    return []


def _divides_memory(group: Path) -> bool:
    try:
        return group.is_relative_to(MOUNT) and "memory" in (group / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False
