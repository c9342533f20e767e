"""``lab serve``: grades each submission soon after it reaches nbgrader's exchange, and releases its feedback.

The service collects what is new as ``nbgrader collect --update`` does, hands it to `grade_lab` with a pool that stays
warm, and lets nbgrader generate and release the student's feedback. What became of each submission is in a
`SubmissionQueue`; verdicts are in the course folder as after a batch. Each step can be repeated: a submission that has
its verdict is not graded again, and feedback that was released is released as it was. So a service that is killed
continues where it was.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_config_path
from nbgrader.apps.api import NbGraderAPI
from traitlets import Bunch, Dict, Enum, Float, Integer, TraitError, validate
from traitlets.config import Config, Configurable
from traitlets.config.loader import PyFileConfigLoader

from autograde.batch.inbound import RefusedError, copy_submission, is_complete, read_name, replace_folder
from autograde.batch.pool import WarmPool
from autograde.batch.submission_queue import QueuedSubmission, SubmissionQueue
from autograde.gradebook.autograded import submitted_at
from autograde.gradebook.extensions import Extensions
from autograde.gradebook.regrade_answers import note_requests
from autograde.gradebook.scores import CourseError, nbgrader_settings, open_gradebook
from autograde.rubric.schema import RubricError, find_rubric
from autograde.rubric.verdict import Verdict, verdict_lock
from autograde.submission.regrade_request import FILE as REGRADE
from autograde.submission.regrade_request import only_asks
from course_lib.runs.run_evidence.quoting import quote

__all__ = ["GradeOnSubmission", "GradingService", "only_service"]

POLICIES = ("full", "points", "none")
FOLDER = "on_submission"  # in the course folder
SETTLE = 60.0  # seconds after which a folder without the mode that `nbgrader submit` gives last is taken as it is
AGAIN = 30.0  # seconds until what failed is tried again; twice as many after each failure
GLANCE = 60.0  # seconds between two looks at whether a deadline has passed
BACKDATED = 600.0  # seconds


class GradeOnSubmission(Configurable):
    """``c.GradeOnSubmission`` in ``nbgrader_config.py``."""

    feedback = Enum(
        POLICIES, "full", help="What is released: points and reasons, points, or nothing until the deadline."
    ).tag(config=True)
    feedback_by_lab = Dict(help="Other policies, by the lab: 1, 01 or its full name.").tag(config=True)
    per_day = Integer(10, min=1, help="Gradings of each student and lab in any 24 hours.").tag(config=True)
    minutes_apart = Float(10.0, min=0.0, help="Minutes between two of them.").tag(config=True)
    seconds = Float(5.0, min=0.05, help="Seconds between two looks at the exchange.").tag(config=True)

    @validate("feedback_by_lab")
    def _by_full_name(self, proposal: Bunch) -> dict[str, str]:
        policies: dict[str, str] = {}
        where = "c.GradeOnSubmission.feedback_by_lab in nbgrader_config.py"
        for name, policy in proposal.value.items():
            try:
                lab = find_rubric(str(name)).lab
            except RubricError as error:
                raise CourseError(f"{where}: {error}; correct or remove this entry") from None
            if policy not in POLICIES:
                raise CourseError(f"{where}: {policy!a} for {name!a} is none of {', '.join(POLICIES)}; choose one")
            if lab in policies:
                raise CourseError(f"{where}: {name!a} is another name of {lab}; remove one of the two entries")
            policies[lab] = policy
        return policies

    def policy(self, lab: str) -> str:
        """What is released of a lab, by its full name."""
        return self.feedback_by_lab.get(lab, self.feedback)


@contextmanager
def only_service(course: Path, log: Callable[[str], None]) -> Iterator[None]:
    """Wait until no other service grades this course's submissions, and keep others out; also after a `kill -9`."""
    folder = course / FOLDER
    if not course.is_dir():
        raise CourseError(f"no course folder {course}; run from the repository's root, or name it with --course")
    try:
        folder.mkdir(exist_ok=True)
        lock = open(folder / ".lock", "w")  # noqa: SIM115  (closed below)
    except OSError as error:
        raise CourseError(f"{folder} cannot be written ({error.strerror}); see that it can be") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # JupyterHub would start a service that ends again at once, without a pause.
            log(f"another lab serve grades {course}; waiting until it has ended")
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks
        yield


