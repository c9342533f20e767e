"""Similarity over a course folder: read everybody's answers, compare them, and flag the verdicts.

Answers are read from ``submitted/`` as data. The source notebook gives the starter's text, which is subtracted, and the
course's own solutions, which anybody may find without copying.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from autograde.gradebook.scores import source_path
from autograde.grading.grading_context import source_notebook
from autograde.reports.similarity.comparison import LibraryMatch, Pair
from autograde.rubric.verdict import Flag, Verdict
from autograde.submission.notebook_matching import grade_id
from autograde.submission.notebook_repair import repair, starter_answers
from autograde.submission.run_folder import EvidenceError
from autograde.submission.submitted_notebook import read_notebook

__all__ = ["ClassAnswers", "flag_alike", "read_answers"]


class ClassAnswers(NamedTuple):
    """Answers to a lab: student → grade_id → source, and per grade_id the starter and the course's solution."""

    answers: dict[str, dict[str, str]]
    starter: dict[str, str]
    reference: dict[str, str]


def read_answers(lab: str, course: Path, students: Sequence[str]) -> tuple[ClassAnswers, ClassAnswers]:
    """Read the answers of a lab's submissions, in code and in words; a student without a readable notebook is left out.

    Parameters
    ----------
    lab : str
        Full name.

    Raises `CourseError`: the source notebook cannot be read.
    """
    source = source_notebook(source_path(course, lab))
    starter = starter_answers(source)
    in_code = {grade_id(cell) for cell in source.cells if cell.cell_type == "code" and grade_id(cell) in starter}
    reference = {grade_id(cell): cell.source for cell in source.cells if grade_id(cell) in starter}
    # Who quotes the question or the lab's text in an answer has copied from nobody.
    text = "\n\n".join(cell.source for cell in source.cells if cell.cell_type == "markdown")
    reference |= {name: f"{reference[name]}\n\n{text}" for name in starter.keys() - in_code}
    answers = {}
    for student in students:
        try:
            repaired = repair(read_notebook(course / "submitted" / student / lab, lab), source)
        except EvidenceError:
            continue
        cells = {grade_id(cell): cell.source for cell in repaired.notebook.cells}
        answers[student] = {name: cells[name] for name in starter if name in cells}

    def of(names: Set[str]) -> ClassAnswers:
        own = {student: {name: texts[name] for name in names & texts.keys()} for student, texts in answers.items()}
        return ClassAnswers(own, {name: starter[name] for name in names}, {name: reference[name] for name in names})

    return of(in_code), of(starter.keys() - in_code)


def flag_alike(
    verdicts: Sequence[Verdict],
    pairs: Iterable[Pair] = (),
    matches: Iterable[LibraryMatch] = (),
    what: str = "answers",
) -> list[Verdict]:
    """The verdicts with flags: pairs name the other student, of at most five others; matches name the library's module.

    `what` is what the pairs are alike in.
    """
    details: dict[str, list[str]] = defaultdict(list)
    for pair in pairs:
        for student, other in ((pair.left, pair.right), (pair.right, pair.left)):
            detail = f"{what} much like those of {other} (similarity {pair.score:.2f}); see the similarity page"
            details[student] = [*details[student], detail][:5]
    for match in matches:
        detail = f"{match.grade_id}: alike {match.module} ({match.score:.0%} of what is the answer's own)"
        details[match.student].append(detail)
    copies = ((verdict, [Flag("copy", detail) for detail in details[verdict.student]]) for verdict in verdicts)
    return [replace(verdict, flags=(*verdict.flags, *flags)) for verdict, flags in copies]
