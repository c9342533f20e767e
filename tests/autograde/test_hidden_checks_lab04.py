"""Lab 04's hidden checks against right answers in several styles and the mistakes that students make."""

import pytest
from graded_lab import GradedLab, loses

LAB = "04_momentum_warmup_novograd"
POINTS = {"momentum": 4, "warmup": 5, "range-test": 5, "novograd": 12, "curve": 4}


@pytest.fixture(scope="module")
def lab(warm):
    return GradedLab(warm, LAB)


@pytest.mark.parametrize("exercise", POINTS)
def test_source_solution_gets_every_point(lab, exercise):
    for seed in (1, 2, 3, 4, 5):
        judged = lab.judge(exercise, seed=seed)
        assert judged.points == judged.max_points == POINTS[exercise], judged.reasons
        assert not judged.flags


def test_points_are_the_notebooks(lab):
    cells = {cell.id: cell.metadata.nbgrader for cell in lab.source.cells if "nbgrader" in cell.metadata}
    in_notebook = {cell: meta.points for cell, meta in cells.items() if meta.grade and not meta.solution}
    del in_notebook["run-evidence"]
    assert {exercise.cell: exercise.max_points for exercise in lab.rubric.exercises} == in_notebook


RIGHT = {
    "momentum": """
def momentum_step(lr, momentum, step):
    velocity = place = 0.0
    for _ in range(step):
        velocity = momentum * velocity + 1
        place += lr * velocity
    return [torch.tensor(lr * velocity), place]
""",
    "warmup": """
import numpy as np

def warmup_factor(step, steps_per_epoch, warmup_epochs, start, per="iteration"):
    if per == "epoch":
        step = step // steps_per_epoch * steps_per_epoch
    if step >= warmup_epochs * steps_per_epoch:
        return 1
    return np.interp(step, [0, warmup_epochs * steps_per_epoch], [start, 1])
""",
    "range-test": """
import numpy as np

def range_test_rates(lowest, highest, steps):
    return np.geomspace(lowest, highest, steps).tolist()

def read_range_test(rates, losses):
    stop = next((i for i in range(1, len(losses)) if not losses[i] <= min(4 * min(losses[:i]), 1e300)), len(losses))
    return stop, min(zip(losses[:stop], rates))[1] * 0.1
""",
    "novograd": """
from course_lib.optim import NovoGrad

def novograd_step(weights, gradients, state, lr, betas=(0.95, 0.98), eps=1e-8, weight_decay=0.0, grad_averaging=False):
    if not state:
        state["mine"] = [torch.nn.Parameter(w.clone()) for w in weights]
        state["optimizer"] = NovoGrad(state["mine"], lr, betas, eps, weight_decay, grad_averaging)
    for mine, gradient in zip(state["mine"], gradients):
        mine.grad = gradient
    state["optimizer"].step()
    for weight, mine in zip(weights, state["mine"]):
        weight.copy_(mine.detach())
""",
    "curve": """
import pandas as pd

def curve_name(*numbers):
    return "{}ranks-{}bs-{}lr-{}m-{}w.csv".format(*numbers)

def write_curve(path, times, accuracies):
    frame = pd.DataFrame({"time": [0.0, *times], "val_accuracy": [0.0, *accuracies]})
    frame.round({"time": 1, "val_accuracy": 4}).to_csv(path, index=False)
""",
}


@pytest.mark.parametrize("exercise", POINTS)
def test_another_style_gets_every_point(lab, exercise):
    judged = (lab.with_library() if "course_lib" in RIGHT[exercise] else lab).judge(exercise, RIGHT[exercise])
    assert judged.points == judged.max_points, judged.reasons


@pytest.mark.parametrize("exercise", [exercise for exercise in POINTS if "course_lib" in RIGHT[exercise]])
def test_the_library_s_solution_earns_nothing(lab, exercise):
    judged = lab.judge(exercise, RIGHT[exercise])
    assert judged.points == 0 and judged.flags == ["crash"]
    assert all("is withheld here: an exercise of this lab" in reason for reason in judged.reasons.values())


@pytest.mark.parametrize("whole", ["round", "int"])
def test_a_warm_up_of_whole_iterations_gets_every_point(lab, whole):
    old = "epochs_done = step / steps_per_epoch if"
    new = f"epochs_done = step * warmup_epochs / {whole}(warmup_epochs * steps_per_epoch) if"
    for seed in (1, 2, 3):
        judged = lab.judge("warmup", lab.edited("warmup", old, new), seed=seed)
        assert judged.points == judged.max_points, judged.reasons


def test_a_curve_written_by_its_path_gets_every_point(lab):
    rows = 'f"{t:.1f},{a:.4f}\\n" for t, a in zip([0.0, *times], [0.0, *accuracies])'
    text = RIGHT["curve"].split("def write_curve")[0] + (
        f'def write_curve(path, times, accuracies):\n    path.write_text("time,val_accuracy\\n" + "".join({rows}))\n'
    )
    judged = lab.judge("curve", text)
    assert judged.points == judged.max_points, judged.reasons


