"""Extensions of deadlines: those that an instructor gives, and grace days.

A submission's extension is in the column where nbgrader keeps it, `SubmittedAssignment.extension`. From there nbgrader's
lateness, its penalty plugins and formgrader have it. That row exists only once a submission is graded, and nbgrader
counts each such row as a submission. So what an instructor gives is kept in ``course/extensions.csv``, and the grader
copies it into the column. Where the file has no line for a submission, the column is left as nbgrader's own
``grant_extension`` wrote it.

Grace days are a budget of each student for all labs. A late submission uses as many whole days as it is late, in the
order of the labs' due dates. They are added to the column, and computed from nothing but the due dates, the times of
submission and the given extensions, so that the order of grading does not matter. The file gets a line, perhaps of 0
days, for each submission that uses grace days: without it the two parts of the column could not be told apart.
"""

from __future__ import annotations

import csv
import fcntl
import io
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from nbgrader.api import Gradebook, SubmittedAssignment
from nbgrader.coursedir import CourseDirectory
from traitlets import Bool, Integer, TraitError
from traitlets.config import Config, Configurable

from autograde.submission.student_id import is_student_id
from course_lib.runs.run_evidence.quoting import quote
from course_lib.system.atomic import write_atomically

__all__ = ["Extension", "ExtensionError", "Extensions", "GraceDays", "how_late", "parse_days"]

DAY = timedelta(days=1)
MOST = 1000  # days; a date so far away can still be computed
COLUMNS = ("student", "lab", "days")
_NONE = timedelta(0)


class ExtensionError(Exception):
    """``extensions.csv`` or the setting of the grace days cannot be used. The message is one line with the remedy."""


class GraceDays(Configurable):
    """``c.GraceDays`` in ``nbgrader_config.py``."""

    per_student = Integer(0, min=0, max=MOST, help="Days of each student for all labs.").tag(config=True)
    partly = Bool(
        False,
        help="Use the days that are left also where they are fewer than a submission is late. By default they are kept: "
        "nbgrader's own penalty takes the same from one day and from five.",
    ).tag(config=True)


@dataclass(frozen=True)
class Extension:
    """One student's extension of one lab's deadline, with the use of grace days in it.

    `left` and `budget` are the student's grace days for all labs; `due` is the extended due date in UTC without zone,
    None where the lab has none.
    """

    student: str
    lab: str
    given: timedelta
    grace: int = 0
    left: int = 0
    budget: int = 0
    due: datetime | None = None

    def __str__(self) -> str:
        given = [_length(self.given)] if self.given or not self.grace else []
        grace = f"{self.grace} grace day{'s' * (self.grace != 1)}"
        used = [f"{grace} ({self.left} of {self.budget} left)"] if self.grace else []
        return " and ".join(given + used)

    @property
    def until(self) -> str:
        """The extended due date as it is shown; empty where there is none."""
        return f"{self.due:%Y-%m-%d %H:%M} UTC" if self.due else ""


