"""Lab 01's hidden checks against right answers in several styles and the mistakes that students make."""

import time

import numpy as np
import pytest
from graded_lab import GradedLab, cases, loses

from autograde.checks.lab01 import throughput

LAB = "01_single_gpu"
EXERCISES = ["train-step", "evaluate", "throughput", "speedup"]


@pytest.fixture(scope="module")
def lab(warm):
    return GradedLab(warm, LAB)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_source_solution_gets_every_point(lab, exercise):
    for seed in (1, 2, 3):
        judged = lab.judge(exercise, seed=seed)
        assert judged.points == judged.max_points == 5, judged.reasons
        assert not judged.flags


def test_points_are_the_notebooks(lab):
    cells = {cell.id: cell.metadata.nbgrader for cell in lab.source.cells if "nbgrader" in cell.metadata}
    in_notebook = {cell: meta.points for cell, meta in cells.items() if meta.grade and not meta.solution}
    del in_notebook["run-evidence"]
    assert {exercise.cell: exercise.max_points for exercise in lab.rubric.exercises} == in_notebook


RIGHT = {
    "train-step": """
def train_step(model, images, labels, optimizer, loss_fn):
    for p in model.parameters():
        p.grad = None
    model.train()
    with torch.enable_grad():
        out = model(images)
        loss = loss_fn(out, labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return loss.item(), out.data.clone()
""",
    "evaluate": """
@torch.inference_mode()
def evaluate(model, batches, loss_fn):
    was = model.training
    model.train(False)
    parts = [(loss_fn(model(x), y) * x.shape[0], (model(x).max(dim=1).indices == y).float().sum(), y.numel()) for x, y in batches]
    model.train(was)
    losses, hits, counts = zip(*parts)
    return [sum(losses), torch.stack(hits).sum(), sum(counts)]
""",
    "throughput": """
from time import monotonic as clock

def images_per_second(step, batch_size, steps, warmup, synchronize):
    for i in range(warmup + steps):
        if i == warmup:
            synchronize()
            began = clock()
        step()
    synchronize()
    return torch.tensor(steps * batch_size / (clock() - began))
""",
    "speedup": """
import numpy as np

def speedup_and_efficiency(times, ranks):
    return [np.float64(times[1]) / times[ranks], np.float32(times[1] / times[ranks] / ranks)]
""",
}


@pytest.mark.parametrize("exercise", EXERCISES)
def test_another_style_gets_every_point(lab, exercise):
    judged = lab.judge(exercise, RIGHT[exercise])
    assert judged.points == judged.max_points, judged.reasons


