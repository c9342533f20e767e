"""Two steps of ours inside nbgrader's own commands, put there by ``nbgrader_config.py``.

`GradeRunEvidence` keeps ``nbgrader autograde`` from scoring the evidence cell by its output; `ShowRunEvidence` puts the
reasons where a student reads them, in ``nbgrader generate_feedback``. See `autograde.gradebook` for why.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor

from .gradebook import record_verdict, stored_comment
from .grading import failed_verdict, grade_submission
from .rubric import Rubric, RubricError, find_rubric
from .verdict import Verdict

__all__ = ["GradeRunEvidence", "ShowRunEvidence"]


class GradeRunEvidence(NbGraderPreprocessor):
    """After `SaveAutoGrades`: the evidence cell's score comes from the run folder, not from the cell's output."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Grade the submission's run folder and write the score; other notebooks and cells stay as they are."""
        rubric = _rubric(resources)
        if rubric is None:
            return nb, resources
        student = resources["nbgrader"]["student"]
        verdict = self._grade(rubric, student)
        with Gradebook(resources["nbgrader"]["db_url"]) as gradebook:
            record_verdict(gradebook, verdict)
        self.log.info("run evidence of %s: %g of %g points", student, verdict.score, verdict.max_score)
        _show(nb, rubric, verdict.comment())
        return nb, resources

    def _grade(self, rubric: Rubric, student: str) -> Verdict:
        # From submitted/, since nbgrader copied what lies in autograded/ through the student's links.
        directories = CourseDirectory(config=self.config)
        try:
            submission = directories.format_path(directories.submitted_directory, student, rubric.lab)
            return grade_submission(rubric, Path(submission), student)
        except Exception as error:
            return failed_verdict(rubric, student, f"the submission could not be found ({type(error).__name__})")


class ShowRunEvidence(NbGraderPreprocessor):
    """In the feedback: the evidence cell's output is the reasons, as the gradebook has them now."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Replace the evidence cell's output by the stored reasons, where there are any."""
        rubric = _rubric(resources)
        if rubric is not None:
            with Gradebook(resources["nbgrader"]["db_url"]) as gradebook:
                text = stored_comment(gradebook, rubric.cell, rubric.lab, resources["nbgrader"]["student"])
            if text:
                _show(nb, rubric, text)
        return nb, resources


def _rubric(resources: dict) -> Rubric | None:
    names = resources["nbgrader"]
    try:
        rubric = find_rubric(names["assignment"])
    except RubricError:
        return None  # an assignment that is not one of ours
    return rubric if names["notebook"] == rubric.lab else None


def _show(nb: NotebookNode, rubric: Rubric, text: str) -> None:
    for cell in nb.cells:
        if cell.cell_type == "code" and cell.metadata.get("nbgrader", {}).get("grade_id") == rubric.cell:
            cell.outputs = [new_output("stream", name="stdout", text=dedent(text) + "\n")]
