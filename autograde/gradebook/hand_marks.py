"""Points and comments that a person gives for written answers, as formgrader reads and stores them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from nbgrader.api import Gradebook, MissingEntry

from autograde.gradebook.scores import CourseError, hand_graded_cells

__all__ = ["HandMark", "read_hand_marks", "record_hand_marks"]


@dataclass(frozen=True)
class HandMark:
    """One student's mark for one question; `points` is None and `comment` empty where nobody has given any.

    `automatic` is the score that grading gave: 0 for an answer that is still the starter's text, otherwise None.
    `waits` is whether formgrader asks a person to look. `handed_in` is the submission's time.
    """

    student: str
    question: str
    max_points: float
    automatic: float | None = None
    points: float | None = None
    comment: str = ""
    waits: bool = True
    handed_in: str = ""

    def with_mark(self, points: float | None, comment: str, confirmed: bool = False) -> HandMark:
        """The same with other points and another comment; `confirmed` settles points that are as they were."""
        waits = self.waits and not confirmed
        if points != self.points:
            waits = points is None and self.automatic is None
        return replace(self, points=points, comment=comment, waits=waits)


def read_hand_marks(gradebook: Gradebook, lab: str) -> list[HandMark]:
    """The marks of everybody who handed in a lab, for each question.

    Parameters
    ----------
    lab : str
        Full name, which is the assignment's.

    Raises `CourseError`: the gradebook does not know the lab.
    """
    try:
        questions = {cell.name: float(cell.max_score) for cell in hand_graded_cells(gradebook.find_notebook(lab, lab))}
    except MissingEntry:
        raise CourseError(f"the gradebook does not know {lab}; run `lab grade {lab}` first") from None
    marks = []
    for submission in gradebook.assignment_submissions(lab):
        for notebook in (each for each in submission.notebooks if each.name == lab):
            comments = {comment.name: comment.manual_comment or "" for comment in notebook.comments}
            marks += [
                HandMark(
                    submission.student.id,
                    grade.name,
                    questions[grade.name],
                    grade.auto_score,
                    grade.manual_score,
                    comments.get(grade.name, ""),
                    bool(grade.needs_manual_grade),
                    str(submission.timestamp or ""),
                )
                for grade in notebook.grades
                if grade.name in questions
            ]
    return sorted(marks, key=lambda mark: (mark.question, mark.student))


def record_hand_marks(gradebook: Gradebook, lab: str, changes: Iterable[tuple[HandMark, HandMark]]) -> None:
    """Store marks in one transaction; each change is the mark that is there and the new one.

    As formgrader does it: points settle whether a person must still look, also those that are confirmed as they are; a
    comment alone does not, and a comment that is taken back is an empty one. Extra credit stays.
    """
    try:
        for old, new in changes:
            if (new.points, new.waits) != (old.points, old.waits):
                grade = gradebook.find_grade(new.question, lab, lab, new.student)
                grade.manual_score, grade.needs_manual_grade = new.points, new.waits
            if new.comment != old.comment:
                gradebook.find_comment(new.question, lab, lab, new.student).manual_comment = new.comment
        gradebook.db.commit()
    except BaseException:
        gradebook.db.rollback()
        raise
