"""Grading a whole class: one submission after another, none of which can stop the others."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from .gradebook import CourseError, ensure_assignment, nbgrader_settings, open_gradebook, record_verdict
from .grading import grade_submission
from .quoting import quote
from .rubric import find_rubric
from .verdict import Verdict

__all__ = ["grade_lab", "is_student_id", "submissions"]

# The first character keeps ids from being a hidden file, an option on a command line, or a formula in a spreadsheet.
_STUDENT_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,99}", re.ASCII)


def is_student_id(name: str) -> bool:
    """Whether a name may be a student's id: letters, digits and ``_.@-``, the first a letter, a digit or ``_``."""
    return _STUDENT_ID.fullmatch(name) is not None


def submissions(course: Path, lab: str, skipped: Callable[[str], None] = lambda line: None) -> list[str]:
    """Ids of the students who submitted a lab, in order.

    Parameters
    ----------
    course : Path
    lab : str
        Full name.
    skipped : callable
        Told, in one line, of every name under ``submitted/`` that cannot be a student's id.

    Raises
    ------
    CourseError
        There is no folder of submissions, or it cannot be read.
    """
    submitted = course / "submitted"
    try:
        names = sorted(os.listdir(submitted))
    except OSError as error:
        raise CourseError(
            f"{submitted} cannot be read ({error.strerror}); collect submissions first with `nbgrader collect {lab}`"
        ) from None
    found = []
    for name in names:
        if not os.path.lexists(submitted / name / lab):
            continue
        if is_student_id(name):
            found.append(name)
        else:
            skipped(f"skipped submitted/{quote(name)}: not a student id (letters, digits, _.@-); rename the folder")
    return found


def grade_lab(
    lab: str,
    course: str | os.PathLike[str],
    students: Iterable[str] | None = None,
    *,
    done: Callable[[Verdict], None] = lambda verdict: None,
    skipped: Callable[[str], None] = lambda line: None,
) -> list[Verdict]:
    """Grade the run evidence of a lab's submissions, save the verdicts and write the gradebook.

    Parameters
    ----------
    lab : str
        ``1``, ``01`` or ``01_single_gpu``.
    course : path
        The course folder, with ``submitted/STUDENT/LAB``.
    students : iterable of str, optional
        Only these; by default everyone who submitted.
    done, skipped : callable
        Told of each verdict as it comes, and of each name that was left out.

    Returns
    -------
    list of Verdict
        In order of the students' ids.

    Raises
    ------
    RubricError
        No usable rubric for the lab.
    CourseError
        The course folder or its gradebook cannot be used, a student named has no submission; or, once everybody is
        graded, scores that could not be written.
    """
    rubric = find_rubric(lab)
    course = Path(course).resolve()
    there = submissions(course, rubric.lab, skipped)
    wanted = there if students is None else sorted(set(students))
    if absent := [ascii(student) for student in wanted if student not in there]:
        raise CourseError(f"no submission of {rubric.lab} by {', '.join(absent[:5])} in {course / 'submitted'}")
    if not wanted:
        raise CourseError(f"no submission of {rubric.lab} in {course / 'submitted'}; collect them first")

    config = nbgrader_settings(course)
    ensure_assignment(config, rubric)
    verdicts, unwritten = [], []
    with open_gradebook(config) as gradebook:
        for student in wanted:
            verdict = grade_submission(rubric, course / "submitted" / student / rubric.lab, student)
            try:
                verdict.save(course)
                record_verdict(gradebook, verdict)
            except Exception as error:
                gradebook.db.rollback()
                unwritten.append(f"{student} ({type(error).__name__})")
            verdicts.append(verdict)
            done(verdict)
    if unwritten:
        raise CourseError(
            f"{len(unwritten)} of {len(wanted)} scores could not be written: {', '.join(unwritten[:5])}; "
            f"see that {course} can be written, then grade again"
        )
    return verdicts
