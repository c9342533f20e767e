"""A batch that is killed at any moment is resumed by typing the same command again, and nothing is graded twice."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner
from conftest import hand_in_to, lay_out
from fake_runs import LAB, REPOSITORY, released_notebook, solved_notebook

from autograde.batch.grade_lab import grade_lab
from autograde.commands.cli import grade
from autograde.rubric.schema import RUBRICS
from autograde.rubric.verdict import load_verdict, verdict_path
from autograde.sandbox.bubblewrap import missing_sandbox

pytestmark = pytest.mark.skipif(missing_sandbox() is not None, reason="no sandbox on this machine")

STUDENTS = ["ada", "bob", "cyd", "dan", "eve", "fay", "gus", "hal"]
BLANK_STEP = "def train_step(model, images, labels, optimizer, loss_fn):\n    raise NotImplementedError()"


def hand_in_eight(course: Path) -> None:
    """Right, wrong, blank, broken and missing work."""
    answers = {"q-knee": "Near 200."}
    hand_in_to(course, "ada", solved_notebook(answers))
    hand_in_to(course, "bob", released_notebook(), None)
    hand_in_to(course, "cyd", solved_notebook({"ex-train-step": BLANK_STEP}), None)
    hand_in_to(course, "dan", False)
    hand_in_to(course, "eve", False, None)
    folder = hand_in_to(course, "fay", solved_notebook({"ex-speedup": "import os\nos._exit(3)"}), None)
    (folder / "timestamp.txt").write_text("2026-11-20 22:30:00 UTC")
    hand_in_to(course, "gus", released_notebook())
    (hand_in_to(course, "hal", False, None) / f"{LAB}.ipynb").write_text("{")


def command(course: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "autograde", "grade", "1", "--course", str(course), "--jobs", "2", *arguments]


def gradebook(course: Path) -> dict:
    """Scores, comments and whether a person is waited for: every cell of every student, and the time of each."""
    with sqlite3.connect(course / "gradebook.db") as database:
        grades = database.execute(
            "SELECT submitted_assignment.student_id, base_cell.name, grade.auto_score, grade.manual_score,"
            " grade.needs_manual_grade, submitted_assignment.timestamp FROM grade"
            " JOIN submitted_notebook ON grade.notebook_id = submitted_notebook.id"
            " JOIN submitted_assignment ON submitted_notebook.assignment_id = submitted_assignment.id"
            " JOIN base_cell ON grade.cell_id = base_cell.id"
        ).fetchall()
        comments = database.execute(
            "SELECT submitted_assignment.student_id, base_cell.name, comment.auto_comment, comment.manual_comment"
            " FROM comment JOIN submitted_notebook ON comment.notebook_id = submitted_notebook.id"
            " JOIN submitted_assignment ON submitted_notebook.assignment_id = submitted_assignment.id"
            " JOIN base_cell ON comment.cell_id = base_cell.id"
        ).fetchall()
    return {"grades": sorted(grades, key=repr), "comments": sorted(comments, key=repr)}


def verdicts(course: Path) -> dict:
    found = {}
    for path in sorted((course / "autograded_evidence").glob(f"*/{LAB}/verdict.json")):
        found[path.parent.parent.name] = json.loads(path.read_text())
        for name in ("graded_at", "seconds"):
            found[path.parent.parent.name].pop(name)
    return found


def notebooks(course: Path) -> dict:
    return {path.parent.parent.name: path.read_bytes() for path in (course / "autograded").glob(f"*/{LAB}/*.ipynb")}


def everything(course: Path) -> dict:
    return {"verdicts": verdicts(course), "notebooks": notebooks(course), **gradebook(course)}


def descendants(pid: int) -> set[int]:
    """Every process below `pid`, in whatever process group."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parents[int(entry)] = int(Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
    found, waiting = set(), {pid}
    while waiting:
        waiting = {child for child, parent in parents.items() if parent in waiting} - found
        found |= waiting
    return found


