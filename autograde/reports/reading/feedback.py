"""Our pages for ``nbgrader generate_feedback``; ``nbgrader_config.py`` installs them.

`FeedbackPages` makes each page in a bounded process. Where a page cannot be made, the student gets a page that says so,
with the scores and comments; the command prints a line and continues. `ShowReasons` and `MarkUnread` are its preprocessors.
"""

from __future__ import annotations

import html
import re
from textwrap import dedent
from typing import Any
from urllib.parse import quote

from nbconvert.exporters import HTMLExporter
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Bool, Unicode

from autograde.gradebook.extensions import ExtensionError, Extensions
from autograde.gradebook.scores import stored_comment
from autograde.reports.reading.inert_html import POLICY
from autograde.reports.reading.page import render
from autograde.reports.reading.page_process import PageError, PageServer
from autograde.rubric.schema import Rubric, RubricError, find_rubric

__all__ = ["FeedbackPages", "MarkUnread", "ShowReasons", "page_or_scores"]

_server = PageServer()


def page_or_scores(
    kind: str, path: str, resources: dict[str, Any], preprocessors: list[str], server: PageServer = _server
) -> tuple[str, str]:
    """The page of a notebook file, and an empty text; where it cannot be made, a page of the scores alone, and why."""
    try:
        return server.page(kind, path, resources, preprocessors), ""
    except PageError as error:
        problem = str(error)
    notice = f"This notebook cannot be shown here: {problem}."
    try:
        return render(kind, _scores_alone(resources["nbgrader"], notice), resources, preprocessors), problem
    except Exception as error:  # the gradebook does not know the submission, either
        problem += f"; no scores, either ({type(error).__name__})"
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    return (
        f"<!DOCTYPE html><html lang=en><head>{head}<title>Not shown</title></head><p>{html.escape(notice)}</p></html>",
        problem,
    )


def _scores_alone(names: dict[str, str], notice: str) -> NotebookNode:
    """The submission's graded cells without their contents, from the gradebook, below a notice."""
    cells = [new_markdown_cell(notice)]
    with Gradebook(names["db_url"]) as gradebook:
        submitted = gradebook.find_submission_notebook(names["notebook"], names["assignment"], names["student"])
        answers = {cell.name for cell in submitted.notebook.solution_cells}
        tasks = {cell.name for cell in submitted.notebook.task_cells}
        for grade in sorted(submitted.grades, key=lambda grade: grade.name):
            code = grade.cell_type == "code" and grade.name not in tasks
            cell = new_code_cell("# not shown") if code else new_markdown_cell("*not shown*")
            cell.metadata["nbgrader"] = {
                "grade_id": grade.name,
                "points": grade.max_score,
                "grade": grade.name not in tasks,
                "solution": grade.name in answers,
                "task": grade.name in tasks,
                "schema_version": 3,
            }
            cells.append(cell)
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    return new_notebook(cells=cells)


