"""Grading a whole class: a pool of workers, one writer to the gradebook, and nothing graded twice.

The verdicts in the course folder are the state of a batch. A batch that is killed at any moment is therefore resumed by
running it again: a verdict whose submission, rubric and grader are unchanged is reused. It is only written into the
gradebook again, which changes nothing there. Where the rubric has other points and nothing else has changed, the points
are counted again from the verdict's parts, and nothing is executed. If only a verdict's notebook is missing, as after
`lab restore`, the notebook is made again from the submission, and nothing is executed either.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

from autograde.batch.pool import GradingResult, WarmPool, run_local
from autograde.batch.slurm import run_slurm
from autograde.batch.worker import GradingJob, good_verdict
from autograde.gradebook.autograded import submitted_at, write_autograded, write_time_and_secret
from autograde.gradebook.late_penalties import LatePenalties, LatePenaltyError
from autograde.gradebook.regrade_answers import note_requests
from autograde.gradebook.scores import (
    CourseError,
    count_rows,
    ensure_assignment,
    nbgrader_settings,
    open_gradebook,
    record_verdict,
    source_path,
)
from autograde.grading.grading_context import GradingContext, course_secret, source_notebook
from autograde.grading.held_out import check_data
from autograde.grading.one_submission import failed_verdict, notebook_again
from autograde.grading.other_points import autograded_with_points
from autograde.grading.rubric_check import rubric_problems
from autograde.grading.same_weights import flag_copies
from autograde.rubric.schema import RUBRICS, Rubric, find_rubric
from autograde.rubric.verdict import FOLDER, Flag, Verdict, load_verdict, verdict_lock, verdict_path
from autograde.sandbox.bubblewrap import SandboxError, missing_sandbox
from autograde.sandbox.gpus import usable_gpus
from autograde.submission.run_folder import is_handed_in
from autograde.submission.student_id import is_student_id
from course_lib.system.hardware import available_cores
from data_prep.errors import DataError
from data_prep.staged import read

__all__ = ["grade_lab", "submissions"]


def submissions(course: Path, lab: str, skipped: Callable[[str], None] = lambda line: None) -> list[str]:
    """Ids of the students who submitted a lab, in order.

    Parameters
    ----------
    lab : str
        Full name.
    skipped : callable
        Called with one line for each name under ``submitted/`` that cannot be a student's id.

    Raises `CourseError`: there is no folder of submissions, or it cannot be read.
    """
    submitted = course / "submitted"
    try:
        names = sorted(os.listdir(submitted))
    except OSError as error:
        raise CourseError(
            f"{submitted} cannot be read ({error.strerror}); collect submissions with "
            f"`nbgrader collect {lab} --update` on a hub, or put them into {submitted}/STUDENT/{lab}/"
        ) from None
    names = [name for name in names if os.path.lexists(submitted / name / lab)]
    for name in names:
        if not is_student_id(name):
            skipped(f"skipped submitted/{name[:60]!r}: not a student id (letters, digits, _.@-); rename the folder")
    return [name for name in names if is_student_id(name)]


def grade_lab(
    lab: str,
    course: str | os.PathLike[str],
    students: Iterable[str] | None = None,
    *,
    jobs: int | None = None,
    executor: str = "local",
    slurm: Mapping[str, str] = MappingProxyType({}),
    sandboxed: bool = True,
    force: bool = False,
    rubrics: Path = RUBRICS,
    pool: WarmPool | None = None,
    begun: Callable[[int, int], None] = lambda to_do, all_: None,
    done: Callable[[Verdict, bool], None] = lambda verdict, fresh: None,
    skipped: Callable[[str], None] = lambda line: None,
    log: Callable[[str], None] = lambda line: None,
) -> list[Verdict]:
    """Grade a lab's submissions, save the verdicts and write the gradebook.

    Parameters
    ----------
    lab : str
        ``1``, ``01`` or ``01_single_gpu``.
    students : iterable of str, optional
        Only these; by default everyone who submitted.
    jobs : int, optional
        Workers; by default one per core. Jobs of the array, with the executor ``slurm``.
    slurm : mapping
        Options for sbatch, as `autograde.batch.slurm.slurm_option` reads them.
    sandboxed : bool
        False: students' code runs with your rights, and every result says so.
    rubrics : Path
        Folder of the rubrics: yours, or those that ship with the grader.
    pool : WarmPool, optional
        Workers that stay for later calls; by default they end with this one. Of the executor ``local``.
    begun : callable
        Called with the number of submissions to grade and the number of all.
    done : callable
        Called with each verdict as it comes, and whether it is new.
    skipped : callable
        Called with a line for each name that was left out, and for each invalid time stamp.
    log : callable
        Called with each line about the jobs, with the executor ``slurm``, and with one if points were counted again,
        or if requests for a regrade could not be noted.

    Returns the verdicts in order of the students' ids.

    Raises
    ------
    RubricError
        No usable rubric for the lab.
    SandboxError
        There is no sandbox on this machine, or no GPU where the rubric asks for one.
    CourseError
        The course folder or its gradebook cannot be used, or a named student has no submission; once all are graded:
        scores could not be written.
    """
    rubric = find_rubric(lab, rubrics)
    course = Path(course).resolve()
    submitted = submissions(course, rubric.lab, skipped)
    wanted = submitted if students is None else sorted(set(students))
    if absent := [repr(student) for student in wanted if student not in submitted]:
        raise CourseError(f"no submission of {rubric.lab} by {', '.join(absent[:5])} in {course / 'submitted'}")
    if not wanted:
        raise CourseError(
            f"no submission of {rubric.lab} in {course / 'submitted'}; collect them, or put them into "
            f"STUDENT/{rubric.lab}/ there"
        )
    if executor == "local" and sandboxed and (why := missing_sandbox()):
        raise SandboxError(why)
    if executor == "local" and rubric.rerun is not None and rubric.rerun.gpu:
        usable_gpus()

    config = nbgrader_settings(course)
    source = source_path(course, rubric.lab)
    _check_gradable(rubric, source, [course / "submitted" / student / rubric.lab for student in wanted])
    ensure_assignment(config, rubric)
    workers = max(1, min(jobs or available_cores(), len(wanted)))
    try:
        penalties = LatePenalties(config)
    except LatePenaltyError as error:
        raise CourseError(str(error)) from None
    job = GradingJob(rubric.lab, course, source, sandboxed, max(1, available_cores() // workers), rubrics, force)

    def graded(students: list[str]) -> Iterator[GradingResult]:
        timeout = _timeout(rubric, workers)
        if executor == "slurm":
            return run_slurm(job, students, workers, timeout, slurm, log)
        return run_local(job, students, workers, timeout, pool)

    known = {} if force else _still_good(job, wanted, log)
    to_do = [student for student in wanted if student not in known]
    begun(len(to_do), len(wanted))
    verdicts: dict[str, Verdict] = {}
    unwritten: list[str] = []
    without_penalty: list[str] = []
    note_requests(config, course, rubric.lab, wanted, log)
    # Closed at once when interrupted: jobs are then cancelled.
    with open_gradebook(config) as gradebook, closing(_results(job, rubric, known, to_do, graded)) as results:
        for verdict, fresh in results:
            try:
                with verdict_lock(course, verdict.student, rubric.lab):
                    verdict = _latest(course, verdict)
                    when = submitted_at(
                        job.submission(verdict.student), lambda line, each=verdict: skipped(f"{each.student}: {line}")
                    )
                    if (course / "autograded" / verdict.student / rubric.lab).is_dir():
                        write_time_and_secret(course, verdict, job.submission(verdict.student))
                    record_verdict(gradebook, verdict, when, penalties, kept=not fresh)
            except LatePenaltyError as error:
                without_penalty.append(str(error))
            except Exception as error:
                gradebook.db.rollback()
                unwritten.append(f"{verdict.student} ({type(error).__name__})")
            verdicts[verdict.student] = verdict
            done(verdict, fresh)
        count_rows(gradebook)
    students = sorted(path.name for path in (course / FOLDER).glob("*") if is_student_id(path.name))
    verdicts |= {name: each for name, each in flag_copies(course, rubric.lab, students).items() if name in verdicts}
    if unwritten:
        raise CourseError(
            f"{len(unwritten)} of {len(wanted)} scores could not be written: {', '.join(unwritten[:5])}; "
            f"see that {course} can be written, then grade again"
        )
    if without_penalty:
        raise CourseError(
            f"{len(without_penalty)} of {len(wanted)} late penalties could not be computed, their scores are written "
            f"without a new one: {'; '.join(without_penalty[:3])}; repair the plugin, then grade again (nothing is executed again)"
        )
    return [verdicts[student] for student in wanted]


def _check_gradable(rubric: Rubric, source: Path, submissions: list[Path]) -> None:
    if problems := rubric_problems(rubric, source_notebook(source)):
        raise CourseError(f"rubric {rubric.lab}: {problems[0]}; `lab grade --check-rubrics` lists everything")
    for name in (*rubric.execution.data, *(rubric.rerun.data if rubric.rerun else ())):
        try:
            read(name)
        except DataError as error:
            raise CourseError(f"rubric {rubric.lab} asks for data set {name}: {error}") from None
    for run in (run for run in rubric.runs if run.model is not None):
        if rubric.mode == "evidence" and not any(is_handed_in(each, rubric.lab, run.folder) for each in submissions):
            continue
        try:
            check_data(run.model)
        except ValueError as error:
            raise CourseError(f"rubric {rubric.lab}, {run.name}: {error}") from None


def _still_good(job: GradingJob, students: list[str], log: Callable[[str], None]) -> dict[str, Verdict]:
    """Saved verdicts that another grading would only repeat, each with today's points."""
    rubric = find_rubric(job.lab, job.rubrics)
    context = GradingContext(rubric, source_notebook(job.source), course_secret(job.course), None)
    good, counted_again = {}, 0
    for student in students:
        verdict = good_verdict(job, context, student)
        if verdict is not None and not _autograded(job, student).exists():
            verdict = _with_notebook(job, student, context)
        if verdict is None:
            verdict = good_verdict(job, context, student, other_points=True)
            if verdict is None or not _written(job, verdict, context):
                continue
            counted_again += 1
        good[student] = verdict
    if counted_again:
        log(f"{job.lab}: the rubric has other points; {counted_again} verdicts counted again, nothing executed")
    return good


