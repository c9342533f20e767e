"""Rerun mode: the grader runs the notebook itself, at the rubric's budget, and believes nothing else."""

import nbformat
import pytest
from fake_runs import LAB, REPOSITORY, solved_notebook
from msgspec import structs

from autograde.batch.grade_lab import _check_gradable
from autograde.gradebook.scores import CourseError
from autograde.grading.one_submission import grade_submission
from autograde.rubric.schema import load_rubric
from autograde.sandbox.execution import Execution
from course_lib.system.hardware import available_cores

RUBRIC = f"""
lab = "{LAB}"
title = "Run by the grader"
mode = "rerun"
cell = "run-evidence"
max_points = 10

[rerun]
seconds = 120
parameters = {{ dataset = "fashion-mnist-small", train_samples = 356, validation_images = 100, epochs = 1, largest_batch = 32, measure_seconds = 0.01 }}

[[criterion]]
id = "run-record"
kind = "run_record"
points = 3
description = "The grader's run came to its end"
provenance = ["official", "copy"]

[[criterion]]
id = "epochs"
kind = "epochs"
points = 3
description = "One row per epoch"

[[criterion]]
id = "final"
kind = "final_accuracy"
points = 2
description = "Better than a guess"
threshold = 0.05

[[criterion]]
id = "transcript"
kind = "transcript"
points = 2
description = "The transcript agrees"
"""
QUICK = ("title", "parameters", "setup", "data", "loaders", "network", "experiment")


@pytest.fixture
def rubric(tmp_path, request):
    path = tmp_path / f"{LAB}.toml"
    path.write_text(RUBRIC + getattr(request, "param", ""))
    return load_rubric(path)


@pytest.fixture
def judge(lab_course, hand_in, bench_of, rubric):
    def judge(notebook, short=True, run=None):
        """The verdict; `short` leaves the measurements out of the lab, which take most of the time."""
        context = bench_of(lab_course, rubric)
        if short:
            context.source.cells = [
                cell
                for cell in context.source.cells
                if cell.id in QUICK or ("nbgrader" in cell.metadata and not cell.metadata.nbgrader.get("grade"))
            ]
        folder = hand_in("ada", notebook, run)
        return grade_submission(context, folder, "ada").verdict

    return judge


def test_the_grader_s_own_run_is_judged_and_the_submitted_one_is_not_looked_at(judge, make_run):
    forged = make_run([0.99] * 8)
    verdict = judge(solved_notebook(), run=forged)
    assert verdict.score == 10, verdict.comment("run-evidence")
    assert verdict.runs[0].epochs == 1 and verdict.runs[0].final_accuracy < 0.9
    assert verdict.runs[0].data_name == "fashion-mnist-small" and verdict.flags == ()
    assert 0 < verdict.runs[0].seconds < verdict.seconds


RANKED = """
[model]
network = "course_lib:wide_resnet_standardised"
datasets = ["fashion-mnist-small"]
images = 200
tolerance = 0.5

[leaderboard]
target = 0.85
"""


@pytest.mark.parametrize("rubric", [RANKED], indirect=True)
def test_work_is_the_processor_time_of_the_grader_s_run_and_kept(judge, make_run, monkeypatch):
    monkeypatch.setattr(Execution, "processor_seconds", 1234.5)
    verdict = judge(solved_notebook(), run=make_run([0.99] * 8))
    (run,) = verdict.runs
    assert run.held_out_images == 200 and run.work_seconds == 1234.5
    # Its ten steps are a part of the grading, on these processors.
    assert 0 < 10 * run.step_seconds < available_cores() * verdict.seconds


@pytest.mark.slow
def test_the_whole_lab_as_it_is_runs_in_the_sandbox(judge):
    verdict = judge(solved_notebook(), short=False)
    assert verdict.score == 10 and verdict.flags == (), verdict.comment("run-evidence")


def test_a_blank_that_training_needs_is_the_reason(judge):
    blank = "def train_step(model, images, labels, optimizer, loss_fn):\n    raise NotImplementedError()"
    verdict = judge(solved_notebook({"ex-train-step": blank}))
    # run.json was begun before the training failed: unfinished, without a curve.
    assert verdict.score == 0
    for result in verdict.results:
        assert "left no" in result.reason or "was not finished" in result.reason or "no epoch" in result.reason
    assert verdict.flags[0].kind == "crash"
    assert "cell 'experiment' raised NotImplementedError" in verdict.flags[0].detail


def test_a_cell_of_one_s_own_that_writes_evidence_is_not_run(judge):
    notebook = solved_notebook({"ex-train-step": "def train_step(*_):\n    raise ValueError('no')"})
    cheat = "import os\nos.makedirs('run', exist_ok=True)\nopen('run/learning_curve.csv', 'w').write('time,val_accuracy\\n')"
    notebook.cells.append(nbformat.v4.new_code_cell(cheat, id="cheat"))
    verdict = judge(notebook)
    assert verdict.score == 0
    assert any("ValueError" in flag.detail for flag in verdict.flags)


SLOW_CLOCK = """def train_step(model, images, labels, optimizer, loss_fn):
    import time
    if not hasattr(time, "really"):
        time.really = time.perf_counter
        time.perf_counter = lambda: 1000 * time.really()
    loss = loss_fn(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach(), model(images).detach()
"""


def test_a_claimed_time_beyond_the_grader_s_clock_is_refused(judge):
    verdict = judge(solved_notebook({"ex-train-step": SLOW_CLOCK}))
    assert verdict.score == 0
    (flag,) = [flag for flag in verdict.flags if flag.kind == "forged"]
    assert "s of training in a run that took" in flag.detail


def test_a_run_that_does_not_end_is_a_limit(judge, rubric):
    structs.force_setattr(rubric.rerun, "seconds", 8.0)
    verdict = judge(solved_notebook({"ex-train-step": "def train_step(*_):\n    while True:\n        pass"}))
    assert verdict.score == 0
    assert "the grader's own run of the notebook timed out after 8 s" in verdict.results[0].reason
    assert [flag.kind for flag in verdict.flags] == ["limit"]


def test_without_a_notebook_there_is_no_run(judge):
    verdict = judge(False)
    assert verdict.score == 0 and "could not be run again" in verdict.results[0].reason


def test_the_data_that_weights_are_tried_on_must_be_there_though_nobody_hands_a_run_in(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_DATA", str(tmp_path))
    path = tmp_path / f"{LAB}.toml"
    model = (
        '\n[model]\nnetwork = "course_lib:wide_resnet"\ndatasets = ["fashion-mnist"]\nimages = 10\ntolerance = 0.1\n'
    )
    path.write_text(RUBRIC + model)
    source = REPOSITORY / "labs" / LAB / f"{LAB}.ipynb"
    with pytest.raises(CourseError, match="weights cannot be tested: fashion-mnist is not staged"):
        _check_gradable(load_rubric(path), source, [])
