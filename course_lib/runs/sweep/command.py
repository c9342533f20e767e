"""``lab sweep``."""

from __future__ import annotations

from pathlib import Path

import click

from course_lib.runs.labs import UnknownLabError, find_lab
from course_lib.runs.parameters import ParameterError
from course_lib.runs.run_lab import check_data
from course_lib.runs.slurm.squeue import SlurmError
from course_lib.runs.sweep.folder import SweepFolderError
from course_lib.runs.sweep.grid import parse_axis
from course_lib.runs.sweep.local import Machine, shares
from course_lib.runs.sweep.on_slurm.slurm_request import sweep_option
from course_lib.runs.sweep.outcome.progress import duration
from course_lib.runs.sweep.run_sweep import DiskFullError, Sweep, SweepResult
from course_lib.runs.warm_kernels import WarmServerError

__all__ = ["sweep"]


@click.command()
@click.argument("lab_name", metavar="LAB")
@click.option("-g", "axes", multiple=True, metavar="KEY=V1,V2,…", help="Vary a parameter; a value may be a range, FIRST:LAST, FIRST:LAST:STEP or FIRST:LAST:*FACTOR.")  # fmt: skip
@click.option("-p", "parameters", nargs=2, multiple=True, metavar="KEY VALUE", help="Fix a parameter.")
@click.option("--profile", default="laptop", show_default=True, help="A parameter set of the lab's profiles.yaml.")
@click.option("--repeat", "repeats", default=1, show_default=True, type=int, help="Run each point with so many seeds.")
@click.option("--jobs", default=None, type=click.IntRange(1), help="Points at a time; 1, on Slurm as many as it gives. With more than one, what runs beside it disturbs a point's time.")  # fmt: skip
@click.option("--executor", type=click.Choice(["local", "slurm"]), default="local", show_default=True)
@click.option(
    "--slurm", "slurm", multiple=True, metavar="KEY=VALUE", help="For Slurm: an option of sbatch, as in partition=gpu."
)
@click.option(
    "-o",
    "output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The sweep's folder; by default runs/sweep-LAB.",
)
@click.option("--retry", is_flag=True, help="Run again what failed.")
@click.option("--whole", is_flag=True, help="Execute the cells tagged `lesson` too, which a run does not need.")
@click.option("--dry-run", is_flag=True, help="Show the points and how long they will take; run nothing.")
def sweep(
    lab_name: str,
    axes: tuple[str, ...],
    parameters: tuple[tuple[str, str], ...],
    profile: str,
    repeats: int,
    jobs: int | None,
    executor: str,
    slurm: tuple[str, ...],
    output: Path | None,
    retry: bool,
    whole: bool,
    dry_run: bool,
) -> None:
    """Run a lab's notebook at every point of a grid (LAB: 1, 01 or 01_single_gpu, or the path of a notebook).

    The state is on disk: the same command after an interruption goes on where it was.
    """
    try:
        lab = find_lab(lab_name)
        read: dict[str, list] = {}
        for text in axes:
            name, values = parse_axis(text)
            if name in read:
                raise ParameterError(f"-g {text!r}: {name} is varied twice; give all its values at once")
            read[name] = values
        fixed = dict(parameters)
        fixed |= {name: value for name, value in lab.parameters(profile, fixed).items() if name in fixed}
        plan = Sweep(lab, profile, read, fixed, repeats, output or Path("runs") / f"sweep-{lab.name}", whole)
        machine = Machine.here()
        options: dict[str, str] = {}
        if executor == "slurm":
            try:
                options = dict(sweep_option(text) for text in slurm)
            except ValueError as error:
                raise ParameterError(f"--slurm {error}") from None
        else:
            if slurm:
                raise ParameterError("--slurm is for --executor slurm")
            shares(plan.points, machine, jobs or 1)
    except (UnknownLabError, ParameterError) as error:
        raise click.UsageError(str(error)) from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    for item in {item for point in plan.points for item in point.parameters.items() if item[0].endswith("dataset")}:
        check_data(dict([item]))
    click.echo(f"notebook: {lab.notebook}")
    try:
        if dry_run:
            plan.check_folder()
            _show(plan, machine, jobs or 1, retry, executor)
            return
        result = plan.run(executor, jobs or (1 if executor == "local" else 0), retry, options)
    except SweepFolderError as error:
        raise click.UsageError(str(error)) from None
    except (DiskFullError, SlurmError, WarmServerError) as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        left = len(plan.to_do())
        click.echo(f"\nstopped: {len(plan.points) - left} of {len(plan.points)} points have ended; the same command goes on with the others", err=True)  # fmt: skip
        raise click.exceptions.Exit(130) from None
    _tell(plan, result)


def _show(plan: Sweep, machine: Machine, jobs: int, retry: bool, executor: str) -> None:
    left = plan.to_do(retry)
    waiting = {point.folder for point in left}
    for point in plan.points:
        click.echo(f"{point.folder}{'' if point.folder in waiting else '  (has ended)'}")
    click.echo(f"{len(plan.points)} points, {len(left)} to run, in {plan.folder}")
    if not left:
        return
    if executor == "slurm":
        click.echo("how long it takes is Slurm's to say: a job a point")
        return
    seconds, unknown = plan.estimate(left, jobs, machine)
    if seconds is None:
        click.echo("estimated time: unknown, no past run is like these; once a point has ended, --dry-run has one")
    else:
        told = f" ({unknown} points are like no past run and were taken for average)" if unknown else ""
        click.echo(f"estimated time: {duration(seconds)}, from past runs{told}")


def _tell(plan: Sweep, result: SweepResult) -> None:
    for figure in result.figures:
        click.echo(f"figure: {figure}")
    click.echo(
        f"{result.done} of {len(plan.points)} points done{f', {result.failed} failed' if result.failed else ''}: {plan.folder / 'results.csv'}"
    )
    if result.failed:
        raise click.ClickException(
            f"{result.failed} points failed; why is in results.csv and in their point.json; --retry runs them again"
        )


if __name__ == "__main__":
    sweep()
