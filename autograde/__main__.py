"""``python -m autograde grade LAB``, where the `lab` command is not at hand."""

import click

from autograde.commands.cli import grade, report

if __name__ == "__main__":
    click.Group(commands={"grade": grade, "report": report})(prog_name="python -m autograde")
