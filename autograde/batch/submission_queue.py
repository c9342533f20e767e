"""The queue of ``lab serve``: each submission of the exchange once, what became of it, and the limit on gradings.

A row is written before what it announces is done, so that a service that is killed at any moment continues from the file.
Times are this machine's seconds since 1970. The limit counts starts that are recorded here and looks at nothing that a
student wrote: neither time stamps nor names nor contents.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

__all__ = ["QueuedSubmission", "SubmissionQueue"]

DAY = 86400.0

_TABLE = """
CREATE TABLE IF NOT EXISTS submission (
    name TEXT PRIMARY KEY,
    lab TEXT NOT NULL,
    student TEXT NOT NULL,
    stamp TEXT NOT NULL,
    seen REAL NOT NULL,
    state TEXT NOT NULL,
    since REAL NOT NULL,
    started REAL,
    reason TEXT NOT NULL
)
"""


@dataclass(frozen=True)
class QueuedSubmission:
    """One folder of the exchange's ``inbound``.

    `state` is ``waiting``, ``running``, ``graded`` (its feedback is not released yet), ``done``, ``refused`` or
    ``replaced`` (by a newer one).
    """

    name: str
    lab: str
    student: str
    stamp: str  # the time in the name, as the student's `nbgrader submit` wrote it: UTC, sortable
    seen: float
    state: str
    since: float  # when it got this state
    started: float | None = None  # when its grading began; counts toward the limit
    reason: str = ""


class SubmissionQueue:
    """The queue in an SQLite file.

    Parameters
    ----------
    per_day : int
        Gradings of a student and lab in any 24 hours.
    apart : float
        Seconds between the starts of two of them.
    """

    def __init__(self, path: Path, per_day: int, apart: float) -> None:
        self._per_day, self._apart = per_day, apart
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute(_TABLE)

    def names(self) -> set[str]:
        """All submissions that were ever added."""
        return {name for (name,) in self._db.execute("SELECT name FROM submission")}

    def add(self, new: QueuedSubmission) -> None:
        """Add a submission. Of those of a student and lab that wait, only the newest remains; nbgrader takes that one."""
        with self._db:
            self._db.execute("BEGIN")
            if new.state == "waiting":
                older = "lab = ? AND student = ? AND state = 'waiting' AND stamp <= ?"
                replaced = "UPDATE submission SET state = 'replaced', since = ?, reason = ? WHERE " + older
                why = "a newer submission came before its turn"
                self._db.execute(replaced, (new.seen, why, new.lab, new.student, new.stamp))
            self._db.execute(
                "INSERT OR IGNORE INTO submission VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (new.name, new.lab, new.student, new.stamp, new.seen, new.state, new.since, new.started, new.reason),
            )
            if new.state == "waiting":
                newer = "lab = ? AND student = ? AND state = 'waiting' AND stamp > ?"
                values = (new.lab, new.student, new.stamp)
                if self._db.execute(f"SELECT 1 FROM submission WHERE {newer}", values).fetchone():
                    self.change(new, "replaced", new.seen, why)

    def due(self, now: float) -> list[QueuedSubmission]:
        """What is to be graded, in this order: what was interrupted, then whom the limit allows, first come first."""
        running = self.of("running")
        busy = {(each.lab, each.student) for each in running}
        waiting = [each for each in self.of("waiting") if (each.lab, each.student) not in busy]
        return running + [each for each in waiting if self.allowed_at(each) <= now]

    def allowed_at(self, submission: QueuedSubmission) -> float:
        """When the limit allows a submission that waits to be graded; 0.0 where there is none."""
        starts = "SELECT started FROM submission WHERE lab = ? AND student = ? AND started NOT NULL ORDER BY started DESC LIMIT ?"
        values = (submission.lab, submission.student, self._per_day)
        started = [each for (each,) in self._db.execute(starts, values)]
        if not started:
            return 0.0
        return max(started[0] + self._apart, started[-1] + DAY if len(started) == self._per_day else 0.0)

    def start(self, submission: QueuedSubmission, now: float) -> None:
        """Record that its grading begins; one that was interrupted keeps its time."""
        with self._db:
            self._db.execute(
                "UPDATE submission SET state = 'running', since = ?, started = coalesce(started, ?) WHERE name = ?",
                (now, now, submission.name),
            )

    def change(self, submission: QueuedSubmission, state: str, now: float, reason: str) -> None:
        """Record what became of a submission; of those that are graded and not released, only this one remains."""
        with self._db:
            if state == "graded":
                self._db.execute(
                    "UPDATE submission SET state = 'replaced', since = ?, reason = ? "
                    "WHERE lab = ? AND student = ? AND state = 'graded' AND name != ?",
                    (now, "graded; a newer one was graded before its feedback was due", submission.lab,
                     submission.student, submission.name),
                )  # fmt: skip
            self._db.execute(
                "UPDATE submission SET state = ?, since = ?, reason = ? WHERE name = ?",
                (state, now, reason, submission.name),
            )

    def of(self, state: str, most: int = -1, latest: bool = False) -> list[QueuedSubmission]:
        """Submissions of one state, the first seen first; or the latest changes first, at most so many."""
        order = "since DESC" if latest else "seen, name"
        rows = self._db.execute(f"SELECT * FROM submission WHERE state = ? ORDER BY {order} LIMIT ?", (state, most))
        return [QueuedSubmission(*row) for row in rows]

    def count(self, **wanted: str) -> int:
        """How many rows have these values."""
        where = " AND ".join(f"{name} = ?" for name in wanted)
        return self._db.execute(f"SELECT count(*) FROM submission WHERE {where}", (*wanted.values(),)).fetchone()[0]

    def close(self) -> None:
        """Close the file."""
        self._db.close()
