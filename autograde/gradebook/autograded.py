"""``course/autograded/STUDENT/LAB``, which formgrader and ``nbgrader generate_feedback`` show.

The notebook there is the repaired one: the lab's cells, the student's answers, the student's own harmless outputs
(plain text and PNG), and under each grade cell the reasons for its points. It was not executed.
"""

from __future__ import annotations

import os
import re
import secrets
import warnings
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from textwrap import dedent

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.utils import parse_utc

from autograde.rubric.verdict import Verdict
from autograde.submission.run_folder import EvidenceError, open_submission, read_plain_text
from course_lib.runs.run_evidence.quoting import quote
from course_lib.system.atomic import write_atomically

__all__ = [
    "parse_time",
    "remove_autograded",
    "show_verdict",
    "submitted_at",
    "write_autograded",
    "write_time_and_secret",
]

TIMESTAMP = "timestamp.txt"
# A year, and at the end perhaps a zone's name or offset: a name with a path in it would be opened as a file.
_STAMP = re.compile(
    r"(?=.*[0-9]{4})[0-9A-Za-z:.,+-]+( [0-9A-Za-z:.,+-]+){0,5}( ([A-Za-z]+([/_+-][A-Za-z0-9]+)*|[+-]?[0-9]{1,5}))?",
    re.ASCII,
)
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

    Raises `OSError`: the folder cannot be written.
    """
    show_verdict(notebook, verdict)
    folder = Path(course) / "autograded" / verdict.student / verdict.lab
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{verdict.lab}.ipynb"
    write_atomically(path, nbformat.writes(notebook))
    write_time_and_secret(course, verdict, submission)
    return path


def write_time_and_secret(course: Path, verdict: Verdict, submission: Path) -> None:
    """Write the two files beside the notebook, where they are missing or another submission's.

    A student who hands in the same again gets the same verdict, but new feedback has the name of the new secret.
    """
    folder = Path(course) / "autograded" / verdict.student / verdict.lab
    when = submitted_at(submission)
    texts = {TIMESTAMP: when.strftime("%Y-%m-%d %H:%M:%S.%f") + " UTC\n" if when else ""}
    secret = _secret(submission)
    if secret or not (folder / SECRET).exists():
        texts[SECRET] = secret or secrets.token_hex(64)
    for name, text in texts.items():
        if not (folder / name).exists() or (folder / name).read_text() != text:
            write_atomically(folder / name, text)


def remove_autograded(course: Path, verdict: Verdict) -> None:
    """Remove the notebook of an earlier grading, which shows an earlier submission."""
    folder = Path(course) / "autograded" / verdict.student / verdict.lab
    (folder / f"{verdict.lab}.ipynb").unlink(missing_ok=True)


def submitted_at(submission: Path, problem: Callable[[str], None] = lambda line: None) -> datetime | None:
    """When a submission was handed in, by the time stamp that ``nbgrader collect`` wrote; UTC without zone.

    Parameters
    ----------
    problem : callable
        Called with one line if the file holds no time; not called if there is no file.
    """
    remedy = "so its lateness is not known; write a time as 2026-11-20 22:00:00 UTC"
    try:
        text = _read(submission, TIMESTAMP).strip()
    except (EvidenceError, OSError) as error:
        if os.path.lexists(submission / TIMESTAMP):
            problem(f"{error or TIMESTAMP + ' cannot be read'}, {remedy}")
        return None
    try:
        return parse_time(text)
    except ValueError as error:
        problem(f"{TIMESTAMP} holds {error}, {remedy}")
        return None


def parse_time(text: str) -> datetime:
    """A time as nbgrader writes it, in UTC without zone. Raises `ValueError` with a few words."""
    try:
        if _STAMP.fullmatch(text) is None:
            raise ValueError
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # dateutil's, about odd zones
            return parse_utc(text)
    except Exception:  # dateutil lets many kinds through
        raise ValueError(f"{quote(text)}, which is no time") from None


def _secret(submission: Path) -> str:
    """The secret that ``nbgrader submit`` drew for a submission; empty where there is none."""
    try:
        text = _read(submission, SECRET)
    except (EvidenceError, OSError):
        text = ""
    return text if re.fullmatch("[0-9A-Za-z]{16,200}", text) else ""


def _read(submission: Path, name: str) -> str:
    folder = open_submission(submission)
    try:
        return read_plain_text(folder, name, 200, shown=name, missing="", remedy="hand it in as it was")
    finally:
        os.close(folder)
