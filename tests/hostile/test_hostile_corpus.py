"""The corpus of hostile submissions, graded in one batch beside three honest students by the real command."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import escape
import exhaustion
import forgery
import injection
import library
import malformed
import programs
import pytest
from exhibits import CELLS, EXHIBITS, HONEST, LAB, Exhibit, Submission, World, lay_out

from autograde.gradebook.scores import nbgrader_settings, open_gradebook
from autograde.rubric.verdict import Verdict, load_verdict, verdict_path
from autograde.sandbox.bubblewrap import missing_sandbox

MISSING = missing_sandbox()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")

THEMES = (escape, exhaustion, forgery, injection, library, malformed, programs)
HONEST_STUDENTS = ("ada", "mia", "zoe")
LIMITS = {"seconds": 8, "memory_gib": 1, "images": 500}  # weights are tried on 500 images
BINARIES = Path(sys.executable).parent


@dataclass
class Batch:
    """What one batch left behind."""

    world: World
    listeners: dict[str, socket.socket]
    bystander: subprocess.Popen
    session: int = 0
    code: int = 0
    output: str = ""
    errors: str = ""
    seconds: float = 0.0
    exhibits: list[Exhibit] = field(default_factory=list)
    verdicts: dict[str, Verdict] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.world.course.parent

    def command(self, *arguments: object) -> subprocess.CompletedProcess:
        """Run one of the course's commands in its folder."""
        environment = os.environ | {"PATH": f"{BINARIES}{os.pathsep}{os.environ['PATH']}"}
        command = [str(BINARIES / str(arguments[0])), *map(str, arguments[1:])]
        return subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=1200)


@mock.patch("nbformat.v4.nbbase.validate", lambda *_: None)  # one exhibit is made of 1,500 cells
def hand_in(world: World, exhibits: list[Exhibit]) -> None:
    """Everybody's submission."""
    for student in HONEST_STUDENTS:
        submission = Submission(world.course / "submitted" / student / LAB)
        submission.cell("ex-memory").source += "\n# canary-answer-of-" + student
        for folder in (submission.run(), submission.program()):
            if (student, folder.name) != ("ada", "run"):  # hers are the ones that others take
                submission.mark_weights(folder, f"{student} {folder.name}")
        submission.save()
    for exhibit in exhibits:
        submission = Submission(world.course / "submitted" / exhibit.student / LAB)
        exhibit.build(submission, world)
        submission.save()
    injection.folders_that_are_no_students(world)


def selected(items: list[pytest.Item]) -> list[Exhibit]:
    """The exhibits whose tests are going to run; all that are not slow, where none's is."""
    ours = [item for item in items if item.path == Path(__file__) and item.name.startswith("test_exhibit[")]
    names = [item.callspec.params["name"] for item in ours]
    return [EXHIBITS[name] for name in names] or [exhibit for exhibit in EXHIBITS.values() if not exhibit.slow]


@pytest.fixture(scope="session")
def batch(tmp_path_factory, request):
    root = tmp_path_factory.mktemp("hostile")
    name = f"hostile-{uuid.uuid4().hex}"
    kinds = {"tcp": (), "udp": (socket.AF_INET, socket.SOCK_DGRAM), "unix": (socket.AF_UNIX,)}
    listeners = {kind: socket.socket(*family) for kind, family in kinds.items()}
    for kind in ("tcp", "udp"):
        listeners[kind].bind(("127.0.0.1", 0))
    listeners["unix"].bind("\0" + name)
    for kind, there in listeners.items():
        there.setblocking(False)
        if kind != "udp":
            there.listen()
    ports = [listeners[kind].getsockname()[1] for kind in ("tcp", "udp")]
    world = World(root / "outside", root / "course", *ports, socket_name=name, mark=name)
    lay_out(root, "canary-grading-secret", **LIMITS)
    world.folder.mkdir()
    world.folder.chmod(0o777)
    (world.folder / "secret.txt").write_text("canary-outside\n")
    (root / "tmp").mkdir()
    exhibits = selected(request.session.items)
    hand_in(world, exhibits)
    bystander = subprocess.Popen(["sleep", "3600"], env={"CANARY": "canary-of-a-bystander"})
    found = Batch(world, listeners, bystander, exhibits=exhibits)
    started = time.monotonic()
    command = [BINARIES / "lab", "grade", "1", "--course", world.course, "--jobs", "2", "--rubrics", root / "rubrics"]
    environment = os.environ | {"CANARY": "canary-environment", "TMPDIR": str(root / "tmp")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=root, env=environment, text=True, start_new_session=True, **pipes)
    found.session = process.pid
    found.output, found.errors = process.communicate(timeout=3600)
    found.code, found.seconds = process.returncode, time.monotonic() - started
    for student in (*HONEST_STUDENTS, *(exhibit.student for exhibit in exhibits)):
        path = verdict_path(world.course, student, LAB)
        if path.exists():
            found.verdicts[student] = load_verdict(path)
    yield found
    bystander.kill()
    bystander.wait()
    for there in listeners.values():
        there.close()


def points(verdict: Verdict) -> dict[str, float]:
    return {cell: sum(result.points for result in results) for cell, results in verdict.cells.items()}


# --- what each earns --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if each.slow else ()) for name, each in EXHIBITS.items()]
)
def test_exhibit(batch, name):
    assert_as_expected(EXHIBITS[name], batch.verdicts[EXHIBITS[name].student])


