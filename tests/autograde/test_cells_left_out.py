"""A cell that never returns, or ends its process, costs the exercises that need it and no other."""

import pytest

from autograde.grading.exercises import ExerciseJudge, _raised
from autograde.rubric.schema import Execution, find_rubric

EVALUATE = """
import torch

def evaluate(model, batches, loss_fn):
    model.eval()
    loss_sum = correct = images = 0
    with torch.no_grad():
        for x, labels in batches:
            logits = model(x)
            loss_sum += loss_fn(logits, labels).item() * len(labels)
            correct += (logits.argmax(1) == labels).sum().item()
            images += len(labels)
    return loss_sum, correct, images
"""
NAMES = ("train-step", "evaluate")
EXERCISES = {each.cell.removeprefix("check-"): each for each in find_rubric("01_single_gpu").exercises}
MOST = EXERCISES["evaluate"].max_points


def judge(warm, *cells, seconds=1.5):
    made = [
        {"id": name, "source": source, "definitions": False, "answer": name.startswith("ex-")} for name, source in cells
    ]
    judge = ExerciseJudge(warm, Execution(seconds=seconds), {}, made, [1])
    results = {name: judge.judge(exercise) for name, exercise in EXERCISES.items() if name in NAMES}
    return {name: sum(result.points for result in found) for name, found in results.items()}, results, judge.flags


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("while True:\n    pass", "timed out after 1.5 s in cell 'ex-train-step'"),
        ("import os\nos._exit(0)", "ended itself with exit code 0 in cell 'ex-train-step'"),
        ("print('x' * (3 << 20))", "printed too much"),
    ],
)
def test_the_others_are_judged(warm, source, reason):
    points, results, flags = judge(warm, ("ex-train-step", source), ("ex-evaluate", EVALUATE))
    assert points == {"train-step": 0, "evaluate": MOST}
    assert all(reason in result.reason for result in results["train-step"])
    assert [flag.kind for flag in flags] in (["limit"], ["crash"])


def test_a_cell_of_the_lab_s_own_that_ends_the_execution_loses_everything(warm):
    # As when an answer before it has spoilt what it calls.
    points, results, _ = judge(warm, ("setup", "import os\nos._exit(3)"), ("ex-evaluate", EVALUATE))
    assert points == {"train-step": 0, "evaluate": 0}
    assert "exit code 3 in cell 'setup'" in results["evaluate"][0].reason


def test_three_are_left_out_and_no_more(warm):
    hanging = [(f"ex-{n}", "while True: pass") for n in range(4)]
    points, results, _ = judge(warm, *hanging, ("ex-evaluate", EVALUATE), seconds=0.5)
    assert points == {"train-step": 0, "evaluate": 0}
    assert "in cell 'ex-3'" in results["evaluate"][0].reason
    assert judge(warm, *hanging[1:], ("ex-evaluate", EVALUATE), seconds=0.5)[0]["evaluate"] == MOST


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_both_ways_in_which_a_rank_is_missed_are_told_alike(how):
    error = {"type": "RuntimeError", "message": f"Read error: Connection {how} by peer"}
    assert "a rank ended while another waited" in str(_raised(error, "your function raised", "crash"))
