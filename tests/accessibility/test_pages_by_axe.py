"""axe-core finds nothing against WCAG 2.1 A and AA, or good practice, on what the course shows in a browser."""

import base64
import importlib.util
import io
import subprocess
import sys
from datetime import datetime

import nbformat
import pytest
from fake_class import FINAL, LAB, OTHER, RETURNS, UPDATE, verdict, write_rubrics
from nbformat.v4 import new_output
from PIL import Image

from autograde.gradebook.hand_marks import HandMark
from autograde.reports.answers import Answer, Question
from autograde.reports.answers.page import answers_page
from autograde.reports.course import CourseResults, course_page
from autograde.reports.export.scores import LabScores, StudentScore
from autograde.reports.leaderboard import Board, Entry, board_page
from autograde.reports.reading.page import render
from autograde.reports.report import write_report
from autograde.reports.report.pages import Compared, environment, similarity_page
from autograde.reports.similarity.comparison import AnswerMatch, Fragment, Pair, Similarity
from autograde.rubric.schema import find_rubric
from autograde.rubric.verdict import Flag, RunSummary

pytestmark = pytest.mark.browser


@pytest.fixture(scope="session")
def found(chromium):
    """Gives what axe finds on pages, by page, in both colour schemes; pages without findings are left out."""
    pytest.importorskip("axe_playwright_python", reason="needs axe-core: pip install -e '.[browser]'")
    from axe import findings

    def found(*paths):
        lines = {}
        for scheme in ("light", "dark"):
            context = chromium.new_context(color_scheme=scheme)
            page = context.new_page()
            page.set_default_timeout(120_000)
            lines |= {f"{path.name}, {scheme}": found for path in paths if (found := findings(page, path))}
            context.close()
        return lines

    return found


def test_what_axe_must_find_is_found(found, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text("<title>t</title><main><h1>h</h1><img src='x'><p style='color:#999'>grey</p></main>")
    rules = {line.partition(":")[0] for line in found(page)["bad.html, light"]}
    assert rules == {"html-has-lang", "image-alt", "color-contrast"}


def test_the_class_report_and_the_students_pages(found, tmp_path, monkeypatch):
    rubrics = write_rubrics(tmp_path / "rubrics")
    monkeypatch.setattr("autograde.reports.report.find_rubric", lambda lab, *_: rubrics[lab])
    for lab in (LAB, OTHER):
        verdict("ada", lab=lab).save(tmp_path)
        verdict("bob", [FINAL], lab=lab, flags=(Flag("crash", "x"),), sandbox="none").save(tmp_path)
        verdict("eve", [FINAL, UPDATE, RETURNS], lab=lab, run=RunSummary()).save(tmp_path)
    write_report([LAB, OTHER], tmp_path, tmp_path / "reports" / "page.html")
    pages = sorted((tmp_path / "reports").rglob("*.html"))
    assert len(pages) == 1 + 2 * 3 + 2
    assert found(*pages) == {}


def test_similar_submissions(found, tmp_path):
    match = AnswerMatch("ex-train-step", 0.9, 50.0, (Fragment((1, 2), (2, 3), 30, 2),))
    result = Similarity(12, 12, 0.1, 0.5, (Pair("ada", "bob", 0.9, 50.0, (match,)),))
    code = {"ex-train-step": "a = 1\nb = 2\nc = 3"}
    page = tmp_path / "similar.html"
    page.write_text(similarity_page(environment(), Compared(result, {"ada": code, "bob": code})))
    assert found(page) == {}


def test_all_answers_and_the_course(found, tmp_path):
    rubrics = write_rubrics(tmp_path / "rubrics")
    marked = HandMark("ada", "q-why", 5, None, 2.5, "half\n- and b?", waits=False)
    answers = (Answer(marked, "Near 200.\nSee b."), Answer(HandMark("bob", "q-why", 5), "cold"))
    questions = [
        Question(
            "q-why",
            5,
            "Why?",
            "*Key*\n\n" + 200 * "Because.\n",
            (*answers, Answer(HandMark("eve", "q-why", 5, 0.0), "")),
        )
    ]
    (tmp_path / "answers.html").write_text(answers_page(rubrics[LAB], questions, "answers.csv"))
    late = StudentScore("ada", "L", "A", None, True, raw=8, penalty=2, seconds_late=9e4, unread=1, unread_points=5)
    scores = (late, StudentScore("bob", None, None, None))
    labs = tuple(LabScores(lab, datetime(2026, 11, 20), 20.0, scores) for lab in (LAB, OTHER))
    page = course_page(CourseResults(labs, datetime(2026, 11, 26)), {f"{LAB}.html", f"{LAB}/ada.html"})
    (tmp_path / "course.html").write_text(page)
    assert found(tmp_path / "answers.html", tmp_path / "course.html") == {}


def test_the_leaderboard(found, tmp_path):
    rows = (Entry("Grace", "ada", 0.9, 0.01, 900.0, rank=1), Entry("reference", "", 0.8, steps=1000.0))
    page = tmp_path / "leaderboard.html"
    page.write_text(board_page(find_rubric("12"), Board(rows, rows, ())))
    assert found(page) == {}


def test_the_feedback_of_a_lab(found, tmp_path, repository):
    picture = io.BytesIO()
    Image.new("RGB", (40, 30)).save(picture, "PNG")
    notebook = nbformat.read(repository / "labs" / "01_single_gpu" / "01_single_gpu.ipynb", as_version=4)
    graded = [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade")]
    for cell in graded:
        cell.metadata.nbgrader.update(score=1, comment="Read it *again*.")
    graded[-1].metadata.nbgrader.unread = True
    checked = next(cell for cell in graded if cell.cell_type == "code")
    data = {"image/png": base64.b64encode(picture.getvalue()).decode(), "text/plain": "a figure, described"}
    checked.outputs = [
        new_output("stream", name="stdout", text="0 of 3  \x1b[31mnot right\x1b[0m \x1b[33mor\x1b[0m\n"),
        new_output("stream", name="stderr", text="a warning"),
        new_output("display_data", data),
    ]
    names = {
        "notebook": "01_single_gpu",
        "score": 1,
        "max_score": 60,
        "late_penalty": 2,
        "unread": 1,
        "unread_points": 4,
    }
    page = tmp_path / "feedback.html"
    page.write_text(render("course_feedback", notebook, {"nbgrader": names}, []))
    assert 'alt="a figure, described"' in page.read_text()
    assert found(page) == {}


@pytest.mark.slow
def test_the_site(found, tmp_path, repository):
    if importlib.util.find_spec("furo") is None:
        pytest.skip("the site's generator is not installed: `make docs` installs it")
    folder = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, repository / "docs/site/build.py", "-o", folder], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    pages = sorted(folder.rglob("*.html"))
    assert len(pages) > 40
    assert found(*pages) == {}
