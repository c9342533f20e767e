"""``lab sweep``. The functions import what they need, so that `lab --help` takes no second."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from course_lib.runs.sweep.local import Machine
    from course_lib.runs.sweep.run_sweep import Sweep, SweepResult

__all__ = ["sweep"]


@click.command()
@click.argument("lab_name", metavar="LAB", required=False)
@click.option("-g", "axes", multiple=True, metavar="KEY=V1,V2,…", help="Vary a parameter; a value may be a range, FIRST:LAST, FIRST:LAST:STEP or FIRST:LAST:*FACTOR. -g @FILE.csv takes trials from a file.")  # fmt: skip
@click.option("--zip", "zipped", is_flag=True, help="Take the first values of all -g, then the second ones, …, instead of every combination.")  # fmt: skip
@click.option("-p", "parameters", nargs=2, multiple=True, metavar="KEY VALUE", help="Fix a parameter.")
@click.option("--profile", default="laptop", show_default=True, help="A parameter set of the lab's profiles.yaml.")
@click.option("--repeat", "repeats", default=1, show_default=True, type=int, help="Seeds per combination.")
@click.option("--jobs", type=click.IntRange(1), help="Trials at a time. Default: 1; on Slurm no limit. Trials at the same time disturb each other's times.")  # fmt: skip
@click.option("--executor", type=click.Choice(["local", "slurm"]), default="local", show_default=True)
@click.option(
    "--slurm", multiple=True, metavar="KEY=VALUE", help="For Slurm: an option of sbatch, such as partition=gpu."
)
@click.option("-o", "output", type=click.Path(path_type=Path), metavar="DIR", help="The sweep's folder; by default runs/sweep-LAB.")  # fmt: skip
@click.option("--retry", is_flag=True, help="Run failed trials again.")
@click.option("--whole", is_flag=True, help="Execute the cells tagged `lesson` too; a run does not need them.")
@click.option("--dry-run", is_flag=True, help="Show the trials and how long they will take; run nothing.")
@click.option("--target", type=click.FloatRange(0, 1, min_open=True), help="Accuracy whose time results.csv gives. Default: the parameter target_accuracy.")  # fmt: skip
@click.option("--plot", "drawn", type=click.Path(path_type=Path), metavar="DIR", help="Write the tables and figures of a sweep's folder again; run nothing.")  # fmt: skip
def sweep(
    lab_name: str | None,
    axes: tuple[str, ...],
    zipped: bool,
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
    target: float | None,
    drawn: Path | None,
) -> None:
    """Run a lab's notebook with every combination of a grid.

    LAB is 1, 01 or 01_single_gpu, or the path of a notebook. The state is on disk: after an interruption, the same
    command continues.
    """
    if drawn is not None:
        _plot(drawn, target)
        return
    if lab_name is None:
        raise click.UsageError("which lab? lab sweep 01 -g batch_size=64,128; or --plot DIR for a sweep that is there")
    from course_lib.runs.labs import find_lab
    from course_lib.runs.parameters import ParameterError
    from course_lib.runs.run_lab import check_data
    from course_lib.runs.slurm.squeue import SlurmError
    from course_lib.runs.sweep.folder import SweepFolderError
    from course_lib.runs.sweep.local import Machine, core_budget
    from course_lib.runs.sweep.run_sweep import DiskFullError, Sweep
    from course_lib.runs.warm_kernels import WarmServerError
    from course_lib.system.extras import need

    need("sweep", "lab sweep")
    machine = Machine.here()
    try:
        lab = find_lab(lab_name)
        values, zipped = _axes(axes, zipped)
        fixed = dict(parameters)
        fixed |= {name: value for name, value in lab.parameters(profile, fixed).items() if name in fixed}
        plan = Sweep(
            lab, profile, values, fixed, repeats, output or Path("runs") / f"sweep-{lab.name}", whole, zipped, target
        )
        if executor == "local":
            if slurm:
                raise ParameterError("--slurm is for --executor slurm")
            core_budget(plan.trials, machine, jobs or 1)
        options = dict(_slurm_option(text) for text in slurm)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    for item in {item for trial in plan.trials for item in trial.parameters.items() if item[0].endswith("dataset")}:
        check_data(dict([item]))
    click.echo(f"notebook: {lab.notebook}")
    try:
        if dry_run:
            plan.check_folder()
            _show_plan(plan, machine, jobs or 1, retry, executor)
            return
        result = plan.run(executor, jobs or (1 if executor == "local" else 0), retry, options)
    except SweepFolderError as error:
        raise click.UsageError(str(error)) from None
    except (DiskFullError, SlurmError, WarmServerError) as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        ended, count = len(plan.trials) - len(plan.to_do()), len(plan.trials)
        click.echo(f"\nstopped: {ended} of {count} trials have ended; the same command continues with the others", err=True)  # fmt: skip
        raise click.exceptions.Exit(130) from None
    _report(plan, result)


def _axes(texts: Sequence[str], zipped: bool) -> tuple[dict[str, list], bool]:
    """The values of each parameter, and whether they are side by side, as those of a file are."""
    from course_lib.runs.parameters import ParameterError
    from course_lib.runs.sweep.grid import parse_axis
    from course_lib.runs.sweep.trials_file import read_trials

    files = [text for text in texts if text.startswith("@")]
    if files and (zipped or len(texts) > 1):
        raise ParameterError(f"-g {files[0]} lists whole trials; put what else varies into a column of the file, and leave the other -g and --zip out")  # fmt: skip
    if files:
        return read_trials(Path(files[0][1:])), True
    values: dict[str, list] = {}
    for text in texts:
        name, axis = parse_axis(text, once=not zipped)
        if name in values:
            raise ParameterError(f"-g {text!r}: {name} is varied twice; give all its values at once")
        values[name] = axis
    return values, zipped


def _plot(folder: Path, target: float | None) -> None:
    from course_lib.runs.sweep.folder import SweepFolderError
    from course_lib.runs.sweep.outcome.publish import publish_again

    context = click.get_current_context()
    mine = [name for name in context.params if name not in ("drawn", "target") and context.get_parameter_source(name).name != "DEFAULT"]  # fmt: skip
    if mine:
        raise click.UsageError("--plot DIR draws what is in the folder: of the other arguments it takes --target only")
    try:
        result = publish_again(folder, target)
    except SweepFolderError as error:
        raise click.UsageError(str(error)) from None
    _show(folder, result)


def _slurm_option(text: str) -> tuple[str, str]:
    from course_lib.runs.parameters import ParameterError
    from course_lib.runs.sweep.slurm_request import sweep_option

    try:
        return sweep_option(text)
    except ValueError as error:
        raise ParameterError(f"--slurm {error}") from None


def _show_plan(plan: Sweep, machine: Machine, jobs: int, retry: bool, executor: str) -> None:
    from course_lib.runs.sweep.outcome.progress import duration

    left = plan.to_do(retry)
    waiting = {trial.folder for trial in left}
    for trial in plan.trials:
        click.echo(f"{trial.folder}{'' if trial.folder in waiting else '  (has ended)'}")
    click.echo(f"{len(plan.trials)} trials, {len(left)} to run, in {plan.folder}")
    if left and executor == "slurm":
        click.echo("estimated time: depends on Slurm, which gets one job per trial")
    elif left:
        seconds, unknown = plan.estimate(left, jobs, machine)
        note = f" ({unknown} trials resemble no past run; they count as average)" if unknown else ""
        known = f"{duration(seconds)}, from past runs{note}" if seconds is not None else None
        click.echo(f"estimated time: {known or 'unknown, no past run is similar; ask again once a trial has ended'}")


def _show(folder: Path, result: SweepResult, trials: int | None = None) -> None:
    for figure in result.figures:
        click.echo(f"figure: {figure}, and .svg")
    failed = f", {result.failed} failed" if result.failed else ""
    click.echo(f"means: {folder / 'summary.md'}, and .csv")
    click.echo(
        f"{result.done} of {trials or result.done + result.failed} trials done{failed}: {folder / 'results.csv'}"
    )


def _report(plan: Sweep, result: SweepResult) -> None:
    _show(plan.folder, result, len(plan.trials))
    if result.failed:
        raise click.ClickException(
            f"{result.failed} trials failed; results.csv and their point.json say why; --retry runs them again"
        )


if __name__ == "__main__":
    sweep()
