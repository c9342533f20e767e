"""One submission, graded: notebook repaired, exercises judged, run evidence judged, weights tested.

The grader reads the submission as data. Its code runs only in the sandbox, and only plain data comes out. Anything
unexpected earns no points, gives a one-line reason, and does not stop the grading.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from nbformat import NotebookNode
from nbformat.v4 import new_notebook

from autograde.grading.evidence import PROGRAM, WEIGHTS, read_program, read_run_files, summarise
from autograde.grading.executed_cells import cells_to_run
from autograde.grading.exercises import ExerciseJudge, exercise_results
from autograde.grading.held_out import with_weights
from autograde.grading.rerun import rerun
from autograde.grading.run_judging import count_once, judge_run, lost_run
from autograde.grading.same_weights import repeated_weights
from autograde.rubric.form import Rubric, RunEvidence
from autograde.rubric.verdict import CriterionResult, Flag, RunSummary, Verdict
from autograde.sandbox.bubblewrap import SandboxError
from autograde.submission.notebook_matching import grade_id
from autograde.submission.notebook_repair import RepairedNotebook, autograded_notebook, repair
from autograde.submission.run_folder import EvidenceError
from autograde.submission.submitted_notebook import read_notebook
from course_lib.runs.run_evidence.criteria import Finding
from course_lib.runs.run_evidence.evidence import RunFiles, parse_evidence

if TYPE_CHECKING:
    from autograde.grading.grading_context import GradingContext

__all__ = ["Graded", "failed_verdict", "grade_submission", "notebook_again", "submission_digest"]


@dataclass(frozen=True)
class Graded:
    """A verdict, and the notebook for hand grading: repaired, with harmless outputs; None if grading failed."""

    verdict: Verdict
    notebook: NotebookNode | None


@dataclass(frozen=True)
class _Submission:
    notebook: NotebookNode | EvidenceError
    runs: dict[str, RunFiles]  # by the run's id in the rubric
    absent: bool  # no file has the notebook's name

    @property
    def digest(self) -> str:
        total = hashlib.sha256(repr(self.notebook).encode("utf-8", "replace"))
        for run, files in self.runs.items():
            for name, content in sorted(files.items()):
                data = content if isinstance(content, bytes) else str(content).encode("utf-8", "replace")
                total.update(f"{run}/{name}\0".encode() + hashlib.sha256(data).digest())
        return total.hexdigest()


def submission_digest(submission: Path, rubric: Rubric) -> str:
    """SHA-256 of all files of a submission that grading reads; never raises for their content."""
    return _read(submission, rubric).digest


def grade_submission(context: GradingContext, submission: Path, student: str) -> Graded:
    """Grade one submission.

    Parameters
    ----------
    submission : Path
        ``submitted/STUDENT/LAB``; need not exist.

    Never raises for a submission's content: at worst every criterion is 0 with a one-line reason.

    Raises `SandboxError`: no sandbox can be made.
    """
    started = time.monotonic()
    rubric = context.rubric
    try:
        handed_in = _read(submission, rubric)
        digests = {"submission": handed_in.digest, **context.digests}
        verdict, notebook = _grade(context, handed_in, student, digests)
    except SandboxError:
        raise
    except Exception as error:
        reason = f"the submission could not be graded ({type(error).__name__}); ask your instructor"
        verdict = failed_verdict(rubric, student, reason, Flag("grader", f"{type(error).__name__}: {error}"[:300]))
        notebook = None
    return Graded(replace(verdict, seconds=round(time.monotonic() - started, 3)), notebook)


def _grade(
    context: GradingContext, handed_in: _Submission, student: str, digests: dict[str, str]
) -> tuple[Verdict, NotebookNode | None]:
    rubric, flags = context.rubric, []
    seed = context.seed(student, digests["submission"])
    results: list[CriterionResult] = []
    repaired, cells, notebook, unanswered = None, [], None, ()
    if isinstance(handed_in.notebook, EvidenceError):
        flags.append(Flag("missing", str(handed_in.notebook)))
        lost = Finding(False, str(handed_in.notebook))
        results += [result for each in rubric.exercises for result in exercise_results(each, {}, lost)]
        # A person then sees the lab as it was released, with the reasons.
        notebook = repair(new_notebook(), context.source).notebook
        # A missing notebook has no answers. An unreadable one may have some, for which a person must look.
        unanswered = tuple(context.starter) if handed_in.absent else ()
    else:
        repaired = repair(handed_in.notebook, context.source)
        if left_out := handed_in.notebook.metadata.get("left_out"):
            flags.append(Flag("limit", left_out))
        flags += _repair_flags(repaired)
        cells = cells_to_run(repaired, rubric.execution)
        notebook = autograded_notebook(handed_in.notebook, repaired)
        unanswered = _unanswered(repaired, context)
        if context.warm is not None:
            data = context.data(rubric.execution.data)
            judge = ExerciseJudge(context.warm, rubric.execution, data, cells, seed, flags)
            results += [result for exercise in rubric.exercises for result in judge.judge(exercise)]
            cells = judge.cells  # without those that never return: a network from the notebook needs the others
    judged = [(each, *_judge_run(context, each, handed_in, repaired, cells, seed, flags)) for each in rubric.runs]
    results += [result for each in count_once(judged) for result in each]
    runs = [summary for _, _, summary in judged]
    flags += repeated_weights(runs)
    verdict = Verdict(
        lab=rubric.lab,
        title=rubric.title,
        student=student,
        graded_at=_now(),
        results=tuple(results),
        runs=tuple(runs),
        flags=tuple(flags) + ((Flag("unsandboxed", "--no-sandbox was given"),) if context.sandbox == "none" else ()),
        sandbox=context.sandbox,
        digests=digests,
        unanswered=unanswered,
    )
    return verdict, notebook


def notebook_again(submission: Path, context: GradingContext) -> NotebookNode:
    """The notebook of `Graded`, without reasons, of a submission that was graded before. Nothing is executed."""
    try:
        submitted = read_notebook(submission, context.rubric.lab)
    except EvidenceError:
        return repair(new_notebook(), context.source).notebook
    return autograded_notebook(submitted, repair(submitted, context.source))


def failed_verdict(rubric: Rubric, student: str, reason: str, flag: Flag | None = None) -> Verdict:
    """A verdict of 0 points on every criterion, for one reason."""
    lost = Finding(False, reason)
    results = [result for exercise in rubric.exercises for result in exercise_results(exercise, {}, lost)]
    results += [result for run in rubric.runs for result in lost_run(run, reason)]
    runs = tuple(RunSummary(run.id) for run in rubric.runs)
    flags = () if flag is None else (flag,)
    return Verdict(rubric.lab, rubric.title, student, _now(), tuple(results), runs, flags)


def _read(submission: Path, rubric: Rubric) -> _Submission:
    lab = rubric.lab
    try:
        notebook: NotebookNode | EvidenceError = read_notebook(submission, lab)
    except EvidenceError as error:
        notebook = error
    runs = {run.id: read_run_files(submission, lab, run.folder, run.writer) for run in rubric.runs}
    for run in rubric.runs:
        if run.model is not None and run.model.network.startswith("program:"):
            runs[run.id][PROGRAM] = read_program(submission, run.program)
    return _Submission(notebook, runs, not os.path.lexists(submission / f"{lab}.ipynb"))


def _judge_run(
    context: GradingContext,
    rules: RunEvidence,
    handed_in: _Submission,
    repaired: RepairedNotebook | None,
    cells: list[dict],
    seed: Sequence[int],
    flags: list[Flag],
) -> tuple[list[CriterionResult], RunSummary]:
    lab, files, clock, ran = context.rubric.lab, handed_in.runs[rules.id], None, None
    weights = files[WEIGHTS]
    digest = hashlib.sha256(weights).hexdigest() if isinstance(weights, bytes) else None
    if context.rubric.mode == "rerun":
        if repaired is None or context.warm is None:
            missing = EvidenceError("the notebook could not be run again, so there is no evidence of a run")
            files = dict.fromkeys(files, missing)
        else:
            ran = rerun(context, repaired)
            files, clock = ran.files, ran.seconds
            flags += ran.flags
    evidence = with_weights(context, rules, parse_evidence(lab, files), files, cells, seed)
    results = judge_run(rules, evidence, flags, clock)
    measured = {"work_seconds": ran.work_seconds, "step_seconds": ran.step_seconds} if ran else {}
    return results, summarise(evidence, id=rules.id, weights=digest, **measured)


def _repair_flags(repaired: RepairedNotebook) -> list[Flag]:
    flags = [Flag("tampered", f"{each.cell}: {each.detail}") for each in repaired.repairs if each.kind in _TAMPERING]
    flags += [
        Flag("missing", f"{each.cell}: {each.detail}") for each in repaired.repairs if each.kind == "missing-answer"
    ]
    others = Counter(each.kind for each in repaired.repairs if each.kind in ("duplicate", "cell-type"))
    flags += [Flag("tampered", f"{count} answer cell(s) repaired: {kind}") for kind, count in others.items()]
    if repaired.more_repairs:
        flags.append(Flag("tampered", f"{repaired.more_repairs} further repairs"))
    return flags[:50]


_TAMPERING = ("restored-locked", "metadata")


def _unanswered(repaired: RepairedNotebook, context: GradingContext) -> tuple[str, ...]:
    answers = {grade_id(cell): cell.source for cell in repaired.notebook.cells}
    return tuple(name for name, text in context.starter.items() if answers.get(name, "").strip() == text.strip())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
