"""The instructor's HTML pages: the class, each student, and similar submissions; no scripts, nothing fetched.

Everything that came from a student passes through Jinja's escaping; the pages' own policy forbids scripts and loading.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment

from autograde.gradebook.hand_marks import HandMark, read_hand_marks
from autograde.gradebook.regrade_answers import requests_and_answers
from autograde.gradebook.scores import CourseError, LabPoints, lab_points, nbgrader_settings, open_gradebook
from autograde.reports.export.scores import StudentScore, read_scores
from autograde.reports.report.class_results import ClassResults, read_verdicts
from autograde.reports.report.pages import Compared, environment, remove_stale, similarity_page
from autograde.reports.similarity.blind_spots import blind_spots
from autograde.reports.similarity.comparison import compare, compare_with_library
from autograde.reports.similarity.submissions import flag_alike, read_answers
from autograde.rubric.schema import RUBRICS, Rubric, find_rubric
from autograde.sandbox.withheld import WithheldError, original_sources
from autograde.submission.regrade_request import RegradeRequest, regrade_requests
from course_lib.system.atomic import write_atomically

__all__ = ["ReportError", "write_report"]


class ReportError(RuntimeError):
    """The report cannot be written; one line that names the thing and the remedy."""


def write_report(
    labs: list[str], course: str | os.PathLike[str], out: str | os.PathLike[str], rubrics: Path = RUBRICS
) -> Path:
    """Write one page about the class, and a page about each student, from the verdicts that `grade_lab` saved.

    The submissions are compared with each other, which gives a third page, ``LAB_similarity.html``, and flags.

    The students' pages are ``LAB/STUDENT.html`` beside `out`. Pages of students without a verdict are removed from
    there. All pages are drawn before one is written, and the class's page is written after those that it links to.

    Parameters
    ----------
    labs : list of str
        Each ``1``, ``01`` or ``01_single_gpu``; the page has one part for each.
    out : path
        The class's page; it and the students' pages are each replaced as a whole.
    rubrics : Path
        The folder of the rubrics that the labs were graded by.

    Returns `out`.

    Raises
    ------
    RubricError
        A lab without a usable rubric.
    ReportError
        No verdicts on a lab, or a page cannot be written.
    """
    course, out = Path(course), Path(out)
    jinja = environment()
    pages: dict[Path, str] = {}
    results: list[ClassResults] = []
    similarity: dict[str, str] = {}  # the links to these pages
    for rubric in [find_rubric(lab, rubrics) for lab in dict.fromkeys(labs)]:
        lab, page = _results(rubric, course, jinja)
        results.append(lab)
        if page is not None:
            path = out.parent / f"{rubric.lab}_similarity.html"
            pages[path] = page
            similarity[rubric.lab] = quote(path.name)  # a name with a colon in it would be read as a scheme
    jupyter = _jupyter(course)
    common = {"written": datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC"), "several_labs": len(results) > 1}
    for lab in results:
        students = [verdict.student for verdict in lab.verdicts]
        neighbours = zip([None, *students[:-1]], [*students[1:], None], strict=True)
        for verdict, (before, after) in zip(lab.verdicts, neighbours, strict=True):
            path = out.parent / lab.rubric.lab / f"{verdict.student}.html"
            links = _submission_links(lab, verdict.student, course, path.parent, jupyter)
            pages[path] = jinja.get_template("student.html").render(
                common,
                lab=lab,
                verdict=verdict,
                class_page=f"../{quote(out.name)}",
                before=before,
                after=after,
                links=links,
            )
    pages[out] = jinja.get_template("page.html").render(common, labs=results, similarity=similarity)
    path = out
    try:
        for path, html in pages.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, html)
        for lab in results:
            path = out.parent / lab.rubric.lab
            remove_stale(path, keep={page.name for page in pages if page.parent == path})
    except OSError as error:
        raise ReportError(f"{path} cannot be written ({error.strerror}); choose another place with -o FILE") from None
    return out


def _jupyter(course: Path) -> str:
    """The address of the Jupyter server that has formgrader, with a slash at its end."""
    # A hub tells its servers their own address; the course's service passes it to the terminal.
    address = os.environ.get("JUPYTERHUB_SERVICE_PREFIX") or "http://localhost:8888/"
    with suppress(CourseError):  # as in `_in_gradebook`
        address = str(nbgrader_settings(course).get("ReportLinks", {}).get("jupyter", address))
    return address.rstrip("/") + "/"


def _submission_links(
    lab: ClassResults, student: str, course: Path, folder: Path, jupyter: str
) -> list[tuple[str, str]]:
    """Text and address of what there is of a submission to read; `folder` is that of the page."""
    name = lab.rubric.lab
    files = {"Notebook": ("autograded", f"{name}.ipynb"), "Feedback, with the code": ("feedback", f"{name}.html")}
    paths = {text: course / step / student / name / file for text, (step, file) in files.items()}
    links = [(text, quote(os.path.relpath(path, folder))) for text, path in paths.items() if path.is_file()]
    score = lab.in_gradebook.get(student)
    if score is not None and score.page:
        links.append(("Formgrader", f"{jupyter}formgrader/submissions/{quote(score.page)}/"))
    return links


def _results(rubric: Rubric, course: Path, jinja: Environment) -> tuple[ClassResults, str | None]:
    """A lab's results, and the page on similar submissions; None where they cannot be compared."""
    verdicts, unreadable = read_verdicts(rubric.lab, course)
    if not verdicts:
        why = f"; {unreadable[0]}" if unreadable else f"; run `lab grade {rubric.lab}` first"
        raise ReportError(f"no verdicts on {rubric.lab} in {course}{why}")
    page = None
    try:
        code, words = read_answers(rubric.lab, course, [verdict.student for verdict in verdicts])
        in_code, in_words = compare(*code), compare(*words, in_words=True)
        page = similarity_page(
            jinja,
            Compared(in_code, code.answers, blind_spots(in_code, len(verdicts), len(code.starter))),
            Compared(in_words, words.answers, blind_spots(in_words, len(verdicts), len(words.starter), True), True),
        )
        verdicts = flag_alike(verdicts, in_code.flagged)
        verdicts = flag_alike(verdicts, in_words.flagged, what="answers in words")
        library = original_sources(rubric.execution.withheld)
        verdicts = flag_alike(verdicts, matches=compare_with_library(*code, library))
    except (CourseError, WithheldError) as error:
        unreadable = [*unreadable, f"submissions were not compared with each other: {error}"]
    points, scores, problems = _in_gradebook(course, rubric)
    requests, problem = _requests(course, rubric.lab, [verdict.student for verdict in verdicts])
    marks: dict[str, list[HandMark]] = {}
    for mark in _hand_marks(course, rubric.lab):
        marks.setdefault(mark.student, []).append(mark)
    return ClassResults(rubric, verdicts, unreadable + problems + problem, points, scores, requests, marks), page


