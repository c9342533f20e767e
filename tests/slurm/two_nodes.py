"""Two network namespaces, joined by a cable, that stand for a job's two nodes.

A job script runs in them as Slurm would run it: ``SLURM_*`` variables, and stand-ins for ``srun`` (a process in each
namespace) and ``scontrol`` (the nodes' addresses). The nodes see each other and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["ADDRESSES", "Job", "NamespacesNotHere", "TwoNodes"]

NAMES = ("node-a", "node-b")
ADDRESSES = ("198.18.7.1", "198.18.7.2")  # of the range for measurements between networks, RFC 2544
GRACE = 20
_SRUN = """#!/bin/bash
# One process a node, whose host's name is its address; output and exit code go to files. After a failure the other node has
# GRACE seconds to say what it saw (Slurm gives fewer), and is then ended, as with --kill-on-bad-exit.
[[ $1 == --kill-on-bad-exit=1 ]] || exit 2
while [[ $1 == -* ]]; do shift; done
names=({names}) spaces=({spaces}) cards=({cards}) addresses=({addresses})
for node in 0 1; do
    (
        export SLURM_NODEID=$node SLURMD_NODENAME=${{names[node]}} GLOO_SOCKET_IFNAME=${{cards[node]}} code=0
        ip netns exec "${{spaces[node]}}" unshare --uts bash -c 'hostname "$0"; exec "$@"' "${{addresses[node]}}" "$@" \\
            > "$OUT/${{names[node]}}.out" 2>&1 || code=$?
        echo $code > "$OUT/${{names[node]}}.code"
        exit $code
    ) &
done
wait -n || {{
    worst=$?
    (sleep {grace}; for space in "${{spaces[@]}}"; do ip netns pids "$space" | xargs -r kill -KILL; done) > /dev/null 2>&1 &
    ending=$!
    wait -n || true
    kill $ending
    exit $worst
}}
wait -n
"""


class NamespacesNotHere(RuntimeError):
    """No two nodes can be made on this machine; one line."""


class TwoNodes:
    """The nodes, up; a context manager that takes them down with all that runs in them.

    Parameters
    ----------
    folder : Path
        Empty; for the stand-ins.

    Raises
    ------
    NamespacesNotHere
        No root, no ``ip`` (Debian's iproute2), or a kernel that forbids it.
    """

    def __init__(self, folder: Path) -> None:
        if os.geteuid() != 0:
            raise NamespacesNotHere("two nodes on one machine need root, for network namespaces")
        if shutil.which("ip", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            raise NamespacesNotHere("no `ip` here to make network namespaces with; apt-get install iproute2")
        self.folder = folder
        self.spaces = tuple(f"lab{os.getpid()}{letter}" for letter in "ab")
        self.cards = tuple(f"cable{letter}" for letter in "ab")
        try:
            for space in self.spaces:
                self._ip("netns", "add", space)
            self._ip("link", "add", self.cards[0], "netns", self.spaces[0], "type", "veth",
                     "peer", "name", self.cards[1], "netns", self.spaces[1])  # fmt: skip
            for space, card, address in zip(self.spaces, self.cards, ADDRESSES, strict=True):
                self._ip("-n", space, "addr", "add", f"{address}/24", "dev", card)
                for up in ("lo", card):
                    self._ip("-n", space, "link", "set", up, "up")
        except subprocess.CalledProcessError as error:
            self.close()
            raise NamespacesNotHere(f"`{' '.join(error.cmd)}` fails: {error.stderr.strip()}") from None
        lists = {"names": NAMES, "spaces": self.spaces, "cards": self.cards, "addresses": ADDRESSES}
        self._stand_in("srun", _SRUN.format(grace=GRACE, **{name: " ".join(words) for name, words in lists.items()}))
        hosts = f"[ \"$1 $2\" = 'show hostnames' ] && printf '%s\\n' {' '.join(ADDRESSES)}"
        self._stand_in("scontrol", f"#!/bin/sh\n{hosts}\n")

    def start(self, script: Path, *words: str, cwd: Path, number: int, **variables: str) -> Job:
        """A job of the two nodes that runs ``script words…`` in `cwd`, with further environment variables."""
        return Job(self, script, words, cwd, number, **variables)

    def kill(self, node: int) -> None:
        """End everything on a node, as if it had been switched off while its network card still answers."""
        for pid in self._ip("netns", "pids", self.spaces[node]).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def ranks(self, node: int) -> list[int]:
        """Process identifiers of the ranks on a node."""
        found = []
        for pid in self._ip("netns", "pids", self.spaces[node]).split():
            with contextlib.suppress(OSError):
                if b"\0LOCAL_RANK=" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(int(pid))
        return found

    def cut(self, node: int) -> None:
        """Pull a node's end of the cable: nothing that it sends arrives, nor anything sent to it."""
        self._ip("-n", self.spaces[node], "link", "set", self.cards[node], "down")

    def mend(self, node: int) -> None:
        self._ip("-n", self.spaces[node], "link", "set", self.cards[node], "up")

    def close(self) -> None:
        for node, space in enumerate(self.spaces):
            with contextlib.suppress(subprocess.CalledProcessError):
                self.kill(node)
                self._ip("netns", "del", space)

    def __enter__(self) -> TwoNodes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stand_in(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def _ip(self, *words: str) -> str:
        environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        command = ["ip", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=30).stdout


class Job:
    """A job on two nodes, begun; `end` waits for it."""

    def __init__(
        self, nodes: TwoNodes, script: Path, words: tuple[str, ...], cwd: Path, number: int, **variables: str
    ) -> None:
        self.folder = cwd / f"job-{number}"
        self.folder.mkdir()
        environment = {
            **os.environ, "PATH": f"{nodes.folder}:{os.environ['PATH']}:/usr/sbin:/sbin", "PYTHON": sys.executable,
            "OUT": str(self.folder), "SLURM_JOB_ID": str(number), "SLURM_NNODES": "2", "SLURM_CPUS_PER_TASK": "1",
            "SLURM_JOB_NODELIST": "node-[a-b]", "RANKS_PER_NODE": "1", **variables,
        }  # fmt: skip
        self._process = subprocess.Popen(
            ["bash", script, *words], cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def said(self, node: int) -> str:
        path = self.folder / f"{NAMES[node]}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def code(self, node: int) -> int | None:
        """The exit code of what srun started on a node; None while it runs."""
        path = self.folder / f"{NAMES[node]}.code"
        return int(path.read_text()) if path.exists() and path.read_text() else None

    def wait_until(self, condition, what: str, seconds: float) -> float:
        """Seconds that it took; fails where it takes more than `seconds`."""
        start = time.monotonic()
        while not condition():
            waited = time.monotonic() - start
            assert waited < seconds, (
                f"no {what} within {seconds:g} s:\n{self.said(0)[-3000:]}\n----\n{self.said(1)[-3000:]}"
            )
            time.sleep(0.05)
        return time.monotonic() - start

    def end(self, seconds: float = 240.0) -> int:
        """The job script's exit code."""
        try:
            self._process.communicate(timeout=seconds)
        finally:
            self._process.kill()
        return self._process.returncode
