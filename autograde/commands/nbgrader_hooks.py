"""Our steps in nbgrader's commands; ``nbgrader_config.py`` installs them.

`AddSetUp` gives a release of ``nbgrader generate_assignment`` the set-up cell that ``lab start`` gives. `KeepVerdict` prevents ``nbgrader autograde`` from scoring the rubric's cells by what they printed; the reason is in
`autograde.gradebook.scores`. The steps of ``nbgrader generate_feedback`` are in `autograde.reports.reading.feedback`.
"""

from __future__ import annotations

import atexit
from dataclasses import replace
from functools import cache
from pathlib import Path

from nbformat import NotebookNode, from_dict
from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor

from autograde.gradebook.autograded import show_verdict, submitted_at
from autograde.gradebook.late_penalties import LatePenalties
from autograde.gradebook.scores import record_verdict
from autograde.grading.grading_context import GradingContext, course_secret, source_notebook
from autograde.grading.one_submission import failed_verdict, grade_submission, submission_digest
from autograde.grading.other_points import verdict_today
from autograde.reports.reading.feedback import rubric_of
from autograde.rubric.schema import Rubric, find_rubric
from autograde.rubric.verdict import Verdict, load_verdict, verdict_path
from autograde.sandbox.bubblewrap import missing_sandbox
from autograde.sandbox.warm import WarmInterpreter
from course_lib.runs.release_copy import set_up_cell

__all__ = ["AddSetUp", "KeepVerdict"]


class AddSetUp(NbGraderPreprocessor):
    """After nbgrader's own steps, so that its checks and its database see the assignment only."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Put the set-up cell on top of one of our labs; other notebooks stay as they are.

        Once: nbgrader's command reads the settings of the working folder twice, and appends this step twice.
        """
        if rubric_of(resources) is not None:
            cell = from_dict(set_up_cell(nb))
            cell.source = "".join(cell.source)
            if nb.cells[0].get("id") != cell.id:
                nb.cells.insert(0, cell)
        return nb, resources


class KeepVerdict(NbGraderPreprocessor):
    """After `SaveAutoGrades`: the rubric's cells get their scores from a verdict, not from the cells' outputs.

    A verdict that `lab grade` saved of this very submission is taken as it is; otherwise the submission is graded now.
    Without a sandbox on this machine the exercises keep nbgrader's scores, and only the run evidence is ours.
    """

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Write the scores of one of our labs; other notebooks stay as they are."""
        rubric = rubric_of(resources)
        if rubric is None:
            return nb, resources
        student = resources["nbgrader"]["student"]
        directories = CourseDirectory(config=self.config)
        # From submitted/: nbgrader followed the student's links when it copied to autograded/.
        submission = Path(directories.format_path(directories.submitted_directory, student, rubric.lab))
        verdict = self._verdict(rubric, student, directories, submission)
        with Gradebook(resources["nbgrader"]["db_url"]) as gradebook:
            # The penalty is nbgrader's next step; before it the extension must be where nbgrader looks for it.
            record_verdict(gradebook, verdict, submitted_at(submission), LatePenalties(self.config))
        self.log.info("%s: %g of %g points by the rubric", student, verdict.score, verdict.max_score)
        show_verdict(nb, verdict)
        return nb, resources

    def _verdict(self, rubric: Rubric, student: str, directories: CourseDirectory, submission: Path) -> Verdict:
        try:
            source = directories.format_path(directories.source_directory, ".", rubric.lab)
            course = Path(directories.root, directories.submitted_directory).resolve().parent
            context = _context(rubric.lab, course, Path(source) / f"{rubric.lab}.ipynb")
            saved = _saved(course, student, rubric)
            digests = {"submission": submission_digest(submission, rubric), **context.digests}
            if saved is not None and (kept := verdict_today(saved, digests, rubric)) is not None:
                return kept
            verdict = grade_submission(context, submission, student).verdict
        except Exception as error:
            verdict = failed_verdict(rubric, student, f"the submission could not be graded ({type(error).__name__})")
        return verdict


def _saved(course: Path, student: str, rubric: Rubric) -> Verdict | None:
    try:
        return load_verdict(verdict_path(course, student, rubric.lab))
    except ValueError:
        return None


@cache
def _context(lab: str, course: Path, source: Path) -> GradingContext:
    missing = missing_sandbox()
    context = GradingContext(
        find_rubric(lab), source_notebook(source), course_secret(course), None if missing else WarmInterpreter()
    )
    if missing:
        context.rubric = replace(context.rubric, exercises=())
    atexit.register(context.close)
    return context
