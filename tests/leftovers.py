"""What a test run leaves behind: processes (and so ports), and segments of shared memory.

Every process that a test starts inherits ``LAB_TEST_RUN``, also one that was detached from its parents. The run ends and
gives its processes time to end. A process that then still has the variable was forgotten.
"""

import os
import time
from pathlib import Path

MARK = "LAB_TEST_RUN"
SHARED_MEMORY = Path("/dev/shm")


def _ancestors() -> set[int]:
    found, pid = set(), os.getpid()
    while pid > 1:
        found.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def processes(mark: str) -> dict[int, str]:
    """Process identifiers and command lines of those that carry the mark.

    Left out are this process, its parents, and its own servers of `multiprocessing`, which end with it.
    """
    wanted, found, own = f"{MARK}={mark}".encode(), {}, _ancestors()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) in own:
            continue
        try:
            if wanted not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # it has just ended, or is somebody else's
            continue
        servers = int(parent) == os.getpid() and "from multiprocessing." in line
        if state != "Z" and not servers:
            found[int(folder.name)] = line[:160]
    return found


def segments(since: float) -> list[str]:
    """PyTorch's segments of shared memory made after `since` (seconds since 1970) by processes that are gone."""
    found = []
    for file in SHARED_MEMORY.glob("torch_*"):
        pid = file.name.split("_")[1]
        try:
            recent = file.stat().st_mtime >= since and file.stat().st_uid == os.getuid()
        except OSError:
            continue
        if recent and not Path(f"/proc/{pid}").exists():
            found.append(file.name)
    return found


def left_behind(mark: str, since: float, patience: float = 15.0) -> list[str]:
    """A line for each thing that is still there after `patience` seconds; none as soon as all is gone."""
    end = time.monotonic() + patience
    while True:
        lines = [f"process {pid}: {line}" for pid, line in processes(mark).items()]
        lines += [f"shared memory: {SHARED_MEMORY / name}" for name in segments(since)]
        if not lines or time.monotonic() > end:
            return lines
        time.sleep(0.25)
