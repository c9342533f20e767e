"""What a notebook shows of a check that fails: the message, and frames of the student's own code alone."""

import re

import nbformat
import pytest
from jupyter_client.provisioning import KernelProvisionerFactory
from nbformat.v4 import new_code_cell, new_notebook
from nbgrader.validator import Validator
from notebook_kernel import Kernel

from course_lib.runs.warm_kernels import WarmServer

FORGOTTEN = """
def train_step(model, images, labels, optimizer, loss_fn):
    logits = model(images)
    return loss_fn(logits, labels).detach(), logits.detach()
check("lab01.train-step", train_step)
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The error that a cell shows, as one text."""
    with Kernel(tmp_path_factory.mktemp("kernel")) as kernel:
        assert kernel.run("import torch\nfrom course_lib.checks import check").error is None
        yield lambda code: "\n".join(kernel.run(code).traceback)


def test_a_failed_check_shows_its_message_and_nothing_else(shown):
    text = shown(FORGOTTEN)
    assert text.startswith("✗ one step of SGD")
    assert "The weights are where they were: backward() or step() is missing" in " ".join(text.split())
    assert "Traceback" not in text and "raise CheckFailed" not in text and "lab01.py" not in text
    assert max(len(line) for line in text.splitlines()) <= 96


@pytest.mark.parametrize("exercise, function", [("lab01.train-step", "train_step"), ("lab07.initial", "synchronise")])
def test_a_blank_exercise_says_so_in_a_sentence(shown, exercise, function):
    text = shown(f"def {function}(*anything):\n    raise NotImplementedError()\ncheck({exercise!r}, {function})")
    assert "is not answered yet: its cell still raises NotImplementedError. Write your code" in " ".join(text.split())
    assert "Traceback" not in text


def test_an_error_of_the_students_code_shows_the_frames_of_that_code(shown):
    text = shown(
        "def helper(x):\n    return torch.zeros(3) @ torch.zeros(4)\n"
        "def train_step(model, images, *more):\n    return helper(images)\ncheck('lab01.train-step', train_step)"
    )
    assert "----> 4     return helper(images)" in text and "----> 2     return torch.zeros(3)" in text
    *_, error, case = text.splitlines()
    assert error.startswith("RuntimeError: inconsistent tensor size")
    assert case.startswith("raised for this case: one step of SGD")
    assert "course_lib" not in text and "check('lab01" not in text


def test_an_error_on_a_rank_shows_that_rank_without_the_checkers_frames(shown):
    text = shown("def synchronise(model):\n    torch.zeros(3) @ torch.zeros(4)\ncheck('lab07.initial', synchronise)")
    assert "rank" in text and "in synchronise" in text and "torch.zeros(3) @ torch.zeros(4)" in text
    assert "course_lib" not in text


def test_a_result_that_the_check_cannot_read_is_said(shown):
    answer = "(lambda m, d: [{'params': list(m.parameters()), 'weight_decay': 'x'}], lambda *a: 1.0)"
    text = " ".join(shown(f"check('lab05.recipe', {answer})").split())
    assert text.startswith("✗ the check cannot use what your answer returned") and "ValueError" in text


def test_without_a_front_end_the_message_is_in_the_output_and_in_nbgraders_verdict(tmp_path, warm_server, monkeypatch):
    monkeypatch.setattr(WarmServer, "shared", lambda: warm_server)
    monkeypatch.setattr(KernelProvisionerFactory.instance(), "default_provisioner_name", "lab-warm")
    settings = {"schema_version": 3, "grade": True, "grade_id": "check", "locked": True, "points": 5, "solution": False}
    cell = new_code_cell("from course_lib.checks import check" + FORGOTTEN, metadata={"nbgrader": settings})
    notebook = new_notebook(cells=[cell], metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    nbformat.write(notebook, tmp_path / "lab.ipynb")
    (failed,) = Validator(ignore_checksums=True).validate(str(tmp_path / "lab.ipynb"))["failed"]
    assert "weights are where they were" in re.sub(r"\s+", " ", failed["raw_error"])
