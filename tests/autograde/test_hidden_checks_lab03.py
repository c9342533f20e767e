"""Lab 03's hidden checks against right answers in several styles and the mistakes that students make."""

import pytest
from graded_lab import GradedLab, loses

LAB = "03_batch_size_scaling"
POINTS = {"batch-and-steps": 4, "scaled-lr": 6, "noise-or-not": 6, "noise-scale": 8, "prediction": 6}


@pytest.fixture(scope="module")
def lab(warm):
    return GradedLab(warm, LAB)


@pytest.mark.parametrize("exercise", POINTS)
def test_source_solution_gets_every_point(lab, exercise):
    for seed in (1, 2, 3):
        judged = lab.judge(exercise, seed=seed)
        assert judged.points == judged.max_points == POINTS[exercise], judged.reasons
        assert not judged.flags


def test_points_are_the_notebooks(lab):
    cells = {cell.id: cell.metadata.nbgrader for cell in lab.source.cells if "nbgrader" in cell.metadata}
    in_notebook = {cell: meta.points for cell, meta in cells.items() if meta.grade and not meta.solution}
    del in_notebook["run-evidence"]
    assert {exercise.cell: exercise.max_points for exercise in lab.rubric.exercises} == in_notebook


RIGHT = {
    "batch-and-steps": """
def batch_and_steps(batch_size, num_ranks, images, epochs):
    share = (images - images % num_ranks) / num_ranks
    return [np.int64(batch_size) * num_ranks, float(epochs * math.floor(share / batch_size))]
""",
    "scaled-lr": """
def scaled_lr(base_lr, batch, reference_batch, rule):
    if rule == "none":
        return torch.tensor(base_lr)
    k = torch.tensor(batch) / reference_batch
    return base_lr * (k if rule == "linear" else k.sqrt())
""",
    "noise-or-not": """
import statistics

def summarise(values):
    return [np.mean(values), np.std(values, ddof=1), statistics.stdev(values) / len(values) ** 0.5]

def is_noise(first, second):
    (a, _, e), (b, _, f) = summarise(first), summarise(second)
    return np.abs(a - b) < 2 * np.hypot(e, f)
""",
    "noise-scale": """
def noise_scale(small_batch, big_batch, small_norms, big_norms):
    b, B = small_batch, big_batch
    pairs = [((B * t - b * s) / (B - b), (s - t) / (1 / b - 1 / B)) for s, t in zip(small_norms, big_norms)]
    G2, trace = np.mean(pairs, axis=0)
    return G2, trace, math.inf if G2 <= 0 else trace / G2
""",
    "prediction": """
def images(batch, scale):
    return 1 + batch / scale

def predicted_steps(batch, noise_scale, known_batch, known_steps):
    ratio = images(batch, noise_scale) / images(known_batch, noise_scale)
    return np.float64(known_steps * known_batch / batch * ratio)

useful_batch = lambda noise_scale, extra: noise_scale * extra
""",
}


@pytest.mark.parametrize("exercise", POINTS)
def test_another_style_gets_every_point(lab, exercise):
    judged = lab.judge(exercise, RIGHT[exercise])
    assert judged.points == judged.max_points, judged.reasons


