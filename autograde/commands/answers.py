"""``lab answers``; the `lab` command finds it by its entry point."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autograde.commands.arguments import COURSE, LAB, RUBRICS_FOLDER

if TYPE_CHECKING:
    from nbgrader.api import Gradebook
    from traitlets.config import Config

    from autograde.reports.answers import Question
    from autograde.rubric.schema import Rubric

__all__ = ["answers"]


@click.command()
@click.argument("lab", type=LAB)
@click.argument("question", required=False)
@COURSE
@click.option(
    "--from",
    "table_in",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read points and comments from the edited table (CSV) into the gradebook. Points that wait for a second look "
    "are confirmed. Nothing is written if a row is wrong.",
)
@RUBRICS_FOLDER
def answers(lab: str, question: str | None, course: Path, table_in: Path | None, rubrics: Path | None) -> None:
    """Write all answers to LAB's written questions as a page and as a table (CSV).

    LAB is 1, 01 or 01_single_gpu; QUESTION is a cell's name such as q-knee. The page goes to COURSE/reports/, the table to
    COURSE/exports/. Fill the table's columns points and comment, save it as CSV UTF-8, and read it back with --from.
    """
    from autograde.gradebook.scores import CourseError, nbgrader_settings, open_gradebook
    from autograde.reports.export.csv_file import ExportError
    from autograde.rubric.schema import RUBRICS, RubricError, find_rubric

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # an id may have a letter that the terminal lacks
    try:
        config = nbgrader_settings(course)
        with open_gradebook(config, existing=True) as gradebook:
            questions = _questions(gradebook, course, lab, question)
            if table_in is not None:
                _read(gradebook, config, lab, questions, table_in)
                return
        _write(find_rubric(lab, rubrics or RUBRICS), question, course, questions)
    except (CourseError, ExportError, RubricError) as error:
        raise click.ClickException(str(error)) from None


def _questions(gradebook: Gradebook, course: Path, lab: str, wanted: str | None) -> list[Question]:
    from autograde.gradebook.hand_marks import read_hand_marks
    from autograde.gradebook.scores import CourseError, source_path
    from autograde.reports.answers import questions_of
    from course_lib.runs.run_evidence.quoting import quote

    questions = questions_of(lab, course, source_path(course, lab), read_hand_marks(gradebook, lab))
    if not questions:
        raise CourseError(f"no answers to questions of {lab} in the gradebook; grade the lab first with `lab grade`")
    found = [each for each in questions if wanted in (None, each.name)]
    if not found:
        raise CourseError(f"{lab} has no question {quote(wanted)}; it has {', '.join(each.name for each in questions)}")
    return found


def _write(rubric: Rubric, question: str | None, course: Path, questions: list[Question]) -> None:
    from autograde.gradebook.scores import CourseError
    from autograde.reports.answers.page import answers_page
    from autograde.reports.answers.table import table
    from course_lib.system.atomic import write_atomically

    name = f"{rubric.lab}_answers" + (f"_{question}" if question else "")
    page, sheet = course / "reports" / f"{name}.html", course / "exports" / f"{name}.csv"
    contents = {page: answers_page(rubric, questions, sheet.name), sheet: table(questions)}
    for path, content in contents.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
        except OSError as error:
            raise CourseError(f"{path} cannot be written ({error.strerror}); make {course} writable") from None
        click.echo(path)


def _read(gradebook: Gradebook, config: Config, lab: str, questions: list[Question], path: Path) -> None:
    from autograde.gradebook.hand_marks import read_hand_marks, record_hand_marks
    from autograde.gradebook.late_penalties import LatePenalties, LatePenaltyError
    from autograde.gradebook.scores import CourseError
    from autograde.reports.answers.table import read_table

    changes, problems = read_table(path, questions)
    if problems:
        for line in problems:
            click.echo(line, err=True)
        count = f"{len(problems)} row{'s' * (len(problems) != 1)}"
        raise click.ClickException(f"{count} cannot be used, so nothing was written; correct {path} and repeat")
    try:
        penalties = LatePenalties(config)  # before anything changes
        record_hand_marks(gradebook, lab, changes)
        for student in sorted({new.student for _, new in changes}):
            penalties.assign(lab, student)
    except LatePenaltyError as error:
        raise CourseError(f"{error}; repair it, then `lab grade` computes the penalties") from None
    points = sum(old.points != new.points for old, new in changes)
    back = sum(old.points is not None and new.points is None for old, new in changes)
    confirmed = sum(old.points == new.points and old.waits and not new.waits for old, new in changes)
    comments = sum(old.comment != new.comment for old, new in changes)
    gradebook.db.expire_all()
    waiting = sum(mark.waits for mark in read_hand_marks(gradebook, lab))
    settled = f", {confirmed} mark{'s' * (confirmed != 1)} confirmed" if confirmed else ""
    click.echo(
        f"{lab}: {points} points{f' ({back} taken back)' if back else ''} and {comments} comments into the gradebook"
        f"{settled}; {waiting} answers wait for a mark"
    )
