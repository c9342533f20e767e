"""Progress of a sweep: a bar on a terminal, a line per trial in a log."""

import sys
import time

import click
from tqdm import tqdm

from course_lib.runs.sweep.folder import Outcome
from course_lib.runs.sweep.trials import Trial

__all__ = ["SweepProgress", "duration"]


class SweepProgress:
    """Shows which trials begin and end."""

    def __init__(self, to_do: int) -> None:
        self.to_do = to_do
        self.running = self.finished = self.failed = 0
        self._started = time.monotonic()
        self._bar = None
        if sys.stdout.isatty() and to_do:
            self._bar = tqdm(total=to_do, unit="trial", file=sys.stdout, dynamic_ncols=True)

    def began(self, trial: Trial) -> None:
        """A trial has started."""
        self.running += 1
        self._show()

    def ended(self, trial: Trial, outcome: Outcome) -> None:
        """A trial has ended, done or failed."""
        self.running -= 1
        self.finished += 1
        self.failed += outcome.status == "failed"
        if outcome.status == "failed":
            self.log(f"{trial.folder}: failed: {outcome.error}", error=True)
        if self._bar is not None:
            self._bar.update()
            self._show()
            return
        left = (time.monotonic() - self._started) / self.finished * (self.to_do - self.finished)
        if outcome.status == "done":
            click.echo(f"[{self.finished}/{self.to_do}, {duration(left)} left] {trial.folder}: {outcome.seconds:.1f} s")

    def log(self, line: str, error: bool = False) -> None:
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
    """Seconds in a readable unit."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
