"""Lab 11's hidden checks against right answers in several styles and the mistakes that students make."""

import pytest
from graded_lab import GradedLab, loses

from autograde.checks.registry import driver_source

LAB = "11_scaling_study"
POINTS = {"throughput": 6, "scaling": 8, "laws": 8, "bytes": 7, "model": 11}


@pytest.fixture(scope="module")
def lab(warm):
    return GradedLab(warm, LAB)


@pytest.mark.parametrize("exercise", POINTS)
def test_source_solution_gets_every_point(lab, exercise):
    for seed in (1, 2):
        judged = lab.judge(exercise, seed=seed)
        assert judged.points == judged.max_points == POINTS[exercise], judged.reasons
        assert not judged.flags


def test_points_are_the_notebooks(lab):
    cells = {cell.id: cell.metadata.nbgrader for cell in lab.source.cells if "nbgrader" in cell.metadata}
    in_notebook = {cell: meta.points for cell, meta in cells.items() if meta.grade and not meta.solution}
    del in_notebook["run-evidence"]
    assert {exercise.cell: exercise.max_points for exercise in lab.rubric.exercises} == in_notebook


@pytest.mark.parametrize("exercise", POINTS)
def test_a_blank_gets_nothing(lab, exercise):
    judged = lab.judge(exercise, lab.starter[f"ex-{exercise}"])
    assert judged.points == 0 and all("not answered" in reason for reason in judged.reasons.values())


def test_the_driver_knows_no_answer():
    source = driver_source("lab11.model").partition("# Drivers of lab 11")[2]
    assert "sum(" not in source and "/" not in source and "lstsq" not in source


