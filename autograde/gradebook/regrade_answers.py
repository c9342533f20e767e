"""Which requests for a regrade have been answered: those whose marks by hand have changed since they were first seen.

nbgrader keeps no time of a mark. So when `lab grade`, `lab serve` or `lab report` first sees a line of a student's
``regrade.txt``, the marks of that moment go into ``course/regrade_requests.json``: digests alone, of the line and of
each score and comment. The same line, handed in again, is the same request.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
from nbgrader.api import Gradebook, MissingEntry
from traitlets.config import Config

from autograde.gradebook.scores import CourseError, open_gradebook
from autograde.submission.regrade_request import RegradeRequest, regrade_requests
from course_lib.system.atomic import write_atomically

__all__ = ["FILE", "note_requests", "requests_and_answers"]

FILE = "regrade_requests.json"
_Seen = dict[str, dict[str, dict[str, dict[str, str]]]]  # lab, student, request and cell: the mark


def note_requests(config: Config, course: Path, lab: str, students: Iterable[str], log: Callable[[str], None]) -> None:
    """See the students' requests, before a person can answer them; a line to `log` if that fails."""
    try:
        with open_gradebook(config) as gradebook:
            requests_and_answers(gradebook, course, lab, students)
    except Exception as error:  # grading goes on; the report will be the first to see them
        log(f"{lab}, requests for a regrade: {' '.join(str(error).split())}")


def requests_and_answers(
    gradebook: Gradebook, course: Path, lab: str, students: Iterable[str]
) -> list[tuple[str, RegradeRequest, bool]]:
    """Each student's requests, and whether a person has answered; what is seen for the first time has not been.

    A score or a comment answers a request about its part, and any of them one about the lab or about no known part.

    Raises `CourseError`: what was seen cannot be read or written.
    """
    found = {student: regrade_requests(course / "submitted" / student / lab) for student in students}
    found = {student: requests for student, requests in found.items() if requests}
    if not found:
        return []
    path = course / FILE
    answers = []
    try:
        with open(path.with_name(f".{FILE}.lock"), "w") as lock:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            seen = _read(path)
            before = json.dumps(seen)
            for student, requests in found.items():
                marks = _marks(gradebook, lab, student)
                given = {cell: mark for cell, mark in marks.items() if mark}
                known = seen.setdefault(lab, {}).get(student, {})
                then = {key: known.get(key, given) for key in map(_key, requests)}
                seen[lab][student] = then
                for each in requests:
                    cells, old = _about(each.part, marks), then[_key(each)]
                    answers.append((student, each, any(marks[cell] != old.get(cell, "") for cell in cells)))
            if json.dumps(seen) != before:
                write_atomically(path, json.dumps(seen, indent=1) + "\n")
    except OSError as error:
        raise CourseError(f"{path} cannot be used ({error.strerror}); see that it can be read and written") from None
    return answers


def _read(path: Path) -> _Seen:
    """What was seen; nothing where there is no such file, or somebody has changed it."""
    try:
        return msgspec.convert(json.loads(path.read_bytes()), _Seen)
    except (FileNotFoundError, ValueError, RecursionError):
        return {}


def _marks(gradebook: Gradebook, lab: str, student: str) -> dict[str, str]:
    """A digest of what a person gave for each cell, score, extra credit and comment; empty where nothing."""
    try:
        notebook = gradebook.find_submission_notebook(lab, lab, student)
    except MissingEntry:
        return {}
    marks = {comment.name: [None, None, comment.manual_comment or None] for comment in notebook.comments}
    for grade in notebook.grades:
        marks.setdefault(grade.name, [None, None, None])[:2] = grade.manual_score, grade.extra_credit or None
    return {cell: _digest(mark) if mark != [None, None, None] else "" for cell, mark in marks.items()}


def _about(part: str, cells: Iterable[str]) -> list[str]:
    """The cells that a request is about; formgrader has the comment on ``check-NAME`` at the answer, ``ex-NAME``."""
    return [cell for cell in cells if _exercise(cell) == _exercise(part)] or list(cells)


def _exercise(cell: str) -> str:
    return cell.removeprefix("check-").removeprefix("ex-")


def _key(request: RegradeRequest) -> str:
    return _digest([request.part, request.text])


def _digest(value: list[object]) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]
