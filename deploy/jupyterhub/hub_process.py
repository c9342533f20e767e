"""A hub's process and everything that it starts: however the hub ends, nothing of that stays.

What a killed hub leaves (proxy, culler, the server that grades, servers of students) becomes the child of the
process that started the hub, and is ended. Slurm's jobs are nobody's children on this machine; they continue.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path

MARK = "COURSE_HUB_DEMO"  # in the environment of the hub, its proxy and its culler: the demo's folder
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None)


class HubProcess:
    """JupyterHub, running.

    Parameters
    ----------
    command : list
        What starts it.
    folder : Path
        Its working folder.
    environment : dict
    log : Path
        Takes what it says.
    """

    def __init__(self, command: list[object], folder: Path, environment: dict[str, str], log: Path) -> None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [str(word) for word in command],
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=_end_with_parent,
                start_new_session=True,  # Ctrl-C comes to us, and we tell the hub once
            )

    def runs(self) -> bool:
        """Whether the hub is there; what it has left to us and has ended is forgotten on the way."""
        _reap(self._process)
        return self._process.poll() is None

    def end(self, seconds: float = 30.0, timeout: float = 5.0) -> None:
        """End the hub, then what is left of it: asked first, killed after `seconds`, and after `timeout` more."""
        self._process.terminate()
        end = time.monotonic() + seconds
        while self.runs() and time.monotonic() < end:
            time.sleep(0.1)
        if self.runs():
            self._process.kill()
            self._process.wait()
        asked: set[int] = set()
        end = time.monotonic() + timeout
        while children := _children():
            for pid in children:  # ours until we reap them, so these numbers are nobody else's
                if pid not in asked or time.monotonic() > end:
                    os.kill(pid, signal.SIGTERM if time.monotonic() < end else signal.SIGKILL)
            asked |= children
            time.sleep(0.1)
            _reap(self._process)


def end_marked(mark: str, seconds: float = 20.0) -> None:
    """End root's processes whose environment has `mark`: a hub that lost its starter, or what that hub has left."""
    end = time.monotonic() + seconds
    while found := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _has(pid, mark)]:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(pid)  # from here on it is this process or none
                try:
                    if _has(pid, mark):
                        number = signal.SIGTERM if time.monotonic() < end else signal.SIGKILL
                        signal.pidfd_send_signal(handle, number)
                finally:
                    os.close(handle)
        time.sleep(0.5)


def _has(pid: int, mark: str) -> bool:
    with contextlib.suppress(OSError):
        if pid != os.getpid() and os.stat(f"/proc/{pid}").st_uid == 0:
            return f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def _children() -> set[int]:
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError):
            # The name in brackets may hold anything; what follows its last bracket is state and parent.
            parent = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                found.add(int(name))
    return found


def _reap(process: subprocess.Popen) -> None:
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == process.pid and process.poll() is None:
                return
            if ended.si_pid != process.pid:
                os.waitpid(ended.si_pid, 0)


def _end_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # a killed demo leaves no hub
