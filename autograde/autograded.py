"""``course/autograded/STUDENT/LAB``: what formgrader and ``nbgrader generate_feedback`` show of a submission.

The notebook there is the repaired one: the lab's cells, the student's answers, the student's own outputs as far as they
are harmless (plain text and PNG), and under each grade cell the reasons for its points. It was not executed.
"""

from __future__ import annotations

import os
import re
import secrets
from datetime import UTC, datetime
from pathlib import Path
from textwrap import dedent

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.utils import parse_utc

from course_lib.atomic import write_atomically

from .run_folder import EvidenceError, open_submission, read_plain_text
from .verdict import Verdict

__all__ = ["remove_autograded", "show_verdict", "submitted_at", "write_autograded"]

TIMESTAMP = "timestamp.txt"
SECRET = "submission_secret.txt"


def show_verdict(notebook: NotebookNode, verdict: Verdict) -> None:
    """Make each graded code cell's output the reasons for its points."""
    cells = verdict.cells
    for cell in notebook.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        if cell.cell_type == "code" and name in cells:
            cell.outputs = [new_output("stream", name="stdout", text=dedent(verdict.comment(name)) + "\n")]


def write_autograded(course: Path, verdict: Verdict, notebook: NotebookNode, submission: Path) -> Path:
    """Write the notebook, the submission's time and its secret, each whole or not at all.

    The secret names the file in which the exchange hands out feedback. ``nbgrader release_feedback`` stops, for the
    whole class, at the first submission without one or without a time, so there always are both.

    Raises
    ------
    OSError
        The folder cannot be written.
    """
    show_verdict(notebook, verdict)
    folder = Path(course) / "autograded" / verdict.student / verdict.lab
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{verdict.lab}.ipynb"
    write_atomically(path, nbformat.writes(notebook))
    when = submitted_at(submission)
    write_atomically(folder / TIMESTAMP, when.strftime("%Y-%m-%d %H:%M:%S.%f") + " UTC\n" if when else "")
    write_atomically(folder / SECRET, _secret(submission))
    return path


def remove_autograded(course: Path, verdict: Verdict) -> None:
    """Remove a notebook that an earlier grading wrote: it is not of the submission that is there now."""
    folder = Path(course) / "autograded" / verdict.student / verdict.lab
    (folder / f"{verdict.lab}.ipynb").unlink(missing_ok=True)


def submitted_at(submission: Path) -> datetime | None:
    """When a submission was handed in, by the time stamp that ``nbgrader collect`` put there; UTC without zone.

    None where there is none, or none that can be read.
    """
    try:
        when = parse_utc(_read(submission, TIMESTAMP).strip())
        return when.astimezone(UTC).replace(tzinfo=None) if when.tzinfo else when
    except (EvidenceError, OSError, ValueError, OverflowError, TypeError):  # the latter from what is no date
        return None


def _secret(submission: Path) -> str:
    """What ``nbgrader submit`` drew for a submission; where that is not there, one that nobody knows."""
    try:
        text = _read(submission, SECRET)
    except (EvidenceError, OSError):
        text = ""
    return text if re.fullmatch("[0-9A-Za-z]{16,200}", text) else secrets.token_hex(64)


def _read(submission: Path, name: str) -> str:
    folder = open_submission(submission)
    try:
        return read_plain_text(folder, name, 200, shown=name, missing="", remedy="")
    finally:
        os.close(folder)
