"""How far a sweep is: a bar on a terminal, a line a point in a log."""

from __future__ import annotations

import sys
import time

import click
from tqdm import tqdm

from course_lib.runs.sweep.folder import Outcome
from course_lib.runs.sweep.points import Point

__all__ = ["SweepProgress", "duration"]


class SweepProgress:
    """Told what begins and ends."""

    def __init__(self, to_do: int) -> None:
        self.to_do = to_do
        self.running = self.finished = self.failed = 0
        self._started = time.monotonic()
        self._bar = None
        if sys.stdout.isatty() and to_do:
            self._bar = tqdm(total=to_do, unit="point", file=sys.stdout, dynamic_ncols=True)

    def began(self, point: Point) -> None:
        """A point runs."""
        self.running += 1
        self._show()

    def ended(self, point: Point, outcome: Outcome) -> None:
        """A point has ended, well or not."""
        self.running -= 1
        self.finished += 1
        self.failed += outcome.status == "failed"
        if outcome.status == "failed":
            self.say(f"{point.folder}: failed: {outcome.error}", error=True)
        if self._bar is not None:
            self._bar.update()
            self._show()
            return
        left = (time.monotonic() - self._started) / self.finished * (self.to_do - self.finished)
        if outcome.status == "done":
            click.echo(f"[{self.finished}/{self.to_do}, {duration(left)} left] {point.folder}: {outcome.seconds:.1f} s")

    def say(self, line: str, error: bool = False) -> None:
        """A line above the bar."""
        if self._bar is not None:
            self._bar.write(line, file=sys.stdout)
        else:
            click.echo(line, err=error)

    def close(self) -> None:
        """Give the terminal back."""
        if self._bar is not None:
            self._bar.close()

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(f"{self.running} running, {self.failed} failed")


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
