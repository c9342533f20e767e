"""Similarity over a course folder, from notebooks to the flags of the report."""

import inspect
import re

import nbformat
import pytest
from fake_runs import LAB, hand_in_to, lab_path, solved_notebook

from autograde.reports.similarity.comparison import compare, compare_with_library
from autograde.reports.similarity.submissions import flag_alike, read_answers
from autograde.rubric.schema import find_rubric
from autograde.rubric.verdict import RunSummary, Verdict
from autograde.sandbox.withheld import original_sources
from course_lib.training import loop as training

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
def handed_in(new_lab_course):
    """Hands in solved notebooks, of which `train_step` may be another; the course is its attribute."""

    def hand_in(student, train_step=None):
        hand_in_to(
            new_lab_course, student, solved_notebook({"ex-train-step": train_step} if train_step else None), None
        )

    hand_in.course = new_lab_course
    return hand_in


def test_a_copy_of_an_odd_answer_is_flagged_on_both_and_shown_and_the_usual_solution_is_not(handed_in):
    students = [f"s{i:02d}" for i in range(12)]
    for student in students:
        handed_in(student)
    handed_in("copier", ODD.replace("guessed", "out").replace("bag", "weights"))
    handed_in("odd", ODD)
    result = compare(*read_answers(LAB, handed_in.course, [*students, "copier", "odd", "absent"])[0])
    assert [(pair.left, pair.right) for pair in result.flagged] == [("copier", "odd")]
    verdicts = [Verdict(LAB, "t", name, "2026-01-01", (), (RunSummary(),)) for name in ("copier", "odd", "s00")]
    flags = {
        verdict.student: [flag.detail for flag in verdict.flags] for verdict in flag_alike(verdicts, result.flagged)
    }
    assert "those of odd" in flags["copier"][0] and "those of copier" in flags["odd"][0] and flags["s00"] == []


NAMES = {"train_epoch": "train_step", "totals": "sums", "batches": "data", "images": "pictures", "logits": "out"}
PASTED = "".join(inspect.getsource(function) for function in (training.train_epoch, training._add))
PASTED = re.sub(r"\b(" + "|".join(NAMES) + r")\b", lambda found: NAMES[found[0]], PASTED)


def test_the_library_s_text_under_other_names_is_flagged_and_the_usual_and_the_odd_answer_are_not(handed_in):
    handed_in("ada")
    handed_in("odd", ODD)
    handed_in("paster", PASTED)
    read, _ = read_answers(LAB, handed_in.course, ["ada", "odd", "paster"])
    matches = compare_with_library(*read, original_sources(find_rubric(LAB).execution.withheld))
    assert [(match.student, match.grade_id, match.module) for match in matches] == [
        ("paster", "ex-train-step", "course_lib/training/loop.py")
    ]
    verdicts = [Verdict(LAB, "t", name, "2026-01-01", (), (RunSummary(),)) for name in ("odd", "paster")]
    odd, paster = flag_alike(verdicts, matches=matches)
    assert odd.flags == () and paster.flags[0].kind == "copy"
    assert paster.flags[0].detail.startswith("ex-train-step: alike course_lib/training/loop.py (")


def test_a_copied_text_is_flagged_and_a_quotation_of_the_lab_is_not(new_lab_course):
    source = nbformat.read(lab_path(), as_version=4)
    at = next(number for number, cell in enumerate(source.cells) if cell.id == "q-knee")
    question = source.cells[at - 1].source
    own = " ".join(f"Step {n} took {n * n} ms because queue {n + 7} was {n * 31 % 17} long." for n in range(9))
    texts = {"ada": own, "bob": own.upper(), "cyd": question, "dan": f"> {question}", "eve": "Near 200."}
    for student, text in texts.items():
        hand_in_to(new_lab_course, student, solved_notebook({"q-knee": text}), None)
    _, words = read_answers(LAB, new_lab_course, list(texts))
    result = compare(*words, in_words=True)
    assert [(pair.left, pair.right) for pair in result.flagged] == [("ada", "bob")]
    verdicts = [Verdict(LAB, "t", "ada", "2026-01-01", (), (RunSummary(),))]
    (ada,) = flag_alike(verdicts, result.flagged, what="answers in words")
    assert ada.flags[0].detail.startswith("answers in words much like those of bob")
