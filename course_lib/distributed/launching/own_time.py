"""A time limit that counts what a launch's ranks do, and not how busy the machine is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["OwnTime"]

IDLE = 0.01  # of the limit: ranks that together used less processor time all wait. A loop that polls uses about so much
LONGEST = 20  # times the limit, whatever the ranks do


class OwnTime:
    """Whether ranks have had long enough, by their own processor time.

    They have once one of them has computed for `limit` seconds, or once all have waited for so long: ranks that wait for
    each other use no processor, and ranks that wait for a processor use some of it. `LONGEST` limits are the end.

    Parameters
    ----------
    limit : float
        Seconds.
    clock, used : callable
        The time now, and the processor time of a process, in seconds.
    """

    def __init__(
        self, limit: float, clock: Callable[[], float] = time.monotonic, used: Callable[[int], float] | None = None
    ) -> None:
        self._limit, self._clock, self._used = limit, clock, used or processor_seconds
        self._begin: float | None = None
        self._last_work, self._total = 0.0, 0.0

    def over(self, processes: Iterable[int]) -> bool:
        """Ask it often, with the ranks that have not finished; the first time when they have started."""
        now, used = self._clock(), [self._used(process) for process in processes]
        if self._begin is None:
            self._begin = self._last_work = now
        if abs(sum(used) - self._total) > IDLE * self._limit:  # less than before: a rank has finished
            self._last_work, self._total = now, sum(used)
        longest = now - self._begin > LONGEST * self._limit
        return longest or now - self._last_work > self._limit or max(used, default=0.0) > self._limit


def processor_seconds(process: int) -> float:
    """Seconds that a process has computed so far, with all its threads; 0 if it has ended. Needs Linux's /proc."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
