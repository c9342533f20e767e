"""The progress of a batch: a bar with the time left on a terminal, one line per submission in a log."""

from __future__ import annotations

import sys
import time

import click

from autograde.rubric.verdict import Verdict

__all__ = ["Progress"]


class Progress:
    """Shows the progress that `autograde.batch.grade_lab.grade_lab` reports."""

    def __init__(self, lab: str) -> None:
        self.lab = lab
        self.to_do = self.finished = 0
        self._bar = None
        self._started = time.monotonic()

    def begun(self, to_do: int, everybody: int) -> None:
        """The batch knows how many submissions it grades."""
        self.to_do, self._started = to_do, time.monotonic()
        if to_do < everybody:
            click.echo(f"{self.lab}: {everybody - to_do} of {everybody} are graded already and have not changed")
        if sys.stdout.isatty() and to_do:
            self._bar = click.progressbar(length=to_do, label=f"grading {self.lab}", show_pos=True, show_eta=True)
            self._bar.__enter__()

    def done(self, verdict: Verdict, fresh: bool) -> None:
        """A submission has its verdict."""
        if not fresh:
            return
        self.finished += 1
        if self._bar is not None:
            self._bar.update(1)
            return
        left = (time.monotonic() - self._started) / self.finished * (self.to_do - self.finished)
        click.echo(f"[{self.finished}/{self.to_do}, {_duration(left)} left] {line(verdict)}")

    def close(self) -> None:
        """Remove the bar from the terminal."""
        if self._bar is not None:
            self._bar.__exit__(None, None, None)


def line(verdict: Verdict) -> str:
    """One line about a verdict: score, what was missed, flags."""
    missed = [result for result in verdict.results if not result.passed]
    by_cell: dict[str, list[str]] = {}
    for result in missed:
        by_cell.setdefault(result.cell, []).append(result.id)
    why = ", ".join(f"{cell} ({', '.join(parts)})" for cell, parts in by_cell.items())
    if len(missed) > 1 and len({result.reason for result in missed}) == 1:
        why = f"{len(missed)} criteria: {missed[0].reason}"
    text = f"{verdict.student}: {verdict.score:g}/{verdict.max_score:g}"
    if missed:
        text += f"  missed {why}"
    if kinds := dict.fromkeys(flag.kind for flag in verdict.flags):
        text += f"  [{', '.join(kinds)}]"
    return text


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
