"""The page of all answers; no scripts, nothing fetched, everything escaped."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from autograde.reports.answers import Question
from autograde.reports.report.pages import environment
from autograde.rubric.form import Rubric

__all__ = ["answers_page"]


def answers_page(rubric: Rubric, questions: Sequence[Question], table_name: str) -> str:
    """The page; `table_name` is the file of the table beside it, for the reader."""
    template = environment(Path(__file__).parent).get_template("answers.html")
    written = datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC")
    return template.render(rubric=rubric, questions=questions, table_name=table_name, written=written)
