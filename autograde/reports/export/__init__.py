"""A lab's scores in the formats of nbgrader, Canvas and Moodle, one module for each format."""

from __future__ import annotations

import os
from pathlib import Path

from autograde.reports.export.canvas import fill_canvas
from autograde.reports.export.csv_file import ExportError
from autograde.reports.export.fill import Filled
from autograde.reports.export.moodle import fill_moodle
from autograde.reports.export.nbgrader_csv import nbgrader_csv
from autograde.reports.export.scores import Grades, LabScores, StudentScore, read_scores
from course_lib.system.atomic import write_atomically

__all__ = [
    "ExportError",
    "Filled",
    "Grades",
    "LabScores",
    "StudentScore",
    "fill_canvas",
    "fill_moodle",
    "nbgrader_csv",
    "read_scores",
    "write_export",
]


def write_export(content: bytes, path: Path, template: Path | None = None) -> None:
    """Write an export, whole or not at all.

    Parameters
    ----------
    content : bytes
    path : Path
        Its folder is made where it is missing.
    template : Path, optional
        A file that `path` must not be.

    Raises
    ------
    ExportError
        `path` is the template, or cannot be written.
    """
    if template is not None and path.exists() and os.path.samefile(path, template):
        raise ExportError(f"{path} is the template; choose another place, or name it with -o to overwrite it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise ExportError(f"{path} cannot be written ({error.strerror}); choose another place with -o FILE") from None
