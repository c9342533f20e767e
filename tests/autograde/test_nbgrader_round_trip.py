"""Stock nbgrader commands, mixed with ours, as an instructor would type them; and what their pages show."""

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import nbformat
import pytest
from fake_runs import (
    AUTOMATIC,
    BY_HAND,
    CHECKS,
    HONEST_RUN,
    LAB,
    REPOSITORY,
    RUN,
    hand_in_to,
    lab_path,
    lay_out,
    open_book,
    solved_notebook,
)
from jupyter_client.provisioning import KernelProvisionerFactory
from nbgrader.apps.api import NbGraderAPI
from nbgrader.validator import Validator
from traitlets.config import Config

from autograde.batch.grade_lab import grade_lab
from autograde.commands import nbgrader_hooks
from autograde.gradebook.scores import nbgrader_settings
from autograde.reports.reading.feedback import FeedbackPages, page_or_scores
from autograde.sandbox.bubblewrap import missing_sandbox
from course_lib.runs.warm_kernels import WarmServer

BIN = Path(sys.executable).parent
SYSTEM = "/usr/bin:/bin"
STOCK = """
c = get_config()
c.CourseDirectory.course_id = "distributed-training"
c.CourseDirectory.source_directory = "labs"
c.Execute.timeout = c.ExecutePreprocessor.timeout = 900
for step in ("release", "submitted", "autograded", "feedback"):
    setattr(c.CourseDirectory, step + "_directory", "course/" + step)
c.CourseDirectory.db_url = "sqlite:///course/gradebook.db"
"""
FULL = CHECKS | {"run-evidence": RUN}
LOST = {"check-train-step": 0}  # of one whose train_step raises


