"""``lab grade``, ``report``, ``backup`` and ``restore``; the `lab` command finds them by their entry points.

What the work needs is imported by the functions: `lab --help` reads this module and takes no second.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from autograde.commands.arguments import COURSE, EXECUTOR, LAB, RUBRICS_FOLDER, SLURM, STUDENT

__all__ = ["backup", "grade", "report", "restore"]

UNSANDBOXED = (
    "WITHOUT A SANDBOX: students' code runs with your rights and reaches this account, the gradebook and the network. "
    "Every result is marked."
)


@click.command()
@click.argument("lab", type=LAB, required=False)
@COURSE
@click.option("--student", "students", multiple=True, type=STUDENT, help="Only this student; may be repeated.")
@click.option(
    "--jobs", "-j", type=click.IntRange(1, 1000), help="Submissions graded at a time.  [default: one per core]"
)
@EXECUTOR
@SLURM
@click.option("--force", is_flag=True, help="Grade all again, unchanged submissions too.")
@RUBRICS_FOLDER
@click.option("--no-sandbox", is_flag=True, help="Run students' code with your rights. Every result will say so.")
@click.option(
    "--check-rubrics", is_flag=True, help="Grade nobody; check that rubrics fit their labs. Without LAB: all."
)
def grade(
    lab: str | None,
    course: Path,
    students: tuple[str, ...],
    jobs: int | None,
    executor: str,
    slurm: dict[str, str],
    force: bool,
    rubrics: Path | None,
    no_sandbox: bool,
    check_rubrics: bool,
) -> None:
    """Grade LAB's submissions and write nbgrader's gradebook.

    LAB is 1, 01 or 01_single_gpu. Students' code runs in a sandbox. A submission that has a verdict and has not changed
    is not graded again, so after an interruption the same command continues. People score written answers in formgrader.
    """
    if lab and executor == "local" and not check_rubrics and (course / "submitted").is_dir():
        from autograde.batch.worker_server import start_worker_server

        start_worker_server()
    from autograde.batch.grade_lab import grade_lab
    from autograde.commands.progress import Progress
    from autograde.gradebook.scores import CourseError
    from autograde.rubric.schema import RUBRICS, RubricError, rubric_names
    from autograde.sandbox.bubblewrap import SandboxError
    from course_lib.runs.slurm.squeue import SlurmError

    same = f" --rubrics {shlex.quote(str(rubrics))}" if rubrics else ""
    rubrics = rubrics or RUBRICS
    if check_rubrics:
        _check_rubrics([lab] if lab else rubric_names(rubrics), course, rubrics)
        return
    if lab is None:
        raise click.UsageError("Missing argument 'LAB'.")
    if no_sandbox:
        click.secho(UNSANDBOXED, fg="red", bold=True, err=True)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # an id may have a letter that the terminal lacks
    skipped: list[str] = []
    progress = Progress(lab)
    try:
        verdicts = grade_lab(
            lab,
            course,
            students or None,
            jobs=jobs,
            executor=executor,
            slurm=slurm,
            sandboxed=not no_sandbox,
            force=force,
            rubrics=rubrics.resolve(),
            begun=progress.begun,
            done=progress.done,
            skipped=skipped.append,
            log=lambda line: click.echo(line, err=True),
        )
    except (CourseError, RubricError, SandboxError, SlurmError) as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        raise click.ClickException(
            f"interrupted; {progress.finished} of {progress.to_do} were graded and are kept: the same command continues"
        ) from None
    finally:
        progress.close()
        for line in skipped:
            click.echo(line, err=True)
    fresh, number = progress.finished, lab.split("_")[0]
    kept = f" ({len(verdicts) - fresh} of them before)" if fresh < len(verdicts) else ""
    click.echo(f"{lab}: {len(verdicts)} graded{kept}, scores in the gradebook; next: lab report {number}{same}")


def _check_rubrics(labs: list[str], course: Path, rubrics: Path) -> None:
    from autograde.gradebook.scores import CourseError, source_path
    from autograde.grading.grading_context import source_notebook
    from autograde.grading.rubric_check import rubric_problems
    from autograde.rubric.schema import RubricError, find_rubric

    count = 0
    for lab in labs:
        try:
            rubric = find_rubric(lab, rubrics)
            source = source_notebook(source_path(course, lab))
        except (RubricError, CourseError) as error:
            click.echo(f"{lab}: {error}")
            count += 1
            continue
        problems = rubric_problems(rubric, source)
        count += len(problems)
        for line in problems:
            click.echo(f"{lab}: {line}")
        if not problems:
            runs, criteria = len(rubric.runs), sum(len(run.criteria) for run in rubric.runs)
            of_runs = f" of {runs} runs" if runs > 1 else ""
            checks = f"{len(rubric.exercises)} exercises, {criteria} criteria{of_runs}"
            click.echo(f"{lab}: fits its notebook ({checks}, {rubric.total:g} points)")
    if count:
        raise click.ClickException(f"{count} problem{'s' * (count != 1)} in {len(labs)} rubric{'s' * (len(labs) != 1)}")


@click.command()
@click.argument("labs", nargs=-1, metavar="[LAB]...", type=LAB)
@COURSE
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="The class's page.")
@RUBRICS_FOLDER
def report(labs: tuple[str, ...], course: Path, output: Path | None, rubrics: Path | None) -> None:
    """Write HTML pages: one for the class, one per student with every reason, one of similar answers.

    Without LAB: one page of the whole course, with every student's final score in every lab, those in trouble first.

    Without -o they go to COURSE/reports/. The students' pages are beside the class's. After `lab grade --rubrics
    FOLDER` give the same --rubrics here.
    """
    from autograde.gradebook.scores import CourseError
    from autograde.reports.course import write_course_page
    from autograde.reports.report import ReportError, write_report
    from autograde.rubric.schema import RUBRICS, RubricError

    if rubrics and not labs:
        raise click.UsageError("--rubrics is for the report of a LAB; the page of the course needs none.")
    name = labs[0] if len(labs) == 1 else "labs_" + "_".join(lab.split("_")[0] for lab in labs)
    try:
        if not labs:
            click.echo(write_course_page(course, output or course / "reports" / "course.html"))
            return
        path = write_report(list(labs), course, output or course / "reports" / f"{name}.html", rubrics or RUBRICS)
    except (CourseError, ReportError, RubricError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(path)


@click.command()
@click.argument("to", type=click.Path(path_type=Path))
@COURSE
def backup(to: Path, course: Path) -> None:
    """Write what the course cannot make again to one new archive, such as course.tar.gz, while others go on grading.

    It holds the gradebook, the submissions with their verdicts, the extensions, the grader's secret and the queue of
    `lab serve`.
    """
    from autograde.gradebook.backup import back_up
    from autograde.gradebook.scores import CourseError
    from course_lib.runs.run_evidence.quoting import quote

    try:
        for name, kind in back_up(course, to):
            click.echo(f"left out, because it is {kind}: {quote(name, 300)}", err=True)
    except CourseError as error:
        raise click.ClickException(str(error)) from None
    click.echo(to)


@click.command()
@click.argument("archive", metavar="FROM", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@COURSE
@click.option("--replace", is_flag=True, help="Move aside what is there.")
def restore(archive: Path, course: Path, replace: bool) -> None:
    """Put a backup into the course folder. End formgrader and other commands first; `lab serve` is waited for.

    Afterwards run `lab grade` for each lab: notebooks for formgrader are made again, and only what has changed is
    graded.
    """
    from autograde.batch.grade_on_submission import only_service
    from autograde.gradebook import backup as archives
    from autograde.gradebook.scores import CourseError

    try:
        course.mkdir(parents=True, exist_ok=True)
        with only_service(course, click.echo):
            aside = archives.restore(archive, course, replace)
    except CourseError as error:
        raise click.ClickException(str(error)) from None
    click.echo(
        f"{course} is restored{f'; what was there is in {aside}' if aside else ''}; next: lab grade LAB, for each lab"
    )
