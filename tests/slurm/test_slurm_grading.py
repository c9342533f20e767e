"""`lab grade --executor slurm` on a real one-machine cluster, against what grading in this machine's own pool gives."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook

from autograde.rubric.verdict import load_verdict, verdict_path
from autograde.sandbox.bubblewrap import missing_sandbox
from autograde.submission.notebook_repair import release_of

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

LAB = "01_single_gpu"
REPOSITORY = Path(__file__).resolve().parents[2]
HONEST_RUN = REPOSITORY / "tests" / "autograde" / "honest_run"
HONEST = ("ada", "bob", "cyd", "dan", "eli", "fay")
BLANK, CRASHES, LOOPS = ("gus", "hal"), "ira", "joy"
EVERYBODY = (*HONEST, *BLANK, CRASHES, LOOPS)
ANSWERS = {CRASHES: "import os\nos._exit(3)\n", LOOPS: "while True:\n    pass\n"}


def released(answers) -> nbformat.NotebookNode:
    """Lab 01 as students get it, with `answers` by grade_id in it."""
    source = nbformat.read(REPOSITORY / "labs" / LAB / f"{LAB}.ipynb", as_version=4)
    notebook = release_of(copy.deepcopy(source))
    for cell in notebook.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        if name in answers:
            cell.source = answers[name]
    return notebook


def solutions() -> dict[str, str]:
    """The source notebook's answers, without the lines that mark them."""
    source = nbformat.read(REPOSITORY / "labs" / LAB / f"{LAB}.ipynb", as_version=4)
    return {
        cell.metadata["nbgrader"]["grade_id"]: "\n".join(
            line for line in cell.source.splitlines() if line.strip() not in ("### BEGIN SOLUTION", "### END SOLUTION")
        )
        for cell in source.cells
        if cell.cell_type == "code" and cell.metadata.get("nbgrader", {}).get("solution")
    }


def lay_out(root: Path, students) -> Path:
    """A repository of lab 01 to which students have handed in; its course folder."""
    (root / "labs" / LAB).mkdir(parents=True)
    shutil.copy(REPOSITORY / "nbgrader_config.py", root)
    shutil.copy(REPOSITORY / "labs" / LAB / f"{LAB}.ipynb", root / "labs" / LAB)
    right = solutions()
    for student in students:
        folder = root / "course" / "submitted" / student / LAB
        folder.mkdir(parents=True)
        answers = {} if student in BLANK else right | {"ex-train-step": ANSWERS.get(student, right["ex-train-step"])}
        nbformat.write(released(answers), folder / f"{LAB}.ipynb")
        if student not in BLANK:
            shutil.copytree(HONEST_RUN, folder / "run")
    (root / "course" / "grading_secret").write_text("0" * 64)  # so that the same is asked in every course
    return root / "course"


def start(course: Path, *arguments: str, **changed: str) -> subprocess.Popen:
    """`lab grade 1`, begun."""
    return subprocess.Popen(
        [Path(sys.executable).with_name("lab"), "grade", "1", "--course", course, "--jobs", "2", *arguments],
        cwd=course.parent, env=os.environ | changed, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def grade(course: Path, *arguments: str) -> str:
    """What `lab grade 1` prints, which must succeed."""
    process = start(course, *arguments)
    said = process.communicate(timeout=600)[0]
    assert process.returncode == 0, said
    return said


def on_slurm(*arguments: str) -> list[str]:
    return ["--executor", "slurm", "--slurm", "time=20", *arguments]


def gradebook(course: Path) -> dict:
    """(student, cell) → score, as nbgrader has it; what the verdicts say of every criterion; flags, but for those that
    come of comparing students."""
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "distributed-training") as book:
        found = {
            (submission.student.id, grade.name): (grade.auto_score, grade.needs_manual_grade)
            for submission in book.assignment_submissions(LAB)
            for grade in submission.notebooks[0].grades
        }
    for student in {student for student, _ in found}:
        verdict = load_verdict(verdict_path(course, student, LAB))
        for result in verdict.results:
            found[student, result.cell, result.id] = (result.passed, result.points)
        found[student, "flags"] = sorted(flag.kind for flag in verdict.flags if flag.kind != "copy")
    return found


def graded_at(course: Path) -> dict[str, str]:
    """Student → when, of those who have a verdict."""
    paths = (course / "autograded_evidence").glob(f"*/{LAB}/verdict.json")
    return {path.parent.parent.name: json.loads(path.read_text())["graded_at"] for path in paths}