def assert_as_expected(exhibit, verdict):
    """The points, flags and reasons that the exhibit names."""
    found = points(verdict)
    lost = [result.reason for result in verdict.results if not result.passed]
    told = f"{found}\n{verdict.flags}\n" + "\n".join(dict.fromkeys(lost))
    assert {cell: found[cell] for cell, most in exhibit.points.items() if most is not None} == {
        cell: most for cell, most in exhibit.points.items() if most is not None
    }, told
    kinds = {flag.kind for flag in verdict.flags}
    assert exhibit.flags <= kinds, told
    assert "grader" not in kinds, told  # the grader has an answer to all of them
    if exhibit.reason:
        assert any(re.search(exhibit.reason, reason) for reason in lost), told


def test_there_are_at_least_thirty_and_each_says_what_it_tries():
    assert len(EXHIBITS) >= 30
    assert all(len(exhibit.build.__doc__) > 20 for exhibit in EXHIBITS.values())
    assert {exhibit.build.__module__ for exhibit in EXHIBITS.values()} == {theme.__name__ for theme in THEMES}


# --- what all of them together do -------------------------------------------------------------------------------------


def test_the_batch_ends_and_grades_everybody(batch):
    assert batch.code == 0, batch.errors
    assert len(batch.verdicts) == len(batch.exhibits) + len(HONEST_STUDENTS)
    assert f"{len(batch.verdicts)} graded, scores in the gradebook" in batch.output
    assert all(len(line) < 1000 and line.isprintable() for line in (batch.output + batch.errors).splitlines())


@pytest.mark.parametrize("student", HONEST_STUDENTS)
def test_honest_students_have_full_marks(batch, student):
    verdict = batch.verdicts[student]
    assert points(verdict) == {CELLS[name]: most for name, most in HONEST.items()}, [
        (result.id, result.reason) for result in verdict.results if not result.passed
    ]
    assert {flag.kind for flag in verdict.flags} <= {"copy"}


def test_every_reason_is_one_printable_line_and_holds_no_secret(batch):
    for student, verdict in batch.verdicts.items():
        for text in [result.reason for result in verdict.results] + [flag.detail for flag in verdict.flags]:
            assert text.isprintable() and len(text) < 800, student
        assert "canary-" not in json.dumps(verdict.to_json()), student


def test_the_gradebook_holds_the_expected_scores(batch):
    with open_gradebook(nbgrader_settings(batch.world.course)) as gradebook:
        for student, verdict in batch.verdicts.items():
            for cell, score in points(verdict).items():
                assert gradebook.find_grade(cell, LAB, LAB, student).auto_score == score
        assert {student.id for student in gradebook.students} == set(batch.verdicts)


def test_nothing_outside_was_touched(batch):
    world = batch.world
    assert [path.name for path in world.folder.iterdir()] == ["secret.txt"]
    assert (world.folder / "secret.txt").read_text() == "canary-outside\n"
    assert (world.course / "grading_secret").read_text() == "canary-grading-secret"
    assert batch.bystander.poll() is None
    for kind, there in batch.listeners.items():
        with pytest.raises(BlockingIOError):  # nobody has knocked
            there.recv(1) if kind == "udp" else there.accept()


def test_nothing_is_left_running_or_lying_about(batch):
    left = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            state, _, _, session, *_ = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # A zombie waits for whoever adopted it.
        if batch.world.mark.encode() in command or (int(session) == batch.session and state != "Z"):
            left.append(command)
    assert left == []
    ends = time.monotonic() + 120  # the warm interpreters clean up behind workers that were ended
    while (lying := list((batch.root / "tmp").glob("lab-*"))) and time.monotonic() < ends:
        time.sleep(0.1)
    assert lying == []


# --- who reads it; test_reading has feedback and formgrader -----------------------------------------------------------


def test_no_page_of_the_report_holds_their_markup(batch):
    done = batch.command("lab", "report", "1", "--course", batch.world.course)
    assert done.returncode == 0, done.stderr
    pages = list((batch.world.course / "reports").rglob("*.html"))
    assert len(pages) > len(batch.exhibits)
    for page in pages:
        html = page.read_text(encoding="utf-8")
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", html), page
        assert not re.search("<(script|img|iframe)", html), page


def test_no_cell_of_the_table_is_a_formula(batch):
    done = batch.command("lab", "export", "1", "--to", "nbgrader", "--course", batch.world.course)
    assert done.returncode == 0, done.stderr
    rows = list(csv.reader(io.StringIO((batch.world.course / "exports" / f"{LAB}_nbgrader.csv").read_text())))
    assert len(rows) == 1 + len(batch.verdicts)
    for row in rows:
        assert len(row) == len(rows[0])
        assert not any(re.match(r"[=+@\t\r]|-[^0-9]", cell) or "<" in cell for cell in row)


def test_no_forged_or_copied_run_is_on_the_leaderboard(batch):
    done = batch.command("lab", "leaderboard", "1", "--course", batch.world.course, "--rubrics", batch.root / "rubrics")
    assert done.returncode == 0, done.stderr
    table = (batch.world.course / "exports" / "leaderboard_01.csv").read_text()
    ranked = {row["student_id"] for row in csv.DictReader(io.StringIO(table))}
    # Some exhibits hand in an honest run beside what they try; only these may be here.
    run, bad = CELLS["run"], {"forged", "escape", "copy"}
    honest = {each.student for each in batch.exhibits if each.points[run] != 0 and not each.flags & bad}
    assert {"mia", "zoe"} <= ranked <= honest | set(HONEST_STUDENTS)
    # Whose file ada's is, nobody can say from the two.
    copied = any(each.student == "somebody-elses-weights" for each in batch.exhibits)
    assert ("ada" in ranked) != copied
    page = (batch.world.course / "reports" / "leaderboard_01.html").read_text()
    assert not any(student in page for student in batch.verdicts) and not re.search("<(script|img|iframe)", page)
