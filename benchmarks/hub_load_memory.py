"""Memory, threads and ports of a hub's processes, sampled from /proc while it is used; needs root."""

import contextlib
import os
import pwd
import threading
import time
from collections import defaultdict
from pathlib import Path

import psutil

MIB = 1 << 20
KINDS = {  # by a part of the command line
    "jupyterhub-singleuser": "server",
    "ipykernel_launcher": "kernel",
    "configurable-http-proxy": "proxy",
    "jupyterhub-idle-culler": "culler",
    "bin/jupyterhub": "hub",
}
_TICK = os.sysconf("SC_CLK_TCK")
_LISTENS = "0A"


class Watch:
    """Samples the processes of some accounts, and root's below one process, until `stop`.

    Attributes
    ----------
    peaks : dict
        By owner, then by name: MiB unless it is said otherwise. ``server``, ``kernel``, ``ranks``…: the largest
        ``VmHWM`` of a process of that kind (what it shares with others counts fully). ``together``: all the owner's
        processes in one sample by ``Pss`` (what is shared counts by its part). ``data``: the largest ``VmData``, which
        is what ``RLIMIT_DATA`` limits. ``threads``: at once. ``end``: ``together`` in the last sample.
    ports : dict
        By owner: the TCP ports on which something listened.
    machine : dict
        ``before`` and ``peak``: MiB that were not available. ``shm``: most in /dev/shm.
    """

    def __init__(self, accounts: list[str], root: int, every: float = 3.0) -> None:
        self._uids = {pwd.getpwnam(name).pw_uid: name for name in accounts}
        self._root, self._every = root, every
        self.peaks: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self.ports: dict[str, set[int]] = defaultdict(set)
        self.machine = {"before": _used(), "peak": 0.0, "shm": 0.0}
        self._seconds: dict[tuple[str, str, int], float] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def processor_seconds(self) -> dict[str, dict[str, float]]:
        """By owner and kind, as far as samples saw it: the last second of a short process is lost."""
        found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for (owner, kind, _), seconds in list(self._seconds.items()):
            found[owner][kind] += seconds
        return {owner: dict(kinds) for owner, kinds in found.items()}

    def stop(self) -> None:
        """A last sample, and the end."""
        self._stopped.set()
        self._thread.join()
        self.sample()

    def _run(self) -> None:
        while not self._stopped.is_set():
            begun = time.monotonic()
            self.sample()
            self._stopped.wait(max(self._every, 5 * (time.monotonic() - begun)))  # at most a sixth of a core

    def sample(self) -> None:
        """Look once."""
        together: dict[str, float] = defaultdict(float)
        threads: dict[str, float] = defaultdict(float)
        with contextlib.suppress(psutil.NoSuchProcess):
            below = {one.pid for one in psutil.Process(self._root).children(recursive=True)}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            with contextlib.suppress(OSError, KeyError, ValueError, IndexError):
                status = _fields(folder / "status")
                uid = int(status["Uid"].split()[0])
                owner = self._uids.get(uid) or ("hub" if uid == 0 and int(folder.name) in below else None)
                if owner is None:
                    continue
                kind = _kind((folder / "cmdline").read_bytes().decode(errors="replace"), owner)
                own = self.peaks[owner]
                own[kind] = max(own[kind], _mib(status["VmHWM"]))
                own["data"] = max(own["data"], _mib(status["VmData"]))
                threads[owner] += int(status["Threads"])
                together[owner] += _mib(_fields(folder / "smaps_rollup")["Pss"])
                times = (folder / "stat").read_text().rpartition(")")[2].split()
                self._seconds[owner, kind, int(folder.name)] = (int(times[11]) + int(times[12])) / _TICK
        for owner in together:
            own = self.peaks[owner]
            own["together"], own["end"] = max(own["together"], together[owner]), together[owner]
            own["threads"] = max(own["threads"], threads[owner])
        for uid, port in _listening():
            if uid in self._uids:
                self.ports[self._uids[uid]].add(port)
        shared = os.statvfs("/dev/shm")
        self.machine["shm"] = max(self.machine["shm"], (shared.f_blocks - shared.f_bfree) * shared.f_frsize / MIB)
        self.machine["peak"] = max(self.machine["peak"], _used())


def _kind(command: str, owner: str) -> str:
    for part, kind in KINDS.items():
        if part in command.replace("\0", " "):
            return kind
    return "ranks" if owner != "hub" else "other"  # a launch's fork server and ranks, shells


def _used() -> float:
    memory = psutil.virtual_memory()
    return (memory.total - memory.available) / MIB


def _fields(file: Path) -> dict[str, str]:
    return dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)


def _mib(text: str) -> float:
    return int(text.split()[0]) / 1024  # the kernel says kB and means KiB


def _listening() -> list[tuple[int, int]]:
    """Pairs of user and TCP port."""
    found = []
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(file).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENS:
                    found.append((int(words[7]), int(words[1].rpartition(":")[2], 16)))
    return found
