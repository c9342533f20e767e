"""Watch a launch's ranks from start to end: their output, the first failure, the time limit, an interrupt.

A `Ranks` starts the ranks: `launch` by the fork server, `mpi_run` by mpirun, `mpi_launch` by both.
"""

from __future__ import annotations

import abc
import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from course_lib.distributed.launching.errors import LaunchStoppedError, LaunchTimeoutError, RankFailedError
from course_lib.distributed.launching.interrupt_guard import InterruptGuard
from course_lib.distributed.launching.launch_folder import LaunchFolder
from course_lib.distributed.launching.own_time import OwnTime

__all__ = ["RankPrinter", "Ranks", "launching", "watch"]

POLL = 0.02  # seconds between two polls of the ranks


class Ranks(abc.ABC):
    """The processes of a launch.

    Attributes
    ----------
    grace : float
        Seconds from a rank's error report until the exit codes of all ranks that failed before it are known.
    last_signals : tuple of (int, float)
        How ranks are ended: a signal, and the seconds to wait for its effect.
    """

    grace: float
    last_signals: tuple[tuple[int, float], ...]

    @abc.abstractmethod
    def start(self) -> None:
        """Start the ranks."""

    @abc.abstractmethod
    def running(self) -> list[int]:
        """The processes that have not ended."""

    @abc.abstractmethod
    def exits(self) -> dict[int, int | None]:
        """Ranks that ended before they were done, with their exit codes (−n: signal n); None: not known yet."""

    def over(self) -> bool:
        """Whether all ranks have ended."""
        return not self.running()

    def end(self, interrupted: bool) -> None:
        """End the ranks that still run, and wait until they have ended. Only after an interrupt they get SIGINT."""
        for number, seconds in self.last_signals:
            if number == signal.SIGINT and not interrupted:
                continue
            for pid in self.running():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            end = time.monotonic() + seconds
            while self.running() and time.monotonic() < end:
                time.sleep(POLL)


@contextlib.contextmanager
def launching(world_size: int, parent: str | None = None) -> Iterator[tuple[LaunchFolder, InterruptGuard]]:
    """Make a launch's folder for the block. The first SIGINT or SIGTERM ends the block, later ones are dropped."""
    ended = "the rank has been ended" if world_size == 1 else f"all {world_size} ranks have been ended"
    with InterruptGuard(ended, signal.SIGINT, signal.SIGTERM) as signals:
        folder = LaunchFolder(world_size, parent)
        try:
            yield folder, signals
        finally:
            with signals.hold():
                folder.remove()


def watch(
    ranks: Ranks, folder: LaunchFolder, signals: InterruptGuard, view: Any, timeout: float | None,
    stop: threading.Event | None = None, own_time: bool = False,
) -> None:  # fmt: skip
    """Start the ranks and wait until all have ended.

    Parameters
    ----------
    own_time : bool
        The timeout counts as `OwnTime` says.
    view : RankPrinter or LaunchView
        Shows what the ranks print: `look` is called often, `close` at the end.

    Raises
    ------
    RankFailedError, LaunchTimeoutError, LaunchStoppedError
        As `launch`.
    """
    begin, limit = time.monotonic(), None
    if own_time and Path("/proc/self/stat").exists():
        limit = OwnTime(timeout)
    failing = failure = None  # the time of the first sign, and the error
    try:
        with signals.hold():
            ranks.start()
        while not ranks.over():
            view.look()
            now, exits = time.monotonic(), ranks.exits()
            if exits or folder.errors():
                failing = failing or now
                if any(code is not None for code in exits.values()) or now > failing + ranks.grace:
                    time.sleep(POLL)  # a rank that was killed may be seen to have ended after peers that it made fail
                    break
            if stop is not None and stop.is_set():
                raise LaunchStoppedError("the launch was stopped")
            if limit is not None:
                finished = {pid for rank, pid in folder.pids().items() if rank in folder.done()}
                if limit.over(set(ranks.running()) - finished):
                    raise LaunchTimeoutError(round(now - begin, 1), folder.positions())
            elif timeout is not None and now > begin + timeout:
                raise LaunchTimeoutError(timeout, folder.positions())
            time.sleep(POLL)
        failure = _first_failure(ranks, folder)
    finally:
        with signals.hold():
            ranks.end(signals.raised)
            view.close()
    if failure := failure or _first_failure(ranks, folder):
        raise failure


def _first_failure(ranks: Ranks, folder: LaunchFolder) -> RankFailedError | None:
    """The rank that failed first: one that ended without a report, else the one with the earliest report.

    When a rank is killed, its peers report broken connections. So an end without a report comes before all reports.
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
        return RankFailedError(rank, folder.world_size, "the process ended without a report before it was done")
    return None


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"the process exited with code {code} before it was done"
    hint = "; the system does this when memory runs out" if -code == signal.SIGKILL else ""
    return f"the process was ended by {signal.Signals(-code).name}{hint}"


class RankPrinter:
    """Prints the ranks' logs, each line with its rank.

    Attributes
    ----------
    printed : list of str
    """

    def __init__(self, logs: Mapping[int, Path]) -> None:
        self.printed: list[str] = []
        self._logs = logs
        self._read = dict.fromkeys(logs, 0)
        self._rest = dict.fromkeys(logs, b"")  # the unfinished last line

    def look(self, last: bool = False) -> None:
        """Print the new lines; with `last`, also an unfinished one."""
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
