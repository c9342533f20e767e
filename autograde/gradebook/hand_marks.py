"""Points and comments that a person gives for written answers, as formgrader reads and stores them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from nbgrader.api import (
    BaseCell,
    Comment,
    Grade,
    Gradebook,
    MissingEntry,
    Notebook,
    SubmittedAssignment,
    SubmittedNotebook,
)
from sqlalchemy.orm import Query

from autograde.gradebook.scores import CourseError, hand_graded_cells

__all__ = ["HandMark", "read_hand_marks", "record_hand_marks"]


@dataclass(frozen=True)
class HandMark:
    """One student's mark for one question, or another cell; `points` is None and `comment` empty where there is none.

    `automatic` is the score that grading gave: 0 for an answer that is still the starter's text, otherwise None.
    `waits` is whether formgrader asks a person to look. `handed_in` is the submission's time, `extra` formgrader's
    extra credit.
    """

    student: str
    question: str
    max_points: float
    automatic: float | None = None
    points: float | None = None
    comment: str = ""
    waits: bool = True
    handed_in: str = ""
    extra: float = 0.0

    def with_mark(self, points: float | None, comment: str, confirmed: bool = False) -> HandMark:
        """The same with other points and another comment; `confirmed` settles points that are as they were."""
        waits = self.waits and not confirmed
        if points != self.points:
            waits = points is None and self.automatic is None
        return replace(self, points=points, comment=comment, waits=waits)


def read_hand_marks(gradebook: Gradebook, lab: str, overridden: bool = False) -> list[HandMark]:
    """The marks of everybody who handed in a lab, for each question.

    Parameters
    ----------
    lab : str
        Full name, which is the assignment's.
    overridden : bool
        Also of each cell with an automatic score to which a person gave points or a comment.

    Raises `CourseError`: the gradebook does not know the lab.
    """
    try:
        notebook = gradebook.find_notebook(lab, lab)
    except MissingEntry:
        raise CourseError(f"the gradebook does not know {lab}; run `lab grade {lab}` first") from None
    most = {cell.name: float(cell.max_score) for cell in [*notebook.grade_cells, *notebook.task_cells]}
    questions = {cell.name for cell in hand_graded_cells(notebook)}
    comments = {
        (student, name): comment for student, name, comment in _rows(gradebook, notebook, Comment, "manual_comment")
    }
    columns = ("auto_score", "manual_score", "needs_manual_grade", "extra_credit")
    times = {each.student_id: str(each.timestamp or "") for each in gradebook.assignment_submissions(lab)}
    marks = []
    for student, name, automatic, points, waits, extra in _rows(gradebook, notebook, Grade, *columns):
        comment = comments.get((student, name)) or ""
        if name in questions or (overridden and name in most and (points is not None or comment)):
            common = (student, name, most[name], automatic, points, comment)
            marks.append(HandMark(*common, bool(waits), times[student], extra or 0.0))
    return sorted(marks, key=lambda mark: (mark.question, mark.student))


def _rows(gradebook: Gradebook, notebook: Notebook, kind: type, *columns: str) -> Query:
    """Student, cell and these columns of all grades or comments, in one query: nbgrader's objects take one for each."""
    return (
        gradebook.db.query(SubmittedAssignment.student_id, BaseCell.name, *(getattr(kind, name) for name in columns))
        .select_from(kind)
        .join(BaseCell, BaseCell.id == kind.cell_id)
        .join(SubmittedNotebook, SubmittedNotebook.id == kind.notebook_id)
        .join(SubmittedAssignment, SubmittedAssignment.id == SubmittedNotebook.assignment_id)
        .filter(SubmittedNotebook.notebook_id == notebook.id)
    )


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
