"""``lab export``; the `lab` command finds it by its entry point."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autograde.commands.arguments import COURSE, LAB

if TYPE_CHECKING:
    from autograde.reports.export.scores import Grades
    from autograde.rubric.schema import Rubric

__all__ = ["export"]

# Which options belong to which formats; with another format they would be ignored in silence.
_OPTIONS = {
    "template": ("canvas", "moodle"),
    "column": ("canvas",),
    "scale": ("canvas", "moodle"),
    "zero_missing": ("canvas", "moodle", "lti"),
    "feedback": ("moodle", "lti"),
    "lower": ("lti",),
    "dry_run": ("lti",),
    "output": ("nbgrader", "canvas", "moodle"),
}


@click.command()
@click.argument("lab", type=LAB)
@click.option(
    "--to",
    "target",
    type=click.Choice(["nbgrader", "canvas", "moodle", "lti"]),
    required=True,
    help="The format; lti sends.",
)
@COURSE
@click.option(
    "--template",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The file to fill: Canvas's gradebook export, or Moodle's grading worksheet.",
)
@click.option("--column", metavar="NAME", help="Canvas: the heading of the lab's column.")
@click.option("--scale", is_flag=True, help="Scale scores to the platform's maximum.")
@click.option("--zero-missing", is_flag=True, help="Give 0 to students of the gradebook without a submission.")
@click.option("--final-only", is_flag=True, help="Leave out students who still need hand grading.")
@click.option("--feedback", is_flag=True, help="Moodle, LTI: the saved reasons as comments.")
@click.option("--lower", is_flag=True, help="LTI: also where the LMS has a higher score, or lost one.")
@click.option("--dry-run", is_flag=True, help="LTI: say what would be sent, and send nothing.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write; by default COURSE/exports/LAB_FORMAT.csv.",
)
def export(
    lab: str,
    target: str,
    course: Path,
    template: Path | None,
    column: str | None,
    scale: bool,
    zero_missing: bool,
    final_only: bool,
    feedback: bool,
    lower: bool,
    dry_run: bool,
    output: Path | None,
) -> None:
    """Write LAB's scores from the gradebook for nbgrader, Canvas or Moodle, or send them to an LMS by LTI.

    LAB is 1, 01 or 01_single_gpu. For Canvas and Moodle give the downloaded file by --template. The command fills in the
    scores, changes nothing else, and writes a new file, ready for the upload. --to lti sends final scores that the LMS
    does not have yet; after an interruption the same command continues.
    """
    from autograde.gradebook.lms.settings import LmsError
    from autograde.gradebook.scores import CourseError
    from autograde.reports.export.canvas import fill_canvas
    from autograde.reports.export.csv_file import ExportError
    from autograde.reports.export.fill import Filled, naming
    from autograde.reports.export.moodle import fill_moodle
    from autograde.reports.export.nbgrader_csv import nbgrader_csv
    from autograde.reports.export.scores import read_scores
    from autograde.rubric.schema import find_rubric

    rubric = find_rubric(lab)
    given = click.get_current_context().params
    for name, formats in _OPTIONS.items():
        if given[name] and target not in formats:
            raise click.UsageError(f"--{name.replace('_', '-')} is for {' and '.join(formats)}, not for {target}")
    if target in ("canvas", "moodle") and template is None:
        raise click.UsageError(f"--to {target} needs --template, the file downloaded from {target.capitalize()}")
    try:
        scores = read_scores(course, lab)
        final_only = final_only or target == "lti"
        grades = scores.grades(zero_missing, final_only, scale)
        if target == "lti":
            _to_lms(course, grades, rubric.title, lower=lower, dry_run=dry_run, feedback=feedback)
            filled = Filled(b"", [])
        elif target == "canvas":
            filled = fill_canvas(template, grades, _titles(rubric), column)
        elif target == "moodle":
            filled = fill_moodle(template, grades, course if feedback else None)
        else:
            filled = Filled(nbgrader_csv(scores, final_only), [])
        path = output or course / "exports" / f"{lab}_{target}.csv"
        if target != "lti":
            _write(filled.content, path, None if output else template)
    except (CourseError, ExportError, LmsError) as error:
        raise click.ClickException(str(error)) from None
    if waiting := len(scores.waiting):
        which = "left out" if final_only else "scores are not final (--final-only leaves them out)"
        filled.lines.append(f"{waiting} of {len(scores.students)} still need hand grading: {which}")
    extended = [f"{each.student}: {each.extension}" for each in scores.students if each.submitted and each.extension]
    filled.lines.extend(naming("with an extension", extended))
    for line in filled.lines:
        click.echo(line, err=True)
    if target != "lti":
        click.echo(path)


def _to_lms(course: Path, grades: Grades, title: str, **options: bool) -> None:
    from autograde.gradebook.lms.platform import Platform
    from autograde.gradebook.lms.roster import read_learners, user_ids
    from autograde.gradebook.lms.settings import lti_settings
    from autograde.gradebook.scores import nbgrader_settings
    from autograde.reports.export.lti import send_scores

    settings = lti_settings(nbgrader_settings(course), "line_items_url")
    platform = Platform(settings)
    students = [(each.student, each.lms_user_id) for each in grades.lab.students]
    asks = settings.members_url and any(student in grades.scores and not user for student, user in students)
    users = user_ids(students, read_learners(platform) if asks else [])
    outcome = send_scores(platform, grades, users, title, course, **options, say=click.echo)
    for line in outcome.lines:
        click.echo(line, err=True)
    click.echo(f"{outcome.sent} {'would be sent' if options['dry_run'] else 'sent'}, {outcome.unchanged} unchanged")


def _titles(rubric: Rubric) -> list[str]:
    number = rubric.lab.split("_")[0]
    return list(dict.fromkeys([rubric.lab, rubric.title, f"Lab {number}", f"Lab {int(number)}"]))


def _write(content: bytes, path: Path, template: Path | None) -> None:
    """Write an export, whole or not at all; `template` is a file that it must not replace."""
    from autograde.reports.export.csv_file import ExportError
    from course_lib.system.atomic import write_atomically

    if template is not None and path.exists() and os.path.samefile(path, template):
        raise ExportError(f"{path} is the template; choose another place, or name it with -o to overwrite it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise ExportError(f"{path} cannot be written ({error.strerror}); choose another place with -o FILE") from None
