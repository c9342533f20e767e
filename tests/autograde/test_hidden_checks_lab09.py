"""Lab 09's hidden checks against right answers in several styles and the mistakes that students make."""

import copy
import math

import numpy as np
import pytest
import torch
from graded_lab import GradedLab, loses
from torch.nn import functional as F

from course_lib.checks import CheckFailed, check

LAB = "09_hogwild"
POINTS = {"collision": 6, "sparse": 10, "share": 5, "reading": 6, "loop": 8}


@pytest.fixture(scope="module")
def lab(warm):
    return GradedLab(warm, LAB)


@pytest.mark.parametrize("exercise", POINTS)
def test_source_solution_gets_every_point(lab, exercise):
    for seed in (1, 2) if exercise == "loop" else (1, 2, 3, 4, 5):
        judged = lab.judge(exercise, seed=seed)
        assert judged.points == judged.max_points == POINTS[exercise], judged.reasons
        assert not judged.flags


def test_points_are_the_notebooks(lab):
    cells = {cell.id: cell.metadata.nbgrader for cell in lab.source.cells if "nbgrader" in cell.metadata}
    in_notebook = {cell: meta.points for cell, meta in cells.items() if meta.grade and not meta.solution}
    del in_notebook["run-evidence"]
    assert {exercise.cell: exercise.max_points for exercise in lab.rubric.exercises} == in_notebook


RIGHT = {
    "collision": """
def collision_probability(nonzeros, features, processes):
    misses = 1.0
    for i in range(nonzeros):
        misses *= max(0, features - nonzeros - i) / (features - i)
    return torch.tensor(1 - misses ** (processes - 1), dtype=torch.float64)
""",
    "sparse": """
def sparse_step(weights, indices, labels, lr):
    w, i = weights.numpy(), indices.numpy()
    error = 1 / (1 + np.exp(-w[i].sum(1))) - labels.numpy()
    np.subtract.at(w, i, lr * np.repeat(error[:, None], i.shape[1], 1))
""",
    "share": """
def my_share(samples, processes, rank, epoch, seed):
    return np.array_split(np.random.default_rng([seed, epoch]).permutation(samples), processes)[rank]
""",
    "reading": """
def time_to_accuracy(curve, target):
    return min((t for t, n, a in curve if a >= target), default=None)

def speed_up(serial, parallel, target):
    times = [time_to_accuracy(curve, target) for curve in (serial, parallel)]
    rates = [curve[-1][1] / curve[-1][0] for curve in (serial, parallel)]
    return [rates[1] / rates[0], times[0] / times[1] if None not in times else None]
""",
    "loop": """
def train_share(model, batches, lr, lock):
    done = 0
    for images, labels in batches:
        gradients = torch.autograd.grad(F.cross_entropy(model(images), labels), list(model.parameters()))
        lock.__enter__()
        for parameter, gradient in zip(model.parameters(), gradients):
            parameter.data.sub_(gradient, alpha=lr)
        lock.__exit__(None, None, None)
        done += labels.numel()
    return done
""",
}


@pytest.mark.parametrize("exercise", POINTS)
def test_another_style_gets_every_point(lab, exercise):
    judged = lab.judge(exercise, RIGHT[exercise])
    assert judged.points == judged.max_points, judged.reasons


FUNCTIONS = {
    "collision": ("collision_probability",),
    "sparse": ("sparse_step",),
    "share": ("my_share",),
    "reading": ("time_to_accuracy", "speed_up"),
    "loop": ("train_share",),
}


def visible(exercise, source):
    """The visible check of an answer's source."""
    names = {"torch": torch, "np": np, "F": F, "math": math, "copy": copy}
    exec(source, names)
    answer = tuple(names[name] for name in FUNCTIONS[exercise])
    check(f"lab09.{exercise}", answer[0] if len(answer) == 1 else answer)


@pytest.mark.parametrize("exercise", POINTS)
def test_the_visible_check_accepts_that_style_too(exercise):
    visible(exercise, RIGHT[exercise])


