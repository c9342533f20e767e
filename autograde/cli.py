"""``lab grade`` and ``lab report``; the `lab` command finds them by their entry points."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import click

from .batch import grade_lab, is_student_id, submissions
from .gradebook import CourseError
from .quoting import quote
from .report import ReportError, write_report
from .rubric import RubricError, find_rubric
from .verdict import Verdict

__all__ = ["grade", "report"]

COURSE = click.option(
    "--course",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("course"),
    show_default=True,
    help="The course folder, which holds submitted/.",
)


def _lab(context: click.Context, parameter: click.Parameter, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    try:
        return tuple(find_rubric(lab).lab for lab in value) if isinstance(value, tuple) else find_rubric(value).lab
    except RubricError as error:
        raise click.BadParameter(str(error)) from None


def _students(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not is_student_id(value):
            raise click.BadParameter(f"{quote(value)} is not a student id (letters, digits, _.@-)")
    return values


@click.command()
@click.argument("lab", callback=_lab)
@COURSE
@click.option("--student", "students", multiple=True, callback=_students, help="Only this student; may be repeated.")
def grade(lab: str, course: Path, students: tuple[str, ...]) -> None:
    """Grade the run evidence of LAB's submissions and write nbgrader's gradebook.

    LAB is 1, 01 or 01_single_gpu. What students wrote is read, never run: exercises' cells get their points from
    `nbgrader autograde`, questions from formgrader.
    """
    skipped: list[str] = []
    try:
        total = len(set(students)) or len(submissions(course, lab))
        on_terminal = sys.stdout.isatty()
        bar = click.progressbar(length=total, label=f"grading {lab}") if on_terminal else nullcontext()
        with bar:
            verdicts = grade_lab(
                lab,
                course,
                students or None,
                done=lambda verdict: bar.update(1) if on_terminal else click.echo(_line(verdict)),
                skipped=skipped.append,
            )
    except (CourseError, RubricError) as error:
        raise click.ClickException(str(error)) from None
    finally:
        for line in skipped:
            click.echo(line, err=True)
    click.echo(f"{lab}: {len(verdicts)} graded, scores in the gradebook; next: lab report {lab.split('_')[0]}")


@click.command()
@click.argument("labs", nargs=-1, required=True, metavar="LAB...", callback=_lab)
@COURSE
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="The page to write.")
def report(labs: tuple[str, ...], course: Path, output: Path | None) -> None:
    """Write one HTML page about the class: scores, learning curves, and every verdict with its reason.

    Without -o it goes to COURSE/reports/.
    """
    name = labs[0] if len(labs) == 1 else "labs_" + "_".join(lab.split("_")[0] for lab in labs)
    try:
        path = write_report(list(labs), course, output or course / "reports" / f"{name}.html")
    except (CourseError, ReportError, RubricError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(path)


def _line(verdict: Verdict) -> str:
    missed = [result for result in verdict.results if not result.passed]
    why = ", ".join(result.id for result in missed)
    if len(missed) > 1 and len({result.reason for result in missed}) == 1:
        why = f"{len(missed)} criteria: {missed[0].reason}"
    score = f"{verdict.student}: {verdict.score:g}/{verdict.max_score:g}"
    return f"{score}  missed {why}" if missed else score