def how_late(seconds: float) -> str:
    """A lateness in the largest unit of which it has at least two."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.0f} s"


def parse_days(text: str) -> timedelta:
    """A number of days of 24 hours, such as ``3`` or ``0.5``. Raises `ValueError` with a line."""
    try:
        days = float(text.replace(",", "."))
    except ValueError:
        days = math.nan
    if not abs(days) <= MOST:
        raise ValueError(f"{quote(text)} is not a number of days up to {MOST}")
    return timedelta(days=days)


class Extensions:
    """The extensions of a course.

    Parameters
    ----------
    config : Config
        nbgrader's configuration (see `autograde.gradebook.scores.nbgrader_settings`).

    Raises `ExtensionError`, here and wherever the file is read.
    """

    def __init__(self, config: Config):
        directories = CourseDirectory(config=config)
        self.path = Path(directories.root, directories.submitted_directory).resolve().parent / "extensions.csv"
        try:
            self.grace = GraceDays(config=config)
        except TraitError as error:
            raise ExtensionError(f"c.GraceDays in nbgrader_config.py: {' '.join(str(error).split())}") from None
        self.given()

    def given(self) -> dict[tuple[str, str], timedelta]:
        """What the file has: (student, lab) → extension."""
        try:
            text = self.path.read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise ExtensionError(
                f"{self.path} cannot be read ({type(error).__name__}); see `lab extend --help`"
            ) from None
        header = text.partition("\n")[0]
        # Perhaps a spreadsheet has saved it.
        separator = next((each for each in ";\t" if each in header), ",")
        try:
            rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
        except csv.Error as error:
            raise ExtensionError(f"{self.path} is no CSV file ({error}); correct it") from None
        given = {}
        for number, row in enumerate(rows, 1):
            cells = tuple(cell.strip() for cell in row)
            if not any(cells) or (number == 1 and cells == COLUMNS):
                continue
            try:
                if number == 1 or len(cells) != len(COLUMNS):
                    raise ValueError(f"{','.join(COLUMNS)} is expected")
                student, lab, days = cells
                if not is_student_id(student):
                    raise ValueError(f"{quote(student)} is not a student id")
                if not re.fullmatch(r"\w[\w.-]*", lab):
                    raise ValueError(f"{quote(lab)} is not a lab")
                if (student, lab) in given:
                    raise ValueError(f"{quote(student)} has an earlier line for {quote(lab)}")
                given[student, lab] = parse_days(days)
            except ValueError as error:
                raise ExtensionError(f"{self.path}, line {number}: {error}; correct or remove it") from None
        return given

    def give(self, gradebook: Gradebook, student: str, lab: str, extension: timedelta) -> None:
        """Set an extension in the file, and in the column if there is a submission; 0 takes back what there is.

        Call `settle` afterwards, which adds grace days.
        """
        found = [each for each in gradebook.student_submissions(student) if each.assignment.name == lab]
        with self._change() as given:
            given.pop((student, lab), None)
            if extension:
                given[student, lab] = extension
            for submission in found:
                submission.extension = extension or None
            gradebook.db.commit()

    def settle(self, gradebook: Gradebook, student: str) -> list[str]:
        """Write a student's extensions and grace days into the columns of the submissions that there are.

        Returns the labs whose column comes from the file: their penalties are to be computed again, since an earlier call
        may have been interrupted before that. A second call changes nothing.
        """
        given = self.given()
        columns: dict[str, timedelta] = {}
        adopted: dict[tuple[str, str], timedelta] = {}
        submissions = {each.assignment.name: each for each in gradebook.student_submissions(student)}
        for lab, (extension, grace, _) in self._shares(submissions, student, given).items():
            due = submissions[lab].assignment.duedate
            if (student, lab) not in given:
                # A lab that lost its due date: nbgrader cannot add an extension to none, and stops.
                if not grace and (due is not None or not extension):
                    continue
                adopted[student, lab] = extension
            columns[lab] = _NONE if due is None else extension + grace * DAY
        if adopted:  # first: a column with grace days whose given part nobody knows would be taken as given
            with self._change() as given:
                given |= adopted | given
        for lab, extension in columns.items():
            if (submissions[lab].extension or _NONE) != extension:
                submissions[lab].extension = extension or None
        gradebook.db.commit()
        return list(columns)

    def own_deadline(self, gradebook: Gradebook, student: str, lab: str) -> datetime | None:
        """Until when a student may hand in a lab, in UTC: its due date, the extension, and all grace days for it.

        Those are what the labs that are due earlier leave. None where the lab has no due date, or the student no
        submission.
        """
        submissions = {each.assignment.name: each for each in gradebook.student_submissions(student)}
        if lab not in submissions or (due := submissions[lab].assignment.duedate) is None:
            return None
        extension, _, available = self._shares(submissions, student, self.given())[lab]
        return due + extension + available * DAY

    def _shares(
        self, submissions: dict[str, SubmittedAssignment], student: str, given: dict[tuple[str, str], timedelta]
    ) -> dict[str, tuple[timedelta, int, int]]:
        """By lab: the given extension, the grace days used, and those that could be used."""
        shares, left = {}, self.grace.per_student
        for lab, submission in sorted(submissions.items(), key=lambda each: _in_order(each[1])):
            extension = given.get((student, lab), submission.extension or _NONE)
            due, grace = submission.assignment.duedate, 0
            if due is not None and submission.timestamp is not None:
                days_late = max(0, math.ceil((submission.timestamp - due - extension) / DAY))
                grace = min(days_late, left) if self.grace.partly or days_late <= left else 0
            shares[lab] = (extension, grace, left)
            left -= grace
        return shares

    def all(self, gradebook: Gradebook) -> list[Extension]:
        """All extensions by student and lab: those of submissions as nbgrader has them, the others from the file."""
        given, due_dates = self.given(), {each.name: each.duedate for each in gradebook.assignments}
        extensions = dict(given)
        for submission in gradebook.db.query(SubmittedAssignment).filter(SubmittedAssignment.extension.isnot(None)):
            extensions[submission.student_id, submission.assignment.name] = submission.extension
        used, parts = defaultdict(int), {}
        for key, extension in extensions.items():
            grace = extension - given.get(key, extension)
            days = grace // DAY if grace > _NONE and not grace % DAY else 0
            used[key[0]] += days
            parts[key] = (extension - days * DAY, days)
        budget = self.grace.per_student
        return [
            Extension(
                *key,
                *parts[key],
                left=max(0, budget - used[key[0]]),
                budget=budget,
                due=due_dates[key[1]] + extensions[key] if due_dates.get(key[1]) else None,
            )
            for key in sorted(extensions)
            if extensions[key]
        ]

    @contextmanager
    def _change(self) -> Iterator[dict[tuple[str, str], timedelta]]:
        """The file's contents, to be changed; written whole at the end, and no other process writes in between."""
        try:
            with open(self.path.with_name(f".{self.path.name}.lock"), "w") as lock:
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(lock, fcntl.LOCK_EX)
                given = self.given()
                yield given
                text = io.StringIO()
                lines = csv.writer(text, lineterminator="\n")
                lines.writerow(COLUMNS)
                lines.writerows((*key, f"{given[key] / DAY:.15g}") for key in sorted(given))
                write_atomically(self.path, text.getvalue())
        except OSError as error:
            raise ExtensionError(f"{self.path} cannot be written ({error.strerror}); see that it can be") from None


def _in_order(submission: SubmittedAssignment) -> tuple[datetime, str]:
    return submission.assignment.duedate or datetime.max, submission.assignment.name


def _length(extension: timedelta) -> str:
    if extension % DAY:
        return how_late(extension.total_seconds())
    return f"{extension // DAY} day{'s' * (abs(extension) != DAY)}"