class FeedbackPages(HTMLExporter):
    """``GenerateFeedback.exporter_class``: `page_or_scores` instead of nbconvert's own rendering."""

    reasons = Bool(True, help="Show the reasons for points, not the points alone.").tag(config=True)
    regrade = Unicode(
        help="Where students ask for a regrade, https://… or mailto:…; {student}, {lab} and {part} are replaced. Empty: by "
        "a file regrade.txt."
    ).tag(config=True)

    def register_preprocessor(self, preprocessor: Any, enabled: bool = False) -> Any:
        """Remember nbgrader's own preprocessors for the page's process; nothing else is registered."""
        if isinstance(preprocessor, type) and issubclass(preprocessor, NbGraderPreprocessor):
            self.__dict__.setdefault("wanted", []).append(f"{preprocessor.__module__}.{preprocessor.__qualname__}")

    def from_filename(self, filename: str, resources: dict | None = None, **_: Any) -> tuple[str, dict]:
        """The page; logs a line if it shows the scores alone."""
        wanted = self.__dict__.get("wanted", [])
        resources["nbgrader"]["reasons"] = self.reasons
        resources["nbgrader"]["deadline"] = self._deadline(resources["nbgrader"])
        resources["nbgrader"]["regrade"] = self._address(resources["nbgrader"])
        page, problem = page_or_scores("course_feedback", str(filename), resources, wanted)
        if problem:
            student = resources["nbgrader"]["student"]
            self.log.warning("%s: the page shows the scores without the notebook (%s)", student, problem)
        return page, {**resources, "output_extension": ".html", "outputs": {}, "metadata": {}}

    def _address(self, names: dict[str, str]) -> str:
        """Where this student asks for a regrade of this lab; the template fills in the part. Empty: by a file."""
        plain = re.sub("{(student|lab|part)}", "", self.regrade)
        if plain and not re.fullmatch(r"(https://|mailto:)[^\s\\{}<>\"]{1,1000}", plain):
            self.log.error(
                "c.FeedbackPages.regrade = %r is no address https://… or mailto:… with {student}, {lab}, {part}; the page "
                "has no link",
                self.regrade,
            )
            return ""
        about = {"{student}": names["student"], "{lab}": names["assignment"]}
        return re.sub("{(student|lab)}", lambda found: quote(about[found[0]], safe=""), self.regrade)

    def _deadline(self, names: dict[str, str]) -> str:
        """A line about the student's extension of the deadline; empty where there is none."""
        key = (names["student"], names["assignment"])
        try:
            with Gradebook(names["db_url"]) as gradebook:
                extensions = Extensions(self.config).all(gradebook)
        except ExtensionError as error:
            self.log.warning("%s: the page does not show an extension (%s)", names["student"], error)
            return ""
        extended = (each for each in extensions if (each.student, each.lab) == key and each.due)
        return next((f"The deadline was extended by {each}, until {each.until}." for each in extended), "")


class ShowReasons(NbGraderPreprocessor):
    """In the feedback, the output of each of the rubric's cells is the reasons for its points, from the gradebook.

    Where `FeedbackPages.reasons` is false, it is the points alone.
    """

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Replace the outputs of the cells for which there are reasons."""
        rubric = rubric_of(resources)
        if rubric is None:
            return nb, resources
        student, reasons = resources["nbgrader"]["student"], resources["nbgrader"].get("reasons", True)
        names = rubric.cells
        with Gradebook(resources["nbgrader"]["db_url"]) as gradebook:
            for cell in nb.cells:
                name = cell.metadata.get("nbgrader", {}).get("grade_id")
                if cell.cell_type != "code" or name not in names:
                    continue
                text = stored_comment(gradebook, name, rubric.lab, student)
                if not reasons:
                    if cell.metadata.nbgrader.get("comment") == text:
                        cell.metadata.nbgrader["comment"] = ""
                    text = text and text.splitlines()[0]  # `Verdict.comment` begins with the points
                    cell.outputs = []
                if text:
                    cell.outputs = [new_output("stream", name="stdout", text=dedent(text) + "\n")]
        return nb, resources


class MarkUnread(NbGraderPreprocessor):
    """In the feedback, an answer that nobody has read has no score yet, and its points are not in the total."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Mark such cells ``unread``, after nbgrader's `GetGrades`."""
        names = resources["nbgrader"]
        waiting = {}
        with Gradebook(names["db_url"]) as gradebook:
            submitted = gradebook.find_submission_notebook(names["notebook"], names["assignment"], names["student"])
            for grade in submitted.grades:
                if grade.manual_score is None and grade.auto_score is None and grade.needs_manual_grade:
                    waiting[grade.name] = grade.max_score
        for cell in nb.cells:
            if cell.metadata.get("nbgrader", {}).get("grade_id") in waiting:
                cell.metadata.nbgrader["unread"] = True
        names["unread"], names["unread_points"] = len(waiting), sum(waiting.values())
        names["max_score"] -= names["unread_points"]
        return nb, resources


def rubric_of(resources: dict) -> Rubric | None:
    """The rubric of the notebook that nbgrader processes; None where the notebook is not one of ours."""
    names = resources["nbgrader"]
    try:
        rubric = find_rubric(names["assignment"])
    except RubricError:
        return None
    return rubric if names["notebook"] == rubric.lab else None
