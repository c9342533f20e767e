"""MPI between ranks that share nothing: calls and messages pass through here, in the grader, which does not read them.

The ranks' half is in `drivers/lab08.py`. What is passed on is pickled by one rank and unpickled by another, both in the
sandbox; here it is bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["MPIExchange"]

STUCK = 5.0  # seconds in which nothing moves although every rank is there and somebody waits
MOST = 10_000  # calls
MOST_BYTES = 1 << 26


@dataclass(eq=False)
class _Half:
    """A send, or a receive, and what it got when it met its other half."""

    source: int
    destination: int
    tag: int
    packed: bytes | None = None
    met: bool = False


class MPIExchange:
    """Collectives, and messages that wait for their receive, between `size` ranks.

    Attributes
    ----------
    stuck : bool
        Ranks made different calls, or one waited for what nobody sends.
    """

    def __init__(self, size: int) -> None:
        self.size, self.stuck = size, False
        self._called: list[list[tuple[str, bytes]]] = [[] for _ in range(size)]
        self._halves: list[tuple[int, bool, _Half]] = []  # whose, whether it is a send
        self._there: set[int] = set()
        self._left: set[int] = set()
        self._bytes, self._moved = 0, time.monotonic()

    @property
    def answers(self) -> Mapping[str, Callable[..., Any]]:
        """For `Ask.call`."""
        return {
            "here": self._here,
            "left": self._leave,
            "all": self._all,
            "together": self._together,
            "send": self._send,
            "receive": self._receive,
            "met": self._met,
        }

    def _here(self, rank: int) -> None:
        self._there.add(rank)
        self._moved = time.monotonic()

    def _leave(self, rank: int) -> None:
        self._left.add(rank)

    def _too_much(self, packed: Any) -> bool:
        self._bytes += len(packed)
        self._moved = time.monotonic()
        return len(self._halves) + max(map(len, self._called)) > MOST or self._bytes > MOST_BYTES

    def _all(self, rank: int, name: Any, packed: Any) -> int | str:
        if not (rank < self.size and isinstance(name, str) and isinstance(packed, bytes)) or self._too_much(packed):
            return "far too many messages"
        self._called[rank].append((name, packed))
        return len(self._called[rank]) - 1

    def _together(self, rank: int, number: Any) -> list[bytes] | str | None:
        """What all ranks brought to a collective; None while some are missing."""
        if not (rank < self.size and type(number) is int and 0 <= number < len(self._called[rank])):
            return "there is no such call"
        there = [calls[number] for calls in self._called if len(calls) > number]
        if len({name for name, _ in there}) > 1:
            self.stuck = True
            return "the ranks make different calls"
        return [packed for _, packed in there] if len(there) == self.size else self._wait(rank)

    def _send(self, rank: int, destination: Any, tag: Any, packed: Any) -> int | str:
        if not isinstance(packed, bytes) or self._too_much(packed):
            return "far too many messages"
        return self._post(rank, True, _Half(rank, destination, tag, packed))

    def _receive(self, rank: int, source: Any, tag: Any) -> int | str:
        if self._too_much(b""):
            return "far too many messages"
        return self._post(rank, False, _Half(source, rank, tag))

    def _post(self, rank: int, sends: bool, half: _Half) -> int | str:
        known = all(type(n) is int and -2 <= n < self.size for n in (rank, half.source, half.destination))
        if not (known and 0 <= rank < self.size and half.destination >= 0 and type(half.tag) is int):
            return "there is no such rank"
        self._halves.append((rank, sends, half))
        waiting = [(s, one) for _, s, one in self._halves if not one.met]
        for receive in [one for s, one in waiting if not s]:
            for send in [one for s, one in waiting if s and not one.met]:
                fits = receive.source in (send.source, -1, -2) and receive.tag in (send.tag, -1, -2)
                if fits and receive.destination == send.destination:
                    receive.packed, receive.met, send.met = send.packed, True, True
                    break
        return len(self._halves) - 1

    def _met(self, rank: int, number: Any) -> bytes | bool | str | None:
        """Of a receive the message, of a send True; None while the other half is missing."""
        if not (type(number) is int and 0 <= number < len(self._halves) and self._halves[number][0] == rank):
            return "there is no such message"
        _, sends, half = self._halves[number]
        if not half.met:
            return self._wait(rank)
        return True if sends else half.packed

    def _wait(self, rank: int) -> str | None:
        others = set(range(self.size)) - {rank}
        alone = bool(others) and others <= self._left
        everybody = self._there >= set(range(self.size))
        if self.stuck or alone or (everybody and time.monotonic() - self._moved > STUCK):
            self.stuck = True
            return "a rank waits for ever"
        return None
