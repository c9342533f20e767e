"""The cells of a repaired notebook that are executed before an answer is called: whole, or only their definitions."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from autograde.rubric.form import Execution as ExecutionRules

if TYPE_CHECKING:
    from autograde.submission.notebook_repair import RepairedNotebook

__all__ = ["cells_to_run"]


def cells_to_run(repaired: RepairedNotebook, rules: ExecutionRules) -> list[dict[str, Any]]:
    """The cells to execute before a function is called.

    Returns ``{"id", "source", "definitions"}``: with `definitions` only the source's definitions are executed. An
    answer also has ``"answer": True``.
    """
    found: list[dict[str, Any]] = []
    for cell in repaired.notebook.cells:
        if cell.cell_type != "code":
            continue
        settings = cell.metadata.get("nbgrader", {})
        if "parameters" in cell.metadata.get("tags", []):
            # Without its comments, which hold each parameter's rule: the rubric's values are the grader's own.
            found.append({"id": cell.id, "source": ast.unparse(ast.parse(cell.source)), "definitions": False})
            lines = [f"{name} = {value!r}" for name, value in rules.parameters.items()]
            found.append({"id": "rubric's parameters", "source": "\n".join(lines), "definitions": False})
        elif settings.get("solution"):
            found.append({"id": settings["grade_id"], "source": cell.source, "definitions": False, "answer": True})
        elif cell.metadata.get("added"):
            found.append({"id": cell.id, "source": cell.source, "definitions": True})
        elif cell.id in rules.run:
            found.append({"id": cell.id, "source": cell.source, "definitions": False})
            if cell.id in repaired.edited:
                found.append({"id": cell.id, "source": repaired.edited[cell.id], "definitions": True})
    return found
