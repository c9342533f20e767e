"""Whether a rubric and its lab fit together, for `lab grade --check-rubrics`."""

from __future__ import annotations

import ast

from nbformat import NotebookNode

from autograde.checks.described import find_check, known_checks
from autograde.grading.networks import NETWORKS
from autograde.rubric.schema import Rubric
from autograde.sandbox.withheld import WithheldError, withheld_modules

__all__ = ["rubric_problems"]


def rubric_problems(rubric: Rubric, source: NotebookNode) -> list[str]:
    """The mismatches, one line each; an empty list if rubric and lab fit."""
    problems = []
    ids = {cell.id for cell in source.cells if cell.cell_type == "code"}
    graded = [cell.metadata.nbgrader for cell in source.cells if cell.metadata.get("nbgrader", {}).get("grade")]
    points = {cell["grade_id"]: float(cell.get("points", 0)) for cell in graded}
    by_hand = {cell["grade_id"] for cell in graded if cell.get("solution")}
    wanted = rubric.cells
    for cell, worth in wanted.items():
        if cell not in points:
            problems.append(f"the notebook has no grade cell {cell!r}")
        elif cell in by_hand:
            problems.append(f"cell {cell!r} is an answer that is graded by hand")
        elif abs(points[cell] - worth) > 1e-9:
            problems.append(f"cell {cell!r} is worth {points[cell]:g} points in the notebook, {worth:g} in the rubric")
    if rubric.exercises:
        left = [cell for cell in points if cell not in wanted and cell not in by_hand]
        problems += [f"grade cell {cell!r} of the notebook is not in [exercises]" for cell in left]
    for exercise in rubric.exercises:
        problems += _exercise_problems(exercise.cell, exercise.check, exercise.points)
    problems += [
        f"[execution] run: the notebook has no code cell {cell!r}" for cell in rubric.execution.run if cell not in ids
    ]
    problems += [f"[execution] withheld: {line}" for line in _withheld_problems(rubric.execution.withheld)]
    return problems + _parameter_problems(rubric, source) + _network_problems(rubric)


def _withheld_problems(entries: tuple[str, ...]) -> list[str]:
    problems = []
    for entry in entries:
        try:
            withheld_modules((entry,))
        except WithheldError as error:
            problems.append(str(error))
    return problems


def _parameter_problems(rubric: Rubric, source: NotebookNode) -> list[str]:
    # A name that the cell does not assign would have no effect and give no error.
    cells = [cell for cell in source.cells if "parameters" in cell.metadata.get("tags", [])]
    known = {target.id for cell in cells for target in _assigned(cell.source)}
    tables = {"execution": rubric.execution, "rerun": rubric.rerun}
    return [
        f"[{table}] parameters: the notebook's parameters cell has no {name!r}"
        for table, entries in tables.items()
        for name in (entries.parameters if entries else ())
        if name not in known
    ]


def _assigned(text: str) -> list[ast.Name]:
    statements = ast.parse(text).body
    targets = [target for each in statements if isinstance(each, ast.Assign) for target in each.targets]
    return [target for target in targets if isinstance(target, ast.Name)]


def _exercise_problems(cell: str, name: str, points: dict[str, float]) -> list[str]:
    check = find_check(name)
    if check is None:
        return [f"exercise {cell!r}: there is no check {name!r}; there are {', '.join(known_checks())}"]
    if set(points) != set(check.parts):
        missing = sorted(set(check.parts) - set(points))
        unknown = sorted(set(points) - set(check.parts))
        what = [f"part {part!r} of check {name!r} has no points" for part in missing]
        what += [f"check {name!r} has no part {part!r}" for part in unknown]
        return [f"exercise {cell!r}: {line}" for line in what]
    return []


def _network_problems(rubric: Rubric) -> list[str]:
    problems = []
    known = ", ".join(f"course_lib:{network}" for network in NETWORKS)
    for run in (run for run in rubric.runs if run.model is not None):
        kind, _, name = run.model.network.partition(":")
        own = kind == "notebook" or (kind == "program" and bool(run.program))
        if not (kind == "course_lib" and name in NETWORKS) and not (own and name.isidentifier()):
            table = f"run {run.id!r}: [run.model]" if run.id else "[model]"
            problems.append(
                f"{table} network is {run.model.network!r}, expected {known}, notebook:FUNCTION, or for a program's run program:FUNCTION"
            )
    return problems
