"""Similarity over a course folder: reading everybody's answers, comparing them, and the page that shows them.

Answers are read from ``submitted/`` as data. The source notebook gives the starter's text, which is subtracted, and the
course's own solutions, which anybody may come upon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .bench import source_notebook
from .gradebook import source_path
from .notebook_matching import grade_id
from .notebook_repair import repair, starter_answers
from .run_folder import EvidenceError
from .similarity import Similarity, compare
from .similarity_page import write_similarity_page
from .submitted_notebook import read_notebook
from .verdict import Flag, Verdict

__all__ = ["flag_similar", "write_similarity"]


def write_similarity(lab: str, course: Path, students: Sequence[str], out: Path) -> Similarity:
    """Compare the code answers of a lab's submissions and write the page that shows pairs side by side.

    Parameters
    ----------
    lab : str
        Full name.
    course : Path
    students : sequence of str
    out : Path

    Raises
    ------
    CourseError
        The source notebook cannot be read.
    OSError
        The page cannot be written.
    """
    source = source_notebook(source_path(course, lab))
    code = {grade_id(cell) for cell in source.cells if cell.cell_type == "code"}
    starter = {name: text for name, text in starter_answers(source).items() if name in code}
    reference = {grade_id(cell): cell.source for cell in source.cells if grade_id(cell) in starter}
    answers = {}
    for student in students:
        try:
            repaired = repair(read_notebook(course / "submitted" / student / lab, lab), source)
        except EvidenceError:
            continue
        cells = {grade_id(cell): cell.source for cell in repaired.notebook.cells}
        answers[student] = {name: cells[name] for name in starter if name in cells}
    found = compare(answers, starter, reference)
    write_similarity_page(found, answers, out)
    return found


def flag_similar(verdicts: Sequence[Verdict], similarity: Similarity) -> list[Verdict]:
    """The verdicts, those of flagged pairs with a flag that names the other student."""
    flags: dict[str, list[Flag]] = {}
    for pair in similarity.flagged:
        for student, other in ((pair.left, pair.right), (pair.right, pair.left)):
            detail = f"answers much like those of {other} (similarity {pair.score:.2f}); see the similarity page"
            flags.setdefault(student, []).append(Flag("copy", detail))
    return [replace(each, flags=(*each.flags, *flags.get(each.student, ())[:5])) for each in verdicts]
