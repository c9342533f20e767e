"""Judging exercises: the student's cells in the sandbox, the hidden check outside.

Each exercise gets a separate sandbox. It executes, in the notebook's order, the lab's own cells that the rubric lists,
every answer, and the definitions in the student's own cells (imports, functions, classes, constants). So a helper in a
student's cell works, and an experiment there costs no time. Then the check's observer is called. Modules that the rubric
withholds are absent. An answer that fails to execute loses only the exercises that need it. A cell that ends the
execution (it never returns, or it ends its process) is left out of the later exercises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autograde.checks.described import find_check, observer_source
from autograde.checks.registry import AnswerError, Findings
from autograde.rubric.form import Execution as ExecutionRules
from autograde.rubric.form import Exercise
from autograde.rubric.verdict import CriterionResult, Flag
from autograde.sandbox.limits import Exceeded, Limits
from autograde.sandbox.turns import in_turn
from course_lib.runs.run_evidence.criteria import Finding
from course_lib.runs.run_evidence.quoting import quote

if TYPE_CHECKING:
    from autograde.sandbox.execution import Execution
    from autograde.sandbox.warm import WarmInterpreter

__all__ = ["ExerciseJudge", "exercise_results"]

_BLANK = "NotImplementedError"
_MOST_LEFT_OUT = 3


def exercise_results(exercise: Exercise, findings: Findings, other: Finding) -> list[CriterionResult]:
    """The results of an exercise's parts, from their findings; `other` is the finding of parts without one."""
    check = find_check(exercise.check)
    results = []
    for part, points in exercise.points.items():
        finding = findings.get(part, other)
        results.append(
            CriterionResult(
                cell=exercise.cell,
                id=part,
                kind=exercise.check,
                description=check.parts[part],
                passed=finding.passed,
                points=points if finding.passed else 0.0,
                max_points=points,
                reason=" ".join(finding.reason.split()),
                remedy="" if finding.passed else finding.remedy,
            )
        )
    return results


@dataclass
class ExerciseJudge:
    """Judges the exercises of one submission."""

    warm: WarmInterpreter
    rules: ExecutionRules
    data: Mapping[str, Path]
    cells: list[dict[str, Any]]  # from `autograde.grading.executed_cells.cells_to_run`
    seed: list[int]  # seed of the hidden inputs; each exercise draws from its own stream
    flags: list[Flag] = field(default_factory=list)  # new flags are appended
    _left_out: list[AnswerError] = field(default_factory=list)
    _failed_before_calls: AnswerError | None = None

    def judge(self, exercise: Exercise) -> list[CriterionResult]:
        """The results of one exercise, one for each part of its check; never raises for a student's code."""
        reason: AnswerError | None = self._failed_before_calls
        findings: Findings = {}
        if reason is None:
            try:
                findings = self._findings(exercise)
            except AnswerError as error:
                reason = error
        if reason is not None and reason.flag:
            flag = Flag(reason.flag, f"{exercise.cell}: {reason}")
            if not any(known.detail.endswith(str(reason)) for known in self.flags):
                self.flags.append(flag)
        if reason is not None:
            return exercise_results(exercise, {}, Finding(False, str(reason), reason.remedy))
        return exercise_results(exercise, findings, Finding(False, "this part was not judged; ask your instructor"))

    def _findings(self, exercise: Exercise) -> Findings:
        try:
            return in_turn(lambda: self._attempt(exercise))
        except Exceeded as error:
            if not error.cell:
                raise _ended(error) from None
            self._leave_out(error)
        return self._findings(exercise)

    def _attempt(self, exercise: Exercise) -> Findings:
        check = find_check(exercise.check)
        limits = Limits.of(self.rules.seconds, self.rules.memory_gib)
        limits = replace(limits, processors=max(limits.processors, check.ranks))
        stream = np.random.default_rng([*self.seed, *exercise.cell.encode()])
        with self.warm.execute(
            limits, check.ranks, self.data, withheld=self.rules.withheld, network=check.network
        ) as execution:
            outcomes = execution.cells(self.cells)
            execution.allow(check.seconds)
            ask = _SandboxAsk(exercise.check, execution, outcomes[0], stream, self._left_out)
            try:
                return check.judge(ask)
            except Exceeded as error:
                if error.kind != "time" and execution.place.disk_used() > 0.98:
                    raise Exceeded("disk", f"filled its {limits.disk_bytes >> 20} MB of disk") from None
                raise
            except (AnswerError, KeyboardInterrupt):
                raise
            except Exception as error:
                # A defect of the check, or an unexpected kind of answer: no points, and a flag.
                self.flags.append(Flag("grader", f"{exercise.cell}: {type(error).__name__} in the hidden check"))
                raise AnswerError("your function returned something that could not be compared") from None

    def _leave_out(self, error: Exceeded) -> None:
        """Leave out the cell that ended an execution: the same cells come first in every exercise.

        Raises `AnswerError`: it is one of the lab's own cells, or there were several such cells: nothing can be judged.
        """
        reason = _ended(error, f"in cell {quote(error.cell)}, while the notebook's answers were executed")
        theirs = [cell for cell in self.cells if cell.get("answer") or cell["definitions"]]
        remaining = [cell for cell in self.cells if cell not in theirs or cell["id"] != error.cell]
        if len(remaining) == len(self.cells) or len(self._left_out) == _MOST_LEFT_OUT:
            self._failed_before_calls = reason
            raise reason from None
        self.cells = remaining
        self._left_out.append(reason)


