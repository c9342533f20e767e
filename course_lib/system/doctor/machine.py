"""Cores and threads, memory, room on disks."""

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from course_lib.system import hardware
from course_lib.system.doctor.finding import Finding, fine, judged, problem

__all__ = ["disk", "memory", "open_files", "shared_memory", "speed", "threads"]

GIB = 2**30
MEMORY = 2 * GIB  # a kernel holds 0.6 GiB and each of two ranks 0.4 GiB (resident; lab 08 at the laptop profile)
SHARED_MEMORY = 256 * 2**20  # lab 09 says that it holds 0.1 GB there
DISK = GIB
OPEN_FILES = 1024
SHM = Path("/dev/shm")


def threads() -> Iterator[Finding]:
    """Threads that PyTorch starts, against the cores that there are for them."""
    cores, wanted = hardware.available_cores(), torch.get_num_threads()
    given, there = os.environ.get("OMP_NUM_THREADS", ""), f"{cores} core{'s' if cores > 1 else ''}"
    if given.isdigit() and int(given) > cores:
        yield problem(
            "cores",
            f"OMP_NUM_THREADS={given} on {there}: the threads wait for each other",
            "unset OMP_NUM_THREADS before the kernel starts; launch() divides the cores between the ranks",
        )
    elif wanted > cores:
        yield problem(
            "cores",
            f"PyTorch takes {wanted} threads, and may use {there}",
            f"set OMP_NUM_THREADS={cores} before the kernel starts (a container or a job gives fewer cores than it shows)",
        )
    else:
        text = f"{there}, {wanted} thread{'s' if wanted > 1 else ''} ({hardware.cpu_name()})"
        yield fine("cores", text, "two ranks share the core: speed-ups cannot show" if cores == 1 else "")


def speed() -> Iterator[Finding]:
    """How fast it trains: a processor without bfloat16 is slower, and not broken."""
    from course_lib.metrics.calibration import calibrate  # networks are above this package

    cores, busy = hardware.available_cores(), os.getloadavg()[0]  # of the last minute, so not this measurement's
    measured, notes = calibrate(), []
    if busy > cores:
        notes.append(f"other programs run on this machine (load {busy:.0f}, {cores} cores): alone it is faster")
    found = str(measured) if notes else f"{measured}; {measured.expectation()}"
    if not measured.bfloat16:
        notes.append(
            "it has no bfloat16: the labs train in float32, which takes longer, and this is all right"
        )
    yield fine("speed", found, "; ".join(notes))


def memory() -> Iterator[Finding]:
    """Memory that is free now, within the container's or the job's limit."""
    free = min(psutil.virtual_memory().available, _group_room())
    remedy = f"two ranks need {MEMORY / GIB:.0f} GiB: shut down other kernels, or ask for more (sbatch --mem=4G)"
    yield judged("memory", f"{free / GIB:.1f} GiB free", free < MEMORY, remedy)


def _group_room() -> float:
    """What the control group (version 2) leaves, in bytes; infinite without a limit."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return float("inf")
    return float("inf") if limit == "max" else max(0, int(limit) - used)


def shared_memory() -> Iterator[Finding]:
    """/dev/shm, where ranks share tensors: when it is full, they end with a bus error."""
    try:
        free = shutil.disk_usage(SHM).free
    except OSError as error:
        yield problem("/dev/shm", f"{SHM}: {error.strerror}", f"mount it: mount -t tmpfs tmpfs {SHM}")
        return
    remedy = "ranks end with a bus error where it is full: docker run --shm-size=2g, --ipc=host, or delete what was left there"
    yield judged("/dev/shm", f"{free / 2**20:.0f} MiB free", free < SHARED_MEMORY, remedy)


def disk() -> Iterator[Finding]:
    """Room for run folders and for temporary files, and whether one may write there."""
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")
    for name, folder in (("disk", Path.cwd()), ("home", Path.home()), ("temporary", temporary)):
        try:
            free = shutil.disk_usage(folder).free
        except OSError as error:
            yield problem(name, f"{folder}: {error.strerror}", "make the folder, or ask your administrator")
            continue
        if not os.access(folder, os.W_OK | os.X_OK):
            yield problem(name, f"{folder} cannot be written to", "open the notebook from a folder of your own")
            continue
        remedy = "delete old run folders (runs/) and checkpoints: du -sh ~/* | sort -h"
        yield judged(name, f"{free / GIB:.1f} GiB free in {folder}", free < DISK, remedy)


def open_files() -> Iterator[Finding]:
    """Each tensor in shared memory and each connection between ranks holds an open file."""
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    remedy = f"ulimit -n {OPEN_FILES} before the kernel starts" if hard >= OPEN_FILES else "ask for a higher hard limit"
    yield judged("open files", f"at most {limit}", limit < OPEN_FILES, remedy)
