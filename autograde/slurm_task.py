"""The end of a grading job that runs on a compute node: a chunk of students, one after another, on one bench.

What a task has done lies in its batch's folder as plain data, so that the process that watches needs neither Slurm's
accounting nor a pickle: ``graded/STUDENT`` once a student's verdict is saved, ``ended/TASK`` once the task is over.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from course_lib.atomic import write_atomically

from .sandbox import SandboxError
from .worker import Setting, close_bench, grade_one

__all__ = ["ENDED", "GRADED", "grade_chunk"]

GRADED, ENDED = "graded", "ended"


class _Late(BaseException):
    """A submission took longer than any limit allows; no `Exception`, which grading would take for the student's."""


def grade_chunk(setting: Setting, students: Sequence[str], patience: float, folder: Path, task: int) -> None:
    """Grade students and tell of each in `folder`. What is told there already is left out: Slurm may requeue a task.

    Parameters
    ----------
    setting : Setting
    students : sequence of str
    patience : float
        Seconds after which a student is given up, and the next one's turn comes.
    folder : Path
        The batch's, with folders ``graded`` and ``ended``; on a file system that the submitting process sees.
    task : int
        Index in the array.

    Raises
    ------
    SandboxError
        Nothing can be executed on this node; told in ``ended/TASK`` too.
    """
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # submitit's sign to have the job queued again; Slurm does that
    signal.signal(signal.SIGALRM, _give_up)
    try:
        for student in students:
            mark = folder / GRADED / student
            if not mark.exists():
                write_atomically(mark, json.dumps({"problem": _grade(setting, student, patience)}))
    except SandboxError as error:
        _tell_end(folder, task, sandbox=str(error))
        raise
    except Exception as error:
        _tell_end(folder, task, problem=f"{type(error).__name__}: {error}")
        raise
    else:
        _tell_end(folder, task)
    finally:
        close_bench()


def _grade(setting: Setting, student: str, patience: float) -> str:
    """Grade one student; the problem in one line, or nothing."""
    signal.setitimer(signal.ITIMER_REAL, patience)
    try:
        grade_one(setting, student)
    except SandboxError:
        raise
    except _Late:
        close_bench()
        return "did not answer in time"
    except Exception as error:
        print(f"{student}: {type(error).__name__}: {error}", file=sys.stderr)
        return f"failed ({type(error).__name__})"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return ""


def _tell_end(folder: Path, task: int, **told: str) -> None:
    write_atomically(folder / ENDED / str(task), json.dumps({"node": socket.gethostname()} | told))


def _give_up(*_: object) -> NoReturn:
    raise _Late


def _end(*_: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)
