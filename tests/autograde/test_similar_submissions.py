"""Similarity over a course folder, from notebooks to the flags of the report."""

import inspect
import re

import nbformat
import pytest
from fake_runs import REPOSITORY

from autograde.reports.similarity.submissions import (
    answers_like_the_library,
    flag_library,
    flag_similar,
    read_answers,
    write_similarity,
)
from autograde.rubric.schema import find_rubric
from autograde.rubric.verdict import RunSummary, Verdict
from autograde.submission.notebook_repair import release_of
from course_lib.training import loop as training

LAB = "01_single_gpu"
ODD = """
def train_step(model, images, labels, optimizer, loss_fn):
    bag = [p for group in optimizer.param_groups for p in group["params"]]
    for p in bag:
        p.grad = None
    guessed = model.forward(images)
    cost = loss_fn(guessed, labels)
    pieces = torch.autograd.grad(cost, bag, allow_unused=True)
    for p, piece in zip(bag, pieces):
        p.grad = piece
    optimizer.step(closure=None)
    return cost.clone().detach(), guessed.clone().detach()
"""


@pytest.fixture
def handed_in(tmp_path):
    source = nbformat.read(REPOSITORY / "labs" / LAB / f"{LAB}.ipynb", as_version=4)
    (tmp_path / "labs" / LAB).mkdir(parents=True)
    nbformat.write(source, tmp_path / "labs" / LAB / f"{LAB}.ipynb")
    (tmp_path / "nbgrader_config.py").write_bytes((REPOSITORY / "nbgrader_config.py").read_bytes())

    def hand_in(student, train_step=None):
        notebook = release_of(source)
        for cell, solved in zip(notebook.cells, source.cells, strict=True):
            if cell.metadata.get("nbgrader", {}).get("solution"):
                lines = solved.source.splitlines()
                cell.source = "\n".join(line for line in lines if "### " not in line)
            if cell.id == "ex-train-step" and train_step:
                cell.source = train_step
        folder = tmp_path / "course" / "submitted" / student / LAB
        folder.mkdir(parents=True)
        nbformat.write(notebook, folder / f"{LAB}.ipynb")

    hand_in.course = tmp_path / "course"
    return hand_in


def test_a_copy_of_an_odd_answer_is_flagged_on_both_and_shown_and_the_usual_solution_is_not(handed_in):
    students = [f"s{i:02d}" for i in range(12)]
    for student in students:
        handed_in(student)
    handed_in("copier", ODD.replace("guessed", "out").replace("bag", "weights"))
    handed_in("odd", ODD)
    page = handed_in.course / "similar.html"
    found = write_similarity(read_answers(LAB, handed_in.course, [*students, "copier", "odd", "absent"]), page)
    assert [(pair.left, pair.right) for pair in found.flagged] == [("copier", "odd")]
    assert "allow_unused" in page.read_text()
    verdicts = [Verdict(LAB, "t", name, "2026-01-01", (), (RunSummary(),)) for name in ("copier", "odd", "s00")]
    flags = {verdict.student: [flag.detail for flag in verdict.flags] for verdict in flag_similar(verdicts, found)}
    assert "those of odd" in flags["copier"][0] and "those of copier" in flags["odd"][0] and flags["s00"] == []


NAMES = {"train_epoch": "train_step", "totals": "sums", "batches": "data", "images": "pictures", "logits": "out"}
PASTED = "".join(inspect.getsource(function) for function in (training.train_epoch, training._add))
PASTED = re.sub(r"\b(" + "|".join(NAMES) + r")\b", lambda found: NAMES[found[0]], PASTED)


def test_the_library_s_text_under_other_names_is_flagged_and_the_usual_and_the_odd_answer_are_not(handed_in):
    handed_in("ada")
    handed_in("odd", ODD)
    handed_in("paster", PASTED)
    read = read_answers(LAB, handed_in.course, ["ada", "odd", "paster"])
    matches = answers_like_the_library(read, find_rubric(LAB).execution.withheld)
    assert [(match.student, match.grade_id, match.module) for match in matches] == [
        ("paster", "ex-train-step", "course_lib/training/loop.py")
    ]
    verdicts = [Verdict(LAB, "t", name, "2026-01-01", (), (RunSummary(),)) for name in ("odd", "paster")]
    odd, paster = flag_library(verdicts, matches)
    assert odd.flags == () and paster.flags[0].kind == "copy"
    assert paster.flags[0].detail.startswith("ex-train-step: alike course_lib/training/loop.py (")
    assert answers_like_the_library(read, ()) == []
