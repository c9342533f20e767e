"""``lab leaderboard``; the `lab` command finds it by its entry point."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from autograde.commands.arguments import COURSE

__all__ = ["leaderboard"]


@click.command()
@click.argument("lab")
@COURSE
@click.option(
    "--rubrics",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the rubrics that the lab was graded by.",
)
def leaderboard(lab: str, course: Path, rubrics: Path | None) -> None:
    """Write LAB's leaderboard: a page for the class without accounts, and a table (CSV) with them.

    LAB is 11 or 12, or the lab's whole name. Ranked is only what the grader measured itself. The page goes to
    COURSE/reports/, the table to COURSE/exports/. Each submission that is left out is a line with the reason.
    """
    from autograde.gradebook.scores import CourseError
    from autograde.reports.leaderboard import board_csv, board_page, read_board
    from autograde.rubric.schema import RUBRICS, RubricError, find_rubric
    from course_lib.system.atomic import write_atomically

    if hasattr(sys.stderr, "reconfigure"):
        sys.stderr.reconfigure(errors="backslashreplace")  # an id may have a letter that the terminal lacks
    try:
        rubric = find_rubric(lab, rubrics or RUBRICS)
        board = read_board(rubric, course)
    except (CourseError, RubricError) as error:
        raise click.ClickException(str(error)) from None
    name = f"leaderboard_{rubric.lab[:2]}"
    contents = {
        course / "exports" / f"{name}.csv": board_csv(board),
        course / "reports" / f"{name}.html": board_page(rubric, board),
    }
    for line in board.left_out:
        click.echo(line, err=True)
    for path, content in contents.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
        except OSError as error:
            raise click.ClickException(f"{path} cannot be written ({error.strerror}); make {course} writable") from None
        click.echo(path)
