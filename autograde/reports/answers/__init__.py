"""All written answers to a lab's questions: a page to read, and a table (CSV) that brings marks back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autograde.gradebook.hand_marks import HandMark
from autograde.grading.grading_context import source_notebook
from autograde.submission.notebook_matching import grade_id
from autograde.submission.notebook_repair import starter_answers
from autograde.submission.run_folder import EvidenceError
from autograde.submission.submitted_notebook import read_notebook

__all__ = ["Answer", "Question", "questions_of"]


@dataclass(frozen=True)
class Answer:
    """A student's answer and its mark.

    `text` is the cell as it was typed, the same that formgrader shows; empty where nothing was written. `problem` is a
    line where the notebook could not be read.
    """

    mark: HandMark
    text: str
    problem: str = ""


@dataclass(frozen=True)
class Question:
    """One question: its text (from the last heading of the cell before), the model answer, and everybody's answers."""

    name: str
    max_points: float
    text: str
    model_answer: str
    answers: tuple[Answer, ...]


def questions_of(lab: str, course: Path, source: Path, marks: Sequence[HandMark]) -> list[Question]:
    """The questions in the notebook's order, with the answers in ``autograded/``, which formgrader shows.

    Parameters
    ----------
    lab : str
        Full name.
    source : Path
        The source notebook.

    Raises `CourseError`: the source notebook cannot be read.
    """
    notebook = source_notebook(source)
    starter = starter_answers(notebook)
    texts: dict[str, dict[str, str]] = {}
    problems: dict[str, str] = {}
    for student in {mark.student for mark in marks}:
        try:
            cells = read_notebook(course / "autograded" / student / lab, lab).cells
            texts[student] = {grade_id(cell): cell.source for cell in reversed(cells) if grade_id(cell)}
        except EvidenceError as error:
            problems[student] = str(error)
    questions = []
    for before, cell in zip([None, *notebook.cells], notebook.cells, strict=False):
        name = grade_id(cell)
        own = [mark for mark in marks if mark.question == name]
        if not name or not own:
            continue
        answers = []
        for mark in own:
            text = texts.get(mark.student, {}).get(name, "")
            blank = text.strip() == starter.get(name, "").strip()
            answers.append(Answer(mark, "" if blank else text, problems.get(mark.student, "")))
        asked = before.source if before is not None and before.cell_type == "markdown" and not grade_id(before) else ""
        asked = re.split(r"^#+ .*\n", asked, flags=re.MULTILINE)[-1].strip()
        questions.append(Question(name, own[0].max_points, asked, cell.source, tuple(answers)))
    return questions
