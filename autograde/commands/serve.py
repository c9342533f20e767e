"""``lab serve``; the `lab` command finds it by its entry point."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autograde.commands.arguments import COURSE, EXECUTOR, LAB, SLURM

if TYPE_CHECKING:
    from autograde.batch.grade_on_submission import GradingService

__all__ = ["serve"]

PAUSE = 30.0  # seconds


class _Service(click.Command):
    """A command that JupyterHub may run: an error ends it after a pause.

    The hub starts a service again as soon as it ends.
    """

    def make_context(self, *args: Any, **keywords: Any) -> click.Context:
        with _slow_errors():
            return super().make_context(*args, **keywords)

    def invoke(self, context: click.Context) -> Any:
        with _slow_errors():
            return super().invoke(context)


@contextmanager
def _slow_errors() -> Iterator[None]:
    try:
        yield
    except click.ClickException as error:
        if "JUPYTERHUB_SERVICE_NAME" not in os.environ:
            raise
        error.show()  # in the hub's log now, not after the pause
        time.sleep(PAUSE)
        raise click.exceptions.Exit(error.exit_code) from None


@click.command(cls=_Service)
@click.argument("labs", nargs=-1, required=True, metavar="LAB...", type=LAB)
@COURSE
@click.option(
    "--jobs", "-j", type=click.IntRange(1, 1000), default=1, show_default=True, help="Submissions graded at a time."
)
@EXECUTOR
@SLURM
@click.option(
    "--metrics",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.prom",
    help="Write the queue's numbers there, for node_exporter's textfile collector.",
)
@click.option("--no-sandbox", is_flag=True, help="Run students' code with your rights. Every result will say so.")
def serve(
    labs: tuple[str, ...],
    course: Path,
    jobs: int,
    executor: str,
    slurm: dict[str, str],
    metrics: Path | None,
    no_sandbox: bool,
) -> None:
    """Grade each submission of LAB when it reaches the exchange, and release its feedback, until interrupted.

    LAB is 1, 01 or 01_single_gpu. c.GradeOnSubmission in nbgrader_config.py says what students read and how often they
    are graded. COURSE/reports/queue.html shows what waits, runs and was refused. The same command continues after an
    interruption. `lab grade` may run at the same time.
    """
    from autograde.batch.grade_lab import grade_lab
    from autograde.batch.grade_on_submission import GradingService, only_service
    from autograde.commands.cli import UNSANDBOXED
    from autograde.gradebook.scores import CourseError
    from autograde.sandbox.bubblewrap import missing_sandbox
    from course_lib.runs.slurm.squeue import SlurmError, check_slurm

    if metrics is not None and metrics.suffix != ".prom":
        raise click.BadParameter(f"{metrics} does not end in .prom; node_exporter reads no other file", param_hint="--metrics")
    if no_sandbox:
        click.secho(UNSANDBOXED, fg="red", bold=True, err=True)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
    try:
        if executor == "slurm":
            check_slurm()
        elif not no_sandbox and (why := missing_sandbox()):
            raise CourseError(why)
        grade = partial(grade_lab, executor=executor, slurm=slurm, log=click.echo)
        with only_service(course, click.echo):
            show = partial(_show, metrics=metrics)
            service = GradingService(
                course, labs, grade, jobs=jobs, sandboxed=not no_sandbox, show=show, log=click.echo
            )
            try:
                service.run()
            finally:
                service.close()
    except (CourseError, SlurmError) as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        click.echo("interrupted; the same command continues")


def _show(service: GradingService, metrics: Path | None = None) -> None:
    from autograde.batch.queue_metrics import write_queue_metrics
    from autograde.reports.report.queue_page import IN_ORDER, MOST, STATES, queue_page
    from course_lib.system.atomic import write_atomically

    rows = {
        state: [(each, service.note(each)) for each in service.queue.of(state, MOST, latest=state not in IN_ORDER)]
        for state in STATES
    }
    counts = {state: service.queue.count(state=state) for state in STATES}
    path = service.course / "reports" / "queue.html"
    try:
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, queue_page(rows, counts, service.about))
        if path := metrics:
            write_queue_metrics(path, counts, service.longest_wait, service.failing)
    except OSError as error:
        click.echo(f"{path} cannot be written ({error.strerror})")
