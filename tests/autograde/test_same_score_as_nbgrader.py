"""A student who is right on everything gets the same score from `lab grade` as from stock nbgrader, which runs it all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook

from autograde.sandbox.bubblewrap import missing_sandbox
from autograde.submission.notebook_repair import release_of

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing_sandbox() is not None, reason="no sandbox on this machine")]

LAB = "01_single_gpu"
REPOSITORY = Path(__file__).resolve().parents[2]
HONEST_RUN = REPOSITORY / "tests" / "autograde" / "honest_run"
STOCK = """
c = get_config()
c.CourseDirectory.course_id = "distributed-training"
c.CourseDirectory.source_directory = "labs"
c.Execute.timeout = 900
c.ExecutePreprocessor.timeout = 900
for step in ("release", "submitted", "autograded", "feedback"):
    setattr(c.CourseDirectory, step + "_directory", "course/" + step)
c.CourseDirectory.db_url = "sqlite:///course/gradebook.db"
"""


def command(root: Path, *arguments: str) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(arguments, cwd=root, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def lay_out(root: Path, config: str) -> Path:
    """A course with one student, who is right on everything and has trained well."""
    source = nbformat.read(REPOSITORY / "labs" / LAB / f"{LAB}.ipynb", as_version=4)
    (root / "labs" / LAB).mkdir(parents=True)
    nbformat.write(source, root / "labs" / LAB / f"{LAB}.ipynb")
    (root / "nbgrader_config.py").write_text(config)
    (root / "course").mkdir()
    notebook = release_of(source)
    parameters = json.loads((HONEST_RUN / "run.json").read_text())["parameters"]
    for cell, solved in zip(notebook.cells, source.cells, strict=True):
        settings = cell.metadata.get("nbgrader", {})
        if settings.get("solution") and cell.cell_type == "code":
            cell.source = "\n".join(line for line in solved.source.splitlines() if "### " not in line)
        elif settings.get("solution"):
            cell.source = "An answer of my own."
        if "parameters" in cell.metadata.get("tags", []):
            cell.source += "".join(f"\n{name} = {value!r}" for name, value in parameters.items())
    folder = root / "course" / "submitted" / "ada" / LAB
    folder.mkdir(parents=True)
    nbformat.write(notebook, folder / f"{LAB}.ipynb")
    shutil.copytree(HONEST_RUN, folder / "run")
    command(root, "nbgrader", "generate_assignment", LAB)
    return root


def grades(root: Path) -> dict[str, tuple[float | None, bool]]:
    with Gradebook(f"sqlite:///{root / 'course' / 'gradebook.db'}", "distributed-training") as gradebook:
        notebook = gradebook.find_submission(LAB, "ada").notebooks[0]
        return {grade.name: (grade.auto_score, grade.needs_manual_grade) for grade in notebook.grades}


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    root = lay_out(tmp_path_factory.mktemp("ours"), (REPOSITORY / "nbgrader_config.py").read_text())
    command(root, "lab", "grade", "1")
    return root


def test_stock_nbgrader_gives_the_same_score_in_every_cell(ours, tmp_path):
    stock = lay_out(tmp_path / "stock", STOCK)
    command(stock, "nbgrader", "autograde", LAB)
    assert grades(ours) == grades(stock)
    assert sum(score or 0 for score, _ in grades(ours).values()) == 40


def test_feedback_and_formgrader_show_our_reasons(ours):
    command(ours, "nbgrader", "generate_feedback", LAB)
    page = (ours / "course" / "feedback" / "ada" / LAB / f"{LAB}.html").read_text()
    for reason in ("one step moves the weights as the optimiser", "the submitted weights score", "20 of 20 points"):
        assert reason in page
    # What formgrader renders.
    notebook = nbformat.read(ours / "course" / "autograded" / "ada" / LAB / f"{LAB}.ipynb", as_version=4)
    shown = {cell.metadata.get("nbgrader", {}).get("grade_id"): cell for cell in notebook.cells}
    for name in ("check-train-step", "check-evaluate", "check-throughput", "check-speedup", "run-evidence"):
        assert "points" in shown[name].outputs[0].text
