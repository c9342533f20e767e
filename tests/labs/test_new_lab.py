"""What `lab new` writes is a lab, and edits no list: it is run, released, graded and tested as soon as it is there."""

import os
import shutil
import subprocess
import sys

import click
import pytest

from autograde.commands import new_lab
from autograde.sandbox.bubblewrap import missing_sandbox

SOLUTION = "return base_lr * (1 - step / steps)"
GENERIC = [
    "tests/labs/test_notebook_form.py", "tests/labs/test_labs_in_sweeps.py", "tests/exercises/test_generic.py",
    "tests/autograde/test_notebook_repair.py", "tests/autograde/test_rubric_check.py", "tests/autograde/test_rubrics.py",
    "tests/autograde/test_visible_run_check.py",
]  # fmt: skip


@pytest.fixture
def checkout(repository, tmp_path):
    """A copy of what `lab new` writes into; the labs that there are are links."""
    for package in ("course_lib", "data_prep", "autograde"):
        shutil.copytree(repository / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("assessment_print.py", "nbgrader_config.py", "pyproject.toml"):
        shutil.copy(repository / name, tmp_path)
    (tmp_path / "deploy").symlink_to(repository / "deploy")
    (tmp_path / "labs").mkdir()
    for path in (repository / "labs").iterdir():
        (tmp_path / "labs" / path.name).symlink_to(path)
    shutil.copytree(repository / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.fixture
def lab(checkout):
    """Run `lab`, or another module, in that copy: its output, and whether it succeeded."""

    def lab(*words, module="course_lib.runs.cli"):
        done = subprocess.run(
            [sys.executable, "-m", module, *map(str, words)], cwd=checkout, text=True, timeout=1200,
            env=os.environ | {"PYTHONPATH": str(checkout)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.stdout, done.returncode

    return lab


@pytest.mark.thorough
@pytest.mark.skipif(missing_sandbox() is not None, reason="no sandbox on this machine")
def test_a_new_lab_is_run_released_and_graded(lab, checkout):
    said, code = lab("new", "99_mean")
    assert code == 0 and "labs/99_mean/99_mean.ipynb" in said, said
    said, code = lab("run", "99", "--profile", "smoke", "-p", "num_gpus", "1", "-o", "ran")
    assert (
        code == 0 and "learning_rate: right (a step in between; the first step, and the one after the last)" in said
    ), said
    assert (checkout / "ran" / "run.json").is_file()
    assert "epochs = 0: must be in [1, 10000]" in lab("run", "99", "-p", "epochs", "0")[0]
    assert lab("start", "99", "-o", "course/submitted/ada")[1] == 0
    notebook = checkout / "course/submitted/ada/99_mean/99_mean.ipynb"
    text = notebook.read_text()
    assert "YOUR CODE HERE" in text and SOLUTION not in text and "Key: (a)" not in text
    shutil.copytree(notebook.parent, checkout / "course/submitted/bob/99_mean")  # who hands in nothing more
    notebook.write_text(text.replace("# YOUR CODE HERE", SOLUTION))
    shutil.copytree(checkout / "ran", notebook.parent / "run")
    assert "99_mean: fits its notebook" in lab("grade", "99", "--check-rubrics")[0]
    said, _ = lab("grade", "99", "--jobs", "1")
    assert "ada: 14/14" in said and "bob: 0/14" in said, said


@pytest.mark.slow  # a minute; they do with it what they do with every lab
def test_the_tests_of_all_labs_take_it_up(lab):
    assert lab("new", "99_mean")[1] == 0
    said, code = lab("-v", "-m", "", "-n", "0", "-k", "99_mean or lab99", *GENERIC, module="pytest")
    assert code == 0, said
    for path in GENERIC:
        assert f"{path}::" in said, said  # none of them has chosen nothing


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A checkout of one lab, as far as `lab new` looks at it, for calls in this process."""
    for path in (*new_lab.PLACES.values(), new_lab.EXPECTED):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(tmp_path / "labs")
    (tmp_path / "labs" / "01_single_gpu").mkdir(parents=True)
    monkeypatch.setattr(new_lab, "_checkout", lambda: tmp_path)
    return tmp_path


def refused(name, place):
    """The error, and that nothing has changed."""
    before = set(place.rglob("*"))
    with pytest.raises(click.ClickException) as error:
        new_lab.new.main([name], standalone_mode=False)
    assert set(place.rglob("*")) == before and "\n" not in error.value.message
    return error.value.message


@pytest.mark.parametrize(
    ("name", "left", "told"),
    [
        ("mean", "", "'mean' is no name of a lab"),
        ("99_Mean", "", "such as 02_mean"),
        ("00_mean", "", "two digits from 01"),
        ("99_mean/../..", "", "is no name of a lab"),
        ("99_mean\x1b[2J\n", "", r"'99_mean\x1b[2J\n' is no name of a lab"),
        ("01_mean", "", "number 01 is that of 01_single_gpu; 02 is free"),
        ("99_mean", "labs/99_mean/", "number 99 is that of 99_mean"),
        ("99_mean", "autograde/rubrics/99_other.toml", "autograde/rubrics/99_other.toml is there already"),
        ("99_mean", "course_lib/exercises/labs/lab99/", "course_lib/exercises/labs/lab99 is there already"),
        ("99_mean", "course_lib/exercises/expected/lab99.pt.gz", "expected/lab99.pt.gz is there already"),
    ],
)
def test_what_is_refused_is_one_line_and_leaves_everything_as_it_was(place, name, left, told):
    if left:
        (place / left).mkdir() if left.endswith("/") else (place / left).touch()
    assert told in refused(name, place)


def test_a_lab_that_cannot_be_written_leaves_nothing(place):
    (place / "tests/exercises/tables").rmdir()
    (place / "tests/exercises/tables").touch()  # so the last but one of the files has no folder
    message = refused("99_mean", place)
    assert "cannot be written" in message and "nothing was made" in message
