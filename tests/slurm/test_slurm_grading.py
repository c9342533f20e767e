"""`lab grade --executor slurm` on a real one-machine cluster; the oracle is the local executor's gradebook.

What grading and sweeps share (interrupts, refusals, jobs that wait) is tested by `test_job_queue` and `test_slurm_sweep`.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
from nbgrader.api import Gradebook
from one_machine_slurm import finish, start_lab, wait_for

from autograde.rubric.verdict import load_verdict, verdict_path
from autograde.sandbox.bubblewrap import missing_sandbox
from tests.autograde.fake_runs import AUTOMATIC, HONEST_RUN, LAB, hand_in_to, released_notebook, solved_notebook
from tests.autograde.fake_runs import lay_out as lay_out_lab

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

HONEST = ("ada", "bob", "cyd", "dan", "eli", "fay")
BLANK, CRASHES, LOOPS = ("gus", "hal"), "ira", "joy"
EVERYBODY = (*HONEST, *BLANK, CRASHES, LOOPS)
ANSWERS = {CRASHES: {"ex-train-step": "import os\nos._exit(3)"}, LOOPS: {"ex-train-step": "while True:\n    pass"}}


def lay_out(root: Path, students) -> Path:
    """A repository of lab 01 with these students' submissions; its course folder."""
    course = lay_out_lab(root)
    for student in students:
        blank = student in BLANK
        notebook = released_notebook() if blank else solved_notebook(ANSWERS.get(student))
        hand_in_to(course, student, notebook, None if blank else HONEST_RUN)
    (course / "grading_secret").write_text("0" * 64)  # the same hidden inputs in every course
    return course


def start(course: Path, *words: str, **environment: str):
    return start_lab(course.parent, "grade", "1", "--course", course, "--jobs", "2", *words, **environment)


def on_slurm(course: Path, **environment: str):
    return start(course, "--executor", "slurm", "--slurm", "time=20", **environment)


def gradebook(course: Path) -> dict:
    """(student, cell) → score in nbgrader's gradebook; each criterion of the verdicts; flags, except of comparisons."""
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "distributed-training") as book:
        grades = {
            (submission.student.id, grade.name): (grade.auto_score, grade.needs_manual_grade)
            for submission in book.assignment_submissions(LAB)
            for grade in submission.notebooks[0].grades
        }
    for student in {student for student, _ in grades}:
        verdict = load_verdict(verdict_path(course, student, LAB))
        for result in verdict.results:
            grades[student, result.cell, result.id] = (result.passed, result.points)
        grades[student, "flags"] = sorted(flag.kind for flag in verdict.flags if flag.kind != "copy")
    return grades


def graded_at(course: Path) -> dict[str, str]:
    """The times of the verdicts, by student."""
    paths = (course / "autograded_evidence").glob(f"*/{LAB}/verdict.json")
    return {path.parent.parent.name: json.loads(path.read_text())["graded_at"] for path in paths}


def no_jobs(slurm) -> None:
    wait_for(lambda: not slurm.live_tasks(), "end of the jobs")


@pytest.fixture(scope="module", autouse=True)
def sandbox():
    if why := missing_sandbox():
        pytest.skip(why)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The gradebook of some students by the local executor."""
    course = lay_out(tmp_path_factory.mktemp("local"), EVERYBODY)
    finish(start(course))
    verdicts = {student: load_verdict(verdict_path(course, student, LAB)) for student in EVERYBODY}
    for student, verdict in verdicts.items():
        flags = [flag.kind for flag in verdict.flags]
        if student in (*HONEST, *BLANK):
            assert verdict.max_score == AUTOMATIC and verdict.score == (0 if student in BLANK else AUTOMATIC), student
        else:
            assert 0 < verdict.score < AUTOMATIC and {CRASHES: "crash", LOOPS: "limit"}[student] in flags
    whole = gradebook(course)
    return lambda students: {key: value for key, value in whole.items() if key[0] in students}


def test_a_class_gets_the_local_executor_s_gradebook(slurm, expected, tmp_path):
    course = lay_out(tmp_path, EVERYBODY)
    output = finish(on_slurm(course))
    assert gradebook(course) == expected(EVERYBODY)
    assert "10 graded, scores in the gradebook" in output and "2 tasks, each up to 5 submission(s)" in output
    no_jobs(slurm)
    # Nothing failed, so no job's files are kept, and no array is remembered.
    assert [path.name for path in (course / "slurm_logs").iterdir() if not path.name.startswith(".")] == []


@pytest.mark.parametrize("killed", ["task", "submitter"])
def test_a_killed_task_or_submitter_costs_only_what_was_not_finished(slurm, expected, tmp_path, killed):
    students = ("ada", "bob", "cyd", LOOPS)
    course = lay_out(tmp_path, students)
    process = on_slurm(course)
    wait_for(lambda: "bob" in graded_at(course), "verdict of the second task")
    if killed == "task":
        slurm.run("scancel", next(task.split()[0] for task in slurm.live_tasks() if "_1 " in task))
        before = graded_at(course)
        output = finish(process)
        assert "2 tasks" in output and "1 task, each up to 1 submission" in output and "1 not graded" in output
    else:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        before, orphans = graded_at(course), {task.split("_")[0] for task in slurm.live_tasks()}
        assert orphans and "which an interrupted batch left" in finish(on_slurm(course))
        assert not orphans & {task.split("_")[0] for task in slurm.live_tasks()}
    assert LOOPS not in before, "the task was done before it could be cancelled"
    assert gradebook(course) == expected(students)
    assert before.items() <= graded_at(course).items(), "graded twice"


def test_a_student_whose_task_dies_twice_gets_a_line_about_it_and_is_graded_next_time(slurm, expected, tmp_path):
    course = lay_out(tmp_path, (LOOPS,))
    process = on_slurm(course)
    for _ in range(2):
        job = wait_for(lambda: [task.split()[0] for task in slurm.live_tasks() if "RUNNING" in task], "job")[0]
        slurm.run("scancel", job)
        wait_for(lambda job=job: job not in " ".join(slurm.live_tasks()), "end of the job")
    finish(process)
    verdict = load_verdict(verdict_path(course, LOOPS, LAB))
    (flag,) = verdict.flags
    assert verdict.score == 0 and flag.kind == "grader" and flag.detail.isprintable()
    assert f"worker ended: its Slurm job {job} was cancelled (CANCELLED): " in flag.detail
    finish(on_slurm(course))
    assert gradebook(course) == expected((LOOPS,))


def test_nodes_without_bubblewrap_record_nothing(slurm, tmp_path):
    course = lay_out(tmp_path, ("ada", "bob"))
    bare = tmp_path / "bin"
    bare.mkdir()
    for command in ("sbatch", "squeue", "scancel", "srun", "bash", "env", "sh"):
        (bare / command).symlink_to(shutil.which(command))
    last = finish(on_slurm(course, PATH=str(bare)), code=1).splitlines()[-1]
    assert "bwrap is not on PATH" in last and "on node" in last
    assert graded_at(course) == {}
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "distributed-training") as book:
        assert book.assignment_submissions(LAB) == []
    no_jobs(slurm)


def test_an_interrupt_cancels_the_jobs(slurm, tmp_path):
    process = on_slurm(lay_out(tmp_path, ("ada",)))
    wait_for(slurm.live_tasks, "job")
    process.send_signal(signal.SIGINT)
    assert "the same command continues" in finish(process, code=1)
    no_jobs(slurm)
