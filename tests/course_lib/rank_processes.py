"""Watching the processes that a launch started, from outside it."""

import os
import shlex
import time
from pathlib import Path

import psutil

from course_lib.system.mpi_command import find_mpi

GENEROUS = 300.0  # seconds; on the slowest machine all is over earlier, and what never ends is found


def ranks_are_what_mpirun_starts(monkeypatch):
    """As under MPICH's mpirun; elsewhere the fork server forks them."""
    found = find_mpi()
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LAB_MPIRUN", shlex.join(["env", "PMI_FD=9", *found.words]))


def note_pid(folder):
    """For workers: leave this process's id in `folder`."""
    Path(folder, f"{os.environ['RANK']}.pid").write_text(str(os.getpid()))


def noted_pids(folder, count, timeout=GENEROUS):
    """The ids that `count` ranks left in `folder`, once they all have."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        texts = [path.read_text() for path in Path(folder).glob("*.pid")]
        if len(texts) >= count and all(texts):
            return [int(text) for text in texts]
        time.sleep(0.02)
    raise AssertionError(f"{count} ranks should have started within {timeout} s: {list(Path(folder).iterdir())}")


def command_line(process):
    """The words of a process's command; none if it has ended, even if nobody waited for it yet."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # a zombie, too
        return []


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def survivors(pids, timeout=0.0):
    """Those of `pids` that are still alive after at most `timeout` seconds."""
    end = time.monotonic() + timeout
    left = [pid for pid in pids if alive(pid)]
    while left and time.monotonic() < end:
        time.sleep(0.02)
        left = [pid for pid in left if alive(pid)]
    return left
