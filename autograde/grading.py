"""From evidence and a rubric to a verdict. Reads, never executes; whatever is not expected earns nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from .criteria import KINDS
from .evidence import Evidence, read_evidence, summarise
from .rubric import Criterion, Rubric
from .run_folder import EvidenceError
from .verdict import CriterionResult, RunSummary, Verdict

__all__ = ["failed_verdict", "grade_submission"]


def grade_submission(rubric: Rubric, submission: Path, student: str) -> Verdict:
    """Grade the run evidence of one submission.

    Parameters
    ----------
    rubric : Rubric
    submission : Path
        ``submitted/STUDENT/LAB``; need not exist.
    student : str
        Its student's id.

    Returns
    -------
    Verdict
        Never raises for what a student handed in: at worst every criterion is 0 with a one-line reason.
    """
    try:
        evidence = read_evidence(submission, rubric.lab)
        results = tuple(_judge(criterion, evidence) for criterion in rubric.criteria)
        return _verdict(rubric, student, results, summarise(evidence))
    except Exception as error:
        return failed_verdict(rubric, student, f"the submission could not be graded ({type(error).__name__})")


def failed_verdict(rubric: Rubric, student: str, reason: str) -> Verdict:
    """A verdict of 0 points on every criterion, all for one reason."""
    results = tuple(_result(criterion, False, reason) for criterion in rubric.criteria)
    return _verdict(rubric, student, results, RunSummary())


def _judge(criterion: Criterion, evidence: Evidence) -> CriterionResult:
    try:
        finding = KINDS[criterion.kind].check(evidence, criterion.settings)
        return _result(criterion, finding.passed, finding.reason)
    except EvidenceError as error:
        return _result(criterion, False, str(error))
    except Exception as error:
        return _result(criterion, False, f"could not be checked ({type(error).__name__}); ask your instructor")


def _result(criterion: Criterion, passed: bool, reason: str) -> CriterionResult:
    return CriterionResult(
        id=criterion.id,
        kind=criterion.kind,
        description=criterion.description,
        passed=passed,
        points=criterion.points if passed else 0.0,
        max_points=criterion.points,
        reason=" ".join(reason.split()),
        remedy="" if passed else KINDS[criterion.kind].remedy,
    )


def _verdict(rubric: Rubric, student: str, results: tuple[CriterionResult, ...], run: RunSummary) -> Verdict:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Verdict(rubric.lab, rubric.title, student, rubric.cell, rubric.threshold, now, results, run)
