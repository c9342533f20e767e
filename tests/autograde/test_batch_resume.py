"""A batch that is killed at any moment is resumed by typing the same command again, and nothing is graded twice."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import nbformat
import psutil
import pytest
from click.testing import CliRunner
from fake_runs import CHECKS, LAB, REPOSITORY, hand_in_to, lay_out, released_notebook, solved_notebook
from nbgrader.api import Gradebook

from autograde.batch import pool
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
    folder = hand_in_to(course, "fay", solved_notebook({"ex-memory": "import os\nos._exit(3)"}), None)
    (folder / "timestamp.txt").write_text("2026-11-20 22:30:00 UTC")
    hand_in_to(course, "gus", released_notebook())
    (hand_in_to(course, "hal", False, None) / f"{LAB}.ipynb").write_text("{")


def command(course: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "autograde", "grade", "1", "--course", str(course), "--jobs", "2", *arguments]


def gradebook(course: Path) -> dict:
    """Scores, comments, and which cells wait for a person, of every student; and the times of the submissions."""
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "distributed-training") as book:
        students = {each.student.id: (each.timestamp, each.notebooks[0]) for each in book.assignment_submissions(LAB)}
        return {
            student: (
                time,
                {each.name: (each.auto_score, each.manual_score, each.needs_manual_grade) for each in notebook.grades},
                {each.name: (each.auto_comment, each.manual_comment) for each in notebook.comments},
            )
            for student, (time, notebook) in students.items()
        }


def verdicts(course: Path) -> list[dict]:
    paths = sorted((course / "autograded_evidence").glob(f"*/{LAB}/verdict.json"))
    return [json.loads(path.read_text()) | {"graded_at": "", "seconds": 0} for path in paths]


def notebooks(course: Path) -> dict:
    return {path.parent.parent.name: path.read_bytes() for path in (course / "autograded").glob(f"*/{LAB}/*.ipynb")}


def everything(course: Path) -> dict:
    return {"verdicts": verdicts(course), "notebooks": notebooks(course), "gradebook": gradebook(course)}


def below(pid: int) -> list[psutil.Process]:
    """Every process below `pid`, in whatever process group."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def runs(process: psutil.Process, program: str) -> bool:
    """Whether a program's name is part of the process's command line."""
    try:
        return any(program in word for word in process.cmdline())
    except psutil.Error:
        return False


def is_worker(process: psutil.Process) -> bool:
    """Whether it is a grading worker, forked by the fork server."""
    try:
        return all(runs(each, "multiprocessing.forkserver") for each in (process, process.parent()))
    except psutil.Error:
        return False


def is_zombie(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, known_lab_01):
    """The course after a batch that was not interrupted."""
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
        return any(runs(each, "interpreter.py") for each in below(process.pid))

    while process.poll() is None and not ready():
        time.sleep(0.01)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(delay)
        return False
    descendants = below(process.pid)
    process.send_signal(signal.SIGKILL)  # its children get no signal
    process.wait()
    deadline = time.monotonic() + 300
    while remaining := [each for each in descendants if each.is_running() and not is_zombie(each)]:
        assert time.monotonic() < deadline, remaining
        time.sleep(0.05)
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


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_and_resumed_it_is_as_if_nothing_had_happened(uninterrupted, interrupted, kills):
    chance = random.Random(time.time_ns())
    moments = [(0, chance.uniform(0, 1)), (2, chance.uniform(0, 0.3))]  # while it starts, and in the thick of it
    if kills > 2:
        moments = [(chance.choice((0, 0, 0, 1)), chance.uniform(0, 2)) for _ in range(kills)]
    assert resumed(interrupted, moments) >= (2 if kills == 2 else 6)
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


def hand_in_again(course):
    nbformat.write(released_notebook(), course / "submitted" / "bob" / LAB / f"{LAB}.ipynb")


def edit_source(course):
    path = course.parent / "labs" / LAB / f"{LAB}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    next(cell for cell in notebook.cells if cell.id == "setup").source += "\n# another way"
    nbformat.write(notebook, path)


def write_verdict(course, text=None):
    """Spoil cyd's verdict; by default it is ada's."""
    verdict_path(course, "cyd", LAB).write_text(text or verdict_path(course, "ada", LAB).read_text())


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (hand_in_again, ["bob"]),
        (lambda course: (course / "submitted" / "ada" / LAB / "notes.txt").write_text("not read by grading"), []),
        (edit_source, ["ada", "bob", "cyd"]),
        (write_verdict, ["cyd"]),
        (partial(write_verdict, text="null"), ["cyd"]),
    ],
)
def test_what_has_changed_is_graded_again_and_nothing_else(three, change, again):
    course, students = three
    change(course)
    for _ in range(2):
        grade_lab("1", course)
    assert students == again


def test_a_changed_rubric_grades_all(three, tmp_path):
    course, students = three
    changed = tmp_path / "rubrics"
    changed.mkdir()
    text = (RUBRICS / f"{LAB}.toml").read_text()
    (changed / f"{LAB}.toml").write_text(text.replace("tolerance = 0.04", "tolerance = 0.05"))
    for _ in range(2):
        grade_lab("1", course, rubrics=changed)
    assert students == ["ada", "bob", "cyd"]


def test_a_pool_that_breaks_while_it_takes_a_task_loses_nothing(monkeypatch):
    """As pebble does: the pool ends, the future of the task that came at that moment never does."""
    pools = []

    class Pool(contextlib.nullcontext):
        def __init__(self, *arguments, **options):
            super().__init__(self)
            pools.append(self)
            self.active = len(pools) > 1

        def schedule(self, function, args, timeout):
            future = Future()
            if self.active:
                future.set_result(args[1].upper())
            return future

        def stop(self):
            pass

    monkeypatch.setattr(pool, "ProcessPool", Pool)
    monkeypatch.setattr(pool, "GLANCE", 0.01)
    found = list(pool.run_local(None, ["ada", "bob", "cyd"], 1, 60))
    assert len(pools) == 2 and sorted(each.verdict for each in found) == ["ADA", "BOB", "CYD"]


def worker_that(busy: bool) -> int | None:
    """A worker of this process's pool that has, or has not, a sandbox open."""
    for worker in below(os.getpid()):
        if is_worker(worker) and busy == any(runs(each, "bwrap") for each in below(worker.pid)):
            return worker.pid
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
    assert {verdict.student: verdict.score for verdict in found} == {
        "ada": 0,
        "bob": 0,
        "cyd": 0,
        "dan": sum(CHECKS.values()),
    }
    assert not any(flag.kind == "grader" for verdict in found for flag in verdict.flags)
