"""Repairing a student's notebook: the instructor's cells, with the student's answers in them.

Only the released lab may be executed for a grade. So the sequence of cells, their metadata, and every cell without an
answer come from the source notebook. The answers come from the submission, by ``grade_id``. So do the cells that the
student added, each after the cell that it followed. Every difference is reported; none stops the grading.

`repair` expects what `autograde.submission.submitted_notebook.read_notebook` returns, and runs nothing.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from nbformat import NotebookNode
from nbgrader import utils
from nbgrader.preprocessors import ClearHiddenTests, ClearMarkScheme, ClearSolutions, ComputeChecksums, LockCells

from autograde.submission.notebook_matching import choose_cell, first_change, grade_id, is_changed, match_cells
from autograde.submission.submitted_notebook import safe_outputs
from course_lib.runs.run_evidence.quoting import quote

__all__ = [
    "MAX_REPAIRS",
    "Repair",
    "RepairedNotebook",
    "autograded_notebook",
    "release_of",
    "repair",
    "starter_answers",
]

MAX_REPAIRS = 200

_BACK = "; the source's cell is back"
_FLAGS = ("grade", "solution", "locked", "task")
_VALUES = ("points", "grade_id")
# nbgrader writes these two when it makes the release; a notebook that was not made so lacks them.
_RELEASE_VALUES = ("cell_type", "checksum")
# An earlier release of the lab may have had others, and the grader counts with the source's.
_OF_A_RELEASE = {"points", "checksum"}


@dataclass(frozen=True)
class Repair:
    """One difference between a submission and the released lab, and its repair."""

    # ``missing-answer``, ``duplicate``, ``cell-type``, ``metadata``, ``earlier-release`` (of nbgrader's fields only
    # points and checksum differ), ``moved``, ``restored-plain`` (a cell that students may well edit, such as the
    # parameters) or ``restored-locked`` (one that nbgrader locks: a sign of tampering)
    kind: str
    cell: str  # the cell's ``grade_id``, else its id, both as the source has them
    detail: str  # one line of printable ASCII


@dataclass(frozen=True)
class RepairedNotebook:
    """The result of `repair`."""

    # Valid nbformat 4.5, without outputs. A cell of the student's own has ``metadata["added"] == True``.
    notebook: NotebookNode
    repairs: tuple[Repair, ...]  # in the order of the cells, at most `MAX_REPAIRS`
    more_repairs: int  # how many there were beyond those
    added: tuple[NotebookNode, ...]  # the student's own cells, as they are in `notebook`
    # Cell id to the student's text, for each code cell without nbgrader metadata that the student changed
    edited: dict[str, str]
    # Id of a cell of `notebook` to the index of the student's cell that it comes from. A locked cell that was changed
    # has none, nor has a cell that the submission lacks.
    origin: dict[str, int]


def release_of(source: NotebookNode) -> NotebookNode:
    """The notebook that students get, as ``nbgrader generate_assignment`` makes it of a source notebook.

    Raises `RuntimeError`: a region (solution, hidden tests, mark scheme) is not closed, or is in a cell of the wrong
    kind.
    """
    notebook = copy.deepcopy(source)
    resources: dict = {}
    for step in (LockCells, ClearSolutions, ClearHiddenTests, ClearMarkScheme, ComputeChecksums):
        notebook, resources = step().preprocess(notebook, resources)
    for cell in notebook.cells:
        _clear_outputs(cell)
    return notebook


def starter_answers(source: NotebookNode) -> dict[str, str]:
    """The text that each answer cell has in the release, by ``grade_id``. Raises `RuntimeError` as `release_of`."""
    return {grade_id(cell): cell.source for cell in release_of(source).cells if utils.is_solution(cell)}


def repair(submitted: NotebookNode, source: NotebookNode) -> RepairedNotebook:
    """Put a student's answers into the instructor's notebook (nbformat 4.5, with solutions). Neither is changed.

    Of two cells with one ``grade_id`` the first that is neither the starter's text nor blank is the answer, and the
    others are left out. Texts are compared without regard to line ends and trailing white space. Raises `RuntimeError`
    as `release_of`; never for a submission's content.
    """
    release = release_of(source)
    source_of = match_cells(submitted.cells, source.cells, release.cells)
    candidates: dict[int, list[int]] = defaultdict(list)
    for index, target in enumerate(source_of):
        if target is not None:
            candidates[target].append(index)

    repairs: list[Repair] = []
    edited: dict[str, str] = {}
    origin: dict[str, int] = {}
    cells: list[NotebookNode] = []
    chosen: dict[int, int] = {}
    for target, (original, released) in enumerate(zip(source.cells, release.cells, strict=True)):
        cell = copy.deepcopy(original)
        _clear_outputs(cell)
        cells.append(cell)
        answer = utils.is_solution(cell)
        if target not in candidates:
            if answer:
                cell.source = released.source
            repairs += _missing(cell)
            continue
        index = choose_cell(submitted.cells, candidates[target], original, released)
        chosen[target] = index
        theirs = submitted.cells[index]
        changed = is_changed(theirs, original, released)
        repairs += _differences(theirs, released, len(candidates[target]), index)
        if answer:
            _take_answer(cell, theirs)
        elif changed and (utils.is_locked(cell) or utils.is_task(cell)):
            repairs.append(Repair("restored-locked", _name(cell), first_change(theirs, released) + _BACK))
            continue
        elif changed and cell.cell_type == "code":
            repairs.append(Repair("restored-plain", _name(cell), first_change(theirs, released) + _BACK))
            if theirs.cell_type == "code" and "nbgrader" not in cell.metadata:
                edited[cell.id] = theirs.source
        origin[cell.id] = index
    repairs += _moved(cells, chosen)

    notebook = copy.copy(source)
    notebook.metadata = copy.deepcopy(source.metadata)
    notebook.cells, added = _with_added(submitted.cells, source_of, cells, chosen, origin)
    return RepairedNotebook(
        notebook, tuple(repairs[:MAX_REPAIRS]), max(0, len(repairs) - MAX_REPAIRS), added, edited, origin
    )


def autograded_notebook(submitted: NotebookNode, repaired: RepairedNotebook) -> NotebookNode:
    """The repaired notebook with the student's own outputs, for an instructor to look at.

    Outputs are `safe_outputs`. They come from the student's file and prove nothing. A changed locked cell shows none.
    """
    notebook = copy.deepcopy(repaired.notebook)
    for cell in notebook.cells:
        index = repaired.origin.get(cell.id)
        if index is None or cell.cell_type != "code" or submitted.cells[index].cell_type != "code":
            continue
        cell.outputs = safe_outputs(submitted.cells[index])
        count = submitted.cells[index].get("execution_count")
        cell.execution_count = count if type(count) is int and count >= 0 else None
    return notebook


def _missing(cell: NotebookNode) -> list[Repair]:
    if utils.is_solution(cell):
        return [
            Repair("missing-answer", _name(cell), "the submission lacks this answer; the starter's text replaces it")
        ]
    locked = utils.is_locked(cell) or utils.is_task(cell)
    if locked or cell.cell_type == "code":
        kind = "restored-locked" if locked else "restored-plain"
        return [Repair(kind, _name(cell), "the submission lacks this cell; it is put back")]
    return []


def _differences(theirs: NotebookNode, release: NotebookNode, copies: int, index: int) -> list[Repair]:
    """Repairs that any kind of cell can need: to its number, its type and nbgrader's fields."""
    name = _name(release)
    repairs = []
    if copies > 1:
        repairs.append(Repair("duplicate", name, f"{copies} cells are this one; cell {index + 1} is taken"))
    if utils.is_solution(release) and theirs.cell_type != release.cell_type:
        detail = (
            f"turned from {release.cell_type} into {quote(theirs.cell_type)}; its text is kept as {release.cell_type}"
        )
        repairs.append(Repair("cell-type", name, detail))
    if changes := _metadata_changes(theirs.metadata.get("nbgrader"), release.metadata.get("nbgrader")):
        kind = "metadata" if changes.keys() - _OF_A_RELEASE else "earlier-release"
        detail = f"nbgrader's fields were changed, the source's hold: {', '.join(changes.values())}"
        repairs.append(Repair(kind, name, detail))
    return repairs


