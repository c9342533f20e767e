"""``lab roster``; the `lab` command finds it by its entry point."""

from __future__ import annotations

from pathlib import Path

import click

from autograde.commands.arguments import COURSE

__all__ = ["roster"]


@click.command()
@COURSE
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
def roster(course: Path, dry_run: bool) -> None:
    """Add the LMS's students to the gradebook, by LTI 1.3.

    Names, e-mail addresses and the LMS's user ids are updated. Instructors are not added, and nobody is removed. The
    settings are `c.LTI` in nbgrader_config.py.
    """
    from autograde.gradebook.lms.platform import Platform
    from autograde.gradebook.lms.roster import read_learners, update_students
    from autograde.gradebook.lms.settings import LmsError, lti_settings
    from autograde.gradebook.scores import CourseError, nbgrader_settings, open_gradebook

    try:
        config = nbgrader_settings(course)
        learners = read_learners(Platform(lti_settings(config, "members_url")))
        if not dry_run:
            course.mkdir(parents=True, exist_ok=True)
        with open_gradebook(config, dry_run=dry_run) as gradebook:
            lines = update_students(gradebook, learners, dry_run)
    except (CourseError, LmsError) as error:
        raise click.ClickException(str(error)) from None
    for line in lines:
        click.echo(line)
    click.echo(f"{len(learners)} students in the LMS{'; nothing was changed' if dry_run else ''}")
