"""A lab's scores, read from nbgrader's gradebook through nbgrader's own API."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from nbgrader.api import Assignment, Grade, Gradebook, MissingEntry, SubmittedAssignment, SubmittedNotebook
from sqlalchemy import case, func

from autograde.gradebook.extensions import Extension, ExtensionError, Extensions
from autograde.gradebook.scores import CourseError, nbgrader_settings, open_gradebook

__all__ = ["Grades", "LabScores", "StudentScore", "read_scores"]


@dataclass(frozen=True)
class StudentScore:
    """One student's score in one lab, from the gradebook."""

    student: str
    last_name: str | None
    first_name: str | None
    email: str | None
    submitted: bool = False  # whether the gradebook has a submission; without one the numbers are 0
    timestamp: datetime | None = None
    raw: float = 0.0
    penalty: float = 0.0  # points that nbgrader takes off for lateness
    seconds_late: float = 0.0  # after the due date, with the student's extension; 0 where the lab has none
    needs_hand_grading: bool = False  # whether a cell waits for a person; the score is not final
    extension: Extension | None = None
    unread: int = 0  # answers that have no mark yet, neither ours nor a person's
    unread_points: float = 0.0  # what these are worth together
    again: int = 0  # scores that count, but that a person must look at again, as after a new submission
    lms_user_id: str | None = None
    page: str | None = None  # formgrader's name of the submission's page

    @property
    def score(self) -> float:
        """Points after the penalty, at least 0, as nbgrader's own export has it."""
        return max(0.0, self.raw - self.penalty)


@dataclass(frozen=True)
class LabScores:
    """A lab's scores; `students` is everyone in the gradebook, in nbgrader's order (last name, first name)."""

    lab: str
    duedate: datetime | None
    max_score: float
    students: tuple[StudentScore, ...]

    @property
    def waiting(self) -> list[StudentScore]:
        """Those whose submission still needs hand grading."""
        return [student for student in self.students if student.needs_hand_grading]

    def grades(self, zero_missing: bool = False, final_only: bool = False, scale: bool = False) -> Grades:
        """Select the scores for another system's file.

        Parameters
        ----------
        zero_missing : bool
            Give 0 to students without a submission, who are otherwise left out.
        final_only : bool
            Leave out those who still need hand grading.
        scale : bool
            Scale the scores to the other system's maximum.
        """
        scores = {
            student.student: student.score
            for student in self.students
            if (student.submitted or zero_missing) and not (final_only and student.needs_hand_grading)
        }
        return Grades(self, scores, scale)


@dataclass(frozen=True)
class Grades:
    """Scores to write into another system's file, by student id, and whether to scale them to its maximum."""

    lab: LabScores
    scores: dict[str, float]
    scale: bool = False


def read_scores(course: Path, lab: str) -> LabScores:
    """Read a lab's scores.

    Parameters
    ----------
    lab : str
        Full name, which is the assignment's.

    Raises `CourseError`: there is no gradebook, it cannot be opened, it does not know the lab, or a score in it is not
    a number.
    """
    config = nbgrader_settings(course)
    with open_gradebook(config, existing=True) as gradebook:
        database = gradebook.engine.url.database
        try:
            assignment = gradebook.find_assignment(lab)
        except MissingEntry:
            raise CourseError(f"gradebook {database} does not know {lab}; run `lab grade {lab}` first") from None
        try:
            extensions = {
                each.student: each for each in Extensions(config).all(gradebook) if each.lab == lab and each.due
            }
        except ExtensionError as error:
            raise CourseError(str(error)) from None
        submissions = {submission.student_id: submission for submission in gradebook.assignment_submissions(lab)}
        points, unread, pages = _points(gradebook, lab), _unread(gradebook, lab), _pages(gradebook, lab)
        students = tuple(
            _student(
                student,
                submissions.get(student.id),
                extensions.get(student.id),
                *points.get(student.id, (0.0, False)),
                *unread.get(student.id, (0, 0.0, 0)),
                pages.get(student.id),
            )
            for student in gradebook.students
        )
        scores = LabScores(lab, assignment.duedate, float(assignment.max_score), students)
    for student in students:
        if not (math.isfinite(student.raw) and math.isfinite(student.penalty)):
            raise CourseError(f"gradebook {database}: the score of {student.student!a} in {lab} is not a number")
    return scores


def _points(gradebook: Gradebook, lab: str) -> dict[str, tuple[float, bool]]:
    """Of each student: the points before the penalty, and whether a cell waits for a person.

    nbgrader's own `SubmittedAssignment.score` looks at all grades of all labs, for each student again: a minute for 1,000.
    """
    query = (
        gradebook.db.query(
            SubmittedAssignment.student_id, func.sum(Grade.score), func.max(case((Grade.needs_manual_grade, 1), else_=0))
        )
        .join(SubmittedNotebook, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
        .join(Grade, Grade.notebook_id == SubmittedNotebook.id)
        .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
        .filter(Assignment.name == lab)
        .group_by(SubmittedAssignment.student_id)
    )
    return {student: (float(points), bool(waits)) for student, points, waits in query}


def _unread(gradebook: Gradebook, lab: str) -> dict[str, tuple[int, float, int]]:
    """Of each student for whom cells wait: how many have no score at all, their points, and how many have a score."""
    no_score = Grade.auto_score.is_(None) & Grade.manual_score.is_(None)
    sums = (case((no_score, 1), else_=0), case((no_score, Grade.max_score), else_=0.0), case((no_score, 0), else_=1))
    query = (
        gradebook.db.query(SubmittedAssignment.student_id, *map(func.sum, sums))
        .join(SubmittedNotebook, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
        .join(Grade, Grade.notebook_id == SubmittedNotebook.id)
        .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
        .filter(Assignment.name == lab, Grade.needs_manual_grade.is_(True))
        .group_by(SubmittedAssignment.student_id)
    )
    return {student: (count, float(points), again) for student, count, points, again in query}


def _pages(gradebook: Gradebook, lab: str) -> dict[str, str]:
    """The id of each student's notebook, by which formgrader's page of a submission is found."""
    query = (
        gradebook.db.query(SubmittedAssignment.student_id, SubmittedNotebook.id)
        .join(SubmittedNotebook, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
        .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
        .filter(Assignment.name == lab)
    )
    return dict(map(tuple, query))


def _student(
    student,
    submission,
    extension: Extension | None,
    points: float,
    waits: bool,
    unread: int,
    unread_points: float,
    again: int,
    page: str | None,
) -> StudentScore:
    person = (student.id, student.last_name, student.first_name, student.email)
    if submission is None:
        return StudentScore(*person, extension=extension, lms_user_id=student.lms_user_id)
    return StudentScore(
        *person,
        lms_user_id=student.lms_user_id,
        submitted=True,
        timestamp=submission.timestamp,
        raw=points,
        penalty=float(submission.late_submission_penalty),
        # nbgrader cannot add an extension to no due date.
        seconds_late=float(submission.total_seconds_late) if submission.assignment.duedate else 0.0,
        needs_hand_grading=waits,
        extension=extension,
        unread=unread,
        unread_points=unread_points,
        again=again,
        page=page,
    )
