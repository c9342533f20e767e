"""`lab serve --executor slurm` on a real one-machine cluster, killed while a job runs."""

import shutil
import signal
import sqlite3
from contextlib import closing

import pytest
from one_machine_slurm import finish, start_lab, wait_for
from test_slurm_grading import HONEST, LOOPS, graded_at, lay_out, no_jobs, sandbox  # noqa: F401 (skips)

from autograde.rubric.verdict import load_verdict, verdict_path
from tests.autograde.fake_runs import AUTOMATIC, LAB

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

STAMP = "2026-11-20 22:00:00.000000 UTC"


def to_exchange(course, students):
    """Move what is in ``submitted/`` to where `nbgrader submit` would have put it."""
    exchange = course.parent / "exchange"
    for name in ("inbound", "feedback"):
        (exchange / "distributed-training" / name).mkdir(parents=True)
    with open(course.parent / "nbgrader_config.py", "a") as config:
        config.write(f"\nc.Exchange.root = {str(exchange)!r}\nc.ExchangeCollect.check_owner = False\n")
        config.write("c.GradeOnSubmission.seconds = 0.2\n")
    for student in students:
        folder = course / "submitted" / student / LAB
        (folder / "timestamp.txt").write_text(STAMP)
        folder.chmod(0o777)
        shutil.move(folder, exchange / "distributed-training/inbound" / f"{student}+{LAB}+{STAMP}+AAAA")


def states(course):
    """Student → state in the service's queue."""
    path = course / "on_submission" / "queue.sqlite"
    if not path.exists():
        return {}
    with closing(sqlite3.connect(path)) as queue:
        return dict(queue.execute("SELECT student, state FROM submission"))


def test_killed_while_a_job_runs_it_grades_each_once(slurm, tmp_path):
    students = (HONEST[0], LOOPS)
    course = lay_out(tmp_path, students)
    to_exchange(course, students)
    words = ("serve", "1", "--course", course, "--jobs", "2", "--slurm", "time=20", "--executor", "slurm")
    process = start_lab(tmp_path, *words)
    wait_for(lambda: HONEST[0] in graded_at(course), "verdict of the first submission")
    process.kill()
    output = process.communicate()[0]
    assert "2 tasks, each up to 1 submission(s)" in output
    before, orphans = graded_at(course), {task.split("_")[0] for task in slurm.live_tasks()}
    assert orphans and LOOPS not in before and set(states(course).values()) == {"running"}

    process = start_lab(tmp_path, *words)
    wait_for(lambda: set(states(course).values()) == {"done"} or process.poll() is not None, "feedback of both")
    process.send_signal(signal.SIGINT)
    output = finish(process)
    assert "which an interrupted batch left" in output and "1 task, each up to 1 submission(s)" in output
    assert states(course) == dict.fromkeys(students, "done")
    assert before.items() <= graded_at(course).items() and graded_at(course).keys() == set(students), "graded twice"
    assert load_verdict(verdict_path(course, HONEST[0], LAB)).score == AUTOMATIC
    assert {flag.kind for flag in load_verdict(verdict_path(course, LOOPS, LAB)).flags} >= {"limit"}
    no_jobs(slurm)