def nbgrader(course, *arguments, path=SYSTEM):
    """Run a stock command in the course's root; PATH lacks the environment's programs, as for `.venv/bin/nbgrader`."""
    done = subprocess.run(
        [BIN / "nbgrader", *arguments],
        cwd=course.parent,
        env={
            "PATH": path,
            "HOME": str(course.parent),
            "PYTHONPATH": str(REPOSITORY),
            "OMP_WAIT_POLICY": os.environ["OMP_WAIT_POLICY"],
        },
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def succeeded(answer):
    """Take the answer of nbgrader's own interface to a command's work, which spares the command's start."""
    assert answer["success"], answer


def feedback_again(course, student=None):
    succeeded(NbGraderAPI(config=nbgrader_settings(course)).generate_feedback(LAB, student, force=True))


@pytest.fixture
def autograde_again(warm_server, monkeypatch):
    """The same for `nbgrader autograde --force`, in kernels that are forks of the warm process."""
    monkeypatch.setattr(WarmServer, "shared", lambda: warm_server)
    monkeypatch.setattr(KernelProvisionerFactory.instance(), "default_provisioner_name", "lab-warm")

    def autograde_again(course, student, create=False):
        grader = NbGraderAPI(config=nbgrader_settings(course))
        succeeded(grader.autograde(LAB, student, force=True, create=create))

    return autograde_again


def scores(course, student):
    with open_book(course) as gradebook:
        submission = gradebook.find_submission(LAB, student)
        return {grade.name: grade.score for grade in submission.notebooks[0].grades if not grade.needs_manual_grade}


def feedback(course, student):
    return (course / "feedback" / student / LAB / f"{LAB}.html").read_text()


def formgrader(course, student):
    """What formgrader's handler shows of the notebook in autograded/."""
    resources = {"assignment_id": LAB, "notebook_id": LAB, "submission_id": "0", "index": 0, "total": 1}
    resources |= {"student": student, "last_name": None, "first_name": None, "nonce": "N", "base_url": "/"}
    names = {"notebook": LAB, "assignment": LAB, "student": student, "db_url": f"sqlite:///{course / 'gradebook.db'}"}
    path = course / "autograded" / student / LAB / f"{LAB}.ipynb"
    wanted = ["nbgrader.preprocessors.GetGrades"]
    page, problem = page_or_scores("course_formgrade", str(path), resources | {"nbgrader": names}, wanted)
    assert problem == ""
    return page


def keep(notebook):
    """Lab 01 without what takes long: stock nbgrader executes all of it."""
    kept = [
        cell
        for cell in notebook.cells
        if cell.cell_type == "markdown" or "nbgrader" in cell.metadata or cell.id in ("parameters", "setup")
    ]
    for cell in kept:
        if cell.id == "setup":
            cell.source = "\n".join(line for line in cell.source.splitlines() if not line.startswith("warm_up()"))
    notebook.cells = kept
    return notebook


@pytest.fixture
def short_course(new_lab_course):
    """A course of lab 01 without its experiments, which nbgrader does not yet know."""
    source = keep(nbformat.read(lab_path(), as_version=4))
    nbformat.write(source, new_lab_course.parent / "labs" / LAB / f"{LAB}.ipynb")
    return new_lab_course


def wrong_notebook():
    """Right on everything but train_step, with one question answered."""
    raises = "def train_step(model, images, labels, optimizer, loss_fn):\n    raise ValueError('<b>not yet</b>')"
    return keep(solved_notebook({"q-knee": "At $9a/b$.", "ex-train-step": raises}))


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
    released = Validator(config=nbgrader_settings(course)).validate(str(release / f"{LAB}.ipynb"))
    assert released["failed"]


def test_either_order_gives_the_same_scores_and_the_pages_tell_why(short_course, hand_in, graded_here, autograde_again):
    course = short_course
    hand_in("ada", keep(solved_notebook()))
    folder = hand_in("bob", wrong_notebook())
    text = (HONEST_RUN / "assessment.out").read_text().splitlines()
    text[1] = "no line of an epoch"
    (folder / "run" / "assessment.out").write_text("\n".join(text) + "\n")
    # In what a student runs, the cell that checks the run folder fails; bob's first cell, and ada's, end well.
    expected = {
        "ada": {**FULL, "q-knee": 0, "q-first-epoch": 0},
        "bob": {**FULL, **LOST, "run-evidence": RUN - 1, "q-first-epoch": 0},
    }

    grade_lab("1", course)  # ours first: makes the assignment too
    assert {student: scores(course, student) for student in expected} == expected
    feedback_again(course)
    for page in (feedback(course, "bob"), formgrader(course, "bob")):
        shown = html.unescape(page)
        assert "9 of 10 points" in shown and "assessment.out line 2" in shown
        assert "your function raised: ValueError: '<b>not yet</b>'" in shown
        assert "0 of 6 points" in shown and "10 of 10 points" in shown  # the loop is judged by itself
        assert shown.count("7 of 7 points") == list(CHECKS.values()).count(7)
    assert "10 of 10 points" in feedback(course, "ada") and "6 of 6 points" in feedback(course, "ada")

    for student in expected:
        autograde_again(course, student)
    assert {student: scores(course, student) for student in expected} == expected
    feedback_again(course)
    assert "9 of 10 points" in feedback(course, "bob")

    grade_lab("1", course, ["bob"], force=True)  # ours again, after
    assert scores(course, "bob") == expected["bob"]

    # What formgrader lists.
    listed = NbGraderAPI(config=nbgrader_settings(course)).get_submissions(LAB)
    assert {row["student"]: (row["score"], row["max_score"], row["needs_manual_grade"]) for row in listed} == {
        "ada": (AUTOMATIC, AUTOMATIC + BY_HAND, False),  # no question is answered
        "bob": (AUTOMATIC - 7, AUTOMATIC + BY_HAND, True),  # one waits for a person
    }

    # A later submission is graded by our command, and the feedback follows.
    (course / "submitted" / "ada" / LAB / "run" / "run.json").unlink()
    (course / "submitted" / "ada" / LAB / f"{LAB}.ipynb").write_text("{")
    grade_lab("1", course, ["ada"])
    feedback_again(course, "ada")
    assert "run/run.json is missing" in feedback(course, "ada") and "is not JSON" in feedback(course, "ada")


def test_each_part_of_the_feedback_links_to_where_a_regrade_is_asked_for(short_course, hand_in, graded_here):
    hand_in("zoë.m", wrong_notebook())
    grade_lab("1", short_course)
    feedback_again(short_course)
    assert "regrade.txt" in feedback(short_course, "zoë.m") and "ask for a regrade" not in feedback(short_course, "zoë.m")
    with (short_course.parent / "nbgrader_config.py").open("a") as config:
        config.write('\nc.FeedbackPages.regrade = "https://forms.edu/new?s={student}&l={lab}&p={part}&again={lab}"\n')
    feedback_again(short_course)
    page = feedback(short_course, "zoë.m")
    links = [html.unescape(link) for link in re.findall(r'<a href="([^"]*)"[^>]*>ask for a regrade</a>', page)]
    asked = [parse_qs(urlsplit(link).query) for link in links]
    parts = {*scores(short_course, "zoë.m"), "q-knee"}
    assert {each["p"][0] for each in asked} == parts and len(asked) == len(parts) > len(CHECKS)
    assert all(each["s"] == ["zoë.m"] and each["l"] == each["again"] == [LAB] for each in asked)
    assert "regrade.txt" not in page


@pytest.mark.parametrize("address", ["javascript:alert(1)", "http://a.edu/", "https://a.edu/{mark}", 'https://a.edu/">'])
def test_an_address_for_regrades_that_is_none_is_one_line_and_the_page_has_no_link(address):
    said = []
    pages = FeedbackPages(config=Config(FeedbackPages=Config(regrade=address)))
    pages.log = SimpleNamespace(error=lambda line, *values: said.append(line % values))
    assert pages._address({"student": "ada", "assignment": LAB}) == ""
    [line] = said
    assert "is no address https://" in line and "\n" not in line


def test_nbgrader_alone_gives_the_same_scores(short_course, hand_in, bench_of, autograde_again, monkeypatch):
    course = short_course
    monkeypatch.setattr(nbgrader_hooks, "_context", lambda lab, course, source: bench_of(course))
    folder = hand_in("bob", wrong_notebook())
    (folder / "timestamp.txt").write_text("2026-11-20 22:30:00 UTC")
    (folder / "run" / "model.safetensors").unlink()
    succeeded(NbGraderAPI(config=nbgrader_settings(course)).generate_assignment(LAB))
    autograde_again(course, "bob", create=True)
    # No weights back the run up: in stock nbgrader nobody would know.
    assert scores(course, "bob") == {**FULL, **LOST, "run-evidence": 0, "q-first-epoch": 0}
    with open_book(course) as gradebook:
        assert str(gradebook.find_submission(LAB, "bob").timestamp) == "2026-11-20 22:30:00"
        assert gradebook.find_grade("q-knee", LAB, LAB, "bob").needs_manual_grade


@pytest.mark.slow
@pytest.mark.skipif(missing_sandbox() is not None, reason=missing_sandbox() or "")
def test_stock_nbgrader_gives_the_same_score_in_every_cell(tmp_path):
    """A student who is right on everything and has trained well; stock nbgrader executes the whole lab."""
    parameters = json.loads((HONEST_RUN / "run.json").read_text())["parameters"]
    notebook = solved_notebook(dict.fromkeys(("q-knee", "q-first-epoch"), "An answer of my own."))
    cell = next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    cell.source += "".join(f"\n{name} = {value!r}" for name, value in parameters.items())
    grades = {}
    for name in ("ours", "stock"):
        (tmp_path / name).mkdir()
        course = lay_out(tmp_path / name)
        hand_in_to(course, "ada", notebook)
        if name == "ours":
            grade_lab("1", course)
            nbgrader(course, "autograde", LAB, "--force")  # as it is typed, in a kernel that starts cold; ours stay
        else:
            (course.parent / "nbgrader_config.py").write_text(STOCK)
            for command in ("generate_assignment", "autograde"):
                nbgrader(course, command, LAB, path=f"{BIN}:{SYSTEM}")
        with open_book(course) as gradebook:
            rows = gradebook.find_submission(LAB, "ada").notebooks[0].grades
            grades[name] = {row.name: (row.auto_score, row.needs_manual_grade) for row in rows}
    assert grades["ours"] == grades["stock"]
    assert sum(score or 0 for score, _ in grades["ours"].values()) == AUTOMATIC
