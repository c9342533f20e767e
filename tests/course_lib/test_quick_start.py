"""Commands start quickly: what they do not need is not imported, and notebooks are checked as before."""

import subprocess
import sys

import nbformat

CHECKS = """
import sys
import nbformat
assert "lark" not in sys.modules
nbformat.validate(nbformat.v4.new_notebook())
try:
    nbformat.validate({"cells": 3})
except nbformat.ValidationError:
    print("refused")
"""


LAB_RUN = """
from pathlib import Path
from course_lib.runs.execute_notebook import execute_notebook
from course_lib.runs.labs import find_lab
lab = find_lab("01")
lab.check(lab.parameters("smoke", {"num_gpus": 1}))
execute_notebook(Path("n.ipynb"), Path("out.ipynb"), {})
import sys
assert "lark" not in sys.modules and "torch" not in sys.modules, "lab run would start seconds later"
"""
GRADE = """
import sys
from autograde.batch import worker_server
from autograde.commands.cli import grade
worker_server.start_worker_server = lambda: sys.exit("torch" in sys.modules or "nbgrader" in sys.modules)
grade.main(["1"], standalone_mode=False)
sys.exit("the workers' server was not started")
"""
NOBODY = """
import sys, click
from autograde.batch import worker_server
from autograde.commands.cli import grade
worker_server.start_worker_server = lambda: sys.exit("the workers' server was started")
try:
    grade.main(["1"], standalone_mode=False)
except click.ClickException as error:
    print(error.message)
"""


def python(code, folder="."):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lab_run_imports_neither_the_grammar_nor_pytorch(tmp_path):
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(metadata=kernel), tmp_path / "n.ipynb")
    python(LAB_RUN, tmp_path)


def test_lab_grade_starts_the_workers_server_before_its_own_imports(tmp_path):
    (tmp_path / "course/submitted").mkdir(parents=True)
    python(GRADE, tmp_path)


def test_lab_grade_without_submissions_does_not_wait_for_it(tmp_path):
    assert "course/submitted cannot be read" in python(NOBODY, tmp_path)


def test_nbformat_comes_without_the_grammar_of_addresses():
    assert python(f"import autograde\n{CHECKS}") == "refused\n"
