"""``lab doctor``."""

import sys

import click

__all__ = ["doctor"]


@click.command()
@click.option("--json", "wants_json", is_flag=True, help="Print the report as JSON.")
def doctor(wants_json: bool) -> None:
    """Examine this machine, and name a remedy for each problem. The exit code is 1 if there is a problem."""
    from course_lib.system.doctor import as_json, as_text, examine

    findings = examine()
    click.echo(as_json(findings) if wants_json else as_text(findings))
    sys.exit(any(finding.state == "problem" for finding in findings))
