"""Writing verdicts into nbgrader's gradebook.

The scores and reasons of the rubric's cells (its exercises and its runs) are ours. Written answers get theirs by
hand in formgrader. A score or a comment that a person has set for one of our cells in formgrader (``manual_score``,
``manual_comment``) takes precedence over ours in nbgrader, and stays.

Order of `lab grade` and `nbgrader autograde`
---------------------------------------------
Stock ``nbgrader autograde`` executes the student's notebook with the rights of its caller, and then writes the
automatic score of *every* grade cell from the cell's output, which the student's own code produced. A cell that ends
without an error is worth full points there. So:

* with the repository's ``nbgrader_config.py``, our preprocessor (`autograde.commands.nbgrader_hooks.KeepVerdict`) runs
  right after that step and puts our scores back. Either order, and either command alone, gives the same score;
* under a configuration without it, ``nbgrader autograde`` after ``lab grade`` overwrites our scores, and ``lab grade``
  must be run again; the reverse order needs nothing.

A submission that is not yet in the database is added the way nbgrader adds it, with its time; an assignment that is not
there is made by nbgrader's own ``generate_assignment``. The penalty for a late submission is nbgrader's, too
(`autograde.gradebook.late_penalties`). A written answer that is still the starter's text gets 0, as in
nbgrader. Any other waits for a person.

Comments: nbgrader keeps a comment for an answer or task cell, and its feedback page shows it (through Markdown, see
`Verdict.comment`). A test cell has none, so for that the reasons become the cell's output in the feedback, which
nbconvert escapes.
"""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from nbgrader.api import (
    BaseCell,
    Comment,
    Grade,
    Gradebook,
    GradeCell,
    MissingEntry,
    Notebook,
    SubmittedNotebook,
    TaskCell,
)
from nbgrader.apps.api import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, SAWarning
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from autograde.gradebook.late_penalties import LatePenalties
from autograde.rubric.schema import Rubric
from autograde.rubric.verdict import Verdict

__all__ = [
    "CourseError",
    "LabPoints",
    "count_rows",
    "ensure_assignment",
    "hand_graded_cells",
    "lab_points",
    "nbgrader_settings",
    "open_gradebook",
    "record_verdict",
    "source_path",
    "stored_comment",
]

_BESIDE_PACKAGE = Path(__file__).resolve().parents[2]


class CourseError(RuntimeError):
    """The course folder, or its gradebook, cannot be used. The message is one line with the remedy."""


def nbgrader_settings(course: Path) -> Config:
    """nbgrader's configuration for a course folder.

    ``nbgrader_config.py`` is looked for beside the course folder, in the working folder, and beside this package, in
    that order. The folders that nbgrader writes, and the database, are set to be in `course`.

    Raises `CourseError`: no configuration is found, or it cannot be loaded.
    """
    course = course.resolve()
    for folder in (course.parent, Path.cwd(), _BESIDE_PACKAGE):
        if (folder / "nbgrader_config.py").is_file():
            break
    else:
        raise CourseError(f"no nbgrader_config.py beside {course}; run from the repository's root")
    try:
        config = PyFileConfigLoader("nbgrader_config.py", path=str(folder)).load_config()
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise CourseError(f"{folder / 'nbgrader_config.py'} cannot be loaded ({what})") from None
    directories = config.CourseDirectory
    if Path(str(directories.get("root", folder))).resolve() / "course" != course:
        # Another course folder than the configuration's: nothing may be written into that one's.
        directories.db_url = f"sqlite:///{course / 'gradebook.db'}"
        for step in ("release", "submitted", "autograded", "feedback", "solution", "source_with_tests"):
            setattr(directories, f"{step}_directory", os.path.relpath(course / step, directories.get("root", folder)))
    return config


def source_path(course: Path, lab: str) -> Path:
    """A lab's source notebook, by nbgrader's configuration for a course folder.

    Raises `CourseError` as `nbgrader_settings`.
    """
    directories = CourseDirectory(config=nbgrader_settings(course))
    return Path(directories.format_path(directories.source_directory, ".", lab)).resolve() / f"{lab}.ipynb"


def open_gradebook(config: Config, existing: bool = False, dry_run: bool = False) -> Gradebook:
    """The course's gradebook; a context manager. In a dry run it is an empty one in memory where there is none.

    Raises `CourseError`: the database cannot be opened, or is to be an existing one and there is none.
    """
    directories = CourseDirectory(config=config)
    url = make_url(directories.db_url)
    # SQLite would make the file.
    missing = url.get_backend_name() == "sqlite" and url.database and not Path(url.database).is_file()
    if existing and missing:
        raise CourseError(f"no gradebook {url.database}; grade first with `lab grade`")
    try:
        return Gradebook("sqlite://" if dry_run and missing else directories.db_url, directories.course_id)
    except Exception as error:
        raise CourseError(
            f"gradebook {directories.db_url} cannot be opened ({type(error).__name__}); "
            "after an update of nbgrader run `nbgrader db upgrade`, having made a copy"
        ) from None


