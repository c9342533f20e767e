"""From the start of a launch's ranks to their end: what they print, the first failure, the time limit, and an interrupt.

How ranks are started and ended is the affair of a `Ranks`: `launch` has the fork server's, `mpi_launch` mpirun's.
"""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from course_lib.distributed.launching.errors import LaunchStoppedError, LaunchTimeoutError, RankFailedError
from course_lib.distributed.launching.launch_folder import LaunchFolder
from course_lib.distributed.launching.one_interrupt import OneInterrupt

__all__ = ["LOOK", "RankPrinter", "Ranks", "launching", "watch"]

LOOK = 0.02  # seconds between two looks at the ranks


class Ranks(Protocol):
    """The processes of a launch.

    `exits` says which ranks have ended before they were done: their exit codes (−n: signal n), or None while nobody knows.
    `grace` is the time in seconds after a rank's error report within which they are known. `over`: all ranks have ended. `end`
    ends those that are left, and waits until they have gone.
    """

    grace: float

    def start(self) -> None: ...
    def exits(self) -> dict[int, int | None]: ...
    def over(self) -> bool: ...
    def end(self, interrupted: bool) -> None: ...


@contextlib.contextmanager
def launching(world_size: int, parent: str | None = None) -> Iterator[tuple[LaunchFolder, OneInterrupt]]:
    """For the block, a launch's folder; the first SIGINT or SIGTERM ends the block, those after it are dropped."""
    ended = "the rank has been ended" if world_size == 1 else f"all {world_size} ranks have been ended"
    with OneInterrupt(ended, signal.SIGINT, signal.SIGTERM) as signals:
        folder = LaunchFolder(world_size, parent)
        try:
            yield folder, signals
        finally:
            with signals.hold():
                folder.remove()


def watch(
    ranks: Ranks, folder: LaunchFolder, signals: OneInterrupt, view: Any, timeout: float | None,
    stop: threading.Event | None = None,
) -> None:  # fmt: skip
    """Start the ranks and wait for them; raises what became of them, when all have ended.

    Parameters
    ----------
    view : RankPrinter or LaunchView
        Shows what the ranks print: `look` is called often, `close` at the end.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    failing = failure = None  # since when, and how
    try:
        with signals.hold():
            ranks.start()
        while not ranks.over():
            view.look()
            now, exits = time.monotonic(), ranks.exits()
            if exits or folder.errors():
                failing = failing or now
                if any(code is not None for code in exits.values()) or now > failing + ranks.grace:
                    time.sleep(LOOK)  # a rank that was killed may be seen to have ended after peers that it made fail
                    break
            if stop is not None and stop.is_set():
                raise LaunchStoppedError("the launch was stopped")
            if deadline is not None and now > deadline:
                raise LaunchTimeoutError(timeout, folder.positions())
            time.sleep(LOOK)
        failure = _first_failure(ranks, folder)
    finally:
        with signals.hold():
            ranks.end(signals.raised)
            view.close()
    if failure := failure or _first_failure(ranks, folder):
        raise failure


def _first_failure(ranks: Ranks, folder: LaunchFolder) -> RankFailedError | None:
    """The rank that failed first: one that has ended without a report, else the one with the earliest report.

    When a rank is killed, its peers report broken connections; so an end without a report comes before all reports.
    """
    exits, errors = ranks.exits(), folder.errors()
    for rank, code in sorted(exits.items()):
        if rank not in errors and code is not None:
            return RankFailedError(rank, folder.world_size, _describe_exit(code))
    if errors:
        rank = min(errors, key=lambda rank: errors[rank]["time"])
        text = errors[rank]["traceback"]
        if done := ", ".join(map(str, folder.done())):
            text += (
                f"\nRank {done} had already returned: if rank {rank} was in a collective, "
                "not every rank made the same calls.\n"
            )
        return RankFailedError(rank, folder.world_size, errors[rank]["reason"], text)
    for rank in sorted(exits):
        return RankFailedError(rank, folder.world_size, "the process ended without a word before it was done")
    return None


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"the process exited with code {code} before it was done"
    hint = "; the system kills so when memory runs out" if -code == signal.SIGKILL else ""
    return f"the process was ended by {signal.Signals(-code).name}{hint}"


class RankPrinter:
    """Prints what ranks write into their logs, each line with its rank.

    Attributes
    ----------
    printed : list of str
    """

    def __init__(self, logs: Mapping[int, Path]) -> None:
        self.printed: list[str] = []
        self._logs = logs
        self._read = dict.fromkeys(logs, 0)
        self._rest = dict.fromkeys(logs, b"")  # of a line whose end has not come

    def look(self, last: bool = False) -> None:
        """Print the lines that are new; the `last` time also one whose end has not come."""
        new = []
        for rank, path in self._logs.items():
            if not path.exists():
                continue
            with path.open("rb") as log:
                log.seek(self._read[rank])
                data = log.read()
            self._read[rank] += len(data)
            *lines, rest = re.split(rb"\r?\n|\r", self._rest[rank] + data)
            if last and rest:
                lines.append(rest)
            self._rest[rank] = rest
            new += [f"[rank {rank}] {line.decode(errors='replace')}\n" for line in lines]
        if new:
            self.printed += new
            print("".join(new), end="", flush=True)

    def close(self) -> None:
        """Print what is left."""
        self.look(last=True)
