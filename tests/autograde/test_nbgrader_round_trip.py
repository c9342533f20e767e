"""Stock nbgrader commands on a tiny lab, mixed with ours, as an instructor would type them."""

import html
import re
import subprocess
import sys
from pathlib import Path

import nbformat
from fake_runs import LAB, REPOSITORY, source_notebook
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI

from autograde.batch import grade_lab
from autograde.gradebook import nbgrader_settings

BIN = Path(sys.executable).parent


def nbgrader(course, *arguments):
    """Run a stock command in the course's root; PATH lacks the environment's programs, as for `.venv/bin/nbgrader`."""
    done = subprocess.run(
        [BIN / "nbgrader", *arguments],
        cwd=course.parent,
        env={"PATH": "/usr/bin:/bin", "HOME": str(course.parent), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def scores(course, student):
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "distributed-training") as gradebook:
        submission = gradebook.find_submission(LAB, student)
        return {grade.name: grade.auto_score for grade in submission.notebooks[0].grades}


def feedback(course, student):
    return (course / "feedback" / student / LAB / f"{LAB}.html").read_text()


def test_generate_and_validate(fresh_course):
    course = fresh_course
    run = course.parent / "labs" / LAB / "run"
    run.mkdir()
    (run / "run.json").write_text("the instructor's own")
    nbgrader(course, "generate_assignment", LAB)
    release = course / "release" / LAB
    assert [path.name for path in release.iterdir()] == [f"{LAB}.ipynb"]
    assert "return 2 * x" not in (release / f"{LAB}.ipynb").read_text()
    assert "passes all the tests" in nbgrader(course, "validate", f"labs/{LAB}/{LAB}.ipynb")
    assert "failed" in nbgrader(course, "validate", f"course/release/{LAB}/{LAB}.ipynb")


def test_either_order_gives_the_same_scores_and_the_feedback_tells_why(fresh_course, submit, make_run):
    course = fresh_course
    submit("ada", make_run())
    spoilt = make_run()
    spoilt.lines[1] = "<script>alert('x')</script> $$x$$ [a](javascript:b)"
    submit("bob", spoilt, answer="def double(x):\n    return x")
    # The student's cell prints and ends well, which stock nbgrader takes for full marks.
    expected = {
        "ada": {"run-evidence": 20, "ex-double": 5, "q-why": None},
        "bob": {"run-evidence": 17, "ex-double": 0, "q-why": None},
    }

    grade_lab("1", course)  # ours first: makes the assignment too
    nbgrader(course, "autograde", LAB)
    assert {student: scores(course, student) for student in expected} == expected

    grade_lab("1", course)  # ours again, after
    assert {student: scores(course, student) for student in expected} == expected

    nbgrader(course, "generate_feedback", LAB)
    page = feedback(course, "bob")
    assert "Run evidence: 17 of 20 points" in page
    assert "assessment.out line 2" in html.unescape(page)
    assert "<script>alert(" not in page
    assert 'href="javascript:' not in page
    assert "Run evidence: 20 of 20 points" in feedback(course, "ada")

    # What formgrader lists.
    listed = NbGraderAPI(config=nbgrader_settings(course)).get_submissions(LAB)
    assert {row["student"]: (row["score"], row["max_score"], row["needs_manual_grade"]) for row in listed} == {
        "ada": (25, 28, True),  # the question waits for a person
        "bob": (17, 28, True),
    }

    # A later submission is graded by either command, and the feedback follows.
    make_run([0.5] * 8, stopped_early=False).write(course / "submitted" / "ada" / LAB)
    nbgrader(course, "autograde", LAB, "--student", "ada", "--force")
    assert scores(course, "ada") == expected["ada"] | {"run-evidence": 15}
    (course / "submitted" / "ada" / LAB / "run" / "run.json").unlink()
    grade_lab("1", course, ["ada"])
    nbgrader(course, "generate_feedback", LAB, "--student", "ada", "--force")
    assert "run/run.json is missing" in feedback(course, "ada")


def test_a_comment_on_an_answer_cell_is_escaped_in_the_feedback(fresh_course, submit, make_run):
    # There nbgrader shows the stored comment through Markdown, which lets raw HTML through.
    def change(notebook):
        notebook.cells[-1].metadata.nbgrader |= {"solution": True, "locked": False}
        return notebook

    course = fresh_course
    source = course.parent / "labs" / LAB / f"{LAB}.ipynb"
    nbformat.write(change(source_notebook()), source)
    spoilt = make_run()
    spoilt.lines[1] = "<img src=x onerror=alert(1)> </pre><script>alert(2)</script> `<b>`"
    folder = submit("bob", spoilt)
    handed_in = change(source_notebook())
    handed_in.cells[1].source = "def double(x):\n    return 2 * x"
    nbformat.write(handed_in, folder / f"{LAB}.ipynb")
    grade_lab("1", course)
    nbgrader(course, "autograde", LAB)
    assert scores(course, "bob")["run-evidence"] == 17
    nbgrader(course, "generate_feedback", LAB)
    page = feedback(course, "bob")
    assert re.search(r"<b>Comments:</b>\s*<pre><code>Run evidence: 17 of 20 points", page)
    assert "<img src=x" not in page and "<script>alert(" not in page
