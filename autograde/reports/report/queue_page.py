"""The instructor's page of ``lab serve``: what waits, runs, is done and was refused; no scripts, nothing fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from autograde.reports.report.pages import environment

__all__ = ["IN_ORDER", "MOST", "STATES", "queue_page"]

MOST = 200  # submissions of a state that are shown
STATES = {
    "running": "Running",
    "waiting": "Waiting",
    "graded": "Graded, feedback not released yet",
    "done": "Done",
    "refused": "Refused",
    "replaced": "Replaced by a newer submission",
}
IN_ORDER = ("running", "waiting")  # of these the first are shown, of the others the latest


def queue_page(rows: Mapping[str, Sequence[tuple[Any, str]]], counts: Mapping[str, int], about: str) -> str:
    """The page.

    Parameters
    ----------
    rows : mapping
        State → the submissions to show (as `autograde.batch.submission_queue.QueuedSubmission`), each with a line about it.
    counts : mapping
        State → the number of submissions, shown or not.
    about : str
        What is graded, by which limit.
    """
    written = datetime.now(UTC).strftime("%d %B %Y, %H:%M:%S UTC")
    jinja = environment()
    jinja.filters["time"] = lambda seconds: f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
    return jinja.get_template("queue.html").render(
        states=STATES, rows=rows, counts=counts, about=about, written=written
    )