def left_of(processes: set[tuple[int, str]], seconds: float) -> set[str]:
    """The commands of those that are still there after at most so many seconds."""
    end = time.monotonic() + seconds
    while (alive := {command for pid, command in processes if named(pid) == command}) and time.monotonic() < end:
        time.sleep(0.05)
    return alive


def named(pid: int) -> str:
    """A process's command line and when it began, so that a number that is used again is another; empty: no such."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text() + " " + Path(f"/proc/{pid}/stat").read_text().split()[-31]
    except (OSError, IndexError):
        return ""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, known_lab_01):
    """The course as a batch leaves it that nobody disturbs."""
    course = lay_out(tmp_path_factory.mktemp("uninterrupted"))
    shutil.copy(known_lab_01, course)
    hand_in_eight(course)
    assert sorted(verdict.student for verdict in grade_lab("1", course, jobs=1)) == STUDENTS
    return course


@pytest.fixture
def interrupted(uninterrupted, tmp_path, known_lab_01):
    """The same course, ungraded, with the same secret: hidden inputs are drawn from it."""
    course = lay_out(tmp_path)
    shutil.copy(known_lab_01, course)
    hand_in_eight(course)
    shutil.copy(uninterrupted / "grading_secret", course)
    return course


def graded(course: Path) -> dict[str, tuple]:
    """Students whose verdict is there and whole, and when it was reached (a flag may be added later)."""
    paths = {student: verdict_path(course, student, LAB) for student in STUDENTS}
    found = {student: load_verdict(path) for student, path in paths.items() if path.exists()}
    return {student: (verdict.graded_at, verdict.seconds) for student, verdict in found.items()}


def kill_at(course: Path, more: int, delay: float) -> bool:
    """Start the batch and kill its leader `delay` seconds after `more` new verdicts; False where it ended before.

    With none to wait for, it is killed while its workers start.
    """
    before = len(graded(course))
    process = subprocess.Popen(command(course), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=REPOSITORY)

    def ready() -> bool:
        if more:
            return len(graded(course)) >= before + more
        return any("interpreter.py" in named(pid) for pid in descendants(process.pid))

    while process.poll() is None and not ready():
        time.sleep(0.01)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(delay)
        return False
    below = {(pid, named(pid)) for pid in descendants(process.pid)}
    process.send_signal(signal.SIGKILL)  # its children are not told
    process.wait()
    assert left_of({each for each in below if each[1]}, 300) == set()
    return True


def resumed(course: Path, moments: list[tuple[int, float]]) -> int:
    """Kill the batch at each moment, then let it finish; how many times it was killed."""
    killed, known = 0, graded(course)
    for more, delay in moments:
        killed += kill_at(course, more, delay)
        now = graded(course)
        assert known.items() <= now.items()  # nothing was written twice
        known = now
    done = subprocess.run(command(course), capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
    fresh = re.findall(r"^\[\d+/\d+, .* left\] (\w+):", done.stdout, re.MULTILINE)
    assert sorted([*fresh, *known]) == STUDENTS
    assert known.items() <= graded(course).items()
    return killed


def test_killed_twice_and_resumed_it_is_as_if_nothing_had_happened(uninterrupted, interrupted):
    chance = random.Random(time.time_ns())
    moments = [(0, chance.uniform(0, 1)), (2, chance.uniform(0, 0.3))]  # while it starts, and in the thick of it
    assert resumed(interrupted, moments) == 2
    assert everything(interrupted) == everything(uninterrupted)


@pytest.mark.slow
def test_killed_ten_times_at_random_and_resumed(uninterrupted, interrupted):
    chance = random.Random(time.time_ns())
    moments = [(chance.choice((0, 0, 0, 1)), chance.uniform(0, 2)) for _ in range(10)]
    assert resumed(interrupted, moments) > 5
    assert everything(interrupted) == everything(uninterrupted)


def test_the_same_command_again_grades_nobody(uninterrupted):
    course = uninterrupted
    before = everything(course)
    done = CliRunner().invoke(grade, ["1", "--course", str(course), "--jobs", "2"])
    assert done.exit_code == 0, done.output
    assert f"{LAB}: 8 of 8 are graded already and have not changed" in done.output
    assert everything(course) == before


@pytest.fixture
def three(lab_course, hand_in, graded_here):
    """A course of three who are graded, and whom later calls grade."""
    for student in ("ada", "bob", "cyd"):
        hand_in(student, False, None)
    grade_lab("1", lab_course)
    assert graded_here == ["ada", "bob", "cyd"]
    graded_here.clear()
    return lab_course, graded_here


def test_force_grades_all(three):
    course, students = three
    grade_lab("1", course, force=True)
    assert students == ["ada", "bob", "cyd"]


def test_a_changed_submission_is_graded_again_and_no_other(three):
    course, students = three
    nbformat.write(released_notebook(), course / "submitted" / "bob" / LAB / f"{LAB}.ipynb")
    grade_lab("1", course)
    assert students == ["bob"]
    # What grading does not read is no change.
    (course / "submitted" / "ada" / LAB / "notes.txt").write_text("x")
    grade_lab("1", course)
    assert students == ["bob"]


def test_a_changed_rubric_grades_all(three, tmp_path):
    course, students = three
    changed = tmp_path / "rubrics"
    changed.mkdir()
    text = (RUBRICS / f"{LAB}.toml").read_text()
    (changed / f"{LAB}.toml").write_text(text.replace("tolerance = 0.04", "tolerance = 0.05"))
    grade_lab("1", course, rubrics=changed)
    grade_lab("1", course, rubrics=changed)
    assert students == ["ada", "bob", "cyd"]


def test_a_changed_source_notebook_grades_all(three):
    course, students = three
    path = course.parent / "labs" / LAB / f"{LAB}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    next(cell for cell in notebook.cells if cell.id == "setup").source += "\n# another way"
    nbformat.write(notebook, path)
    grade_lab("1", course)
    assert students == ["ada", "bob", "cyd"]


@pytest.mark.parametrize("spoilt", ["", "{", "null", "[]"])
def test_a_verdict_that_cannot_be_read_is_made_again(three, spoilt):
    course, students = three
    verdict_path(course, "cyd", LAB).write_text(spoilt)
    grade_lab("1", course)
    assert students == ["cyd"]


def test_another_student_s_verdict_is_nobody_s(three):
    course, students = three
    verdict_path(course, "cyd", LAB).write_bytes(verdict_path(course, "ada", LAB).read_bytes())
    grade_lab("1", course)
    assert students == ["cyd"]


def worker_that(busy: bool) -> int | None:
    """A worker of this process's pool that has, or has not, a sandbox open."""
    for pid in descendants(os.getpid()):
        if "spawn_main" in named(pid) and busy == any("bwrap" in named(each) for each in descendants(pid)):
            return pid
    return None


@pytest.mark.parametrize("busy", [True, False])
def test_a_worker_that_is_killed_loses_nothing(lab_course, hand_in, busy):
    """Through the real pool: what the worker had is tried once more, and the others do not notice."""
    for student in ("ada", "bob", "cyd"):
        hand_in(student, False, None)
    hand_in("dan", solved_notebook(), None)  # takes long enough to be met
    killed = []
    over = threading.Event()

    def kill_once():
        while not killed and not over.wait(0.01):
            if (pid := worker_that(busy)) is not None:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    killer = threading.Thread(target=kill_once)
    killer.start()
    found = grade_lab("1", lab_course, jobs=1)
    over.set()
    killer.join()
    assert len(killed) == 1
    assert {verdict.student: verdict.score for verdict in found} == {"ada": 0, "bob": 0, "cyd": 0, "dan": 20}
    assert not any(flag.kind == "grader" for verdict in found for flag in verdict.flags)
