"""The queue of ``lab serve`` in numbers, for Prometheus: a file that node_exporter's textfile collector reads."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

__all__ = ["write_queue_metrics"]


def write_queue_metrics(path: Path, counts: Mapping[str, int], wait: float, failing: int) -> None:
    """Replace the file whole.

    Parameters
    ----------
    path : Path
        It ends in ``.prom``.
    counts : mapping
        State → the number of submissions.
    wait : float
        Seconds that the longest-waiting submission of those that the limit allows has waited.
    failing : int
        Submissions whose grading or feedback failed, and is tried again.
    """
    registry = CollectorRegistry()
    submissions = Gauge("lab_queue_submissions", "Submissions of the exchange.", ["state"], registry=registry)
    for state, count in counts.items():
        submissions.labels(state).set(count)
    for name, text, value in (
        ("longest_wait_seconds", "Of the submissions that may be graded now.", wait),
        ("failing_submissions", "What failed and is tried again.", failing),
        ("written_timestamp_seconds", "When lab serve wrote this.", time.time()),
    ):
        Gauge(f"lab_queue_{name}", text, registry=registry).set(value)
    write_to_textfile(str(path), registry)
