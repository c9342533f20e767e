"""Courses in nbgrader's layout, to hand work in to: one of lab 01 as it is, and one of a tiny lab."""

from __future__ import annotations

import shutil
import threading
import time
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path

import pytest
from fake_class import write_rubrics
from fake_runs import LAB, Run, hand_in_to, lay_out, source_notebook

import autograde.batch.worker
from autograde.batch.pool import GradingResult
from autograde.gradebook.scores import ensure_assignment, nbgrader_settings
from autograde.grading.grading_context import GradingContext, course_secret
from autograde.grading.grading_context import source_notebook as read_source
from autograde.rubric.schema import find_rubric
from course_lib.runs.run_evidence.criteria import NEEDS_MODEL


@pytest.fixture
def make_run():
    return Run


def only_what_a_folder_tells(rubric):
    """The rubric without what needs a sandbox: no exercises, no weights tried."""
    runs = []
    for run in rubric.runs:
        criteria = tuple(criterion for criterion in run.criteria if criterion.kind not in NEEDS_MODEL)
        points = sum(criterion.points for criterion in criteria)
        runs.append(replace(run, model=None, criteria=criteria, max_points=points))
    return replace(rubric, exercises=(), runs=tuple(runs))


@pytest.fixture
def folder_rubric():
    """Rubrics that judge the three text files of a run folder and nothing else."""
    return lambda lab=LAB: only_what_a_folder_tells(find_rubric(lab))


@pytest.fixture(scope="session")
def known_lab(tmp_path_factory) -> Path:
    """A gradebook that knows the tiny lab: nbgrader takes two seconds to make one, and tests start from copies."""
    course = lay_out(tmp_path_factory.mktemp("known"), source_notebook())
    ensure_assignment(nbgrader_settings(course), replace(find_rubric(LAB), exercises=()))
    return course / "gradebook.db"


@pytest.fixture
def fresh_course(tmp_path) -> Path:
    """A repository of one tiny lab: its `course` folder, beside labs/ and the real nbgrader_config.py."""
    return lay_out(tmp_path, source_notebook())


@pytest.fixture
def course(fresh_course, known_lab) -> Path:
    """The same, once ``nbgrader generate_assignment`` has run."""
    shutil.copy(known_lab, fresh_course)
    return fresh_course


@pytest.fixture(scope="session")
def known_lab_01(tmp_path_factory) -> Path:
    """A gradebook that knows lab 01."""
    course = lay_out(tmp_path_factory.mktemp("known-01"))
    ensure_assignment(nbgrader_settings(course), find_rubric(LAB))
    return course / "gradebook.db"


@pytest.fixture
def new_lab_course(tmp_path) -> Path:
    """A repository of lab 01 alone: its `course` folder, beside labs/ and the real nbgrader_config.py."""
    return lay_out(tmp_path)


@pytest.fixture
def lab_course(new_lab_course, known_lab_01) -> Path:
    """The same, once ``nbgrader generate_assignment`` has run."""
    shutil.copy(known_lab_01, new_lab_course)
    return new_lab_course


@pytest.fixture
def hand_in(tmp_path):
    """Hand in to the course folder of this test; see `hand_in_to`."""
    return lambda *args, **kwargs: hand_in_to(tmp_path / "course", *args, **kwargs)


@pytest.fixture
def bench_of(warm):
    """A worker's context for a course folder, on this session's warm interpreter."""

    def bench_of(course: Path, rubric=None) -> GradingContext:
        source = read_source(course.parent / "labs" / LAB / f"{LAB}.ipynb")
        return GradingContext(rubric or find_rubric(LAB), source, course_secret(course), warm)

    return bench_of


@pytest.fixture
def graded_here(bench_of, monkeypatch) -> list[str]:
    """`grade_lab` grades in this process instead of in a pool; the students whom it graded, as they come."""
    graded: list[str] = []

    def run_here(job, students, workers, timeout, warm=None):
        context = bench_of(job.course, find_rubric(job.lab, job.rubrics))
        monkeypatch.setattr(autograde.batch.worker, "_context", context)
        for student in students:
            graded.append(student)
            yield GradingResult(student, autograde.batch.worker.grade_one(job, student))

    monkeypatch.setattr("autograde.batch.grade_lab.run_local", run_here)
    return graded


@pytest.fixture
def two_labs(tmp_path, monkeypatch) -> Path:
    """A course folder for the reports of `fake_class`'s two labs, whose name is a scheme where it is an address."""
    rubrics = write_rubrics(tmp_path / "rubrics")
    monkeypatch.setattr("autograde.reports.report.find_rubric", lambda lab, *_: rubrics[lab])
    return tmp_path / "course: 1"


@pytest.fixture
def in_seconds():
    """Call a function in a thread: its result or error. It has 20 seconds of processor time, however busy the machine is."""

    def in_seconds(function, *args):
        future = Future()

        def call():
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)

        begun, end = time.process_time(), time.monotonic() + 600
        threading.Thread(target=call, daemon=True).start()
        while not future.done() and time.process_time() - begun < 20 and time.monotonic() < end:
            wait([future], 0.1)
        assert future.done(), f"{function.__name__} hangs"
        return future.result()

    return in_seconds
