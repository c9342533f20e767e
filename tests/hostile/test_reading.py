"""Exhibits of `reading` through feedback, formgrader, the report and the tables: inert, and within bounds."""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from html.parser import HTMLParser
from pathlib import Path
from unittest import mock

import nbformat
import pytest
from exhibits import AUTOMATIC, CELLS, LAB, POINTS, REPOSITORY, SOURCE, Submission
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_raw_cell
from reading import MARK, READING, SHOWS

from autograde.gradebook.autograded import write_autograded
from autograde.gradebook.scores import ensure_assignment, nbgrader_settings, open_gradebook, record_verdict
from autograde.grading.one_submission import failed_verdict
from autograde.reports.reading.feedback import page_or_scores
from autograde.reports.reading.inert_html import HANDLERS, clean_fragment, clean_page
from autograde.reports.reading.page_process import PageServer
from autograde.reports.reading.student_content import StudentContent
from autograde.reports.report import write_report
from autograde.rubric.schema import find_rubric
from autograde.rubric.verdict import load_verdict, verdict_path
from autograde.sandbox.bubblewrap import missing_sandbox

BINARIES = Path(sys.executable).parent
BROKEN = "a-file-that-is-no-notebook"
STUDENTS = ["ada", BROKEN, *(name.replace("_", "-") for name in READING)]
SHOWS["ada"] = ("<em>Read</em>", "$a < b$")  # what a student may write stays


def small(notebook):
    """Only the cells that nbgrader and the rubric know: a page of them is made in a moment."""
    known = ("parameters", "setup")
    notebook.cells = [cell for cell in notebook.cells if "nbgrader" in cell.metadata or cell.id in known]
    return notebook


class Course:
    """A course of lab 01, graded by hand-made verdicts, in which everybody of `STUDENTS` has handed in."""

    def __init__(self, root: Path) -> None:
        self.root, self.course = root, root / "course"
        shutil.copy(REPOSITORY / "nbgrader_config.py", root)
        (root / "labs" / LAB).mkdir(parents=True)
        nbformat.write(small(nbformat.read(SOURCE, as_version=4)), root / "labs" / LAB / f"{LAB}.ipynb")
        self.course.mkdir()
        config, rubric = nbgrader_settings(self.course), find_rubric(LAB)
        ensure_assignment(config, rubric)
        with open_gradebook(config) as gradebook:
            for student in STUDENTS:
                submission = Submission(self.course / "submitted" / student / LAB)
                notebook = small(submission.notebook)
                notebook.cells = [c for c in notebook.cells if "nbgrader" in c.metadata and c.id != "run-program"]
                for name in ("q-knee", "q-first-epoch"):
                    submission.cell(name).source = "*Read* me: $a < b$."
                verdict = failed_verdict(rubric, student, f"a reason that quotes {MARK}")
                if change := READING.get(student.replace("-", "_")):
                    with mock.patch("nbformat.v4.nbbase.validate", lambda *_: None):  # some are no valid cells
                        change(notebook)
                path = write_autograded(self.course, verdict, nbformat.v4.new_notebook(), submission.folder)
                path.write_text("[" * 100_000 if student == BROKEN else json.dumps(notebook))
                verdict.save(self.course)
                record_verdict(gradebook, verdict)
            self.submissions = {
                student: gradebook.find_submission_notebook(LAB, LAB, student).id for student in STUDENTS
            }
        self.database = f"sqlite:///{self.course / 'gradebook.db'}"

    def feedback(self, student: str) -> Path:
        return self.course / "feedback" / student / LAB / f"{LAB}.html"

    def formgrader(self, student: str, server: PageServer) -> str:
        """The page that formgrader's handler writes."""
        path = self.course / "autograded" / student / LAB / f"{LAB}.ipynb"
        names = {"notebook": LAB, "assignment": LAB, "student": student, "db_url": self.database}
        resources = {
            "assignment_id": LAB, "notebook_id": LAB, "submission_id": "0", "index": 0, "total": 1, "base_url": "",
            "student": student, "last_name": None, "first_name": "</script>", "nonce": "N", "nbgrader": names,
        }  # fmt: skip
        wanted = ["nbgrader.preprocessors.GetGrades"]
        return page_or_scores("course_formgrade", str(path), resources, wanted, server)[0]