RIGHT = {
    "NumPy": ("throughput", """
def steady_throughput(images, epoch_seconds):
    return images / np.median(np.max(np.array(epoch_seconds), axis=0)[1:])
"""),
    "PyTorch": ("throughput", """
def steady_throughput(images, epoch_seconds):
    slowest = torch.tensor(epoch_seconds, dtype=torch.float64).amax(0)[1:]
    return images / slowest.quantile(0.5)
"""),
    "a loop, lists of two": ("scaling", """
def scaling(sequential, times, kind):
    table = {}
    for n in times:
        s = sequential / times[n]
        if kind == "weak":
            s *= n
        table[n] = [s, np.float64(s / n)]
    return table
"""),
    "NumPy's lstsq": ("laws", """
def amdahl(ranks, serial):
    return ranks / (1 + serial * (ranks - 1))

def gustafson(ranks, serial):
    return ranks - serial * (ranks - 1)

def serial_share(speedups):
    n, s = np.array(list(speedups)), np.array(list(speedups.values()))
    return np.linalg.lstsq((1 - 1 / n)[:, None], 1 / s - 1 / n, rcond=None)[0][0]
"""),
    "k on top": ("bytes", """
def busiest_sends(way, nbytes, ranks, servers=1):
    k = ranks if way == "ring" else servers
    return nbytes * (ranks + k - 2) / k
"""),
    "NumPy's arrays, bisection": ("model", """
def fit_step(rows):
    a = np.array(rows, dtype=float)
    n, b, g, t = a.T
    matrix = np.stack([np.ones_like(n), b, 2 * (n - 1), 2 * (n - 1) * g / n], 1) / t[:, None]
    scale = np.abs(matrix).max(0)
    return np.linalg.lstsq(matrix / scale, np.ones(len(t)), rcond=None)[0] / scale

def ranks_worth(model, batch, nbytes, least, most=4096):
    t0, c, alpha, beta = model
    n = np.arange(1, most + 1)
    share = (t0 + c * batch) / (t0 + c * batch + 2 * (n - 1) * (alpha + beta * nbytes / n))
    return n[share >= least].max()
"""),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_other_right_answers_get_every_point(lab, name):
    exercise, answer = RIGHT[name]
    judged = lab.judge(exercise, answer, 4)
    assert judged.points == POINTS[exercise], judged.reasons


WRONG = [
    ("throughput", ["slowest[1:]", "slowest"], "first", "the first epoch is in it"),
    ("throughput", ["statistics.median(slowest[1:])", "statistics.mean(slowest[1:])"], "median", "one disturbed epoch"),
    ("throughput", ["max(epoch)", "epoch[0]"], "slowest", "slowest rank"),
    ("throughput", ["return images / ", "images / "], "first slowest median", "nothing (None)"),
    ("throughput", ["return images / statistics.median(slowest[1:])", "return float('nan')"], "first slowest median", "should return a number"),
    ("scaling", ["sequential / seconds", "times.get(1, sequential) / seconds"], "baseline", "not against the sequential program"),
    ("scaling", ["ranks if kind == \"weak\" else 1", "1"], "weak baseline", "for N times the work"),
    ("scaling", ["ranks if kind == \"weak\" else 1", "ranks"], "strong baseline", "for the same work"),
    ("scaling", ["in gains.items()}", "in gains.items() if ranks > 1}"], "baseline", "run on 1 rank too"),
    ("laws", ["return serial + (1 - serial) * ranks", "return amdahl(ranks, serial)"], "gustafson", "it is Amdahl's law"),
    ("laws", ["1 / (serial + (1 - serial) / ranks)", "1 / (1 - serial + serial / ranks)"], "amdahl", "does not divide"),
    ("laws", ["return sum(x * y for x, y in points) / sum(x * x for x, y in points)", "points = [p for p in points if p[0]]\n    return sum(y / x for x, y in points) / len(points)"], "fit", "mean of the single shares"),
    ("laws", ["return sum(x * y for x, y in points) / sum(x * x for x, y in points)", "return sum(y for x, y in points) / sum(x for x, y in points)"], "fit", "Σy / Σx"),
    ("laws", ["return sum(x * y for", "return max(0.0, sum(x * y for", "for x, y in points)\n", "for x, y in points))\n"], "single fit", "cut off"),
    ("bytes", ["2 * (ranks - 1) / ranks * nbytes", "(ranks - 1) / ranks * nbytes"], "ring", "reduce-scatter alone"),
    ("bytes", ["(ranks - 1) * part + (servers - 1) * part", "(ranks - 1) * part"], "sharded", "the servers work as well"),
    ("bytes", ["(ranks - 1) * part + (servers - 1) * part", "ranks * part + (servers - 1) * part"], "server sharded", "nothing to itself"),
    ("model", ["[1 / t, b / t, 2 * (N - 1) / t, 2 * (N - 1) * n / N / t]", "[1, b, 2 * (N - 1), 2 * (N - 1) * n / N]", "np.ones(len(rows))", "np.array([row[3] for row in rows])"], "noise", "the long steps decide"),
    ("model", ["2 * (N - 1) / t, 2 * (N - 1) * n / N / t", "(N - 1) / t, (N - 1) * n / N / t"], "line noise", "does not find the numbers"),
    ("model", ["rcond=None)[0].tolist()", "rcond=None)[0].tolist()[::-1]"], "line noise", "another order"),
    ("model", ["worth = ranks", "worth = ranks + 1"], "worth", "one rank too many"),
    ("model", ["    return worth", "    return float(worth)"], "worth", "should return an int"),
    ("model", ["range(1, most + 1)", "range(1, 4097)"], "worth", "does not stop at `most`"),
]  # fmt: skip


@pytest.mark.parametrize("exercise, edits, lost, reason", WRONG, ids=[f"{w[0]} {i}" for i, w in enumerate(WRONG)])
def test_a_mistake_loses_its_parts_and_no_others(lab, exercise, edits, lost, reason):
    loses(lab, exercise, lab.edited(exercise, *edits), lost, reason)


LIBRARY = {
    "throughput": "from course_lib.metrics import steady_throughput",
    "laws": """
from course_lib.scaling_model import amdahl_speedup as amdahl, fit_serial_share, gustafson_speedup as gustafson

def serial_share(speedups):
    return fit_serial_share(speedups)[0]
""",
    "bytes": """
from course_lib.communication_cost import ALL_REDUCE_COSTS

def busiest_sends(way, nbytes, ranks, servers=1):
    return ALL_REDUCE_COSTS[way](nbytes, ranks)[1]
""",
    "model": """
def fit_step(rows):
    model = fit_step_model([Measurement(*row) for row in rows])
    return model.overhead, model.per_image, model.alpha, model.beta

def ranks_worth(model, batch, nbytes, least, most=4096):
    times = [StepModel(*model).seconds(n, batch, nbytes) for n in range(1, most + 1)]
    return sum(times[0] / seconds >= least for seconds in times)
""",
}


@pytest.mark.parametrize("exercise", LIBRARY)
def test_the_library_does_not_answer(lab, exercise):
    judged = lab.judge(exercise, LIBRARY[exercise])
    assert judged.points == 0, judged.reasons
