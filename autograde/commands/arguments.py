"""What several commands take: the course folder, a lab that has a rubric, a student, and where to grade."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["COURSE", "EXECUTOR", "LAB", "RUBRICS_FOLDER", "SLURM", "STUDENT"]

COURSE = click.option(
    "--course",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("course"),
    show_default=True,
    help="The course folder, which holds submitted/.",
)
EXECUTOR = click.option(
    "--executor",
    type=click.Choice(["local", "slurm"]),
    default="local",
    show_default=True,
    is_eager=True,  # before --slurm
)
RUBRICS_FOLDER = click.option(
    "--rubrics",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder of the rubrics, instead of the course's own.",
)


def _slurm(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    if not values:
        return {}  # without the import, which takes seconds
    if context.params.get("executor") != "slurm":
        raise click.UsageError("--slurm goes with --executor slurm.")
    from autograde.batch.slurm import slurm_option

    try:
        return dict(slurm_option(value) for value in values)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


SLURM = click.option(
    "--slurm",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_slurm,
    help="Option of sbatch for the jobs, such as partition=short, account=cs101, time=60 (minutes per job), mem=8G or "
    "cpus-per-task=4 (default 2); may be repeated.",
)


class _Lab(click.ParamType):
    """1, 01 or 01_single_gpu, as the full name."""

    name = "lab"

    def convert(self, value: str, parameter: click.Parameter | None, context: click.Context | None) -> str:
        from autograde.rubric.schema import RubricError, find_rubric

        try:
            return find_rubric(value).lab
        except RubricError as error:
            self.fail(str(error), parameter, context)


class _Student(click.ParamType):
    """A student's id."""

    name = "student"

    def convert(self, value: str, parameter: click.Parameter | None, context: click.Context | None) -> str:
        from autograde.submission.student_id import is_student_id
        from course_lib.runs.run_evidence.quoting import quote

        if not is_student_id(value):
            self.fail(f"{quote(value)} is not a student id (letters, digits, _.@-)", parameter, context)
        return value


LAB = _Lab()
STUDENT = _Student()
