"""A conversation with the runners in one sandbox: cells, calls, files, until a deadline or a limit.

All answers are plain data, read with a bound on their size. Nothing here waits for a runner beyond the deadline.
"""

from __future__ import annotations

import math
import os
import re
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autograde.sandbox.bubblewrap import Sandbox, SandboxError
from autograde.sandbox.cgroup import ControlGroup
from autograde.sandbox.inside import wire
from autograde.sandbox.limits import DISTURBED, WALL, Exceeded, Limits, Watch, out_of_memory
from autograde.sandbox.rank_channel import RankChannel
from data_prep.root import data_root

__all__ = ["Execution", "NoSandbox"]

_WATCH_INTERVAL = 0.05
# After one rank has failed, the others get this time to return: they may be waiting for it.
GRACE_SECONDS = 3.0


class NoSandbox:
    """Replaces a `Sandbox` if the instructor has chosen none: a temporary folder without any isolation."""

    user_namespace, uid, pidfd, alive = False, None, -1, True

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lab-unsandboxed-", ignore_cleanup_errors=True)
        self.folder = self._folder.name
        self.environment = {"HOME": self.folder, "LAB_DATA": str(data_root())}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.pid = os.getpid()

    def bytes_on_loopback(self) -> None:
        return None  # everybody's traffic

    def disk_used(self) -> float:
        return 0.0

    def close(self) -> None:
        self._folder.cleanup()


@dataclass(frozen=True)
class _Clocks:
    """Seconds on the three clocks of `autograde.sandbox.limits`."""

    wall: float
    own: float
    processor: float
    counted: bool = True  # False: nothing counts the waiting


@dataclass(frozen=True)
class _Allowance:
    """A number of seconds, counted from the clocks at `since`."""

    seconds: float
    since: _Clocks

    def check(self, now: _Clocks, processors: int) -> None:
        """Raise `Exceeded` if the time is over."""
        wall, own = now.wall - self.since.wall, now.own - self.since.own
        if own >= self.seconds or wall >= WALL * self.seconds:
            late = Exceeded("time", f"timed out after {self.seconds:g} s")
            late.disturbed = not now.counted or wall - own >= DISTURBED * self.seconds
            raise late
        if now.processor - self.since.processor >= processors * self.seconds:
            raise Exceeded("time", f"timed out after {processors * self.seconds:g} s of processor time")


