"""One submission, graded: notebook repaired, exercises judged, run evidence judged, weights tried.

The grader reads the submission as data; its code runs in the sandbox only, and what comes out is plain data. Whatever
is not expected earns nothing, says why in one line, and stops nothing.
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

import numpy as np
from nbformat import NotebookNode
from nbformat.v4 import new_notebook

from .bench import Bench
from .criteria import KINDS
from .evidence import WEIGHTS, Evidence, HeldOut, RunFiles, parse_evidence, read_run_files, summarise
from .exercises import ExerciseJudge, cells_to_run, limits_of
from .held_out import try_weights
from .notebook_matching import grade_id
from .notebook_repair import RepairedNotebook, autograded_notebook, repair
from .rerun import rerun
from .rubric import Criterion, Exercise, Rubric
from .run_folder import EvidenceError
from .sandbox import SandboxError
from .submitted_notebook import read_notebook
from .verdict import CriterionResult, Flag, RunSummary, Verdict

__all__ = ["Graded", "failed_verdict", "grade_submission", "judge_evidence", "submission_digest"]


@dataclass(frozen=True)
class Graded:
    """A verdict, and the notebook that a person grades by: repaired, with harmless outputs. None where grading failed."""

    verdict: Verdict
    notebook: NotebookNode | None


@dataclass(frozen=True)
class _Submission:
    notebook: NotebookNode | EvidenceError
    files: RunFiles
    absent: bool  # there is no file of the notebook's name at all

    @property
    def digest(self) -> str:
        total = hashlib.sha256(repr(self.notebook).encode("utf-8", "replace"))
        for name, content in sorted(self.files.items()):
            total.update(name.encode() + b"\0")
            total.update(content if isinstance(content, bytes) else str(content).encode("utf-8", "replace"))
        return total.hexdigest()


def submission_digest(submission: Path, lab: str) -> str:
    """SHA-256 of all that grading reads of a submission; never raises for what a student handed in."""
    return _read(submission, lab).digest


def grade_submission(bench: Bench, submission: Path, student: str) -> Graded:
    """Grade one submission.

    Parameters
    ----------
    bench : Bench
    submission : Path
        ``submitted/STUDENT/LAB``; need not exist.
    student : str
        Its student's id.

    Returns
    -------
    Graded
        Never raises for what a student handed in: at worst every criterion is 0 with a one-line reason.

    Raises
    ------
    SandboxError
        There is no sandbox to execute anything in.
    """
    started = time.monotonic()
    rubric = bench.rubric
    try:
        handed_in = _read(submission, rubric.lab)
        digests = {"submission": handed_in.digest, **bench.digests}
        if isinstance(weights := handed_in.files[WEIGHTS], bytes):
            digests["weights"] = hashlib.sha256(weights).hexdigest()
        verdict, notebook = _grade(bench, handed_in, student, digests)
    except SandboxError:
        raise
    except Exception as error:
        reason = f"the submission could not be graded ({type(error).__name__}); ask your instructor"
        verdict = failed_verdict(rubric, student, reason, Flag("grader", f"{type(error).__name__}: {error}"[:300]))
        notebook = None
    return Graded(replace(verdict, seconds=round(time.monotonic() - started, 3)), notebook)


def _grade(
    bench: Bench, handed_in: _Submission, student: str, digests: dict[str, str]
) -> tuple[Verdict, NotebookNode | None]:
    rubric, flags = bench.rubric, []
    seed = bench.seed(student, digests["submission"])
    results: list[CriterionResult] = []
    repaired, cells, notebook, unanswered = None, [], None, ()
    if isinstance(handed_in.notebook, EvidenceError):
        flags.append(Flag("missing", str(handed_in.notebook)))
        results += [result for each in rubric.exercises for result in _lost(each, str(handed_in.notebook))]
        # What a person sees then is the lab as it was given out, with the reasons.
        notebook = repair(new_notebook(), bench.source).notebook
        # What is not there is no answer; in what cannot be read there may be some, which a person must look for.
        unanswered = tuple(bench.starter) if handed_in.absent else ()
    else:
        repaired = repair(handed_in.notebook, bench.source)
        flags += _repair_flags(repaired)
        cells = cells_to_run(repaired, rubric.execution)
        notebook = autograded_notebook(handed_in.notebook, repaired)
        unanswered = _unanswered(repaired, bench)
        if bench.warm is not None:
            data = bench.data(rubric.execution.data)
            judge = ExerciseJudge(bench.warm, rubric.execution, data, cells, seed, flags)
            results += [result for exercise in rubric.exercises for result in judge.judge(exercise)]
    evidence, clock = _evidence(bench, handed_in, repaired, flags)
    evidence = _with_weights(bench, evidence, handed_in.files, cells, seed)
    results += judge_evidence(rubric, evidence, flags, clock)
    verdict = Verdict(
        lab=rubric.lab,
        title=rubric.title,
        student=student,
        threshold=rubric.threshold,
        graded_at=_now(),
        results=tuple(results),
        run=summarise(evidence),
        flags=tuple(flags) + ((Flag("unsandboxed", "--no-sandbox was given"),) if bench.sandbox == "none" else ()),
        sandbox=bench.sandbox,
        digests=digests,
        unanswered=unanswered,
    )
    return verdict, notebook


def judge_evidence(
    rubric: Rubric, evidence: Evidence, flags: list[Flag], clock: float | None = None
) -> list[CriterionResult]:
    """Judge the run evidence by the rubric's criteria.

    Where the rubric has the weights tried, the learning curve counts for as much as they do: a curve that ends
    elsewhere than where its weights stand earns nothing, whatever its form.

    Parameters
    ----------
    rubric : Rubric
    evidence : Evidence
    flags : list of Flag
        Grows.
    clock : float, optional
        Seconds that the grader's own run took, in rerun mode.
    """
    refused = _forged(rubric, evidence, clock)
    if refused is not None:
        flags.append(Flag(*refused))
        return [_result(rubric.cell, criterion, False, refused[1]) for criterion in rubric.criteria]
    return [_judge(rubric.cell, criterion, evidence) for criterion in rubric.criteria]


def failed_verdict(rubric: Rubric, student: str, reason: str, flag: Flag | None = None) -> Verdict:
    """A verdict of 0 points on everything, all for one reason."""
    results = [result for exercise in rubric.exercises for result in _lost(exercise, reason)]
    results += [_result(rubric.cell, criterion, False, reason) for criterion in rubric.criteria]
    flags = () if flag is None else (flag,)
    return Verdict(rubric.lab, rubric.title, student, rubric.threshold, _now(), tuple(results), RunSummary(), flags)


def _read(submission: Path, lab: str) -> _Submission:
    try:
        notebook: NotebookNode | EvidenceError = read_notebook(submission, lab)
    except EvidenceError as error:
        notebook = error
    return _Submission(notebook, read_run_files(submission, lab), not os.path.lexists(submission / f"{lab}.ipynb"))


def _evidence(
    bench: Bench, handed_in: _Submission, repaired: RepairedNotebook | None, flags: list[Flag]
) -> tuple[Evidence, float | None]:
    lab = bench.rubric.lab
    if bench.rubric.mode == "evidence":
        return parse_evidence(lab, handed_in.files), None
    if repaired is None or bench.warm is None:
        missing = EvidenceError("the notebook could not be run again, so there is no evidence of a run")
        return Evidence(lab, missing, missing, missing), None
    ran = rerun(bench, repaired)
    handed_in.files.clear()
    handed_in.files.update(ran.files)
    flags += ran.flags
    return parse_evidence(lab, ran.files), ran.seconds


def _with_weights(
    bench: Bench, evidence: Evidence, files: RunFiles, cells: list[dict], seed: Sequence[int]
) -> Evidence:
    rules = bench.rubric.model
    if rules is None:
        return evidence
    weights = files[WEIGHTS]
    tried: HeldOut | EvidenceError
    if bench.warm is None:
        tried = EvidenceError("the weights were not tried: there is no sandbox on the grader's machine")
    elif isinstance(evidence.record_or_error, EvidenceError):
        tried = evidence.record_or_error
    elif isinstance(weights, EvidenceError):
        tried = weights
    else:
        random = np.random.default_rng([*seed, *b"held-out"])
        limits = limits_of(bench.rubric.execution)
        data = bench.data(bench.rubric.execution.data)
        try:
            tried = try_weights(rules, evidence, weights, bench.warm, random, limits, cells, data)
        except EvidenceError as error:
            tried = error
    return replace(evidence, held_out_or_error=tried)


def _forged(rubric: Rubric, evidence: Evidence, clock: float | None) -> tuple[str, str] | None:
    """Kind of flag and reason where the evidence as a whole cannot be believed."""
    tried = evidence.held_out_or_error
    if isinstance(evidence.curve_or_error, EvidenceError):
        # A record that stands alone is a file that anybody can write.
        alone = isinstance(tried, EvidenceError) and not isinstance(evidence.record_or_error, EvidenceError)
        return ("missing", f"nothing backs up the run record: {tried}") if alone else None
    claimed, seconds = evidence.curve.accuracies[-1], evidence.curve.rows[-1].time
    if clock is not None and seconds > clock:
        return "forged", f"the learning curve tells of {seconds:.0f} s of training in a run that took {clock:.0f} s"
    if isinstance(tried, EvidenceError):
        return "missing", f"nothing backs up the learning curve: {tried}"
    if tried is not None and not abs(tried.accuracy - claimed) <= rubric.model.tolerance + tried.uncertainty:
        return (
            "forged",
            f"the learning curve ends at {claimed:.3f}, the submitted weights score {tried.accuracy:.3f} on "
            f"{tried.images:,} held-out images: hand in the files of one run",
        )
    return None


def _judge(cell: str, criterion: Criterion, evidence: Evidence) -> CriterionResult:
    try:
        finding = KINDS[criterion.kind].check(evidence, criterion.settings)
        return _result(cell, criterion, finding.passed, finding.reason)
    except EvidenceError as error:
        return _result(cell, criterion, False, str(error))
    except Exception as error:
        return _result(cell, criterion, False, f"could not be checked ({type(error).__name__}); ask your instructor")


def _result(cell: str, criterion: Criterion, passed: bool, reason: str) -> CriterionResult:
    return CriterionResult(
        cell=cell,
        id=criterion.id,
        kind=criterion.kind,
        description=criterion.description,
        passed=passed,
        points=criterion.points if passed else 0.0,
        max_points=criterion.points,
        reason=" ".join(reason.split()),
        remedy="" if passed else KINDS[criterion.kind].remedy,
    )


def _lost(exercise: Exercise, reason: str) -> list[CriterionResult]:
    from .checks import find_check

    check = find_check(exercise.check)
    return [
        CriterionResult(
            cell=exercise.cell,
            id=part,
            kind=exercise.check,
            description=check.parts[part],
            passed=False,
            points=0.0,
            max_points=points,
            reason=" ".join(reason.split()),
        )
        for part, points in exercise.points.items()
    ]


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


def _unanswered(repaired: RepairedNotebook, bench: Bench) -> tuple[str, ...]:
    answers = {grade_id(cell): cell.source for cell in repaired.notebook.cells}
    return tuple(name for name, text in bench.starter.items() if answers.get(name, "").strip() == text.strip())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