@pytest.fixture(scope="session")
def readers(tmp_path_factory):
    """The course, after ``nbgrader generate_feedback``: (course, the command's result)."""
    course = Course(tmp_path_factory.mktemp("reading"))
    done = subprocess.run(
        [BINARIES / "nbgrader", "generate_feedback", LAB], cwd=course.root, capture_output=True, text=True, timeout=540
    )
    return course, done


@pytest.fixture(scope="module")
def server():
    """Makes pages in bounded processes."""
    with contextlib.closing(PageServer()) as one:
        yield one


class Inert(HTMLParser):
    """Everything of a page that runs, loads, sends, or is a control."""

    ACTIVE = "script iframe object embed link base form svg math style video audio source frame frameset applet"
    CONTROLS = "input button textarea select"

    def __init__(self, page: str) -> None:
        super().__init__()
        self.active, self.controls, self.policy = [], [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        values = {name: value or "" for name, value in attributes}
        if tag == "meta" and values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"]
        if tag in self.ACTIVE.split():
            self.active.append(tag)
        if tag in self.CONTROLS.split():
            self.controls.append(values.get("id") or values.get("class"))
        for name, value in values.items():
            loads = name in ("src", "srcset", "poster", "data", "action", "background", "ping", "formaction")
            picture = name == "src" and re.fullmatch("data:image/(png|jpeg);base64,[A-Za-z0-9+/=]+", value)
            link = name == "href" and not re.match("(https?://|mailto:|#)", value)
            if name.startswith("on") or (loads and not picture) or link or "url(" in value or name == "srcdoc":
                self.active.append(f"{tag} {name}={value[:80]}")


def body(page):
    """What is sanitised: the page without its own head."""
    return page[page.index("<body") :]


def notebook_part(page):
    """formgrader's page without its head, bar and foot."""
    return page[page.index('id="notebook-container"') : page.rindex('<div class="help"')]


def not_shown(student, page):
    """What a student's page must say and does not."""
    return [text for text in SHOWS.get(student.replace("-", "_"), ()) if text not in html.unescape(page)]


def test_the_command_ends_well_and_names_each_page_that_is_not_whole(readers):
    course, done = readers
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if "without the notebook" in line]
    assert f"{BROKEN}: the page shows the scores without the notebook (it cannot be read (RecursionError))" in lines[0]
    assert len(lines) == sum("cannot be shown here" in course.feedback(student).read_text() for student in STUDENTS)
    assert all(course.feedback(student).is_file() for student in STUDENTS)


@pytest.mark.parametrize("student", STUDENTS)
def test_feedback(readers, student):
    page = readers[0].feedback(student).read_text()
    assert Inert(page).policy.startswith("default-src 'none'; img-src data:;")
    found = Inert(body(page))
    assert (found.active, found.controls) == ([], [])
    # Whatever was done to the page: its scores, its reasons, and what is not read yet.
    assert f"0 / {AUTOMATIC:g} points" in page and page.count("not read yet, 5 points") == 4
    assert "a reason that quotes" in page
    assert not_shown(student, page) == []
    assert not re.search(r"[^\x00-\x7f]{101}", page)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", page)
    assert len(page) < 24 << 20


# All bombs meet the same limits on a feedback page, which are those of formgrader's; here one of them does.
BOMBS = [student for student in STUDENTS if student.startswith("a-bomb") and student != "a-bomb-of-formulas"]


@pytest.mark.parametrize(
    "student", [pytest.param(student, marks=pytest.mark.slow if student in BOMBS else ()) for student in STUDENTS]
)
def test_formgrader(readers, server, student):
    page = readers[0].formgrader(student, server)
    found = Inert(notebook_part(page))
    assert found.active == []
    # nbgrader's own boxes, and no other.
    names = (*find_rubric(LAB).cells, "q-knee", "q-first-epoch")
    assert len(names) == 10
    for name in names:
        assert found.controls.count(name) == found.controls.count(f"{name}_extra_credit") == 1
    assert {each for each in found.controls if each.endswith("-comment")} >= {"q-knee-comment", "q-first-epoch-comment"}
    assert found.controls.count("q-knee-comment") == 1
    assert not_shown(student, page) == []
    # Each script is nbgrader's, and carries the answer's nonce; none comes from elsewhere.
    assert page.count("<script") - notebook_part(page).count("<script") == page.count('<script nonce="N"') > 5
    assert not re.findall(r'<script[^>]*src="(?!/formgrader/static/)', page)