class GradingService:
    """Grades what comes into the exchange.

    Parameters
    ----------
    course : Path
    labs : sequence of str
        Full names.
    grade : callable
        `autograde.batch.grade_lab.grade_lab`.
    jobs : int
        Submissions graded at a time.
    show : callable
        Called with the service after each change, to write a page.
    log : callable
        Called with each line.
    clock : callable
        Seconds since 1970.

    Raises `CourseError`: no exchange, or a setting that cannot be used.
    """

    def __init__(
        self,
        course: Path,
        labs: Sequence[str],
        grade: Callable[..., list[Verdict]],
        *,
        jobs: int = 1,
        sandboxed: bool = True,
        show: Callable[[GradingService], None] = lambda service: None,
        log: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.course, self.labs = course.resolve(), tuple(labs)
        self._grade, self._jobs, self._sandboxed, self._show = grade, jobs, sandboxed, show
        self._log, self._clock = log, clock
        self._config = _settings(self.course)
        try:
            self.settings = GradeOnSubmission(config=self._config)
        except TraitError as error:
            raise CourseError(f"c.GradeOnSubmission in nbgrader_config.py: {' '.join(str(error).split())}") from None
        self._apis = {policy: _api(self._config, policy) for policy in ("full", "points")}
        api = self._apis["full"]
        collect = api.exchange.Collect(coursedir=api.coursedir, authenticator=api.authenticator, parent=api)
        self._inbound = Path(getattr(collect, "root", ""), api.coursedir.course_id, "inbound")
        self._check_owner = collect.check_owner
        if not hasattr(collect, "root") or not os.access(self._inbound, os.R_OK | os.X_OK):
            raise CourseError(
                f"no exchange to watch: {self._inbound} cannot be read; release a lab first with "
                "`nbgrader release_assignment`, and see c.Exchange.root"
            )
        self._folder = self.course / FOLDER
        self._folder.mkdir(exist_ok=True)
        self.queue = SubmissionQueue(
            self._folder / "queue.sqlite", self.settings.per_day, 60 * self.settings.minutes_apart
        )
        self._known = self.queue.names()
        self._incomplete: dict[str, float] = {}
        self._failures: dict[str, _Failure] = {}  # by the submission's name
        self._looked = self._glanced = 0.0
        self._pool = WarmPool(jobs)

    @property
    def about(self) -> str:
        """What is graded, and how often, in a sentence or two."""
        settings = self.settings
        return (
            f"{', '.join(self.labs)}: at most {settings.per_day} gradings of a student and lab in 24 hours, "
            f"{settings.minutes_apart:g} minutes apart."
        )

    @property
    def longest_wait(self) -> float:
        """Seconds since a submission that waits might have been graded: the longest of them."""
        now, queue = self._clock(), self.queue
        waiting = [each for each in queue.due(now) if each.state == "waiting"]
        return max((now - max(each.seen, queue.allowed_at(each)) for each in waiting), default=0.0)

    @property
    def failing(self) -> int:
        """Submissions whose grading or feedback failed and is tried again."""
        unfinished = (row for state in ("waiting", "running", "graded") for row in self.queue.of(state))
        return sum(row.name in self._failures for row in unfinished)

    def run(self) -> None:
        """Serve until interrupted."""
        self._log(f"watching {self._inbound} for {', '.join(self.labs)}, each {self.settings.seconds:g} s")
        while True:
            try:
                if self.step():
                    continue
                pause = self.settings.seconds
            except (OSError, sqlite3.Error) as error:  # such as a full disk: what was recorded is continued
                self._log(f"{type(error).__name__}: {error}; tried again soon")
                pause = AGAIN
            time.sleep(pause)

    def close(self) -> None:
        """End the workers."""
        self._pool.close()
        self.queue.close()

    def step(self) -> bool:
        """Look once, grade at most as many submissions as there are workers; whether any was graded."""
        changed = self._look()
        now = self._clock()
        due = [each for each in self.queue.due(now) if each.lab in self.labs and self._may_try(each, now)]
        batch = [each for each in due if each.lab == due[0].lab][: self._jobs]
        if any(each.name in self._failures for each in batch):
            batch = batch[:1]  # one that fails must not hold up the others
        if batch:
            self._grade_batch(batch)
        glance = now - self._glanced >= GLANCE
        if changed or batch or glance:
            self._release(glance)
            self._show(self)
        return bool(batch)

    def note(self, row: QueuedSubmission) -> str:
        """Why a submission is where it is, in one line."""
        if failure := self._failures.get(row.name):
            return f"{failure.why}; tried again soon"
        if row.state == "waiting" and (when := self.queue.allowed_at(row)) > self._clock():
            return f"the limit allows it at {datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M:%S} UTC"
        if row.state == "graded" and self.settings.policy(row.lab) == "none":
            return f"{row.reason}; no feedback before the deadline"
        return row.reason

    # --- what is new -------------------------------------------------------------------------------------------------

    def _look(self) -> bool:
        now, before = self._clock(), len(self._known)
        try:
            names = [entry.name for entry in os.scandir(self._inbound) if entry.name not in self._known]
        except OSError as error:
            self._log(f"{self._inbound} cannot be read ({error.strerror})")
            return False
        for name in sorted(names):
            if any(f"+{lab}+" in name for lab in self.labs):
                self._take(name, now)
        self._looked = now
        return len(self._known) > before

    def _take(self, name: str, now: float) -> None:
        key = name.encode("utf-8", "backslashreplace").decode()  # a file's name may be no text
        if key in self._known:
            return
        row = QueuedSubmission(key, "", "", "", now, "waiting", now)
        try:
            parts = read_name(name)
            row = replace(row, lab=parts.lab, student=parts.student, stamp=_text(parts.stamp))
            complete = is_complete(self._inbound / name, self._owner(parts.student))
            if not complete and now - self._incomplete.setdefault(name, now) < SETTLE:
                return
        except RefusedError as error:
            row = replace(row, state="refused", reason=str(error))
        except OSError:
            return  # it is gone
        self._incomplete.pop(name, None)
        if row.stamp and self._looked - _seconds(parts.stamp) > BACKDATED:
            row = replace(row, reason=row.reason or "it was not there when the time in its name had come")
        self.queue.add(row)
        self._known.add(key)
        if row.state == "refused":
            self._log(f"refused {quote(key, 200)}: {row.reason}")

    def _owner(self, student: str) -> str | None:
        return student if self._check_owner else None

    # --- collecting and grading --------------------------------------------------------------------------------------

    def _grade_batch(self, batch: list[QueuedSubmission]) -> None:
        collected = []
        for each in batch:
            self.queue.start(each, self._clock())
            try:
                if self._collect(each):
                    collected.append(each)
                else:
                    why = "nbgrader has collected a newer one"
                    self.queue.change(each, "replaced", self._clock(), why)
            except RefusedError as error:
                self.queue.change(each, "refused", self._clock(), str(error))
                self._log(f"refused {quote(each.name, 200)}: {error}")
            except OSError as error:
                self._failed([each], f"cannot be collected ({error.strerror})")
        if not collected:
            return
        self._show(self)
        try:
            verdicts = self._grade(
                batch[0].lab,
                self.course,
                {each.student for each in collected},
                jobs=self._jobs,
                sandboxed=self._sandboxed,
                pool=self._pool,
            )
        except Exception as error:  # the service stays: others' submissions can be graded
            self._failed(collected, " ".join(f"{type(error).__name__}: {error}".split()))
            return
        points = {verdict.student: _points(verdict) for verdict in verdicts}
        for each in collected:
            self._failures.pop(each.name, None)
            self.queue.change(each, "graded", self._clock(), points[each.student])
            self._log(f"{each.lab}, {each.student}: {points[each.student]}")

    def _failed(self, rows: list[QueuedSubmission], why: str) -> None:
        for each in rows:
            count = 1 + (self._failures[each.name].count if each.name in self._failures else 0)
            self._failures[each.name] = _Failure(count, self._clock() + AGAIN * 2 ** min(count - 1, 7), why)
        self._log(f"{rows[0].lab}, {', '.join(each.student for each in rows)}: {why}; tried again soon")

    def _may_try(self, row: QueuedSubmission, now: float) -> bool:
        return row.name not in self._failures or self._failures[row.name].again_at <= now

    def _collect(self, row: QueuedSubmission) -> bool:
        """Copy a submission to ``submitted/``; False where a newer one is there.

        Raises `RefusedError`, and `OSError` where something cannot be read or written here.
        """
        directories = self._apis["full"].coursedir
        place = self.course / "submitted" / row.student / row.lab
        stamp = datetime.fromisoformat(row.stamp)
        there = submitted_at(place) if place.is_dir() else None
        if there is not None and there > stamp:
            return False
        if there == stamp and self.queue.count(lab=row.lab, student=row.student, stamp=row.stamp) == 1:
            return True  # an instructor may have edited it since
        staged = self._folder / "collected" / row.student / row.lab
        shutil.rmtree(self._folder / "collected", ignore_errors=True)
        staged.parent.mkdir(parents=True)
        try:
            copy_submission(self._inbound / row.name, staged, directories, self._owner(row.student))
        except FileNotFoundError:
            raise RefusedError("it was removed from the exchange before its turn") from None
        if submitted_at(staged) != stamp:
            raise RefusedError("timestamp.txt and the folder's name have different times")
        if only_asks(staged, place):
            # As work it would count from today on: late, perhaps. The class's report has the request.
            (staged / REGRADE).replace(place / REGRADE)
            note_requests(self._config, self.course, row.lab, [row.student], self._log)
            raise RefusedError("it asks for a regrade, and all else is as it was: the submission before counts")
        with verdict_lock(self.course, row.student, row.lab):
            replace_folder(staged, place, self._folder / "collected" / "old")
        return True

    # --- feedback ----------------------------------------------------------------------------------------------------

    def _release(self, deadlines: bool) -> None:
        now = self._clock()
        if deadlines:
            self._glanced = now
        for each in self.queue.of("graded"):
            policy = self.settings.policy(each.lab)
            if each.lab not in self.labs or not self._may_try(each, now) or (policy == "none" and not deadlines):
                continue
            try:
                if policy == "none" and now < self._deadline(each):
                    continue
                api = self._apis["points" if policy == "points" else "full"]
                for command in (api.generate_feedback, api.release_feedback):
                    answer = command(each.lab, each.student)
                    if not answer["success"]:
                        lines = (answer.get("error") or answer.get("log") or "").strip().splitlines()
                        raise CourseError(lines[-1] if lines else "no message")
            except Exception as error:
                self._failed([each], f"no feedback: {' '.join(str(error).split())}")
                continue
            self._failures.pop(each.name, None)
            what = "points released" if policy == "points" else "feedback released"
            self.queue.change(each, "done", self._clock(), f"{each.reason}, {what}")

    def _deadline(self, row: QueuedSubmission) -> float:
        """When a student's own deadline is, with its extension and grace days; never where the lab has none."""
        with open_gradebook(self._config) as gradebook:
            deadline = Extensions(self._config).own_deadline(gradebook, row.student, row.lab)
        return _seconds(deadline) if deadline else float("inf")


@dataclass(frozen=True)
class _Failure:
    count: int
    again_at: float
    why: str


def _points(verdict: Verdict) -> str:
    points = f"{verdict.score:g} of {verdict.max_score:g} points"
    failed = any(flag.kind == "grader" for flag in verdict.flags)
    return points + (f"; the grader failed, see lab grade {verdict.lab} --student" if failed else "")


def _settings(course: Path) -> Config:
    """nbgrader's settings as its commands read them: those of a hub, and over them the course's own."""
    config = Config()
    for folder in reversed(jupyter_config_path()):
        if os.path.isfile(os.path.join(folder, "nbgrader_config.py")):
            config.merge(PyFileConfigLoader("nbgrader_config.py", path=folder).load_config())
    config.merge(nbgrader_settings(course))
    return config


def _api(config: Config, policy: str) -> Any:
    config = Config(config)
    config.FeedbackPages.reasons = policy == "full"
    return NbGraderAPI(config=config, log_level=logging.ERROR)


def _seconds(utc: datetime) -> float:
    return utc.replace(tzinfo=UTC).timestamp()


def _text(utc: datetime) -> str:
    return utc.isoformat(sep=" ", timespec="microseconds")
