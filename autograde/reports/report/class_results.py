"""A class's verdicts on one lab, and the figures that the pages show of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median

from autograde.gradebook.extensions import Extension
from autograde.gradebook.hand_marks import HandMark
from autograde.gradebook.scores import LabPoints
from autograde.reports.export.scores import StudentScore
from autograde.reports.report.curves import Chart, Points, class_chart, class_median, student_chart
from autograde.reports.report.histogram import score_histogram
from autograde.rubric.schema import Rubric, RunEvidence
from autograde.rubric.verdict import FLAGS, FOLDER, CriterionResult, Flag, RunSummary, Verdict, load_verdict
from autograde.submission.regrade_request import RegradeRequest
from autograde.submission.student_id import is_student_id

__all__ = ["CellResults", "ClassResults", "PassRate", "RunResults", "read_verdicts"]


@dataclass(frozen=True)
class PassRate:
    """How many students met a criterion, of those who were judged by it."""

    description: str
    points: float
    passed: int
    of: int


@dataclass(frozen=True)
class CellResults:
    """The class on one grade cell: its median score, how many have full marks, and each criterion's pass rate."""

    name: str
    max_points: float
    median: float
    full_marks: int
    rates: tuple[PassRate, ...]

    @property
    def short_name(self) -> str:
        """The cell's name as a column heading: without the ``check-`` that exercises share."""
        return self.name.removeprefix("check-")


@dataclass(frozen=True)
class RunResults:
    """The class on one of the rubric's runs; a verdict without that run counts as one of which nothing could be read.

    `judged` are the runs that earned points. Anybody can write a curve that nothing backs up, so it is in no figure of
    the class.
    """

    rules: RunEvidence
    summaries: dict[str, RunSummary]  # by student
    judged: tuple[RunSummary, ...]

    @cached_property
    def median(self) -> Points:
        """Median validation accuracy by epoch."""
        return class_median(self.judged)

    @cached_property
    def chart(self) -> Chart:
        """Every judged run's learning curve under their median."""
        return class_chart(self.judged, self.rules.threshold)

    def student_chart(self, student: str) -> Chart | None:
        """One student's learning curve in front of the median; None where there is none."""
        return student_chart(self.summaries[student], self.median, self.rules.threshold)


def read_verdicts(lab: str, course: Path) -> tuple[list[Verdict], list[str]]:
    """The saved verdicts on a lab in order of the students' ids, and a line for each file that is not a verdict."""
    verdicts, unreadable = [], []
    paths = {path.parent.parent.name: path for path in (course / FOLDER).glob(f"*/{lab}/verdict.json")}
    for student in sorted(filter(is_student_id, paths)):
        try:
            verdict = load_verdict(paths[student])
        except ValueError as error:
            unreadable.append(str(error))
            continue
        # The names become a page's path, so they must be the folder's, which were checked.
        if (verdict.student, verdict.lab) == (student, lab):
            verdicts.append(verdict)
        else:
            unreadable.append(f"{paths[student]} is of another student or lab; grade the lab again with `lab grade`")
    return verdicts, unreadable


