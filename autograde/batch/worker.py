"""A grading worker: one process with one warm interpreter, which grades submissions one after another.

A worker writes its results itself (`Verdict.save`, `autograde.gradebook.autograded`), each file whole; only the main
process writes the gradebook. A worker ends with the process that started it.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from autograde.gradebook.autograded import remove_autograded, write_autograded
from autograde.grading.grading_context import GradingContext, course_secret, grader_digest, source_notebook
from autograde.grading.one_submission import grade_submission, submission_digest
from autograde.grading.other_points import verdict_today
from autograde.rubric.schema import RUBRICS, find_rubric
from autograde.rubric.verdict import Verdict, load_verdict, verdict_lock, verdict_path
from autograde.sandbox.bubblewrap import SandboxError
from autograde.sandbox.warm import WarmInterpreter

grader_digest()  # now: after an update, a process with the old code must not sign with the new code's digest

__all__ = ["GradingJob", "close_context", "good_verdict", "grade_one", "open_context"]


@dataclass(frozen=True)
class GradingJob:
    """What every worker of a batch needs."""

    lab: str  # full name
    course: Path
    source: Path
    sandboxed: bool = True
    threads: int = 1  # threads of a grading run: cores divided by workers
    rubrics: Path = RUBRICS
    force: bool = False  # grade again what has a verdict

    def submission(self, student: str) -> Path:
        """The folder of a student's submission."""
        return self.course / "submitted" / student / self.lab


_context: GradingContext | None = None


def open_context(job: GradingJob, environment: Mapping[str, str] | None = None) -> None:
    """Make this process's context. Its warm interpreter starts in the background.

    Parameters
    ----------
    environment : mapping, optional
        Variables for this process, if it is a worker; else it keeps its own.

    Raises `CourseError`: the source notebook or the course folder cannot be used.
    """
    global _context
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    worker_index = os.getpid() % 4000  # unique among the workers of this machine: user ids of sandboxes depend on it
    rubric, source, secret = find_rubric(job.lab, job.rubrics), source_notebook(job.source), course_secret(job.course)
    _context = GradingContext(rubric, source, secret, WarmInterpreter(worker_index, job.sandboxed), job.threads)


def close_context() -> None:
    """End this process's warm interpreter."""
    global _context
    if _context is not None:
        _context.close()
        _context = None


def grade_one(job: GradingJob, student: str) -> Verdict:
    """Grade one submission and write its verdict and its notebook.

    Raises
    ------
    SandboxError
        Nothing can be executed here.
    OSError
        The course folder cannot be written.
    """
    global _context
    if _context is None:
        open_context(job)
    elif _context.rubric.lab != job.lab:  # a pool that stays open, and another lab than before
        rubric, source = find_rubric(job.lab, job.rubrics), source_notebook(job.source)
        _context = replace(_context, rubric=rubric, source=source)
    with verdict_lock(job.course, student, job.lab):
        # Another process may have graded it while this one waited for its turn.
        known = None if job.force else good_verdict(job, _context, student)
        return known or _grade(job, student)


def good_verdict(job: GradingJob, context: GradingContext, student: str, other_points: bool = False) -> Verdict | None:
    """The saved verdict that another grading would only repeat, or None; with `other_points`, one with today's points."""
    try:
        verdict = load_verdict(verdict_path(job.course, student, job.lab))
    except ValueError:
        return None
    digests = {"submission": submission_digest(job.submission(student), context.rubric), **context.digests}
    sandbox = "bubblewrap" if job.sandboxed else "none"
    if verdict.student != student or verdict.sandbox != sandbox:
        return None
    today = verdict_today(verdict, digests, context.rubric)
    return today if today is verdict or other_points else None


def _grade(job: GradingJob, student: str) -> Verdict:
    submission = job.submission(student)
    try:
        graded = grade_submission(_context, submission, student)
    except SandboxError:
        # The warm interpreter may have been ended, as when the machine ran out of memory; try with a new one.
        close_context()
        open_context(job)
        graded = grade_submission(_context, submission, student)
    if graded.notebook is not None:
        write_autograded(job.course, graded.verdict, graded.notebook, submission)
    else:
        remove_autograded(job.course, graded.verdict)
    graded.verdict.save(job.course)  # last: if it exists, the rest is done
    return graded.verdict


def _end_with(parent: int) -> None:
    multiprocessing.connection.wait([parent])
    os._exit(1)
