"""The reasons of a saved verdict, as plain text for a comment in another system."""

from __future__ import annotations

from pathlib import Path

from autograde.gradebook.extensions import how_late
from autograde.reports.export.scores import StudentScore
from autograde.rubric.verdict import load_verdict, verdict_path
from autograde.submission.student_id import is_student_id

__all__ = ["OPENING", "plain_reasons"]

OPENING = "Graded from the files handed in: "


def plain_reasons(course: Path, score: StudentScore, lab: str) -> list[str] | None:
    """Lines of plain text, which may have any character of markup; None where no verdict can be read."""
    # The id becomes a folder's name.
    if not is_student_id(score.student):
        return None
    try:
        verdict = load_verdict(verdict_path(course, score.student, lab))
    except ValueError:
        return None
    lines = [f"{OPENING}{verdict.score:g} of {verdict.max_score:g} points"]
    if score.extension is not None:
        lines.append(f"the deadline was extended by {score.extension}, until {score.extension.until}")
    if score.seconds_late:
        lines.append(f"late by {how_late(score.seconds_late)}: a penalty of {score.penalty:g} points")
    for line, remedy in (each for cell in verdict.cells for each in verdict.reasons(cell)):
        lines += [line, f"how to look at it: {remedy}"] if remedy else [line]
    return [" ".join(line.split()) for line in lines]
