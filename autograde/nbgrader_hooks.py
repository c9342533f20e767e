"""Steps of ours inside nbgrader's own commands, put there by ``nbgrader_config.py``.

`KeepVerdict` keeps ``nbgrader autograde`` from scoring the rubric's cells by what they printed; `ShowReasons` puts the
reasons where a student reads them, in ``nbgrader generate_feedback``. See `autograde.gradebook` for why.
`markdown_without_html` keeps what a student wrote in a Markdown cell from being markup of the page that shows it.
"""

from __future__ import annotations

import atexit
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from textwrap import dedent

from jinja2 import pass_context
from jinja2.runtime import Context
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor

from .autograded import show_verdict, submitted_at
from .bench import Bench, course_secret, source_notebook
from .gradebook import record_verdict, stored_comment
from .grading import failed_verdict, grade_submission, submission_digest
from .rubric import Rubric, RubricError, find_rubric
from .sandbox import missing_sandbox
from .verdict import Verdict, load_verdict, verdict_path
from .warm import WarmInterpreter

__all__ = ["KeepVerdict", "ShowReasons", "markdown_without_html"]


class KeepVerdict(NbGraderPreprocessor):
    """After `SaveAutoGrades`: the rubric's cells get their scores from a verdict, not from the cells' outputs.

    A verdict that `lab grade` saved of this very submission is taken as it is; otherwise the submission is graded now.
    Without a sandbox on this machine the exercises keep nbgrader's scores, and only the run evidence is ours.
    """

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Write the scores of one of our labs; other notebooks stay as they are."""
        rubric = _rubric(resources)
        if rubric is None:
            return nb, resources
        student = resources["nbgrader"]["student"]
        directories = CourseDirectory(config=self.config)
        # From submitted/, since nbgrader copied what lies in autograded/ through the student's links.
        submission = Path(directories.format_path(directories.submitted_directory, student, rubric.lab))
        verdict = self._verdict(rubric, student, directories, submission)
        with Gradebook(resources["nbgrader"]["db_url"]) as gradebook:
            record_verdict(gradebook, verdict, submitted_at(submission))
        self.log.info("%s: %g of %g points by the rubric", student, verdict.score, verdict.max_score)
        show_verdict(nb, verdict)
        return nb, resources

    def _verdict(self, rubric: Rubric, student: str, directories: CourseDirectory, submission: Path) -> Verdict:
        try:
            source = directories.format_path(directories.source_directory, ".", rubric.lab)
            course = Path(directories.root, directories.submitted_directory).resolve().parent
            bench = _bench(rubric.lab, course, Path(source) / f"{rubric.lab}.ipynb")
            saved = _saved(course, student, rubric)
            digests = {"submission": submission_digest(submission, rubric), **bench.digests}
            if saved is not None and digests.items() <= saved.digests.items():
                return saved
            verdict = grade_submission(bench, submission, student).verdict
        except Exception as error:
            verdict = failed_verdict(rubric, student, f"the submission could not be graded ({type(error).__name__})")
        return verdict


def _saved(course: Path, student: str, rubric: Rubric) -> Verdict | None:
    try:
        return load_verdict(verdict_path(course, student, rubric.lab))
    except ValueError:
        return None


@cache
def _bench(lab: str, course: Path, source: Path) -> Bench:
    missing = missing_sandbox()
    bench = Bench(
        find_rubric(lab), source_notebook(source), course_secret(course), None if missing else WarmInterpreter()
    )
    if missing:
        bench.rubric = replace(bench.rubric, exercises=())
    atexit.register(bench.close)
    return bench


class ShowReasons(NbGraderPreprocessor):
    """In the feedback: the output of each of the rubric's cells is its reasons, as the gradebook has them now."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Replace the outputs of the cells for which there are reasons."""
        rubric = _rubric(resources)
        if rubric is None:
            return nb, resources
        student = resources["nbgrader"]["student"]
        names = rubric.cells
        with Gradebook(resources["nbgrader"]["db_url"]) as gradebook:
            for cell in nb.cells:
                name = cell.metadata.get("nbgrader", {}).get("grade_id")
                if cell.cell_type != "code" or name not in names:
                    continue
                if text := stored_comment(gradebook, name, rubric.lab, student):
                    cell.outputs = [new_output("stream", name="stdout", text=dedent(text) + "\n")]
        return nb, resources


# The labs' hints fold; without attributes these do nothing else.
_HARMLESS = re.compile(r"&lt;(/?(?:details|summary))&gt;")


class _WithoutHTML(IPythonRenderer):
    def block_html(self, html: str) -> str:
        return self.inline_html(html)

    def inline_html(self, html: str) -> str:
        return _HARMLESS.sub(r"<\1>", self.escape_html(html))


@pass_context
def markdown_without_html(context: Context, source: str) -> str:
    """nbconvert's ``markdown2html``, which lets raw HTML through, without that: tags are shown as they were typed.

    nbgrader's templates use the filter for every Markdown cell and every comment, and do not look at
    ``HTMLExporter.sanitize_html``. Markdown itself, mathematics and images stay, and so does ``<details>``.
    """
    attachments = context.get("cell", {}).get("attachments", {})
    renderer = _WithoutHTML(
        escape=True, allow_harmful_protocols=False, attachments=attachments, exclude_anchor_links=True
    )
    return MarkdownWithMath(renderer=renderer).render(source)


def _rubric(resources: dict) -> Rubric | None:
    names = resources["nbgrader"]
    try:
        rubric = find_rubric(names["assignment"])
    except RubricError:
        return None  # an assignment that is not one of ours
    return rubric if names["notebook"] == rubric.lab else None