def _requests(
    course: Path, lab: str, students: list[str]
) -> tuple[list[tuple[str, RegradeRequest, bool]], list[str]]:
    """The requests for a regrade, and whether each is answered; a line if that is not known."""
    found = [(student, each) for student in students for each in regrade_requests(course / "submitted" / student / lab)]
    if not found:
        return [], []
    try:
        with open_gradebook(nbgrader_settings(course), existing=True) as gradebook:
            return requests_and_answers(gradebook, course, lab, students), []
    except CourseError as error:
        return [(*each, False) for each in found], [f"which requests for a regrade are answered: {error}"]


def _hand_marks(course: Path, lab: str) -> list[HandMark]:
    with suppress(CourseError), open_gradebook(nbgrader_settings(course), existing=True) as gradebook:
        return read_hand_marks(gradebook, lab, overridden=True)
    return []


def _in_gradebook(course: Path, rubric: Rubric) -> tuple[LabPoints | None, dict[str, StudentScore], list[str]]:
    """How the lab's points divide, the scores by student, and a line if they cannot be read."""
    # A course whose gradebook is elsewhere still gets its pages, without the points that are given by hand.
    points = None
    try:
        if not (course / "gradebook.db").exists():
            return None, {}, []
        points = lab_points(nbgrader_settings(course), rubric)
        students = read_scores(course, rubric.lab).students if points else ()
        return points, {each.student: each for each in students}, []
    except CourseError as error:
        return points, {}, [f"lateness and extensions: {error}"]
