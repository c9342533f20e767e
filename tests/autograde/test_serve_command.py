"""``lab serve`` as a process, with its pool and its sandboxes: killed twice, and a student who types ``nbgrader submit``."""

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from exchange_of import ExchangeOf
from fake_runs import LAB, REPOSITORY, solved_notebook
from test_batch_resume import below, is_worker, is_zombie, runs

from autograde.rubric.verdict import load_verdict, verdict_path
from autograde.sandbox.bubblewrap import missing_sandbox

pytestmark = pytest.mark.skipif(missing_sandbox() is not None, reason="no sandbox on this machine")

STUDENTS = ("ada", "bob", "cyd")
LIMIT = 600  # seconds; what is waited for ends within a minute on a quiet machine


def wait_for(true, *processes):
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end and all(each.poll() is None for each in processes)
        time.sleep(0.05)


def start(course):
    command = [sys.executable, "-m", "autograde", "serve", "1", "--course", str(course)]
    with open(course.parent / "serve.log", "a") as log:
        # What a shell starts in the background ignores SIGINT, and so would its children.
        heed = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=REPOSITORY, **heed)


def killed(process):
    """Kill the service alone; its workers and sandboxes end by themselves."""
    descendants = below(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not [each for each in descendants if each.is_running() and not is_zombie(each)])


def workers(process):
    return {each.pid for each in below(process.pid) if is_worker(each)}


def reached(course):
    """Student → when the verdict was reached."""
    found = {}
    for student in STUDENTS:
        with contextlib.suppress(ValueError):
            verdict = load_verdict(verdict_path(course, student, LAB))
            found[student] = verdict.graded_at, verdict.seconds
    return found


def test_killed_and_started_again_the_command_grades_each_once(lab_course):
    settings = ("minutes_apart = 0.0", "seconds = 0.2")
    class_ = ExchangeOf(lab_course, *(f"c.GradeOnSubmission.{each}" for each in settings))
    for student in STUDENTS[:2]:
        class_.submit(student, solved_notebook() if student == "bob" else None)
    home = class_.homes / "cyd"
    (home / LAB).mkdir(parents=True)
    (home / LAB / f"{LAB}.ipynb").write_bytes((class_.homes / "ada" / LAB / f"{LAB}.ipynb").read_bytes())
    options = [f"--Exchange.root={class_.root}", f"--Exchange.cache={home / 'cache'}", "--course=distributed-training"]
    stock = [str(Path(sys.executable).parent / "nbgrader"), "submit", LAB, "--student=cyd", *options]
    subprocess.run(stock, cwd=home, check=True, capture_output=True)

    process = start(lab_course)
    wait_for(lambda: any(runs(each, "interpreter.py") for each in below(process.pid)), process)
    killed(process)
    process = start(lab_course)
    wait_for(lambda: reached(lab_course), process)
    killed(process)
    before = reached(lab_course)
    process = start(lab_course)

    def all_released():
        return all(class_.listed(student)[-1]["has_exchange_feedback"] for student in STUDENTS)

    wait_for(all_released, process)
    assert before.items() <= reached(lab_course).items() and len(before) >= 1
    assert "your function" in class_.fetched("bob") or "passed" in class_.fetched("bob")

    # A later submission goes to the same workers, which stayed warm; a second service waits for its turn.
    second, warm = start(lab_course), workers(process)
    wait_for(lambda: "waiting until it has ended" in (lab_course.parent / "serve.log").read_text(), second)
    class_.submit("ada", solved_notebook())
    wait_for(all_released, process)
    assert workers(process) == warm and len(warm) >= 1
    for each in (second, process):  # both wait: an interrupt within an import may give Python's exit code another value
        each.send_signal(signal.SIGINT)
        assert each.wait(LIMIT) == 0
    assert "interrupted; the same command continues" in (lab_course.parent / "serve.log").read_text()
