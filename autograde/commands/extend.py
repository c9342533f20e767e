"""``lab extend``; the `lab` command finds it by its entry point."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autograde.commands.arguments import COURSE, LAB, STUDENT

if TYPE_CHECKING:
    from nbgrader.api import Gradebook

    from autograde.gradebook.extensions import Extension, Extensions

__all__ = ["extend"]


def _days(context: click.Context, parameter: click.Parameter, value: str | None) -> timedelta | None:
    from autograde.gradebook.extensions import parse_days

    if value is None:
        return None
    try:
        if (days := parse_days(value)) >= timedelta(0):
            return days
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    raise click.BadParameter(f"{value} is negative; 0 takes an extension back")


@click.command()
@click.argument("student", type=STUDENT, required=False)
@click.argument("lab", type=LAB, required=False)
@click.option("--days", metavar="N", callback=_days, help="Days of 24 hours, such as 3 or 0.5; 0 takes it back.")
@COURSE
def extend(student: str | None, lab: str | None, days: timedelta | None, course: Path) -> None:
    """Give STUDENT more time for LAB, or list the extensions.

    LAB is 1, 01 or 01_single_gpu. The days count from the lab's due date and replace an earlier extension. Penalties in
    the gradebook are computed again; nothing is executed. Without --days the command lists what there is, with the
    grace days that are used and left.
    """
    from autograde.gradebook.extensions import ExtensionError, Extensions
    from autograde.gradebook.late_penalties import LatePenalties, LatePenaltyError
    from autograde.gradebook.scores import CourseError, nbgrader_settings, open_gradebook

    if days is not None and lab is None:
        raise click.UsageError("--days needs STUDENT and LAB")
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # an id may have a letter that the terminal lacks
    try:
        config = nbgrader_settings(course)
        extensions = Extensions(config)
        with open_gradebook(config, existing=True) as gradebook:
            if days is None:
                found = [each for each in extensions.all(gradebook) if _matches(each, student, lab)]
                for line in _table(found) or ["no extensions"]:
                    click.echo(line)
                return
            penalties = LatePenalties(config)  # before anything changes
            _check(extensions, gradebook, course, student, lab, days)
            before = _penalties(gradebook, student)
            extensions.give(gradebook, student, lab, days)
            penalties.assign(lab, student)
            gradebook.db.expire_all()
            after = _penalties(gradebook, student)
            now = [each for each in extensions.all(gradebook) if _matches(each, student, lab)]
    except (CourseError, ExtensionError, LatePenaltyError) as error:
        raise click.ClickException(str(error)) from None
    for line in _table(now) or [f"{student}  {lab}  no extension"]:
        click.echo(line)
    for name, penalty in after.items():
        if penalty != before[name]:
            click.echo(
                f"penalty of {student} for {name}: {before[name]:g} before, {penalty:g} points now; to show it: "
                f"nbgrader generate_feedback {name} --student {student} --force"
            )


def _matches(extension: Extension, student: str | None, lab: str | None) -> bool:
    return student in (None, extension.student) and lab in (None, extension.lab)


def _table(extensions: list[Extension]) -> list[str]:
    wide = [max((len(getattr(each, name)) for each in extensions), default=0) for name in ("student", "lab")]
    return [
        f"{each.student:{wide[0]}}  {each.lab:{wide[1]}}  {each}, "
        + (f"until {each.until}" if each.until else "without effect: the lab has no due date")
        for each in extensions
    ]


def _penalties(gradebook: Gradebook, student: str) -> dict[str, float]:
    return {each.assignment.name: each.late_submission_penalty for each in gradebook.student_submissions(student)}


def _check(extensions: Extensions, gradebook: Gradebook, course: Path, student: str, lab: str, days: timedelta) -> None:
    from autograde.gradebook.scores import CourseError

    if not days:
        if not any(each.given for each in extensions.all(gradebook) if _matches(each, student, lab)):
            raise CourseError(f"{student} has no extension for {lab} to take back; `lab extend` lists all")
        return
    if student not in {each.id for each in gradebook.students} and not (course / "submitted" / student).is_dir():
        raise CourseError(
            f"no student {student} in the gradebook or in {course / 'submitted'}; if the id is right, add it with "
            f"`nbgrader db student add {student}`"
        )
    if not any(each.duedate for each in gradebook.assignments if each.name == lab):
        raise CourseError(
            f"{lab} has no due date to extend; set one in formgrader (Manage Assignments, the pencil beside the lab)"
        )