WRONG = {
    "batch of one rank": ("batch-and-steps", "batch_size * num_ranks, ", "batch_size, ", "effective", "wrong"),
    "all images on each rank": ("batch-and-steps", "images // num_ranks //", "images //", "steps", "wrong"),
    "one epoch": ("batch-and-steps", "epochs * (", "(", "steps", "wrong"),
    "last batch kept": ("batch-and-steps", "images // num_ranks // batch_size", "-(-images // num_ranks // batch_size)", "steps", "wrong"),
    "rounded once": (
        "batch-and-steps", "epochs * (images // num_ranks // batch_size)", "epochs * images // num_ranks // batch_size", "steps", "wrong",
    ),
    "one number": ("batch-and-steps", "return batch_size * num_ranks, ", "return ", "effective steps", "a pair"),
    "linear by the root": ("scaled-lr", '"linear": k,', '"linear": k**0.5,', "linear", "wrong"),
    "sqrt as linear": ("scaled-lr", "k**0.5", "k", "sqrt", "wrong"),
    "none scales": ("scaled-lr", '"none": 1.0', '"none": k', "none", "wrong"),
    "whole factors": ("scaled-lr", "batch / reference_batch", "batch // reference_batch", "fraction", "no whole number"),
    "no reference": ("scaled-lr", "batch / reference_batch", "batch", "linear sqrt fraction", "wrong"),
    "upside down": ("scaled-lr", "batch / reference_batch", "reference_batch / batch", "linear sqrt fraction", "wrong"),
    "n": ("noise-or-not", "(n - 1)", "n", "spread decision", "wrong"),
    "no root of n": ("noise-or-not", "spread / math.sqrt(n)", "spread", "error decision", "wrong"),
    "signed difference": ("noise-or-not", "abs(mean_1 - mean_2)", "(mean_1 - mean_2)", "decision", "decided wrongly"),
    "one error": ("noise-or-not", "error_1**2 + error_2**2", "error_1**2", "decision", "decided wrongly"),
    "sum of errors": ("noise-or-not", "math.sqrt(error_1**2 + error_2**2)", "(error_1 + error_2)", "decision", "decided wrongly"),
    "one standard error": ("noise-or-not", "<= 2 *", "<= 1 *", "decision", "decided wrongly"),
    "wrong way round": ("noise-or-not", "<= 2", "> 2", "decision", "decided wrongly"),
    "largest for the mean": ("noise-or-not", "return mean, spread", "return max(values), spread", "mean decision", "wrong"),
    "biased signal": ("noise-scale", "signal = (big_batch * big - small_batch * small) / (big_batch - small_batch)", "signal = big",
                      "signal lost", "wrong"),
    "turned sign": ("noise-scale", "(small - big)", "(big - small)", "noise", "wrong"),
    "no denominator": ("noise-scale", "(small - big) / (1 / small_batch - 1 / big_batch)", "(small - big)", "noise", "wrong"),
    "fraction turned": ("noise-scale", "noise / signal", "signal / noise", "scale", "quotient of the two averages"),
    "negative scale": ("noise-scale", ' if signal > 0 else float("inf")', "", "lost", "below 0"),
    "only the first": ("noise-scale", "sum(big_norms) / len(big_norms)", "big_norms[0]", "signal noise scale", "wrong"),
    "known steps for the fewest": ("prediction", "known_steps / (1 + noise_scale / known_batch)", "known_steps", "steps", "wrong"),
    "halves for ever": ("prediction", "fewest * (1 + noise_scale / batch)", "known_steps * known_batch / batch", "steps", "wrong"),
    "one more": ("prediction", "extra * noise_scale", "(1 + extra) * noise_scale", "batch", "wrong"),
    "text": ("prediction", "return extra * noise_scale", "return str(extra * noise_scale)", "batch", "a number"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_mistake_loses_its_part(lab, mistake):
    exercise, old, new, lost, reason = WRONG[mistake]
    loses(lab, exercise, lab.edited(exercise, old, new), lost, reason)


def test_a_mean_of_quotients_loses_the_scale_alone(lab):
    answer = lab.edited(
        "noise-scale", 'noise / signal if signal > 0 else float("inf")',
        "sum((s - t) / (1 / small_batch - 1 / big_batch) * (big_batch - small_batch) / (big_batch * t - small_batch * s)"
        ' for s, t in zip(small_norms, big_norms)) / len(small_norms) if signal > 0 else float("inf")',
    )  # fmt: skip
    loses(lab, "noise-scale", answer, "scale", "quotient of the two averages")


@pytest.mark.parametrize("exercise", POINTS)
def test_blank_loses_all_and_says_so(lab, exercise):
    judged = lab.judge(exercise, lab.starter[f"ex-{exercise}"])
    assert judged.points == 0
    assert all("not answered" in reason for reason in judged.reasons.values())
    assert judged.flags == ["missing"]


SIGNATURES = {
    "batch-and-steps": {"batch_and_steps": 2},
    "scaled-lr": {"scaled_lr": 1},
    "noise-or-not": {"summarise": 3, "is_noise": 1},
    "noise-scale": {"noise_scale": 3},
    "prediction": {"predicted_steps": 1, "useful_batch": 1},
}
ODD = ["None", "float('nan')", "float('inf')", "'1'", "True", "1.0", "torch.ones(3)", "Same()"]
SAME = """
class Same(float):
    def __eq__(self, other): return True
    __hash__ = None
    __sub__ = __rsub__ = __mul__ = __truediv__ = lambda self, other: self
"""


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("exercise", POINTS)
def test_an_odd_constant_gets_nothing(lab, exercise, value):
    text = SAME
    for name, count in SIGNATURES[exercise].items():
        text += f"\ndef {name}(*arguments):\n    return {value if count == 1 else f'({value},) * {count}'}\n"
    judged = lab.judge(exercise, text)
    # A noise scale that is always infinite is right where the gradient is lost.
    allowed = {"noise-scale": 1}.get(exercise, 0) if value == "float('inf')" else 0
    assert judged.points <= allowed, judged.reasons
    assert "grader" not in judged.flags