# nbgrader has none of these. With 1,000 students and 14 labs formgrader's page of a lab took 3 minutes without them, and
# 3.6 s with them.
INDEXES = (("grade", "notebook_id"), ("comment", "notebook_id"), ("submitted_notebook", "assignment_id"))


def _add_indexes(gradebook: Gradebook) -> None:
    try:
        for table, column in INDEXES:
            gradebook.db.execute(text(f"CREATE INDEX IF NOT EXISTS course_{table}_{column} ON {table} ({column})"))
        gradebook.db.commit()
    except DBAPIError:  # locked by a reader, or MySQL, which has no IF NOT EXISTS here: all is as it was, and slow
        gradebook.db.rollback()


# With submissions counted too, SQLite plans formgrader's list of a lab's submissions worse: 1.9 s instead of 0.9.
COUNTED = ("assignment", "notebook", "base_cell", "grade_cells", "task_cells", "grade")


def count_rows(gradebook: Gradebook) -> None:
    """Let SQLite count the rows of these tables, by which it plans queries.

    Without, it reads the grades of all labs for the averages of one. With 1,000 students and 14 labs it takes 0.1 s, and
    formgrader's list of labs takes a third of the time.
    """
    try:
        if gradebook.db.get_bind().dialect.name == "sqlite":
            for table in COUNTED:
                gradebook.db.execute(text(f"ANALYZE {table}"))
            gradebook.db.commit()
    except DBAPIError:  # locked by a reader: all is as it was
        gradebook.db.rollback()


def ensure_assignment(config: Config, rubric: Rubric) -> None:
    """Make sure that the gradebook knows the lab and the rubric's cells, with the rubric's points.

    Raises `CourseError`: no source notebook, no such cell, other points than the rubric's, or nbgrader cannot make the
    assignment.
    """
    if not _has_notebook(config, rubric.lab):
        directories = CourseDirectory(config=config)
        source = Path(directories.format_path(directories.source_directory, ".", rubric.lab))
        notebook = source / f"{rubric.lab}.ipynb"
        if not notebook.is_file():
            raise CourseError(f"no source notebook {notebook}; nbgrader reads the lab's cells and points from it")
        # force: the gradebook lacks the assignment, so what is in release/ cannot be in use.
        api = NbGraderAPI(config=config, log_level=logging.ERROR)
        answer = api.generate_assignment(rubric.lab, force=True)
        if not answer["success"]:
            last = (answer.get("error") or answer.get("log") or "").strip().splitlines()[-1:] or ["no message"]
            raise CourseError(f"nbgrader generate_assignment {rubric.lab} failed: {last[0]}; run it to see its log")
    with open_gradebook(config) as gradebook:
        _add_indexes(gradebook)
        for name, points in rubric.cells.items():
            try:
                cell = gradebook.find_graded_cell(name, rubric.lab, rubric.lab)
            except MissingEntry:
                raise CourseError(
                    f"notebook {rubric.lab} has no grade cell {name!r} in the gradebook; "
                    f"add it and run `nbgrader generate_assignment {rubric.lab} --force`"
                ) from None
            if abs(cell.max_score - points) > 1e-9:
                raise CourseError(
                    f"cell {name!r} is worth {cell.max_score:g} points in notebook {rubric.lab} and "
                    f"{points:g} in its rubric; make them equal and run `nbgrader generate_assignment --force`"
                )


@dataclass(frozen=True)
class LabPoints:
    """How a lab's points divide: run evidence, exercises by hidden checks, other cells, and answers graded by hand.

    `others` are grade cells that the rubric does not name; `nbgrader autograde` scores them.
    """

    evidence: float
    exercises: float
    others: float
    by_hand: float

    @property
    def total(self) -> float:
        """All points of the lab."""
        return self.evidence + self.exercises + self.others + self.by_hand


def lab_points(config: Config, rubric: Rubric) -> LabPoints | None:
    """How the lab's points divide, from the gradebook; None where it does not know the lab."""
    with open_gradebook(config) as gradebook:
        try:
            notebook = gradebook.find_notebook(rubric.lab, rubric.lab)
        except MissingEntry:
            return None
        hand_graded = {cell.name for cell in hand_graded_cells(notebook)}
        checked = {exercise.cell for exercise in rubric.exercises}
        runs = {run.cell for run in rubric.runs}
        evidence = exercises = others = by_hand = 0.0
        for cell in [*notebook.grade_cells, *notebook.task_cells]:
            if cell.name in runs:
                evidence += cell.max_score
            elif cell.name in checked:
                exercises += cell.max_score
            elif cell.name in hand_graded:
                by_hand += cell.max_score
            else:
                others += cell.max_score
        return LabPoints(evidence, exercises, others, by_hand)


