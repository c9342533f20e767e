"""A lab's source notebook with other answers in it, judged as a submission is."""

from __future__ import annotations

from dataclasses import dataclass, replace

import nbformat
from fake_runs import REPOSITORY

import autograde.grading.exercises
from autograde.grading.executed_cells import cells_to_run
from autograde.grading.exercises import ExerciseJudge
from autograde.rubric.schema import find_rubric
from autograde.submission.notebook_repair import repair, starter_answers

find_check = autograde.grading.exercises.find_check


@dataclass(frozen=True)
class Judged:
    """What became of one exercise."""

    points: float
    max_points: float
    lost: set[str]  # parts without points
    reasons: dict[str, str]  # of each part
    remedies: dict[str, str]
    flags: list[str]  # kinds


class GradedLab:
    """One lab, whose exercises are judged one at a time.

    Parameters
    ----------
    warm : WarmInterpreter
    lab : str
        ``01_single_gpu``…
    """

    def __init__(self, warm, lab: str) -> None:
        self.warm, self.rubric = warm, find_rubric(lab)
        self.source = nbformat.read(REPOSITORY / "labs" / lab / f"{lab}.ipynb", as_version=4)
        self.starter = starter_answers(self.source)
        self.cells = cells_to_run(repair(self.source, self.source), self.rubric.execution)
        self.calls: list[tuple[str, object, object]] = []  # function, given, found: of the last one judged

    def solution(self, exercise: str) -> str:
        """The source notebook's answer to `exercise`, such as ``metrics``."""
        return next(cell["source"] for cell in self.cells if cell["id"] == f"ex-{exercise}")

    def edited(self, exercise: str, *edits: str) -> str:
        """The same with pieces of its text replaced: old, new, old, new…"""
        text = self.solution(exercise)
        for old, new in zip(edits[::2], edits[1::2], strict=True):
            assert old in text, f"{exercise} has no {old!r}"
            text = text.replace(old, new)
        return text

    def judge(self, exercise: str, answer: str | None = None, seed: int = 1, **answers: str) -> Judged:
        """Judge one exercise with another `answer`, and `answers` to others by their names (``_`` for ``-``)."""
        texts = {f"ex-{name.replace('_', '-')}": text for name, text in answers.items()}
        if answer is not None:
            texts[f"ex-{exercise}"] = answer
        cells = [cell | {"source": texts.get(cell["id"], cell["source"])} for cell in self.cells]
        found = next(entry for entry in self.rubric.exercises if entry.cell == f"check-{exercise}")
        judge = ExerciseJudge(self.warm, self.rubric.execution, {}, cells, [seed])
        results = judge.judge(found)
        assert [result.id for result in results] == list(found.points)
        by_part = {result.id.rpartition(".")[2]: result for result in results}
        return Judged(
            sum(result.points for result in results),
            sum(result.max_points for result in results),
            {part for part, result in by_part.items() if not result.passed},
            {part: result.reason for part, result in by_part.items()},
            {part: result.remedy for part, result in by_part.items()},
            [flag.kind for flag in judge.flags],
        )


def with_seconds(monkeypatch, seconds: float) -> None:
    """Let every check's calls end after so many seconds."""
    monkeypatch.setattr(
        autograde.grading.exercises, "find_check", lambda name: replace(find_check(name), seconds=seconds)
    )
