"""The `lab` command: a convenience over papermill and the packages' own commands."""

import sys
from importlib.metadata import entry_points

import click

__all__ = ["main"]


class _LabCommands(click.Group):
    """Commands come from the entry points ``lab.commands`` too, so that a student's `lab` has no grader in it."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({*super().list_commands(context), *(point.name for point in entry_points(group="lab.commands"))})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        own = super().get_command(context, name)
        if own is not None:
            return own
        for point in entry_points(group="lab.commands", name=name):
            return point.load()
        return None


@click.group(cls=_LabCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="distributed-training-labs", prog_name="lab")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def lab(context: click.Context, debug: bool) -> None:
    """Stage data, run labs, grade them."""
    context.obj = {"debug": debug}


@lab.command()
@click.argument("lab_name", metavar="LAB")
@click.option("--profile", default="laptop", show_default=True, help="A parameter set of the lab's profiles.yaml.")
@click.option("-p", "parameters", nargs=2, multiple=True, metavar="KEY VALUE", help="A notebook parameter.")
@click.option("-o", "output", type=click.Path(), metavar="DIR", help="The run folder; by default runs/LAB.")
def run(lab_name: str, profile: str, parameters: tuple[tuple[str, str], ...], output: str | None) -> None:
    """Run a lab headlessly.

    LAB is 1, 01 or 01_single_gpu, or the path of a notebook. A name means your copy in this folder or above it; see
    `lab start`.
    """
    from course_lib.runs.run_lab import run_lab

    folder = run_lab(lab_name, profile=profile, parameters=dict(parameters), output=output)
    click.echo(f"done: {folder}")


@lab.command()
@click.argument("lab_names", nargs=-1, metavar="[LAB]...")
@click.option("--all", "every", is_flag=True, help="All labs that are not in the folder yet.")
@click.option("--scripts", is_flag=True, help="Only the cluster's scripts, for a lab from Assignment List.")
@click.option(
    "-o", "output", type=click.Path(), default=".", metavar="DIR", help="Where to put them; by default this folder."
)
def start(lab_names: tuple[str, ...], every: bool, scripts: bool, output: str) -> None:
    """Put a copy of a lab, to be filled in, into this folder.

    LAB is 1, 01 or 01_single_gpu. Its profiles and programs are copied too, and the cluster's scripts to deploy/.
    Existing files stay.
    """
    from course_lib.runs.start_lab import start_labs

    start_labs(lab_names, output, every=every, scripts_only=scripts, log=click.echo)


@lab.command()
@click.option("--json", "wants_json", is_flag=True, help="Print the report as JSON.")
def doctor(wants_json: bool) -> None:
    """Examine this machine, and name a remedy for each problem. The exit code is 1 if there is a problem."""
    from course_lib.system.doctor import as_json, as_text, examine

    findings = examine()
    click.echo(as_json(findings) if wants_json else as_text(findings))
    sys.exit(any(finding.state == "problem" for finding in findings))


def main() -> None:
    """Entry point: one line for an error, exit code 1 for failed work and 2 for bad arguments."""
    debug = "--debug" in sys.argv
    try:
        code = lab(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)  # click returns the code of an Exit, and of --help
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(130)
    except click.ClickException as error:
        if debug:
            raise
        click.echo(f"Error: {error.format_message()}", err=True)  # one line; click would put its usage above
        sys.exit(error.exit_code)
    except Exception as error:
        if debug:
            raise
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
