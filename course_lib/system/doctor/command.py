"""``lab doctor``."""

import sys

import click

__all__ = ["doctor"]


@click.command()
@click.option("--json", "wants_json", is_flag=True, help="Tell it in JSON.")
def doctor(wants_json: bool) -> None:
    """Examine this machine: each problem with its remedy. Exit code 1 if there is one."""
    from course_lib.system.doctor import as_json, as_text, examine

    findings = examine()
    click.echo(as_json(findings) if wants_json else as_text(findings))
    sys.exit(any(finding.state == "problem" for finding in findings))
