"""Run folders as the labs write them, lab 01 as a student who is right hands it in, and the notebook of a tiny lab."""

from __future__ import annotations

import copy
import csv
import io
import json
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbgrader.api import Gradebook

from autograde.rubric.schema import find_rubric
from autograde.submission.notebook_repair import release_of
from course_lib.runs.run_evidence.learning_curve import COLUMNS

REPOSITORY = Path(__file__).resolve().parents[2]
LAB = "01_single_gpu"
# Points of lab 01: of each exercise's cell, of its run, of both, and by hand.
CHECKS = {exercise.cell: exercise.max_points for exercise in find_rubric(LAB).exercises}
(RUN,) = (run.max_points for run in find_rubric(LAB).runs)
AUTOMATIC = sum(CHECKS.values()) + RUN
BY_HAND = 10
# A real run of lab 01 on the shipped 5,000 images, with its weights: 8 of 16 epochs, 0.871 in the last one.
HONEST_RUN = Path(__file__).resolve().parent / "honest_run"

# The multi-GPU tutorial's own string (its assessment, `assessment_print(...)`), typed here a second time: the oracle.
DOCUMENT_001 = (
    "Epoch = {:2d}: Cumulative Time = {:5.3f}, Epoch Time = {:5.3f}, Images/sec = {}, "
    "Training Accuracy = {:5.3f}, Validation Loss = {:5.3f}, Validation Accuracy = {:5.3f}"
)

RECORD = {
    "lab": LAB,
    "parameters": {
        "epochs": 8,
        "batch_size": 64,
        "base_lr": 0.01,
        "seed": 0,
        "train_samples": 0,
        "num_gpus": 1,
        "target_accuracy": 0.85,
        "patience": 2,
        "width": 16,
        "dataset": "fashion-mnist",
    },
    "world_size": 1,
    "backend": None,
    "device": "cpu (2 threads a rank)",
    "versions": {"torch": "2.13.0"},
    "data": {
        "name": "fashion-mnist",
        "provenance": "official",
        "source": "Debian dataset-fashion-mnist",
        "train_samples": 60000,
        "test_samples": 10000,
    },
    "started": "2026-11-20T10:00:00+00:00",
    "ended": "2026-11-20T10:04:00+00:00",
    "stopped_early": True,
}


class Run:
    """An honest run whose parts a test then spoils."""

    def __init__(self, accuracies=(0.7, 0.8, 0.84, 0.86, 0.87), seconds=12.3456, speed=4860.123456, **record):
        self.record = copy.deepcopy(RECORD) | record
        self.rows = [["0", "0.0", "", "", "", "", "0.0", ""]]
        self.lines = []
        for epoch, accuracy in enumerate(accuracies, start=1):
            time, loss, train = epoch * seconds, 1.0 / epoch, min(1.0, accuracy + 0.012345)
            values = (epoch, time, speed, loss * 1.1, train, loss, accuracy, 0.01)
            self.rows.append([str(epoch), *(f"{value:.6g}" for value in values[1:])])
            self.lines.append(DOCUMENT_001.format(epoch, time, seconds, speed, train, loss, accuracy))
        if self.record["stopped_early"]:
            self.lines.append(f"Early stopping after epoch {len(accuracies)}")

    def csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([COLUMNS, *self.rows])
        return text.getvalue()

    def transcript(self) -> str:
        return "".join(line + "\n" for line in self.lines)

    def write(self, submission: Path, where: str = "run") -> Path:
        folder = submission / where
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(json.dumps(self.record))
        (folder / "learning_curve.csv").write_text(self.csv())
        (folder / "assessment.out").write_text(self.transcript())
        return folder


def source_notebook(evidence_points: float = 10) -> nbformat.NotebookNode:
    """A lab of one exercise, one question and the evidence cell, in nbgrader source form."""

    def meta(grade_id, **fields):
        common = {"schema_version": 3, "grade": False, "solution": False, "locked": False, "task": False}
        return {"nbgrader": common | {"grade_id": grade_id} | fields}

    cells = [
        new_markdown_cell("# A tiny lab", id="title"),
        new_code_cell(
            "def double(x):\n    ### BEGIN SOLUTION\n    return 2 * x\n    ### END SOLUTION",
            metadata=meta("double", solution=True),
            id="double",
        ),
        new_code_cell(
            "assert double(2) == 4",
            metadata=meta("ex-double", grade=True, locked=True, points=5),
            id="ex-double",
        ),
        new_markdown_cell("Why?", metadata=meta("q-why", grade=True, solution=True, points=3), id="q-why"),
        new_code_cell(
            "print('the run folder is graded from its files')",
            metadata=meta("run-evidence", grade=True, locked=True, points=evidence_points),
            id="run-evidence",
        ),
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return new_notebook(cells=cells, metadata=kernel)


def lab_path(lab: str = LAB) -> Path:
    """Where a real lab's source notebook lies."""
    return REPOSITORY / "labs" / lab / f"{lab}.ipynb"


@cache
def _source_and_release(lab: str) -> tuple[nbformat.NotebookNode, nbformat.NotebookNode]:
    source = nbformat.read(lab_path(lab), as_version=4)
    return source, release_of(source)


def solved_notebook(answers: Mapping[str, str] | None = None, lab: str = LAB) -> nbformat.NotebookNode:
    """The released notebook of a real lab with the source's answers in it, or those of `answers` by their cells' ids."""
    source, release = _source_and_release(lab)
    notebook = copy.deepcopy(release)
    for cell, solved in zip(notebook.cells, source.cells, strict=True):
        if cell.metadata.get("nbgrader", {}).get("solution") and cell.cell_type == "code":
            cell.source = "\n".join(line for line in solved.source.splitlines() if "### " not in line)
        cell.source = (answers or {}).get(cell.id, cell.source)
    return notebook


def released_notebook(lab: str = LAB) -> nbformat.NotebookNode:
    """The notebook of a real lab as students get it."""
    return copy.deepcopy(_source_and_release(lab)[1])


def open_book(course: Path) -> Gradebook:
    """A course's gradebook, through nbgrader's own API."""
    return Gradebook(f"sqlite:///{course / 'gradebook.db'}", "distributed-training")


def lay_out(root: Path, notebook: nbformat.NotebookNode | None = None) -> Path:
    """A repository of one lab, the real one unless another notebook is given; its course folder."""
    root.mkdir(parents=True, exist_ok=True)
    shutil.copy(REPOSITORY / "nbgrader_config.py", root)
    source = root / "labs" / LAB
    source.mkdir(parents=True)
    if notebook is None:
        shutil.copy(lab_path(), source)
    else:
        nbformat.write(notebook, source / f"{LAB}.ipynb")
    (root / "course" / "submitted").mkdir(parents=True)
    return root / "course"


def hand_in_to(course: Path, student: str, notebook=None, run: Path | Run | None = HONEST_RUN, lab: str = LAB) -> Path:
    """Hand in a notebook (by default solved; False: none) and a run folder (None: none); the submission's folder."""
    folder = course / "submitted" / student / lab
    folder.mkdir(parents=True)
    if notebook is not False:
        nbformat.write(solved_notebook() if notebook is None else notebook, folder / f"{lab}.ipynb")
    if isinstance(run, Run):
        run.write(folder)
    elif run is not None:
        shutil.copytree(run, folder / "run")
    return folder