def wait_for(condition, what: str, seconds: float = 600.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"no {what} within {seconds:.0f} s"
        time.sleep(0.2)
    return found


def of(students, whole: dict) -> dict:
    return {key: value for key, value in whole.items() if key[0] in students}


@pytest.fixture(scope="module", autouse=True)
def sandbox():
    if why := missing_sandbox():
        pytest.skip(why)


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> dict:
    """The whole class's gradebook by the local executor."""
    course = lay_out(tmp_path_factory.mktemp("local"), EVERYBODY)
    grade(course)
    found = gradebook(course)
    for student in HONEST:
        verdict = load_verdict(verdict_path(course, student, LAB))
        assert (verdict.score, verdict.max_score) == (40, 40), [r for r in verdict.results if not r.passed]
    for student in BLANK:
        assert load_verdict(verdict_path(course, student, LAB)).score == 0
    for student, flag in ((CRASHES, "crash"), (LOOPS, "limit")):
        verdict = load_verdict(verdict_path(course, student, LAB))
        assert 0 < verdict.score < 40 and flag in [each.kind for each in verdict.flags]
    return found


def test_a_class_gets_the_local_executor_s_gradebook(slurm, expected, tmp_path):
    course = lay_out(tmp_path, EVERYBODY)
    said = grade(course, *on_slurm())
    assert gradebook(course) == expected
    assert "10 graded, scores in the gradebook" in said
    assert "10 submissions in 2 tasks" in said
    wait_for(lambda: not slurm.live_tasks(), "end of the jobs")
    # Nothing failed, so no job's files are kept, and no array is remembered.
    assert [path.name for path in (course / "slurm_logs").iterdir() if not path.name.startswith(".")] == []


def test_what_a_cancelled_task_had_not_finished_is_tried_again(slurm, expected, tmp_path):
    students = ("ada", "bob", "cyd", LOOPS)
    course = lay_out(tmp_path, students)
    process = start(course, *on_slurm())
    try:
        wait_for(lambda: "bob" in graded_at(course), "verdict of the second task")
        slurm.run("scancel", next(task.split()[0] for task in slurm.live_tasks() if "_1 " in task))
        before = graded_at(course)
        said = process.communicate(timeout=600)[0]
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert LOOPS not in before, "the task was done before it could be cancelled"
    assert gradebook(course) == of(students, expected)
    after = graded_at(course)
    assert {student: after[student] for student in before} == before, "graded twice"
    assert "4 submissions in 2 tasks" in said and "1 submission in 1 task\n" in said and "1 not graded" in said


def test_a_student_whose_task_dies_twice_gets_a_line_about_it_and_is_graded_next_time(slurm, expected, tmp_path):
    course = lay_out(tmp_path, (LOOPS,))
    process = start(course, *on_slurm())
    try:
        for _ in range(2):
            job = wait_for(lambda: [task.split()[0] for task in slurm.live_tasks() if "RUNNING" in task], "job")[0]
            slurm.run("scancel", job)
            wait_for(lambda job=job: job not in " ".join(slurm.live_tasks()), "end of the job")
        said = process.communicate(timeout=600)[0]
    finally:
        process.kill()
    assert process.returncode == 0, said
    verdict = load_verdict(verdict_path(course, LOOPS, LAB))
    assert verdict.score == 0
    (flag,) = verdict.flags
    assert flag.kind == "grader" and flag.detail.isprintable()
    assert f"worker ended with its job {job} (CANCELLED): " in flag.detail
    (logs,) = [path for path in (course / "slurm_logs").iterdir() if path.is_dir()]
    assert logs.stat().st_mode & 0o777 == 0o700
    grade(course, *on_slurm())
    assert gradebook(course) == of((LOOPS,), expected)


def test_a_batch_whose_submitting_process_was_killed_is_resumed(slurm, expected, tmp_path):
    students = ("ada", "bob", "cyd", LOOPS)
    course = lay_out(tmp_path, students)
    process = start(course, *on_slurm())
    try:
        wait_for(lambda: "bob" in graded_at(course), "verdict of the second task")
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    before = graded_at(course)
    orphans = {task.split("_")[0] for task in slurm.live_tasks()}
    assert orphans and LOOPS not in before
    said = grade(course, *on_slurm())
    assert "which an interrupted batch left" in said
    assert gradebook(course) == of(students, expected)
    after = graded_at(course)
    assert {student: after[student] for student in before} == before, "graded twice"
    assert not orphans & {task.split("_")[0] for task in slurm.live_tasks()}


def test_an_interrupt_cancels_the_jobs(slurm, tmp_path):
    course = lay_out(tmp_path, ("ada", "bob"))
    process = start(course, *on_slurm())
    try:
        wait_for(slurm.live_tasks, "job")
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=600)[0]
    finally:
        process.kill()
    assert process.returncode == 1
    assert "the same command goes on" in said
    wait_for(lambda: not slurm.live_tasks(), "end of the jobs")


def test_a_second_batch_of_the_same_lab_waits_its_turn(slurm, tmp_path):
    course = lay_out(tmp_path, ("ada",))
    process = start(course, *on_slurm())
    try:
        wait_for(slurm.live_tasks, "job")
        second = start(course, *on_slurm())
        said = second.communicate(timeout=600)[0]
        assert second.returncode == 1 and "is being graded by Slurm already" in said
        assert slurm.live_tasks()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=600)


def test_nodes_without_bubblewrap_record_nothing(slurm, tmp_path):
    course = lay_out(tmp_path, ("ada", "bob"))
    bare = tmp_path / "bin"
    bare.mkdir()
    for command in ("sbatch", "squeue", "scancel", "srun", "bash", "env", "sh"):
        (bare / command).symlink_to(shutil.which(command))
    process = start(course, *on_slurm(), PATH=str(bare))
    said = process.communicate(timeout=600)[0]
    assert process.returncode == 1, said
    assert "bwrap is not on PATH" in said.splitlines()[-1] and "on node" in said.splitlines()[-1]
    assert graded_at(course) == {}
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "distributed-training") as book:
        assert book.assignment_submissions(LAB) == []
    wait_for(lambda: not slurm.live_tasks(), "end of the jobs")


def test_a_job_that_slurm_refuses_is_one_line(slurm, tmp_path):
    course = lay_out(tmp_path, ("ada",))
    process = start(course, *on_slurm("--slurm", "partition=nosuch"))
    said = process.communicate(timeout=600)[0]
    assert process.returncode == 1
    assert "sbatch refuses" in said.splitlines()[-1] and "partition" in said.splitlines()[-1]
    assert "Traceback" not in said