def _metadata_changes(theirs: Mapping | None, ours: Mapping | None) -> dict[str, str]:
    """What to say of each field that differs."""
    if not theirs or not ours:
        return {"all": "taken away" if ours else "added"} if theirs or ours else {}
    changes = [name for name in _FLAGS if bool(theirs.get(name)) != bool(ours.get(name))]
    changes += [name for name in _VALUES if theirs.get(name) != ours.get(name)]
    changes += [name for name in _RELEASE_VALUES if name in theirs and name in ours and theirs[name] != ours[name]]
    return {name: f"{name} {quote(ours.get(name), 40)} is {quote(theirs.get(name), 40)}" for name in changes}


def _moved(cells: list[NotebookNode], chosen: dict[int, int]) -> list[Repair]:
    """One repair for all code cells that are further up than one before them in the source."""
    furthest, moved = -1, []
    for target, index in sorted(chosen.items()):
        if cells[target].cell_type == "code":
            if index < furthest:
                moved.append(_name(cells[target]))
            furthest = max(furthest, index)
    if not moved:
        return []
    return [Repair("moved", moved[0], f"{len(moved)} code cells were in another order; the source's order is restored")]


def _take_answer(cell: NotebookNode, theirs: NotebookNode) -> None:
    cell.source = theirs.source
    if cell.cell_type != "code":
        cell.pop("attachments", None)
        if "attachments" in theirs:
            cell.attachments = copy.deepcopy(theirs.attachments)


def _with_added(
    submitted: list[NotebookNode],
    source_of: list[int | None],
    cells: list[NotebookNode],
    chosen: dict[int, int],
    origin: dict[str, int],
) -> tuple[list[NotebookNode], tuple[NotebookNode, ...]]:
    """The source's cells and, behind the one that each followed, the student's own; `origin` learns of these."""
    used = set(chosen.values())
    following: dict[int, list[NotebookNode]] = defaultdict(list)
    place = -1
    for index, target in enumerate(source_of):
        if target is None:
            cell = copy.deepcopy(submitted[index])
            cell.metadata = NotebookNode(added=True)
            _clear_outputs(cell)
            origin[cell.id] = index
            following[place].append(cell)
        elif index in used:
            place = target
    together = list(following[-1])
    for target, cell in enumerate(cells):
        together += [cell, *following[target]]
    return together, tuple(cell for cell in together if cell.metadata.get("added") is True)


def _clear_outputs(cell: NotebookNode) -> None:
    if cell.cell_type == "code":
        cell.outputs, cell.execution_count = [], None


def _name(cell: NotebookNode) -> str:
    return grade_id(cell) or cell.id
