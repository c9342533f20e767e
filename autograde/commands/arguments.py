"""What several commands take: the course folder, and a lab that has a rubric."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["COURSE", "LAB"]

COURSE = click.option(
    "--course",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("course"),
    show_default=True,
    help="The course folder, which holds submitted/.",
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


LAB = _Lab()
