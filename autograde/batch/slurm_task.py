"""A grading job on its compute node: it grades its students one after another, on one context."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from autograde.batch.worker import GradingJob, close_context, grade_one
from autograde.sandbox.bubblewrap import SandboxError
from course_lib.runs.slurm.array_task import ArrayTask

__all__ = ["GRADED", "NO_SANDBOX", "grade_chunk"]

GRADED, NO_SANDBOX = "graded", "sandbox"  # reports


class _Late(BaseException):
    """A submission took longer than any limit allows. Not an `Exception`: grading would take it for the student's."""


def grade_chunk(task: ArrayTask, job: GradingJob, students: Sequence[str], timeout: float) -> None:
    """Grade students, and report each. Those reported already are left out: Slurm may requeue a task.

    Parameters
    ----------
    timeout : float
        Seconds after which a student is given up and the next one is graded.

    Raises `SandboxError`: nothing can be executed on this node. This is also reported.
    """
    signal.signal(signal.SIGALRM, _give_up)
    try:
        for index, student in enumerate(students):
            if not task.reported(GRADED, str(index)):
                problem = _grade(job, student, timeout)
                task.report(GRADED, str(index), student=student, problem=problem)
    except SandboxError as error:
        task.report(NO_SANDBOX, problem=str(error))
        raise
    finally:
        close_context()


def _grade(job: GradingJob, student: str, timeout: float) -> str:
    """Grade one student; returns the problem in one line, or an empty string."""
    signal.setitimer(signal.ITIMER_REAL, timeout)
    try:
        grade_one(job, student)
    except SandboxError:
        raise
    except _Late:
        close_context()
        return "did not answer in time"
    except Exception as error:
        print(f"{student}: {type(error).__name__}: {error}", file=sys.stderr)
        return f"failed ({type(error).__name__})"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return ""


def _give_up(*_: object) -> NoReturn:
    raise _Late