WRONG = {
    "no zero_grad": ("train-step", "optimizer.zero_grad()", "pass", "repeat", "uses the first one's gradients too"),
    "no step": ("train-step", "optimizer.step()", "pass", "update", "where they were"),
    "no backward": ("train-step", "loss.backward()", "pass", "update repeat", "where they were"),
    "zero_grad after backward": (
        "train-step", "loss.backward()", "loss.backward(); optimizer.zero_grad()", "update repeat", "where they were",
    ),
    "two backwards": (
        "train-step", "loss.backward()", "loss.backward(retain_graph=True); loss.backward()", "update",
        "not those of the given optimiser",
    ),
    "its own loss": (
        "train-step", "loss_fn(logits, labels)", "nn.functional.cross_entropy(logits, labels)", "update returns",
        "not those of the given optimiser",
    ),
    "graph kept": ("train-step", "loss.detach()", "loss", "returns", "carries its graph"),
    "order turned": ("train-step", "loss.detach(), logits.detach()", "logits.detach(), loss.detach()", "returns", "shape"),
    "logits of after": (
        "train-step", "logits.detach()", "model(images).detach()", "returns", "before the update",
    ),
    "means added": ("evaluate", "* len(labels)", "", "loss", "differ in size"),
    "batches counted": ("evaluate", "images_seen += len(labels)", "images_seen += 1", "counts", "images is wrong"),
    "order of the numbers": (
        "evaluate", "return loss_sum, correct, images_seen", "return correct, loss_sum, images_seen", "counts loss", "wrong",
    ),
    "evaluation mode in the step": ("train-step", "logits = model(images)", "model.eval(); logits = model(images)", "update", "training mode"),
    "no eval": ("evaluate", "model.eval()", "pass", "mode", "moved"),
    "eval with batch norm alone": (
        "evaluate", "model.eval()", "[m.eval() for m in model.modules() if 'Norm' in type(m).__name__]", "mode", "dropout",
    ),
    "graph recorded": ("evaluate", "torch.no_grad()", "torch.enable_grad()", "no-graph", "graph"),
    "argmin": ("evaluate", "argmax", "argmin", "counts", "correct predictions is wrong"),
    "no synchronize before": (
        "throughput", "synchronize()\n    start", "start", "rate", "busy with the warm-up",
    ),
    "no synchronize after": (
        "throughput", "synchronize()\n    return", "return", "rate", "still at work",
    ),
    "warm-up counted": ("throughput", "batch_size * steps", "batch_size * (warmup + steps)", "rate", "higher"),
    "no batch size": ("throughput", "batch_size * steps", "steps", "rate", "lower"),
    "warm-up left out": ("throughput", "for _ in range(warmup)", "for _ in range(0)", "calls rate", "less often"),
    "a clock that lies": (
        "throughput", "    for _ in range(warmup)", "    tick = time.perf_counter\n    time.perf_counter = lambda: tick() / 3\n"
        "    for _ in range(warmup)", "rate", "higher",
    ),
    "upside down": ("speedup", "times[1] / times[ranks]", "times[ranks] / times[1]", "speedup efficiency", "wrong"),
    "efficiency times ranks": ("speedup", "gain / ranks", "gain * ranks", "efficiency", "wrong"),
    "one number": ("speedup", "return gain, gain / ranks", "return gain", "speedup efficiency", "a pair"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", cases(WRONG, "train-step evaluate speedup"))
def test_mistake_loses_its_part(lab, mistake):
    exercise, old, new, lost, reason = WRONG[mistake]
    loses(lab, exercise, lab.edited(exercise, old, new), lost, reason)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_blank_loses_all_and_says_so(lab, exercise):
    judged = lab.judge(exercise, lab.starter[f"ex-{exercise}"])
    assert judged.points == 0
    assert all("not answered" in reason for reason in judged.reasons.values())
    assert judged.flags == ["missing"]


LURKING = """
class Anything(float):
    def __eq__(self, other): return True
    def __hash__(self): return 0
    __ne__ = __lt__ = __gt__ = lambda self, other: False
    __le__ = __ge__ = lambda self, other: True
    __sub__ = __rsub__ = __add__ = __radd__ = __mul__ = __truediv__ = lambda self, other: self

class Like(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return True

class Pair(tuple):
    def __eq__(self, other): return True
    __hash__ = None

torch.equal = torch.allclose = lambda *a, **k: True
torch.isclose = lambda a, b, **k: torch.ones_like(a, dtype=torch.bool)
"""
ANSWERS = {
    "None": "None",
    "an object that equals everything": "Pair([Anything(0)] * COUNT)",
    "a tensor that equals everything": "[torch.zeros(()).as_subclass(Like)] * COUNT",
    "NaN": "(float('nan'),) * COUNT",
    "infinity": "(float('inf'),) * COUNT",
    "text": "('1',) * COUNT",
    "truth": "(True,) * COUNT",
}
SIGNATURES = {
    "train-step": ("train_step(model, images, labels, optimizer, loss_fn)", 2),
    "evaluate": ("evaluate(model, batches, loss_fn)", 3),
    "throughput": ("images_per_second(step, batch_size, steps, warmup, synchronize)", 1),
    "speedup": ("speedup_and_efficiency(times, ranks)", 2),
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("exercise", EXERCISES)
def test_returning_what_compares_equal_gets_nothing(lab, exercise, answer):
    signature, count = SIGNATURES[exercise]
    judged = lab.judge(exercise, f"{LURKING}\nCOUNT = {count}\ndef {signature}:\n    return {ANSWERS[answer]}\n")
    assert judged.points == 0, judged.reasons
    assert "grader" not in judged.flags


def test_a_huge_answer_gets_nothing(lab):
    judged = lab.judge("speedup", "def speedup_and_efficiency(times, ranks):\n    return torch.zeros(30_000_000)\n")
    assert judged.points == 0, judged.reasons
    assert "grader" not in judged.flags


def test_an_answer_that_raises_is_told_where(lab):
    judged = lab.judge("speedup", "def speedup_and_efficiency(times, ranks):\n    return times['one']\n")
    assert judged.points == 0
    assert all("KeyError" in reason and "line 2" in reason for reason in judged.reasons.values())
    assert judged.flags == ["crash"]


class InProcess:
    """Asks a function of this process; `stalls` are the seconds that each call loses between the wait and the clock."""

    def __init__(self, stalls, seed):
        self.random, self.stalls = np.random.default_rng(seed), list(stalls)

    def call(self, name, sizes, device):
        stall = self.stalls.pop(0) if len(self.stalls) > 1 else self.stalls[0]
        for _ in range(sizes["warmup"]):
            device["step"](0)
        time.sleep(device["synchronize"](0).seconds)
        start = time.perf_counter()
        for _ in range(sizes["steps"]):
            device["step"](0)
        time.sleep(device["synchronize"](0).seconds + stall)
        return sizes["batch_size"] * sizes["steps"] / (time.perf_counter() - start)


# With the last seed every device is a fast one, so that eight questions take two seconds and not eight.
@pytest.mark.parametrize("stalls, seed, right", [([0.0], 0, True), ([1.0, 0.0], 0, True), ([0.3], 5595, False)])
def test_a_machine_that_stops_the_process_at_the_wrong_moment_takes_no_points(stalls, seed, right):
    asked = InProcess(stalls, seed)
    assert throughput(asked)["rate"].passed == right