def test_the_report_and_the_table(readers):
    course, _ = readers
    write_report([LAB], course.course, course.course / "reports" / "page.html")
    pages = list((course.course / "reports").rglob("*.html"))
    assert len(pages) > len(STUDENTS)
    for page in pages:
        text = page.read_text()
        found = Inert(text)
        assert found.policy.startswith("default-src 'none'") and "base-uri 'none'; form-action 'none'" in found.policy
        others = [each for each in found.active if not re.fullmatch(r"style|svg|a href=(\.\./)?[\w./#-]+", each)]
        assert (others, found.controls) == ([], []), page
    command = [sys.executable, "-c", "from autograde.commands.export import export; export()", LAB, "--to", "nbgrader"]
    done = subprocess.run([*command, "--course", course.course], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    table = (course.course / "exports" / f"{LAB}_nbgrader.csv").read_text()
    assert "<" not in table and table.count("\n") == len(STUDENTS) + 1


@pytest.mark.parametrize("clean", [clean_fragment, clean_page])
@pytest.mark.parametrize(
    "address", ["https://192.0.2.1/x.png", "//192.0.2.1/x", "/files/x.png", "data:image/svg+xml;base64,PHN2Zz4="]
)
def test_the_sanitiser_alone_lets_no_picture_be_fetched(clean, address):
    assert "src" not in clean(f'<p><img src="{address}" alt="a"></p>')


def test_a_notebook_is_shown_alike_each_time():
    """Two pages of one verdict can be compared: nothing on them is drawn."""
    notebook = new_notebook(cells=[new_markdown_cell("a"), new_code_cell("b"), new_raw_cell("c")])
    assert StudentContent().notebook(notebook) == StudentContent().notebook(notebook)


def test_the_hashes_are_of_all_handlers_in_nbgrader_s_templates():
    from nbgrader.server_extensions.formgrader import handlers

    texts = [path.read_text() for path in Path(handlers.template_path).rglob("*") if path.is_file()]
    found = {match for text in texts for match in re.findall(r'\son[a-z]+="([^"]*)"', text, re.IGNORECASE)}
    assert found == set(HANDLERS)


def test_a_page_that_needs_too_much_is_given_up(server, tmp_path, monkeypatch):
    """Where a cell's own limit does not help: the page's process has one, too."""
    path = tmp_path / "x.ipynb"
    (tmp_path / "greedy.py").write_text(
        "class Time:\n    def __call__(self, nb, r):\n        import signal; signal.setitimer(signal.ITIMER_PROF, 0)\n        while True: pass\n"
        "class Memory:\n    def __call__(self, nb, r):\n        return [bytearray(1 << 28) for _ in range(64)]\n"
        "class Death:\n    def __call__(self, nb, r):\n        import os; os._exit(3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    nbformat.write(nbformat.v4.new_notebook(), path)
    reasons = {"Time": "s of processor time", "Memory": "needs more than 1 GiB", "Death": "its process ended"}
    for kind, why in reasons.items():
        limit = {"cpu_seconds": 2} if kind == "Time" else {}  # a GiB may take a slow machine more than 2 s
        with contextlib.closing(PageServer(**limit)) as one:
            page, problem = page_or_scores("course_feedback", str(path), {}, [f"greedy.{kind}"], one)
        assert why in problem and why in page


# --- formgrader's server ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def jupyter(readers):
    """A Jupyter server with formgrader on the course: its address."""
    course, _ = readers
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    options = ["--allow-root", "--no-browser", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    options += [f"--ServerApp.root_dir={course.root}", "--IdentityProvider.token=word"]
    environment = os.environ | {"PATH": f"{BINARIES}{os.pathsep}{os.environ['PATH']}", "HOME": str(course.root)}
    with open(course.root / "jupyter.log", "wb") as log:
        process = subprocess.Popen(
            [BINARIES / "jupyter", "server", *options], cwd=course.root, env=environment, stdout=log, stderr=log
        )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/login"):
                break
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait(300)


def ask(address: str, method: str = "GET") -> dict | list:
    """What formgrader answers to its own pages, POST to a button."""
    headers = {"Authorization": "token word"}
    request = urllib.request.Request(address, data=b"" if method == "POST" else None, headers=headers, method=method)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


@pytest.mark.skipif(missing_sandbox() is not None, reason=missing_sandbox() or "")
def test_formgrader_s_autograde_button_grades_in_the_sandbox(readers, jupyter, tmp_path):
    course, _ = readers
    submission = Submission(course.course / "submitted" / "eve" / LAB)
    outside = f"open({str(tmp_path / 'outside')!r}, 'w').close()"
    submission.before("train-step", outside)
    submission.save()
    # The command runs in the course's folder, whose files it does not import.
    (decoy := course.root / "autograde.py").write_text(outside)
    answer = ask(f"{jupyter}/formgrader/api/submission/{LAB}/eve/autograde", "POST")
    decoy.unlink()
    assert answer["success"], answer
    assert "1 graded, scores in the gradebook" in answer["log"]
    assert list(tmp_path.iterdir()) == []
    # The answer tried to reach outside and lost its exercise; the others were graded.
    verdict = load_verdict(verdict_path(course.course, "eve", LAB))
    assert {cell: sum(result.points for result in results) for cell, results in verdict.cells.items()} == {
        CELLS[name]: 0 if name == "train_step" else most for name, most in POINTS.items()
    } | {"run-evidence": 0}


def test_formgrader_s_autograde_button_refuses_what_has_no_rubric(readers, jupyter):
    answer = ask(f"{jupyter}/formgrader/api/submission/essays/eve/autograde", "POST")
    assert not answer["success"]
    assert "'essays' has no rubric" in answer["log"] and "does not run students' code" in answer["log"]


def test_formgrader_serves_a_student_s_file_as_no_page_of_its_own(readers, jupyter):
    course, _ = readers
    (course.course / "autograded" / "ada" / LAB / "page.html").write_text(MARK)
    address = f"{jupyter}/formgrader/submissions/{course.submissions['ada']}/page.html?token=word"
    with urllib.request.urlopen(address, timeout=600) as answer:
        policies = answer.headers.get_all("Content-Security-Policy")
        assert any(policy.startswith("sandbox; default-src 'none'") for policy in policies)
    (course.course / "autograded" / "ada" / LAB / "page.html").unlink()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{jupyter}/formgrader/manage_students/%3Cimg%20src=x%3E/?token=word", timeout=600)


def test_formgrader_lists_a_class_with_a_time_that_is_none(readers, jupyter):
    course, _ = readers
    for student, text in (("ada", "2026-11-22 20:00:00 UTC"), (BROKEN, "22nd of never"), ("addresses", "9" * 5000)):
        folder = course.course / "submitted" / student / LAB
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "timestamp.txt").write_text(text)
    os.mkfifo(course.course / "submitted" / "diagrams" / LAB / "timestamp.txt")  # whoever opens it waits
    answer = ask(f"{jupyter}/formgrader/api/submissions/{LAB}")
    found = {each["student"]: each["timestamp"] for each in answer}
    assert found["ada"].startswith("2026-11-22T20:00:00") and set(STUDENTS) <= set(found)
    assert (found[BROKEN], found["addresses"], found["diagrams"]) == (None, None, None)


@pytest.mark.parametrize(
    "name", ["manage_assignments", "gradebook", "submissions/{ada}/", "submissions/0/", "api/grades"]
)
def test_each_answer_of_formgrader_has_a_policy(readers, jupyter, name):
    address = f"{jupyter}/formgrader/{name.format(**readers[0].submissions)}?token=word"
    try:
        answer = urllib.request.urlopen(address, timeout=600)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        policy = " ".join(answer.headers.get_all("Content-Security-Policy"))
        nonce = re.search("script-src 'nonce-([^']{16,})'", policy)[1]
        page = answer.read().decode()
    assert "default-src 'none'" in policy
    if answer.status == 200 and "<script" in page:
        assert set(re.findall("<script([^>]{0,40})", page)) and page.count(f'nonce="{nonce}"') == page.count("<script")


# --- in a browser ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def visit(chromium, jupyter):
    """Loads a page: within two minutes of a busy machine, without a student's script or a request to elsewhere."""
    context = chromium.new_context()
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(f"{jupyter}/login?token=word", wait_until="networkidle")
    page.goto("about:blank")
    asked, told = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: told.append(message.text))
    page.on("dialog", lambda dialog: (told.append(dialog.message), dialog.dismiss()))

    def visit(address: str):
        asked.clear(), told.clear()
        answer = page.goto(address, wait_until="load")
        assert answer.status in (0, 200)
        page.wait_for_timeout(300)  # for what a script would do after the page is there
        assert page.evaluate("window.pwned") is None
        assert page.evaluate("document.documentElement.scrollHeight") < 1_000_000  # pixels that somebody scrolls
        assert [each for each in told if "MathJax" in each or "Content Security Policy" in each] == []
        own = address if address.startswith("file:") else (jupyter + "/formgrader/", address)
        assert [each for each in asked if not each.startswith(own) and not each.startswith("data:")] == []
        return page

    yield visit
    context.close()


def until(page, expression: str) -> None:
    """Wait for a page; `wait_for_function` evaluates in the page, which the policy forbids."""
    ends = time.monotonic() + 300
    while not page.evaluate(expression):
        assert time.monotonic() < ends, expression
        page.wait_for_timeout(100)


@pytest.mark.browser
@pytest.mark.parametrize("student", STUDENTS)
def test_feedback_in_a_browser(readers, visit, student):
    page = visit(readers[0].feedback(student).as_uri())
    assert page.locator("h1").first.inner_text() == f"{LAB}: 0 / {AUTOMATIC:g} points"
    assert page.locator("a[href='#q-knee']").is_visible()


@pytest.mark.browser
@pytest.mark.parametrize("student", STUDENTS)
def test_formgrader_in_a_browser(readers, visit, jupyter, student):
    page = visit(f"{jupyter}/formgrader/submissions/{readers[0].submissions[student]}/")
    until(page, "formgrader.loaded && formgrader.grades.loaded && formgrader.comments.loaded")
    cells = nbformat.read(SOURCE, as_version=4).cells
    assert page.locator("input.score").count() == sum(c.metadata.get("nbgrader", {}).get("grade", False) for c in cells)
    assert page.locator("#check-train-step").get_attribute("placeholder") == "0"


@pytest.mark.browser
def test_the_report_and_similar_answers_in_a_browser(readers, visit):
    course, _ = readers
    write_report([LAB], course.course, course.course / "reports" / "page.html")
    for path in (course.course / "reports").rglob("*.html"):
        visit(path.as_uri())


@pytest.mark.browser
def test_formgrader_s_other_pages_work_under_the_policy(visit, jupyter):
    pages = (f"manage_submissions/{LAB}", "manage_students/ada", f"gradebook/{LAB}")
    for name in pages:
        until(visit(f"{jupyter}/formgrader/{name}"), "models && models.loaded")
    page = visit(f"{jupyter}/formgrader/manage_assignments")
    page.get_by_role("link", name="Add new assignment...").click()
    page.wait_for_selector("#add-assignment-modal")
    page = visit(f"{jupyter}/formgrader/gradebook/{LAB}/{LAB}")
    until(page, "models && models.loaded")
    page.click("#toggle_names")
    page.get_by_text("ada", exact=True).first.wait_for()


@pytest.mark.browser
def test_formgrader_takes_scores_and_comments(readers, visit, jupyter):
    course, _ = readers
    page = visit(f"{jupyter}/formgrader/submissions/{course.submissions['ada']}/")
    until(page, "formgrader.loaded && formgrader.grades.loaded && formgrader.comments.loaded")
    page.fill("#q-knee", "4")
    page.locator("#q-knee").blur()
    page.fill("#q-knee-comment", "well seen")
    page.locator("#q-knee-comment").blur()
    ends = time.monotonic() + 300
    while time.monotonic() < ends:
        with open_gradebook(nbgrader_settings(course.course)) as gradebook:
            score = gradebook.find_grade("q-knee", LAB, LAB, "ada").manual_score
            comment = gradebook.find_comment("q-knee", LAB, LAB, "ada").manual_comment
        if score == 4 and comment == "well seen":
            break
        time.sleep(0.2)
    assert (score, comment) == (4, "well seen")
    page.click("li.live-notebook .name-hidden.glyphicon")
    assert page.locator("a.name-shown").is_visible()
