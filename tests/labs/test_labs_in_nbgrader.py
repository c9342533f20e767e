"""The labs themselves through stock nbgrader: release, validate, autograde, feedback. Trainings at the smoke profile."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from nbgrader.api import Gradebook

BIN = Path(sys.executable).parent
LABS = {"01_single_gpu": "01", "02_ddp": "02", "03_batch_size_scaling": "03", "04_momentum_warmup_novograd": "04"}


def nbgrader(root, *arguments):
    done = subprocess.run(
        [BIN / "nbgrader", *arguments],
        cwd=root,
        env={**os.environ, "HOME": str(root), "LAB_DATA": str(root / "no data here")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.fixture(params=LABS)
def course(request, repository, tmp_path):
    """A course that holds one of the labs, its parameters those of the smoke profile."""
    lab = request.param
    source = tmp_path / "labs" / lab
    source.mkdir(parents=True)
    shutil.copy(repository / "nbgrader_config.py", tmp_path)
    smoke = yaml.safe_load((repository / "labs" / lab / "profiles.yaml").read_text())["smoke"]
    notebook = nbformat.read(repository / "labs" / lab / f"{lab}.ipynb", as_version=4)
    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", ()):
            cell.source += "".join(f"\n{name} = {value!r}" for name, value in smoke.items())
    nbformat.write(notebook, source / f"{lab}.ipynb")
    return tmp_path, lab


def test_release_holds_no_answer_and_the_source_validates(course):
    root, lab = course
    nbgrader(root, "generate_assignment", lab)
    release = (root / "course" / "release" / lab / f"{lab}.ipynb").read_text()
    assert "YOUR CODE HERE" in release and "YOUR ANSWER HERE" in release
    for answer in ("BEGIN SOLUTION", "Model answer", "optimizer.step()\\n    return loss.detach(), logits"):
        assert answer not in release
    told = nbgrader(root, "validate", f"labs/{lab}/{lab}.ipynb")
    # Every exercise passes; what so short a training cannot reach is the 85 % of the run.
    assert "VALIDATION FAILED ON 1 CELL" in told and f'check("lab{LABS[lab]}.run", folder)' in told, told


@pytest.mark.slow
def test_autograde_and_feedback(course):
    root, lab = course
    nbgrader(root, "generate_assignment", lab)
    for student, folder in (("ada", root / "labs" / lab), ("bob", root / "course" / "release" / lab)):
        shutil.copytree(folder, root / "course" / "submitted" / student / lab)
    assert "failed" in nbgrader(root, "validate", f"course/release/{lab}/{lab}.ipynb")
    nbgrader(root, "autograde", lab)
    nbgrader(root, "generate_feedback", lab)
    with Gradebook(f"sqlite:///{root / 'course' / 'gradebook.db'}", "distributed-training") as gradebook:
        for student, full in (("ada", True), ("bob", False)):
            grades = gradebook.find_submission(lab, student).notebooks[0].grades
            exercises = {grade.name: grade for grade in grades if grade.name.startswith("check-")}
            assert len(exercises) >= 4
            for name, grade in exercises.items():
                assert grade.auto_score == (grade.max_score if full else 0), (student, name)
            # No run folder was handed in, and what the re-run left does not count for one.
            assert next(grade.auto_score for grade in grades if grade.name == "run-evidence") == 0
            assert (root / "course" / "feedback" / student / lab / f"{lab}.html").stat().st_size > 100_000