class Execution:
    """Runners in one sandbox, with a common deadline for all calls. A context manager."""

    def __init__(self, place: Sandbox | NoSandbox, limits: Limits, group: ControlGroup | None = None) -> None:
        self.place, self.limits, self.group = place, limits, group
        self.ranks: list[RankChannel] = []
        self.output = bytearray()
        self._grace_ends: float | None = None
        self._watch = Watch(place.pid, limits, group) if place.pidfd >= 0 else None
        self._next_look = 0.0
        self._allowances: list[_Allowance] = []
        self.allow(limits.seconds)

    @property
    def peak_bytes(self) -> int:
        """The most memory seen in the sandbox."""
        return self._watch.peak_bytes if self._watch else 0

    @property
    def processor_seconds(self) -> float:
        """Processor time of all its processes until now; 0.0 without a sandbox. Raises `Exceeded`."""
        if self._watch is None:
            return 0.0
        self._watch.look()
        return self._watch.processor_seconds

    def allow(self, seconds: float) -> None:
        """Allow at most this many seconds from now on, if fewer than the remaining ones."""
        if math.isfinite(seconds):
            self._allowances.append(_Allowance(seconds, self._clocks()))

    @property
    def seconds_left(self) -> float:
        """Seconds by its own clock until the nearest time limit."""
        now = self._clocks()
        return min(each.seconds - (now.own - each.since.own) for each in self._allowances)

    def _clocks(self) -> _Clocks:
        wall = time.monotonic()
        if self._watch is None:
            return _Clocks(wall, wall, 0.0, counted=False)
        return _Clocks(wall, wall - self._watch.waited, self._watch.processor_seconds)

    def cells(self, cells: Sequence[Mapping[str, str]]) -> list[list[dict[str, Any]]]:
        """Execute cells, each a mapping with ``id`` and ``source``, on every rank.

        Returns per rank and cell ``{"id", "error", "seconds"}``. The error is None or a mapping, in the student's
        words. The seconds are by the grader's own clock.

        Raises `Exceeded`: a limit was reached, or a process ended. Its `cell` was being executed.
        """
        started = [time.monotonic()] * len(self.ranks)
        outcomes: list[list[dict[str, Any]]] = [[] for _ in self.ranks]

        def took(rank: int, message: Any) -> bool:
            cell = cells[len(outcomes[rank])]
            error = message.get("error") if isinstance(message, dict) else {}
            now = time.monotonic()
            outcomes[rank].append({"id": cell["id"], "error": error, "seconds": now - started[rank]})
            started[rank] = now
            return len(outcomes[rank]) == len(cells)

        try:
            if cells:
                self._exchange([{"do": "cells", "cells": [dict(cell) for cell in cells]}] * len(self.ranks), took)
        except Exceeded as error:
            error.cell = cells[min(len(done) for done in outcomes)]["id"]
            raise
        return outcomes

    def call(
        self, module: str, function: str, given: Any, answers: Mapping[str, Callable[..., Any]] | None = None
    ) -> list[Any]:
        """Call a driver's function on every rank.

        Parameters
        ----------
        module : str
            The driver's source. It runs in the student code's process and holds no secret.
        given : object
            Plain data. If it is a list with one item per rank, and ranks > 1, each rank gets its own item.
        answers : mapping of str to callable
            The questions that the driver may ask, answered here by ``answer(rank, *args)`` with plain data. An answer
            must not wait, which would stop all ranks.

        Returns per rank ``{"value": …}``, ``{"error": {"type", "message", "cell", "line"}}`` or ``{"missing": name}``;
        None if another rank failed and this one did not return within `GRACE_SECONDS` after that.

        Raises `Exceeded`.
        """
        results: list[Any] = [None] * len(self.ranks)

        def took(rank: int, message: Any) -> bool:
            if isinstance(message, dict) and "ask" in message:
                name, arguments = message["ask"], message.get("args")
                if not isinstance(name, str) or name not in (answers or {}) or not isinstance(arguments, list):
                    raise Exceeded("protocol", "the answer is not in the format")
                try:
                    reply = answers[name](rank, *arguments)
                except (TypeError, ValueError, AttributeError, IndexError, KeyError):
                    raise Exceeded("protocol", "the answer is not in the format") from None
                self.ranks[rank].queue(wire.encode(reply))
                return False
            results[rank] = message if isinstance(message, dict) else {}
            if "value" not in results[rank] and self._grace_ends is None:
                self._grace_ends = time.monotonic() + GRACE_SECONDS
            return True

        each = given if len(self.ranks) > 1 and isinstance(given, list) else [given] * len(self.ranks)
        self._exchange([{"do": "call", "module": module, "function": function, "given": item} for item in each], took)
        return results

    def read(self, names: Sequence[str], limit: int) -> dict[str, bytes | None]:
        """Files of the working folder, from the first rank; None for a missing or too large one. Raises `Exceeded`."""
        found: dict[str, bytes | None] = {}

        def took(rank: int, message: Any) -> bool:
            contents = message if isinstance(message, list) and len(message) == len(names) else [None] * len(names)
            for name, content in zip(names, contents, strict=True):
                found[name] = content if isinstance(content, bytes) and len(content) <= limit else None
            return True

        self._exchange([{"do": "read", "names": list(names), "limit": limit}], took)
        return found

    def bytes_on_loopback(self) -> int | None:
        """Bytes sent between ranks so far, counted by the kernel; None without a sandbox."""
        return self.place.bytes_on_loopback()

    def close(self) -> None:
        """End all processes. Without a sandbox, a process that has left its process group survives."""
        for rank in self.ranks:
            rank.close()
        self.place.close()
        if self.group is not None:
            self.group.close()
            self.group = None

    def __enter__(self) -> Execution:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_until_confined(self) -> None:
        """Wait until every rank has given up its privileges. No student code has run by then.

        Raises `SandboxError`: one could not. This is no verdict on the student.
        """
        for rank in self.ranks:
            if not rank.wait_until_confined():
                self._drain()
                raise SandboxError(
                    f"a process could not enter its sandbox ({self._last_line()}); run again with --debug"
                )

    def _last_line(self) -> str:
        return re.sub(rb"[^ -~]", b"?", bytes(self.output[-200:]).strip().split(b"\n")[-1]).decode()

    def _exchange(self, requests: Sequence[Any], took: Callable[[int, Any], bool]) -> None:
        waiting = dict(enumerate(self.ranks[: len(requests)]))
        for number, rank in waiting.items():
            rank.queue(wire.encode(requests[number]))
        self._grace_ends = None
        while waiting:
            try:
                self._poll()
            except Exceeded as error:
                if error.kind == "time" and len(requests) > 1:
                    raise Exceeded("time", f"{error}: {_returned(len(requests), list(waiting))}") from None
                raise
            for number, rank in list(waiting.items()):
                while number in waiting and (message := rank.message(self.limits.answer_bytes)) is not rank.NOTHING:
                    if took(number, message):
                        del waiting[number]
                if number in waiting and rank.ended:
                    self._drain()
                    raise Exceeded("ended", self._how_it_ended(rank))
            if self._grace_ends is not None and time.monotonic() > self._grace_ends:
                return

    def _poll(self) -> None:
        now = time.monotonic()
        if self._watch and now >= self._next_look:
            self._watch.look()
            if self.group is not None and self.group.ended_one():
                raise Exceeded("memory", out_of_memory(self.limits))
            self._next_look = now + _WATCH_INTERVAL
        clocks = self._clocks()
        for each in self._allowances:
            each.check(clocks, self.limits.processors)
        readers = [end for rank in self.ranks if not rank.ended for end in (rank.socket, rank.process)]
        readers += [rank.output for rank in self.ranks if rank.output >= 0]
        writers = [rank.socket for rank in self.ranks if rank.unsent and not rank.ended]
        wait = min(max(0.0, self.seconds_left), _WATCH_INTERVAL)
        readable, writable, _ = select.select(readers, writers, [], wait)
        for rank in self.ranks:
            if rank.socket in writable:
                rank.send()
            if rank.socket in readable:
                rank.receive(self.limits.answer_bytes)
            if rank.process in readable:
                rank.receive(self.limits.answer_bytes)
                rank.ended = True
            if rank.output in readable:
                self._take_output(rank)

    def _take_output(self, rank: RankChannel) -> None:
        piece = os.read(rank.output, 1 << 16)
        if not piece:
            rank.close_output()
        self.output += piece
        if len(self.output) > self.limits.output_bytes:
            raise Exceeded("output", f"printed too much (more than {self.limits.output_bytes / (1 << 20):g} MB)")

    def _drain(self) -> None:
        for rank in self.ranks:
            while rank.output >= 0 and select.select([rank.output], [], [], 0)[0]:
                self._take_output(rank)

    def _how_it_ended(self, rank: RankChannel) -> str:
        try:
            code = rank.process.wait(1.0)
        except subprocess.TimeoutExpired:
            code = None
        if code is None or not self.place.alive:
            return "the process and its sandbox were ended from within"
        if self.group is not None and self.group.ended_one():
            raise Exceeded("memory", out_of_memory(self.limits))
        if code < 0:
            if code == -9 and self._watch and self._watch.peak_bytes > 0.8 * self.limits.memory_bytes:
                raise Exceeded("memory", out_of_memory(self.limits))
            return f"the process was ended by signal {-code}"
        said = f": {self._last_line()}" if code == 70 else ""  # the runner's own last word
        return f"the process ended itself with exit code {code}{said}"


def _returned(ranks: int, waiting: Sequence[int]) -> str:
    """Which ranks had returned at the time limit."""
    done = [rank for rank in range(ranks) if rank not in waiting]
    if not done:
        return "no rank had returned"
    return f"rank {', '.join(map(str, done))} had returned, rank {', '.join(map(str, waiting))} had not"
