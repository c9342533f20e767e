"""What a student asks an instructor to look at again: ``regrade.txt`` beside the notebook, submitted with it.

Each line names a part of the lab, as feedback does, and says why: ``check-train-step: the sum is meant``. A line without a
name of a part is about the whole lab.
"""

from __future__ import annotations

import filecmp
import os
import re
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from autograde.submission.run_folder import EvidenceError, open_submission, read_plain_text
from autograde.submission.submitted_notebook import MAX_BYTES, read_notebook

__all__ = ["FILE", "RegradeRequest", "only_asks", "regrade_requests"]

FILE = "regrade.txt"
LONGEST, MOST = 8_000, 20  # bytes of the file, requests in it
_LINE = re.compile(r"\s*(?:(?P<part>[\w.-]{1,80})\s*:)?\s*(?P<text>.*\S)\s*")


@dataclass(frozen=True)
class RegradeRequest:
    """One line, the student's words: escape them. `part` should be a cell's ``grade_id``; empty means the whole lab."""

    part: str
    text: str


def regrade_requests(submission: Path) -> list[RegradeRequest]:
    """The requests in ``submitted/STUDENT/LAB``; empty where there is no file.

    A file that is not used (a link, too long, no text) is one request, whose text says why.
    """
    try:
        folder = open_submission(submission)
    except (OSError, EvidenceError):
        return []
    try:
        if FILE not in os.listdir(folder):
            return []
        text = read_plain_text(folder, FILE, LONGEST, shown=FILE, missing="", remedy="ask the student for a short text")
    except EvidenceError as error:
        return [RegradeRequest("", str(error))]
    finally:
        os.close(folder)
    lines = filter(None, map(_LINE.fullmatch, text.splitlines()[:1000]))
    return [RegradeRequest(line["part"] or "", line["text"]) for line in lines][:MOST]


def only_asks(submission: Path, before: Path) -> bool:
    """Whether a submission adds nothing to the one before but a request: every other file is there, and the same.

    Both are named after the lab. Its notebook is the same if grading reads the same cells in it: saving it again
    changes the file. A notebook that cannot be read, or is large, is compared byte by byte, as all other files are.
    """
    if not (submission / FILE).is_file() or (before / FILE).is_dir():
        return False
    new, old = (_other_files(folder) for folder in (submission, before))
    if new != old:
        return False
    changed = {path for path in new if not filecmp.cmp(submission / path, before / path, shallow=False)}
    if changed != {Path(f"{before.name}.ipynb")}:
        return not changed
    cells = _cells(before)
    return cells is not None and cells == _cells(submission)


def _cells(submission: Path) -> list[NotebookNode] | None:
    """The notebook's cells as grading reads them, without outputs; None where it cannot be read, or is large."""
    lab = submission.name
    try:
        # Of a larger file pictures in answers are not read either, and one may have changed.
        if (submission / f"{lab}.ipynb").stat().st_size > MAX_BYTES:
            return None
        cells = read_notebook(submission, lab).cells
    except (OSError, EvidenceError):
        return None
    for cell in cells:
        cell.pop("outputs", None)
        cell.pop("execution_count", None)
    return cells


def _other_files(folder: Path) -> set[Path]:
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    # The last two are nbgrader's own, and differ each time.
    return files - {Path(FILE), Path("timestamp.txt"), Path("submission_secret.txt")}
