"""``lab export``; the `lab` command finds it by its entry point."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autograde.commands.arguments import COURSE, LAB

if TYPE_CHECKING:
    from autograde.rubric.schema import Rubric

__all__ = ["export"]

# Which options belong to which formats; with another format they would be ignored in silence.
_OPTIONS = {
    "template": ("canvas", "moodle"),
    "column": ("canvas",),
    "scale": ("canvas", "moodle"),
    "zero_missing": ("canvas", "moodle"),
    "feedback": ("moodle",),
}


@click.command()
@click.argument("lab", type=LAB)
@click.option("--to", "target", type=click.Choice(["nbgrader", "canvas", "moodle"]), required=True, help="The format.")
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
@click.option("--feedback", is_flag=True, help="Moodle: write the saved reasons into Feedback comments.")
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
    output: Path | None,
) -> None:
    """Write LAB's scores from the gradebook for nbgrader, Canvas or Moodle.

    LAB is 1, 01 or 01_single_gpu. For Canvas and Moodle give the downloaded file by --template. The command fills in the
    scores, changes nothing else, and writes a new file, ready for the upload.
    """
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
    if target != "nbgrader" and template is None:
        raise click.UsageError(f"--to {target} needs --template, the file downloaded from {target.capitalize()}")
    try:
        scores = read_scores(course, lab)
        grades = scores.grades(zero_missing, final_only, scale)
        if target == "canvas":
            filled = fill_canvas(template, grades, _titles(rubric), column)
        elif target == "moodle":
            filled = fill_moodle(template, grades, course if feedback else None)
        else:
            filled = Filled(nbgrader_csv(scores, final_only), [])
        path = output or course / "exports" / f"{lab}_{target}.csv"
        _write(filled.content, path, None if output else template)
    except (CourseError, ExportError) as error:
        raise click.ClickException(str(error)) from None
    if waiting := len(scores.waiting):
        which = "left out" if final_only else "scores are not final (--final-only leaves them out)"
        filled.lines.append(f"{waiting} of {len(scores.students)} still need hand grading: {which}")
    extended = [f"{each.student}: {each.extension}" for each in scores.students if each.submitted and each.extension]
    filled.lines.extend(naming("with an extension", extended))
    for line in filled.lines:
        click.echo(line, err=True)
    click.echo(path)


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