@dataclass
class _SandboxAsk:
    """`autograde.checks.registry.Ask`, answered by an `Execution`."""

    check: str
    execution: Execution
    outcomes: list[dict[str, Any]]
    random: np.random.Generator
    left_out: list[AnswerError]

    def call(self, function: str, given: Any, answers: Mapping[str, Callable[..., Any]] | None = None) -> Any:
        replies = self.execution.call(observer_source(self.check), function, given, answers)
        for rank, reply in enumerate(replies):
            if reply is not None and "value" not in reply:
                raise self._failure(reply, f" (on rank {rank})" if len(replies) > 1 else "")
        values = [reply["value"] for reply in replies]
        return values if len(values) > 1 else values[0]

    def _failure(self, reply: dict[str, Any], where: str) -> AnswerError:
        failed = next((outcome for outcome in self.outcomes if isinstance(outcome["error"], dict)), None)
        if isinstance(reply.get("missing"), str):
            if self.left_out:
                return self.left_out[0]
            if failed:
                return _raised(failed["error"], f"cell {quote(failed['id'])} did not execute", "crash")
            return AnswerError(
                f"there is no function {quote(reply['missing'])}", "run the notebook from its top", "missing"
            )
        error = reply.get("error") if isinstance(reply.get("error"), dict) else {}
        if error.get("type") == _BLANK:
            return AnswerError("not answered: the exercise still has its blank", flag="missing")
        return _raised(error, f"your function raised{where}", "crash")


def _raised(error: Mapping[str, Any], what: str, flag: str) -> AnswerError:
    kind, message = str(error.get("type", "an error")), str(error.get("message", ""))
    if kind == "MemoryError" or "can't allocate memory" in message:
        return AnswerError("out of memory", "how large are the tensors that it makes?", "limit")
    if "No space left on device" in message:
        return AnswerError("filled its disk", "how much does it write?", "limit")
    if "Resource temporarily unavailable" in message or "can't start new thread" in message:
        return AnswerError("started too many processes or threads", "how many does it start?", "limit")
    if kind == _BLANK:
        return AnswerError("not answered: the exercise still has its blank", flag="missing")
    if "Connection closed by peer" in message or "Connection reset by peer" in message:
        return AnswerError(
            f"a rank ended while another waited for it: {what}", "do all ranks make the same calls?", flag
        )
    place = ""
    if isinstance(error.get("cell"), str) and isinstance(error.get("line"), int):
        place = f" (cell {quote(error['cell'])}, line {error['line']})"
    reason = f"{what}: {quote(kind)[1:-1]}: {quote(message, 160)}{place}"
    return AnswerError(reason, "call it in a cell of your own with inputs of the shapes in its docstring", flag)


def _ended(error: Exceeded, when: str = "") -> AnswerError:
    flag = {"ended": "crash", "protocol": "escape"}.get(error.kind, "limit")
    remedy = {
        "time": "does a loop end, and do all ranks make the same calls?",
        "memory": "how large are the tensors that it makes, and are they freed?",
        "answer": "how large is the returned value?",
        "output": "print less: one line per epoch, not per step",
        "ended": "a function that is graded must return; it must not end its process",
    }.get(error.kind, "")
    return AnswerError(f"{error}{' ' + when if when else ''}", remedy, flag)