WRONG = {
    "exponent": ("momentum", "momentum**t", "momentum**(t - 1)", "length distance", "wrong"),
    "an average": ("momentum", " / (1 - momentum)", "", "length distance", "wrong"),
    "last step for the distance": ("momentum", "sum(lengths)", "lengths[-1]", "distance", "wrong"),
    "t times the last": ("momentum", "sum(lengths)", "step * lengths[-1]", "distance", "wrong"),
    "length alone": ("momentum", "return lengths[-1], sum(lengths)", "return lengths[-1]", "length distance", "a pair"),
    "a step ahead": ("warmup", "step / steps_per_epoch", "(step + 1) / steps_per_epoch", "iteration", "wrong somewhere"),
    "per epoch too early": ("warmup", "else step // steps_per_epoch", "else step // steps_per_epoch + 1", "epoch", "wrong somewhere"),
    "always per iteration": ("warmup", "else step // steps_per_epoch", "else step / steps_per_epoch", "epoch", "wrong somewhere"),
    "no end": ("warmup", "min(1.0, epochs_done / warmup_epochs)", "epochs_done / warmup_epochs", "iteration epoch", "past the end"),
    "from nothing": ("warmup", "start + (1 - start) * ", "", "iteration epoch", "wrong somewhere"),
    "division by no warm-up": ("warmup", "if warmup_epochs == 0", "if warmup_epochs < 0", "without", "not 1 throughout"),
    "no warm-up starts low": ("warmup", "        return 1.0", "        return start", "without", "not 1 throughout"),
    "arithmetic": (
        "range-test", "lowest * (highest / lowest) ** (index / (steps - 1))", "lowest + (highest - lowest) * index / (steps - 1)",
        "rates", "geometric",
    ),
    "one ratio too many": ("range-test", "(steps - 1)", "steps", "rates", "geometric"),
    "nan forgotten": ("range-test", "not math.isfinite(loss) or", "loss == math.inf or", "stop choice", "wrong place"),
    "the place before": ("range-test", "return place,", "return place - 1,", "stop", "wrong place"),
    "no tenth": ("range-test", "rates[best] / 10", "rates[best]", "choice", "wrong on some curve"),
    "two for four": ("range-test", "4 * losses", "1.05 * losses", "stop", "wrong place"),
    "element-wise": ("novograd", "g.square().sum()", "g.square()", "first later decay options", "not the paper's"),
    "v from nothing": (
        "novograd", '{"v": squared_norm', '{"v": (1 - beta2) * squared_norm', "first later decay options", "not the paper's",
    ),
    "old gradients forgotten": (
        "novograd", 'beta1 * state[layer]["m"] + bracket', "bracket", "later decay options", "later ones are not",
    ),
    "betas turned": ("novograd", "beta1, beta2 = betas", "beta2, beta1 = betas", "later decay options", "later ones are not"),
    "decay forgotten": ("novograd", " + weight_decay * w", "", "decay", "wrong with weight decay"),
    "decay in the norm": (
        "novograd", "        squared_norm = ", "        g = g + weight_decay * w\n        squared_norm = ", "decay", "wrong with weight decay",
    ),
    "averaging forgotten": ("novograd", "if grad_averaging:", "if False:", "options", "grad_averaging"),
    "eps under the root": (
        "novograd", '(state[layer]["v"].sqrt() + eps)', '(state[layer]["v"] + eps).sqrt()', "options", "eps",
    ),
    "gradients divided in place": (
        "novograd", "bracket = g / (", "bracket = g.div_(", "gradients", "were changed",
    ),
    "new tensors": (
        "novograd", 'w -= lr * state[layer]["m"]', 'w = w - lr * state[layer]["m"]', "first later decay options gradients", "did not move",
    ),
    "another order": ("curve", "{ranks}ranks-{batch_size}bs", "{batch_size}bs-{ranks}ranks", "name", "a name"),
    "no header": ("curve", 'writer.writerow(["time", "val_accuracy"])', "pass", "rows again", "header"),
    "no first row": ("curve", "writer.writerow([0.0, 0.0])", "pass", "rows again", "first row"),
    "not rounded": ("curve", "round(accuracy, 4)", "accuracy", "rows again", "rounding"),
    "appended": ("curve", '"w"', '"a"', "again", "does not replace"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_mistake_loses_its_part(lab, mistake):
    exercise, old, new, lost, reason = WRONG[mistake]
    loses(lab, exercise, lab.edited(exercise, old, new), lost, reason)


def test_v_not_kept_loses_the_later_steps(lab):
    text = lab.edited("novograd", 'beta2 * state[layer]["v"] + (1 - beta2) * squared_norm', "squared_norm")
    loses(lab, "novograd", text, "later decay options", "later ones are not")


@pytest.mark.parametrize("exercise", POINTS)
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

class Text(str):
    def __eq__(self, other): return True
    def __hash__(self): return 0

torch.equal = torch.allclose = lambda *a, **k: True
"""
ANSWERS = {
    "None": "None",
    "an object that equals everything": "[Anything(0)] * COUNT",
    "NaN": "(float('nan'),) * COUNT",
    "infinity": "(float('inf'),) * COUNT",
    "text that equals everything": "Text('x')",
    "truth": "(True,) * COUNT",
}
SIGNATURES = {
    "momentum": (["momentum_step(lr, momentum, step)"], 2),
    "warmup": (["warmup_factor(step, steps_per_epoch, warmup_epochs, start, per='iteration')"], 1),
    "range-test": (["range_test_rates(lowest, highest, steps)", "read_range_test(rates, losses)"], 2),
    "novograd": (["novograd_step(weights, gradients, state, lr, **options)"], 3),
    "curve": (["curve_name(*numbers)", "write_curve(path, times, accuracies)"], 2),
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
    judged = lab.judge(
        "novograd",
        "def novograd_step(weights, *more, **options):\n    for w in weights:\n        w.fill_(float('nan'))\n",
    )
    assert judged.points == 0, judged.reasons
