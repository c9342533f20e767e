"""A new lab is a few files, and edits no list: it is run, released, checked and graded as soon as they exist."""

import os
import shutil
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from autograde.sandbox.bubblewrap import missing_sandbox

pytestmark = pytest.mark.thorough

SOLUTION = "def mean(numbers):\n    ### BEGIN SOLUTION\n    return sum(numbers) / len(numbers)\n    ### END SOLUTION"
TRAIN = """
from course_lib.runs.records import EpochRecord, RunFolder
data = {"name": "none", "provenance": "official", "source": "none", "train_samples": 1, "test_samples": 1}
parameters = {"num_gpus": num_gpus, "epochs": epochs, "seed": seed}
run = RunFolder(output_dir, "15_mean", parameters, data).start(num_gpus, None, "cpu")
for epoch in range(1, epochs + 1):
    run.append(EpochRecord(epoch, 1.0 * epoch, 1.0, 1.0, 0.5, 1.0, 0.5, 0.1), 1.0)
run.finish(False)
"""
EXERCISE = """
from course_lib.exercises.description import Exercise, Part

def draw(random):
    return {"several": [random.normal(0, 1, 5).tolist() for _ in range(3)], "one": [[float(random.normal(0, 1))]]}

def observe(case, mean):
    return mean(case)

EXERCISES = {
    "mean": Exercise(("mean",), draw, observe, {"several": Part("Several numbers"), "one": Part("One number")}, "count"),
}
"""
ANSWERS = """
from course_lib.exercises.description import Answers, Mistake

ANSWERS = {"mean": Answers((lambda numbers: sum(numbers) / len(numbers),), {"sum": Mistake("divide by their number", sum)})}
"""
RUBRIC = """
lab = "15_mean"
title = "The mean"
mode = "evidence"
cell = "run-evidence"
max_points = 1

[exercises]
mean = { several = 3, one = 1 }
"""


def cell(name, source, tags=(), **marks):
    common = {"schema_version": 3, "grade": False, "solution": False, "locked": False, "task": False, "grade_id": name}
    metadata = {"nbgrader": common | marks} if marks else {}
    return new_code_cell(source.strip(), id=name, metadata=metadata | ({"tags": list(tags)} if tags else {}))


@pytest.fixture
def lab(repository, tmp_path):
    """Run `lab`, in a copy of the packages and of one new lab, which is their working folder."""
    for package in ("course_lib", "data_prep", "autograde"):
        shutil.copytree(repository / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("assessment_print.py", "nbgrader_config.py"):
        shutil.copy(repository / name, tmp_path)
    (tmp_path / "deploy").symlink_to(repository / "deploy")
    cells = [
        cell("parameters", "num_gpus = 1  # [1, machine] ranks\nepochs = 2  # [1, 9]\nseed = 0\noutput_dir = 'run'", ["parameters"]),
        cell("setup", "from course_lib.checks import check"),
        cell("ex-mean", SOLUTION, solution=True),
        cell("check-mean", 'check("lab15.mean", mean)', grade=True, locked=True, points=4),
        cell("train", TRAIN),
        cell("run-evidence", "print(output_dir)", grade=True, locked=True, points=1),
    ]  # fmt: skip
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    (folder := tmp_path / "labs" / "15_mean").mkdir(parents=True)
    shutil.copy(repository / "labs" / "sources.md", tmp_path / "labs")
    nbformat.write(new_notebook(cells=cells, metadata=kernel), folder / "15_mean.ipynb")
    (folder / "profiles.yaml").write_text("laptop: {}\nsmoke:\n  epochs: 1\n")
    (tmp_path / "course_lib/exercises/labs/lab15.py").write_text(EXERCISE)
    (tmp_path / "course_lib/exercises/answers/lab15.py").write_text(ANSWERS)
    (tmp_path / "course_lib/runs/run_evidence/labs/15_mean.toml").write_text("run_record = 1\n")
    (tmp_path / "autograde/rubrics/15_mean.toml").write_text(RUBRIC)

    def lab(*words):
        return subprocess.run(
            [sys.executable, "-m", "course_lib.runs.cli", *map(str, words)], cwd=tmp_path, text=True,
            env=os.environ | {"PYTHONPATH": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    return lab


@pytest.mark.skipif(missing_sandbox() is not None, reason="no sandbox on this machine")
def test_a_new_lab_is_run_released_and_graded(lab, tmp_path):
    done = lab("run", "15", "--profile", "smoke", "-o", "ran")
    assert done.returncode == 0 and "mean: right (several numbers; one number)" in done.stdout, done.stdout
    assert (tmp_path / "ran" / "run.json").is_file()
    assert "epochs = 10: must be in [1, 9]" in lab("run", "15", "-p", "epochs", "10").stdout
    assert lab("start", "15", "-o", "course/submitted/ada").returncode == 0
    notebook = tmp_path / "course/submitted/ada/15_mean/15_mean.ipynb"
    text = notebook.read_text()
    assert "YOUR CODE HERE" in text and "len(numbers)" not in text
    shutil.copytree(notebook.parent, tmp_path / "course/submitted/bob/15_mean")  # who hands in nothing more
    notebook.write_text(text.replace("# YOUR CODE HERE", "return sum(numbers) / len(numbers)"))
    shutil.copytree(tmp_path / "ran", notebook.parent / "run")
    assert "15_mean: fits its notebook" in lab("grade", "15", "--check-rubrics").stdout
    graded = lab("grade", "15", "--jobs", "1")
    assert "ada: 5/5" in graded.stdout and "bob: 0/5" in graded.stdout, graded.stdout