@dataclass(frozen=True)
class ClassResults:
    """A class's verdicts on one lab.

    `points` is how the whole lab's points divide, where the gradebook knows it; `in_gradebook` are its scores, by student.
    `requests` are the students' requests for a regrade, and whether a person has answered. `hand_marks` are those of the
    written answers, and of other cells that a person scored, by student.
    """

    rubric: Rubric
    verdicts: list[Verdict]
    unreadable: list[str]
    points: LabPoints | None
    in_gradebook: Mapping[str, StudentScore] = field(default_factory=dict)
    requests: Sequence[tuple[str, RegradeRequest, bool]] = ()
    hand_marks: Mapping[str, Sequence[HandMark]] = field(default_factory=dict)

    @cached_property
    def late(self) -> dict[str, StudentScore]:
        """The late submissions that have a verdict, by student."""
        return {student: score for student, score in self._with_verdict.items() if score.seconds_late > 0}

    @cached_property
    def extensions(self) -> dict[str, Extension]:
        """The extensions of those who have a verdict, by student."""
        return {student: score.extension for student, score in self._with_verdict.items() if score.extension}

    @cached_property
    def unread(self) -> int:
        """How many answers of those who have a verdict wait for a mark."""
        return sum(score.unread for score in self._with_verdict.values())

    @cached_property
    def again(self) -> int:
        """How many of their marks wait for a second look."""
        return sum(score.again for score in self._with_verdict.values())

    @cached_property
    def _with_verdict(self) -> dict[str, StudentScore]:
        students = {verdict.student for verdict in self.verdicts}
        return {student: score for student, score in self.in_gradebook.items() if student in students}

    @cached_property
    def by_failure(self) -> list[Verdict]:
        """The verdicts, those first whose students have the smallest part of the points that are given already."""
        return sorted(self.verdicts, key=lambda verdict: (self._part(verdict), verdict.student))

    def _part(self, verdict: Verdict) -> float:
        score = self.in_gradebook.get(verdict.student)
        if self.points is None or score is None or not score.submitted:
            return verdict.score / (verdict.max_score or 1.0)
        return score.score / ((self.points.total - score.unread_points) or 1.0)

    @cached_property
    def max_score(self) -> float | None:
        """The automatic points that there were; None where verdicts by other rubrics differ in them."""
        if not self.other_rubric:
            return self.rubric.total
        most = {verdict.max_score for verdict in self.verdicts}
        return most.pop() if len(most) == 1 else None

    @cached_property
    def median_score(self) -> float:
        """Of the automatic scores."""
        return median(verdict.score for verdict in self.verdicts)

    @cached_property
    def runs(self) -> list[RunResults]:
        """The rubric's runs, in its order."""
        runs = []
        for rules in self.rubric.runs:
            summaries = {}
            for verdict in self.verdicts:
                own = (run for run in verdict.runs if run.id == rules.id)
                summaries[verdict.student] = next(own, RunSummary(rules.id))
            judged = (summaries[each.student] for each in self.verdicts if self.score(each, rules.cell))
            runs.append(RunResults(rules, summaries, tuple(judged)))
        return runs

    @cached_property
    def histogram(self) -> Chart:
        """The automatic scores."""
        most = self.max_score or max(verdict.max_score for verdict in self.verdicts)
        return score_histogram([verdict.score for verdict in self.verdicts], most)

    @cached_property
    def cells(self) -> list[CellResults]:
        """The rubric's cells: exercises first, then the run evidence. Criteria that it no longer has are not there."""
        rubric = self.rubric
        parts = {exercise.cell: dict(exercise.points) for exercise in rubric.exercises}
        descriptions = {}
        for run in rubric.runs:
            parts[run.cell] = {criterion.id: criterion.points for criterion in run.criteria}
            descriptions |= {(run.cell, criterion.id): criterion.description for criterion in run.criteria}
        judged: dict[tuple[str, str], list[CriterionResult]] = {}
        for verdict in self.verdicts:
            for result in verdict.results:
                judged.setdefault((result.cell, result.id), []).append(result)
                # A hidden check describes its parts itself.
                descriptions.setdefault((result.cell, result.id), result.description or result.id)
        cells = []
        for name, worth in parts.items():
            scores = [self.score(verdict, name) for verdict in self.verdicts]
            most = sum(worth.values())
            rates = []
            for part, points in worth.items():
                results = judged.get((name, part), [])
                passed = sum(result.passed for result in results)
                rates.append(PassRate(descriptions.get((name, part), part), points, passed, len(results)))
            full_marks = sum(score is not None and score >= most for score in scores)
            cells.append(CellResults(name, most, median(score or 0.0 for score in scores), full_marks, tuple(rates)))
        return cells

    def score(self, verdict: Verdict, cell: str) -> float | None:
        """A student's points for one cell; None where the verdict does not judge it."""
        points = [result.points for result in verdict.results if result.cell == cell]
        return sum(points) if points else None

    def cell_median(self, cell: str) -> float | None:
        """The class's median score for one cell; None for one that is not the rubric's."""
        return next((results.median for results in self.cells if results.name == cell), None)

    @cached_property
    def full_marks(self) -> int:
        """How many have every automatic point."""
        return sum(verdict.score >= verdict.max_score for verdict in self.verdicts)

    @cached_property
    def no_points(self) -> int:
        """How many have none."""
        return sum(verdict.score == 0 for verdict in self.verdicts)

    @cached_property
    def unsandboxed(self) -> int:
        """How many were graded with nothing that held the student's code."""
        return sum(verdict.sandbox == "none" for verdict in self.verdicts)

    @cached_property
    def other_rubric(self) -> int:
        """How many were graded by another text of the rubric than today's."""
        return sum(self.is_other_rubric(verdict) for verdict in self.verdicts)

    def is_other_rubric(self, verdict: Verdict) -> bool:
        """Whether a verdict was reached by another text of the rubric than today's."""
        return verdict.digests.get("rubric", self.rubric.digest) != self.rubric.digest

    def flags(self, verdict: Verdict) -> list[Flag]:
        """A student's flags, the weightiest first."""
        order = list(FLAGS)
        return sorted(verdict.flags, key=lambda flag: order.index(flag.kind) if flag.kind in order else len(order))

    @cached_property
    def flag_counts(self) -> list[tuple[str, str, int]]:
        """Kind, what it means, and how many students have one, of each kind that somebody has."""
        students = Counter(kind for verdict in self.verdicts for kind in {flag.kind for flag in verdict.flags})
        unknown = sorted(set(students) - set(FLAGS))
        return [(kind, FLAGS.get(kind, ""), students[kind]) for kind in [*FLAGS, *unknown] if students[kind]]

    @cached_property
    def flagged(self) -> list[tuple[Verdict, list[Flag]]]:
        """Students with flags that set them apart: "unsandboxed" does not where it is everybody's."""
        shared = "unsandboxed" if self.unsandboxed == len(self.verdicts) else None
        chosen = [(verdict, [f for f in self.flags(verdict) if f.kind != shared]) for verdict in self.verdicts]
        return [(verdict, flags) for verdict, flags in chosen if flags]

    @cached_property
    def provenance(self) -> list[str]:
        """One line for each source of data, the most used first."""
        counts = Counter(
            (run.data_name, run.data_provenance, run.data_source) if run.data_provenance else None
            for run in (run for results in self.runs for run in results.judged)
            if run.curve or run.data_provenance
        )
        lines = []
        for data, count in counts.most_common():
            runs = f"{count} run{'s' * (count != 1)}"
            lines.append(f"{data[0]}, {data[1]}, source {data[2]} ({runs})" if data else f"unknown ({runs})")
        return lines
