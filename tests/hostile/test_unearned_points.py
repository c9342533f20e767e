"""Answers that do not do what the exercise asks, and once had its points: each names what it does instead."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "autograde"))

from graded_lab import GradedLab
from known_mistakes import lost_over, namespace_of

FROZEN = "        start = time.perf_counter()\n"
# lab, exercise, edits of the right answer, parts lost
OF_SEVERAL_RANKS = {
    "a worker whose optimiser never steps": (
        "02_ddp", "worker", (FROZEN, FROZEN + "        optimizer.step = lambda *given: None\n"), "training",
    ),
    "a worker that undoes each epoch": (
        "02_ddp", "worker",
        (FROZEN, FROZEN + "        kept_weights = {n: t.clone() for n, t in model.module.named_parameters()}\n",
         "        validated = ", "        [p.data.copy_(kept_weights[n]) for n, p in model.module.named_parameters()]\n        validated = "),
        "training",
    ),
    "the assessment's worker whose optimiser never steps": (
        "12_assessment", "worker", (FROZEN, FROZEN + "        optimizer.step = lambda *given: None\n"), "training",
    ),
    "a short sleep in the place of waiting": (
        "02_ddp", "prepare-once", ("dist.barrier()", "time.sleep(0.3 * (rank > 0))"), "order",
    ),
    "a sleep longer than any preparation": (
        "02_ddp", "prepare-once", ("dist.barrier()", "time.sleep(1.5 * (rank > 0))"), "order once returns",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_SEVERAL_RANKS)
def test_ranks_that_do_not_do_it(warm, name):
    lab, exercise, edits, lost = OF_SEVERAL_RANKS[name]
    graded = GradedLab(warm, lab)
    judged = graded.judge(exercise, graded.edited(exercise, *edits))
    assert judged.lost == set(lost.split()), judged.reasons


# lab, exercise, source, parts lost for every seed
OF_ONE = {
    "an evaluation that never calls the network": (
        "01_single_gpu", "evaluate",
        """
def evaluate(model, batches, loss_fn):
    return tuple(float(sum(f(x, y) for x, y in batches)) for f in (lambda x, y: x.sum(), lambda x, y: y.sum(), lambda x, y: len(y)))
""",
        "counts loss mode no-graph",
    ),
    "an evaluation of constants": (
        "01_single_gpu", "evaluate", "def evaluate(model, batches, loss_fn):\n    return 1.0, 1, 50\n",
        "counts loss mode no-graph",
    ),
    "a step with batch norm and dropout asleep": (
        "01_single_gpu", "train-step",
        """
def train_step(model, images, labels, optimizer, loss_fn):
    model.eval()
    logits = model(images)
    loss = loss_fn(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach(), logits.detach()
""",
        "update",
    ),
    "a sum over the others for a probability": (
        "09_hogwild", "collision",
        """
def collision_probability(nonzeros, features, processes):
    return (processes - 1) * (1 - math.comb(features - nonzeros, nonzeros) / math.comb(features, nonzeros))
""",
        "many edges",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_ONE)
def test_answers_of_one_process(name):
    lab, exercise, source, lost = OF_ONE[name]
    assert set(lost_over(lab, exercise, namespace_of(lab, exercise, source), range(20))) == {frozenset(lost.split())}