WRONG = {
    "the misses": ("collision", "return 1 - misses", "return misses", "two many edges", "wrong for two processes"),
    "one other": ("collision", "misses ** (processes - 1)", "misses", "many edges", "more than two processes"),
    "itself too": ("collision", "(processes - 1)", "processes", "two many edges", "wrong for two processes"),
    "alone": ("collision", "** (processes - 1)", "** max(1, processes - 1)", "edges", "one process"),
    "repeats lost": (
        "sparse", "weights.index_add_(0, indices.flatten(), amounts.repeat_interleave(indices.shape[1]))",
        "weights[indices.flatten()] += amounts.repeat_interleave(indices.shape[1])", "repeated", "not all of its updates",
    ),
    "upwards": ("sparse", "(labels - torch", "-(labels - torch", "step repeated memory", "wrong where no feature"),
    "the mean": ("sparse", "lr * (", "lr / len(labels) * (", "step repeated memory", "wrong where no feature"),
    "dense margins": (
        "sparse", "weights[indices].sum(1)",
        "torch.zeros(len(labels), len(weights), dtype=weights.dtype).scatter_add_(1, indices, "
        "torch.ones_like(indices, dtype=weights.dtype)) @ weights", "step memory", "no sample has",
    ),
    "dense writing": (
        "sparse", "weights.index_add_(0", "weights += torch.zeros_like(weights).index_add_(0", "memory", "far more of the weights",
    ),
    "copied back": (
        "sparse", "weights.index_add_(0", "weights[:] = weights.clone().index_add_(0", "memory", "far more of the weights",
    ),
    "a new tensor": ("sparse", "weights.index_add_(", "weights = weights.index_add(", "step repeated memory", "wrong where no"),
    "everything": ("share", "order[rank::processes]", "order", "once even order", "in more than one"),
    "remainder lost": (
        "share", "order[rank::processes]", "order[: samples // processes * processes][rank::processes]", "once even order", "in no share",
    ),
    "own orders": ("share", "seed + epoch", "seed + epoch + rank", "once even order", "in more than one"),
    "the same each epoch": ("share", "seed + epoch", "seed", "order", "two epochs have the same order"),
    "one seed": ("share", "seed + epoch", "epoch", "order", "other seeds do"),
    "unshuffled": (
        "share", "return order[rank::processes]", "return [(i + epoch + seed) % samples for i in range(samples)][rank::processes] if epoch else "
        "list(range(samples))[rank::processes]", "order", "not shuffled",
    ),
    "uneven": (
        "share", "return order[rank::processes]", "return order[rank:2 * processes - 1:processes] if rank else "
        "torch.cat([order[:1], order[processes:processes + 1], order[2 * processes - 1:]]) if processes > 1 else order", "even", "more than one sample",
    ),
    "torch's generator": (
        "share", "torch.randperm(samples, generator=torch.Generator().manual_seed(seed + epoch))",
        "torch.manual_seed(seed + epoch) and torch.randperm(samples)", "order", "from which dropout draws",
    ),
    "numpy's generator": (
        "share", "order[rank::processes]", "np.random.rand() and order[rank::processes]", "order",
        "from which dropout draws",
    ),
    "fixed parts": (
        "share", "    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed + epoch))\n    return order[rank::processes]",
        "    mine = (samples - rank + processes - 1) // processes\n"
        "    return rank + processes * torch.randperm(mine, generator=torch.Generator().manual_seed(seed + epoch))",
        "order", "the same samples in every epoch",
    ),
    "above the target": ("reading", "accuracy >= target", "accuracy > target", "time accuracy", "wrong for some curve"),
    "the last time": ("reading", "    return None", "    return curve[-1][0]", "time accuracy", "wrong for some"),
    "ratio of seconds": (
        "reading", "(samples / seconds) / (serial_samples / serial_seconds)", "serial_seconds / seconds", "throughput", "different numbers of samples",
    ),
    "turned": ("reading", "first / second", "second / first", "accuracy", "wrong for some pair"),
    "infinity for never": ("reading", "    return None", "    return float('inf')", "time accuracy", "wrong for some"),
    "zero for never": (
        "reading", "None if first is None or second is None else first / second", "(first or 0) / (second or 1)", "accuracy", "not None",
    ),
    "the serial run never": (
        "reading", "None if first is None or second is None else first / second",
        "None if second is None else (first or second) / second", "accuracy", "not None",
    ),
    "a tensor of samples": ("loop", "return samples", "return torch.tensor(samples)", "steps", "number of samples is not"),
    "cleared after the step": (
        "loop",
        "        optimizer.zero_grad()\n        F.cross_entropy(model(images), labels).backward()\n        with lock:\n            optimizer.step()",
        "        F.cross_entropy(model(images), labels).backward()\n        with lock:\n            optimizer.step()\n        optimizer.zero_grad()",
        "steps lock memory", "went into the first step",
    ),
    "gradients add up": ("loop", "optimizer.zero_grad()", "pass", "steps lock memory", "not those of plain SGD"),
    "summed loss": ("loop", "labels).backward()", "labels, reduction='sum').backward()", "steps lock memory", "not those of plain SGD"),
    "counts batches": ("loop", "samples += len(labels)", "samples += 1", "steps", "number of samples is not"),
    "no lock": ("loop", "with lock:", "if True:", "lock memory", "was not held"),
    "gradient inside": (
        "loop", "        F.cross_entropy(model(images), labels).backward()\n        with lock:\n            optimizer.step()",
        "        with lock:\n            F.cross_entropy(model(images), labels).backward()\n            optimizer.step()",
        "lock memory", "while the lock was held",
    ),
    "a copy": (
        "loop", "    optimizer = ", "    model = copy.deepcopy(model)\n    optimizer = ", "steps lock memory", "not those of plain SGD",
    ),
    "tensors of its own": (
        "loop", "            optimizer.step()",
        "            for p in model.parameters():\n                p.data = p.data - lr * p.grad", "steps lock memory", "tensors of its own",
    ),
    "written back": (
        "loop", "        with lock:\n            optimizer.step()",
        "        new = [p.detach() - lr * p.grad for p in model.parameters()]\n        with lock, torch.no_grad():\n"
        "            for p, w in zip(model.parameters(), new):\n                p.copy_(w)", "memory", "not all are there",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_mistake_loses_its_part(lab, mistake):
    exercise, old, new, lost, reason = WRONG[mistake]
    loses(lab, exercise, lab.edited(exercise, old, new), lost, reason)


@pytest.mark.parametrize("mistake", WRONG)
def test_the_visible_check_refuses_the_mistake_too(lab, mistake):
    exercise, old, new, *_ = WRONG[mistake]
    with pytest.raises(CheckFailed):
        visible(exercise, lab.edited(exercise, old, new))


@pytest.mark.parametrize("exercise", POINTS)
def test_blank_loses_all_and_says_so(lab, exercise):
    judged = lab.judge(exercise, lab.starter[f"ex-{exercise}"])
    assert judged.points == 0
    assert all("not answered" in reason for reason in judged.reasons.values())
    assert judged.flags == ["missing"]


def test_a_loop_that_never_ends_is_ended(lab, monkeypatch):
    from graded_lab import with_seconds

    with_seconds(monkeypatch, 2)
    judged = lab.judge("loop", lab.edited("loop", "        optimizer.zero_grad()", "        while True: pass"))
    assert judged.points == 0 and all("timed out" in reason for reason in judged.reasons.values()), judged.reasons


LURKING = """
class Anything(float):
    def __eq__(self, other): return True
    def __hash__(self): return 0
    __ne__ = __lt__ = __gt__ = lambda self, other: False
    __le__ = __ge__ = lambda self, other: True
    __sub__ = __rsub__ = __add__ = __radd__ = __mul__ = __truediv__ = lambda self, other: self

torch.equal = torch.allclose = lambda *a, **k: True
"""
ANSWERS = {
    "None": "None",
    "an object that equals everything": "[Anything(0)] * COUNT",
    "NaN": "(float('nan'),) * COUNT",
    "infinity": "(float('inf'),) * COUNT",
    "truth": "(True,) * COUNT",
}
SIGNATURES = {
    "collision": (["collision_probability(nonzeros, features, processes)"], 1),
    "sparse": (["sparse_step(weights, indices, labels, lr)"], 1),
    "share": (["my_share(samples, processes, rank, epoch, seed)"], 2),
    "reading": (["time_to_accuracy(curve, target)", "speed_up(serial, parallel, target)"], 2),
    "loop": (["train_share(model, batches, lr, lock)"], 1),
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("exercise", POINTS)
def test_returning_what_compares_equal_gets_nothing(lab, exercise, answer):
    signatures, count = SIGNATURES[exercise]
    functions = "".join(f"def {signature}:\n    return {ANSWERS[answer]}\n" for signature in signatures)
    judged = lab.judge(exercise, f"{LURKING}\nCOUNT = {count}\n{functions}")
    assert judged.points == 0, judged.reasons
    assert "grader" not in judged.flags


def test_weights_of_nan_get_nothing(lab):
    fill = "def sparse_step(weights, *more):\n    weights.fill_(float('nan'))\n"
    assert lab.judge("sparse", fill).points == 0
    fill = "def train_share(model, *more):\n    for p in model.parameters(): p.data.fill_(float('nan'))\n    return 0\n"
    assert lab.judge("loop", fill).points == 0
