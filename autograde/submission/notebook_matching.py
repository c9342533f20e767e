"""Matches a student's cells to the source's, and says whether a text was changed.

`source` is the instructor's notebook. `release` is the students' version of it, with the same cells. The student's
cells come from `autograde.submission.submitted_notebook.read_notebook`.
"""

from __future__ import annotations

from collections import defaultdict

from nbformat import NotebookNode
from nbgrader import utils

from course_lib.runs.run_evidence.quoting import quote

__all__ = ["choose_cell", "first_change", "grade_id", "is_changed", "match_cells"]


def match_cells(
    submitted: list[NotebookNode], source: list[NotebookNode], release: list[NotebookNode]
) -> list[int | None]:
    """For each of the student's cells the index of its cell in the source, or None.

    Cells match by grade id, by cell id, or by equal text (for a cell that was cut and pasted). If an editor has dropped
    every cell id, a cell after a matched one matches the next cell of the source.

    The list is as long as `submitted`. An index occurs more than once where cells were copied with their grade id.
    """
    by_grade = {grade_id(cell): index for index, cell in enumerate(source) if grade_id(cell)}
    by_id = {cell.id: index for index, cell in enumerate(source)}
    found = [by_grade.get(grade_id(cell), by_id.get(cell.id)) for cell in submitted]
    taken = set(found)

    texts: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, cell in enumerate(release):
        if index not in taken:
            for text in {_normal(cell.source), _normal(source[index].source)}:
                texts[cell.cell_type, text].append(index)
    for index, cell in enumerate(submitted):
        if found[index] is None and (text := _normal(cell.source)):
            found[index] = next((same for same in texts.get((cell.cell_type, text), ()) if same not in taken), None)
            taken.add(found[index])

    if not any(cell.id in by_id for cell in submitted):
        previous: int | None = -1
        for index, cell in enumerate(submitted):
            follower = len(source) if previous is None else previous + 1
            if found[index] is None and follower < len(source) and follower not in taken:
                found[index] = follower if cell.cell_type == source[follower].cell_type else None
                taken.add(found[index])
            previous = found[index]
    return found


def choose_cell(submitted: list[NotebookNode], indices: list[int], source: NotebookNode, release: NotebookNode) -> int:
    """Choose the student's cell if several match one cell of the source.

    Parameters
    ----------
    indices : list of int
        Which of them are this cell.

    Returns the first of `indices` whose text is an answer (not blank, not the starter's); for a cell without an answer,
    the first unchanged one. If there is none, the first.
    """
    if utils.is_solution(source):
        starter = _normal(release.source)
        wanted = (index for index in indices if _normal(submitted[index].source) not in ("", starter))
    else:
        wanted = (index for index in indices if not is_changed(submitted[index], source, release))
    return next(wanted, indices[0])


def is_changed(theirs: NotebookNode, source: NotebookNode, release: NotebookNode) -> bool:
    """Whether a cell's type or text differs from both the source's and the release's.

    Line ends and trailing white space do not count.
    """
    same = {_normal(source.source), _normal(release.source)}
    return theirs.cell_type != source.cell_type or _normal(theirs.source) not in same


def first_change(theirs: NotebookNode, release: NotebookNode) -> str:
    """The first difference of a changed cell: one line of printable ASCII."""
    if theirs.cell_type != release.cell_type:
        return f"turned from {release.cell_type} into {quote(theirs.cell_type)}"
    # One line too many on either side: the texts differ, and it may be in their length.
    ours = [*_normal(release.source).split("\n"), None]
    for number, line in enumerate([*_normal(theirs.source).split("\n"), None]):
        if number >= len(ours) or line != ours[number]:
            break
    what = "is missing" if line is None else f"is {quote(line)}"
    return f"line {number + 1} {what}"


def grade_id(cell: NotebookNode) -> str | None:
    """The cell's nbgrader name, or None."""
    name = cell.metadata.get("nbgrader", {}).get("grade_id")
    return name if isinstance(name, str) else None


def _normal(text: str) -> str:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).rstrip()
