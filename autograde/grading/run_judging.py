"""Judging one run: its evidence believed or refused, each criterion judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autograde.rubric.form import Criterion, RunEvidence
from autograde.rubric.verdict import CriterionResult, Flag, RunSummary
from autograde.submission.run_folder import EvidenceError
from course_lib.runs.run_evidence.criteria import KINDS
from course_lib.runs.run_evidence.evidence import Evidence
from course_lib.runs.run_evidence.quoting import quote

__all__ = ["count_once", "judge_run", "lost_run", "other_program"]


def judge_run(
    rules: RunEvidence, evidence: Evidence, flags: list[Flag], clock: float | None = None
) -> list[CriterionResult]:
    """Judge a run by its criteria.

    If the rubric tests the weights, they must confirm the learning curve. A curve that ends at another accuracy than
    its weights earns nothing, whatever its form. A run of another program earns nothing either.

    Parameters
    ----------
    clock : float, optional
        Seconds of the grader's own run, in rerun mode.
    """
    read = evidence.record_or_error
    if isinstance(read, EvidenceError) and read is evidence.curve_or_error is evidence.transcript_or_error:
        # Without a folder there is one reason for all. For the grader's own run it is in the flags already.
        if clock is None:
            flags.append(Flag("missing", f"{rules.id}: {read}" if rules.id else str(read)))
        return lost_run(rules, str(read))
    refused = _refused(rules, evidence, clock)
    if refused is not None:
        kind, reason = refused
        flags.append(Flag(kind, f"{rules.id}: {reason}" if rules.id else reason))
        return lost_run(rules, reason)
    return [_judge(rules, criterion, evidence) for criterion in rules.criteria]


def lost_run(rules: RunEvidence, reason: str) -> list[CriterionResult]:
    """Every criterion of a run at 0 points, for one reason."""
    # A criterion's remedy does not help against the common reason, which has its own.
    return [replace(_result(rules, criterion, False, reason), remedy="") for criterion in rules.criteria]


def count_once(
    judged: Sequence[tuple[RunEvidence, list[CriterionResult], RunSummary]],
) -> list[list[CriterionResult]]:
    """The runs' results. Weights that several runs share keep their points only in the run that earns the most.

    Parameters
    ----------
    judged : sequence of (rules, results, summary)
        In the rubric's order.
    """
    earned = [sum(result.points for result in results) for _, results, _ in judged]
    kept: dict[str, int] = {}
    for place in sorted(range(len(judged)), key=lambda place: -earned[place]):
        weights = judged[place][2].weights
        if weights is not None:
            kept.setdefault(weights, place)
    found = []
    for place, (rules, results, summary) in enumerate(judged):
        first = kept.get(summary.weights, place)
        if first != place and earned[place]:
            other = judged[first][0].name
            results = lost_run(
                rules, f"its weights are those of {other}, where they count: hand in the files of one run"
            )
        found.append(results)
    return found


def other_program(rules: RunEvidence, evidence: Evidence) -> str | None:
    """The reason why the record is not of the rubric's program. Raises `EvidenceError` without a record."""
    program = evidence.record.program
    if not rules.program or program == rules.program:
        return None
    found = "names no program" if program is None else f"is of program {quote(program)}"
    return f"run.json {found}, expected {rules.program!r}: hand in what {rules.writer} writes as {_where(rules)}/"


def _refused(rules: RunEvidence, evidence: Evidence, clock: float | None) -> tuple[str, str] | None:
    """Kind of flag and reason if the evidence as a whole cannot be believed; otherwise None."""
    tried = evidence.held_out_or_error
    no_record = isinstance(evidence.record_or_error, EvidenceError)
    if not no_record and (other := other_program(rules, evidence)) is not None:
        return "missing", other
    if isinstance(evidence.curve_or_error, EvidenceError):
        # Anybody can write a record without a run.
        alone = isinstance(tried, EvidenceError) and not no_record
        return ("missing", f"nothing backs up the run record: {tried}") if alone else None
    if rules.program and no_record:
        return "missing", f"nothing says that this is a run of {rules.writer}: {evidence.record_or_error}"
    claimed, seconds = evidence.curve.accuracies[-1], evidence.curve.rows[-1].time
    if clock is not None and seconds > clock:
        return "forged", f"the learning curve claims {seconds:.0f} s of training in a run that took {clock:.0f} s"
    if isinstance(tried, EvidenceError):
        return "missing", f"nothing backs up the learning curve: {tried}"
    if tried is not None and not abs(tried.accuracy - claimed) <= rules.model.tolerance + tried.uncertainty:
        return (
            "forged",
            f"the learning curve ends at {claimed:.3f}, the submitted weights score {tried.accuracy:.3f} on "
            f"{tried.images:,} held-out {tried.unit}: hand in the files of one run",
        )
    return None


def _judge(rules: RunEvidence, criterion: Criterion, evidence: Evidence) -> CriterionResult:
    try:
        finding = KINDS[criterion.kind].check(evidence, criterion.settings)
        return _result(rules, criterion, finding.passed, finding.reason)
    except EvidenceError as error:
        return _result(rules, criterion, False, str(error))
    except Exception as error:
        return _result(rules, criterion, False, f"could not be checked ({type(error).__name__}); ask your instructor")


def _result(rules: RunEvidence, criterion: Criterion, passed: bool, reason: str) -> CriterionResult:
    return CriterionResult(
        cell=rules.cell,
        id=criterion.id,
        kind=criterion.kind,
        description=criterion.description,
        passed=passed,
        points=criterion.points if passed else 0.0,
        max_points=criterion.points,
        reason=" ".join(reason.split()),
        remedy="" if passed else KINDS[criterion.kind].remedy.format(run=_where(rules)),
    )


def _where(rules: RunEvidence) -> str:
    return f"run/{rules.folder}" if rules.folder else "run"
