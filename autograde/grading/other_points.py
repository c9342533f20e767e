"""A kept verdict under today's points: nothing is executed where only the rubric's points have changed.

A criterion is met or missed whatever it is worth, so its points can be counted again from the verdict's parts. Anything
else of a rubric (a criterion more or less, a threshold, a limit, a text) may change what is met, and needs a grading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from autograde.grading.same_weights import repeated_weights
from autograde.rubric.form import Rubric
from autograde.rubric.verdict import Verdict
from autograde.submission.notebook_matching import grade_id

__all__ = ["autograded_with_points", "verdict_today"]


def verdict_today(verdict: Verdict, digests: Mapping[str, str], rubric: Rubric) -> Verdict | None:
    """A saved verdict if another grading would only repeat it, with today's points; None if the submission must be graded.

    Parameters
    ----------
    digests : mapping
        Today's, of all that a grading depends on (`GradingContext.digests`, and the submission's).
    rubric : Rubric
        Today's.

    Returns the verdict itself where nothing has changed.
    """
    if digests.items() <= verdict.digests.items():
        return verdict
    if any(verdict.digests.get(name) != digest for name, digest in digests.items() if name != "rubric"):
        return None
    # Of runs with the same weights only the one that earns most counts: which one, the points decide.
    if repeated_weights(verdict.runs):
        return None
    worth = rubric.points
    if [(result.cell, result.id) for result in verdict.results] != list(worth):
        return None
    results = []
    for result in verdict.results:
        most = worth[result.cell, result.id]
        results.append(replace(result, points=most if result.passed else 0.0, max_points=most))
    return replace(verdict, results=tuple(results), digests={**verdict.digests, **digests})


def autograded_with_points(path: Path, source: NotebookNode) -> NotebookNode | None:
    """The notebook that an earlier grading left for formgrader, with the source's points; None if it cannot be read."""
    try:
        notebook = nbformat.read(path, as_version=4)
        points = {grade_id(cell): cell.metadata.nbgrader["points"] for cell in source.cells if _has_points(cell)}
        for cell in notebook.cells:
            if _has_points(cell) and grade_id(cell) in points:
                cell.metadata.nbgrader["points"] = points[grade_id(cell)]
    except Exception:  # `nbgrader autograde` may have written it, from a student's file
        return None
    return notebook


def _has_points(cell: NotebookNode) -> bool:
    return "points" in cell.metadata.get("nbgrader", {})