def hand_graded_cells(notebook: Notebook) -> list[GradeCell | TaskCell]:
    """The cells of a lab's notebook in the gradebook that a person scores: answers and tasks."""
    answers = {cell.name for cell in notebook.solution_cells}
    grade_cells = [cell for cell in notebook.grade_cells if cell.name in answers or cell.cell_type != "code"]
    return [*grade_cells, *notebook.task_cells]


def record_verdict(
    gradebook: Gradebook,
    verdict: Verdict,
    timestamp: datetime | None = None,
    penalties: LatePenalties | None = None,
    kept: bool = False,
) -> None:
    """Write one verdict's scores and reasons. Adds a student and a submission that are not there yet.

    A second call with the same verdict changes nothing. The scores are one transaction; the penalty is a second one,
    because it depends on the scores and on the due date, which may have changed since.

    Parameters
    ----------
    timestamp : datetime, optional
        When the lab was handed in; UTC without zone, as in nbgrader.
    penalties : LatePenalties, optional
        The step that assigns the penalty for lateness; without it the penalty stays as it is.
    kept : bool
        The verdict was written before: cells that a person has graded since are not marked for review, unless their
        automatic score is another one now.

    Raises
    ------
    nbgrader.api.MissingEntry
        If the lab or one of its cells is not in the gradebook (see `ensure_assignment`).
    LatePenaltyError
        If the plugin failed; the scores are written.
    """
    lab, student = verdict.lab, verdict.student
    with warnings.catch_warnings():
        # nbgrader builds a submission's rows outside its session, which SQLAlchemy remarks on each time.
        warnings.simplefilter("ignore", SAWarning)
        gradebook.update_or_create_student(student)
        fields = {} if timestamp is None else {"timestamp": timestamp}
        gradebook.update_or_create_submission(lab, student, **fields)
    notebook = gradebook.find_submission_notebook(lab, lab, student)
    grades, comments = _by_cell(gradebook, Grade, notebook), _by_cell(gradebook, Comment, notebook)
    finished = {
        name
        for name, grade in grades.items()
        if kept and grade.manual_score is not None and not grade.needs_manual_grade
    }
    for cell, results in verdict.cells.items():
        if cell not in grades:
            raise MissingEntry(f"No such grade: {lab}/{lab}/{cell} for {student}")
        grade, score = grades[cell], sum(result.points for result in results)
        # As nbgrader does it: after a new automatic score, a person's own needs review.
        grade.needs_manual_grade = grade.manual_score is not None and (
            cell not in finished or grade.auto_score != score
        )
        grade.auto_score = score
        if cell not in comments:  # to nbgrader a test cell has none
            comments[cell] = Comment(cell_id=grade.cell_id, notebook=notebook)
            gradebook.db.add(comments[cell])
        comments[cell].auto_comment = verdict.comment(cell)
    for cell in {cell.name for cell in notebook.notebook.solution_cells} & grades.keys() - verdict.cells.keys():
        grade, blank = grades[cell], cell in verdict.unanswered
        grade.auto_score = 0.0 if blank else None
        grade.needs_manual_grade = (not blank or grade.manual_score is not None) and cell not in finished
        if cell in comments:
            comments[cell].auto_comment = "No response." if blank else None
    gradebook.db.commit()
    if penalties is not None:
        penalties.assign(lab, student)


def _by_cell(gradebook: Gradebook, kind: type, notebook: SubmittedNotebook) -> dict[str, Any]:
    """A submitted notebook's grades or comments by the names of their cells, in one query.

    nbgrader keeps an answer cell in two rows of one name: its score belongs to one, its comment to the other.
    """
    query = gradebook.db.query(kind, BaseCell.name).join(BaseCell, BaseCell.id == kind.cell_id)
    return {name: row for row, name in query.filter(kind.notebook_id == notebook.id)}


def stored_comment(gradebook: Gradebook, cell: str, lab: str, student: str) -> str | None:
    """The reasons stored with a student's evidence cell, or None."""
    try:
        notebook = gradebook.find_submission_notebook(lab, lab, student)
    except MissingEntry:
        return None
    comment = _by_cell(gradebook, Comment, notebook).get(cell)
    return comment.auto_comment if comment else None


def _has_notebook(config: Config, lab: str) -> bool:
    with open_gradebook(config) as gradebook:
        try:
            gradebook.find_notebook(lab, lab)
        except MissingEntry:
            return False
        return True