def _latest(course: Path, verdict: Verdict) -> Verdict:
    """The saved verdict: another process may have graded a later submission since this one was reached."""
    try:
        return load_verdict(verdict_path(course, verdict.student, verdict.lab))
    except ValueError:
        return verdict


def _autograded(job: GradingJob, student: str) -> Path:
    return job.course / "autograded" / student / job.lab / f"{job.lab}.ipynb"


def _with_notebook(job: GradingJob, student: str, context: GradingContext) -> Verdict | None:
    """Make the missing notebook of a good verdict, as after `lab restore`; None if the verdict is no longer good."""
    submission = job.submission(student)
    try:
        with verdict_lock(job.course, student, job.lab):
            verdict = good_verdict(job, context, student)
            if verdict is not None:
                write_autograded(job.course, verdict, notebook_again(submission, context), submission)
            return verdict
    except OSError as error:
        raise CourseError(f"{job.course} cannot be written ({error.strerror}); make it writable") from None


def _written(job: GradingJob, verdict: Verdict, context: GradingContext) -> bool:
    """Write a verdict with other points as a worker writes a new one; False if its notebook cannot be read."""
    submission = job.submission(verdict.student)
    path = _autograded(job, verdict.student)
    notebook = autograded_with_points(path, context.source) if path.exists() else notebook_again(submission, context)
    if notebook is None:
        return False
    try:
        with verdict_lock(job.course, verdict.student, job.lab):
            write_autograded(job.course, verdict, notebook, submission)
            verdict.save(job.course)  # last, as in `autograde.batch.worker.grade_one`
    except OSError as error:
        raise CourseError(f"{path.parent} cannot be written ({error.strerror}); make {job.course} writable") from None
    return True


def _results(
    job: GradingJob,
    rubric: Rubric,
    known: dict[str, Verdict],
    to_do: list[str],
    graded: Callable[[list[str]], Iterator[GradingResult]],
) -> Generator[tuple[Verdict, bool], None, None]:
    yield from ((verdict, False) for verdict in known.values())
    if not to_do:
        return
    for each in graded(to_do):
        if each.verdict is not None:
            yield each.verdict, True
            continue
        # No digests: the next batch tries it again.
        flag = Flag("grader", f"the grader's worker {each.problem}")
        verdict = failed_verdict(rubric, each.student, f"the grader's worker {each.problem}; ask your instructor", flag)
        verdict.save(job.course)
        yield verdict, True


def _timeout(rubric: Rubric, workers: int) -> float:
    """Seconds after which the grader gives up a worker without an answer.

    All limits of a submission and a minute, for each worker that it may have to wait for (`autograde.sandbox.turns`).
    """
    each = rubric.execution.seconds
    seconds = 60.0 + each * len(rubric.exercises)
    seconds += sum(run.model.seconds or each for run in rubric.runs if run.model is not None)
    return 2 * (workers + 1) * (seconds + (rubric.rerun.seconds if rubric.rerun else 0.0))
