"""Lab 11: the scaling study. The harness, speed-up and efficiency, bytes and seconds of an all-reduce, a fitted model."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

from course_lib.exercises.comparing import equal, finite
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.labs.lab11.measuring import MEASURE

__all__ = ["EXERCISES"]

# --- speed-up and efficiency


def _draw_times(random):
    def case(kind, *ranks):
        sequential, longer = round(float(random.uniform(5, 20)), 2), random.uniform(1.05, 1.5, len(ranks)).tolist()
        longer = longer if kind == "weak" else [factor / n for factor, n in zip(longer, ranks, strict=True)]
        times = {n: round(sequential * factor, 3) for n, factor in zip(ranks, longer, strict=True)}
        return sequential, times, kind

    cases = {kind: [case(kind, 2, 4), case(kind, 3, 8, 16)] for kind in ("strong", "weak")}

    def steps(ranks):
        """Steps of some batches; a batch that the ranks cannot divide has no strong counterpart."""
        small = ranks * int(random.integers(1, 4))
        batches = [small, small * ranks + 1, small * ranks, small * ranks**2]

        def seconds(extra):
            return {b: round(0.05 + extra + 0.01 * b * float(random.uniform(0.9, 1.1)), 4) for b in batches}

        return seconds(0.0), {**seconds(0.03), 10_000: 99.0}, ranks

    cases |= {"baseline": [case(kind, *ranks) for kind in cases for ranks in ((1, 2, 8), (1, 5))]}
    return cases | {"studies": [steps(2), steps(3), steps(4)]}


def observe_table(case, scaling, studies):
    if isinstance(case[2], int):
        sequential, parallel, ranks = case
        tables = studies(dict(sequential), dict(parallel), ranks)
        return [{f"{images:d} images": pair for images, pair in table.items()} for table in tables]
    sequential, times, kind = case
    table = scaling(sequential, dict(times), kind)
    return {f"{ranks:d} rank(s)": pair for ranks, pair in table.items()} if isinstance(table, dict) else table


SCALING = Exercise(("scaling", "studies"), _draw_times, observe_table, {
    "strong": Part("Strong scaling",
        "for the same work, the table {ranks: (speed-up, efficiency)} is wrong: T_seq / T(N), and that per rank"),
    "weak": Part("Weak scaling",
        "for N times the work, the table {ranks: (speed-up, efficiency)} is wrong: N · T_seq / T(N), and that per rank"),
    "baseline": Part("Against the sequential program",
        "where the parallel program was run on 1 rank too, the table is not against the sequential program",
        needs="strong weak"),
    "studies": Part("Both studies from measured steps",
        "from measured steps, the tables ({images per rank: …}, {images in all: …}) are wrong",
        "with steps of 2, 4 and 5 images on 2 ranks: 4 in all are 2 per rank; 5 cannot be divided"),
}, "take 10 s in sequence, {1: 11.0, 2: 6.0} in parallel, and write the table down by hand",
    "({2}) {0} s in sequence, {1} s in parallel")  # fmt: skip

# --- the serial fraction


def _draw_speedups(random):
    def case(low, high):
        ranks = int(random.integers(3, 64))
        return ranks, round(float(random.uniform(low, high)) * ranks, 3)

    return {"slower": [case(0.3, 0.95) for _ in range(5)], "faster": [case(1.05, 1.3) for _ in range(3)]}


def observe_fraction(case, serial_fraction):
    return serial_fraction(*case)


SERIAL = Exercise(("serial_fraction",), _draw_speedups, observe_fraction, {
    "slower": Part("The fraction of Karp and Flatt", "the serial fraction is not (1/S − 1/N) / (1 − 1/N)"),
    "faster": Part("A negative one where the speed-up exceeds the ranks",
        "where the speed-up is above the number of ranks, the fraction is wrong"),
}, "two ranks with a speed-up of 1.6 have a serial fraction of 25 %; with 2.2 it is negative",
    "{0} ranks, a speed-up of {1}")  # fmt: skip

# --- bytes


def _draw_gradients(random):
    sizes = random.integers(10**5, 10**8, 5).astype(float).tolist()
    ranks = random.choice(range(3, 40), 5, replace=False).tolist()
    several = [2, *(int(random.integers(2, n)) for n in ranks[1:4]), ranks[4]]  # up to one on every rank
    each = list(zip(sizes, ranks, several, strict=True))
    alone = [*((size, n, 1) for size, n, _ in each), (sizes[0], 1, 1)]
    return {
        "ring": [("ring", *one) for one in [*alone, each[0]]],
        "server": [("parameter server", *one) for one in alone],
        "sharded": [("parameter server", *one) for one in each],
    }


def observe_sent(case, busiest_sends):
    return busiest_sends(*(case[:3] if case[3] == 1 else case))


BYTES = Exercise(("busiest_sends",), _draw_gradients, observe_sent, {
    "ring": Part("What a rank of a ring sends", "it is not what a rank of a ring sends"),
    "server": Part("What the one server sends", "it is not what the server sends"),
    "sharded": Part("What the bottleneck rank of several servers sends",
        "it is not what the bottleneck rank of several servers sends"),
}, "take 4 ranks, 12 MB and 2 servers, and list what each rank sends to whom",
    "{0}, {1:,.0f} bytes, {2} rank(s), {3} server(s)")  # fmt: skip

# --- the step's model


def _draw_steps(random):
    def link():
        return [float(f"{one:.3g}") for one in 10 ** random.uniform((-6, -10), (-4, -9))]

    def sums(algorithm, *ranks):
        return [
            {"sum": (algorithm, float(random.integers(10**5, 10**8)), n, *link(), m),
             "about": f"{algorithm}, {n} ranks, {m} on each node"}
            for n, m in ranks
        ]  # fmt: skip

    def step(overlap, buckets, heavy):
        forward, backward = random.uniform((0.05, 0.1), (0.2, 0.4)).round(4).tolist()
        share = random.uniform(0.3, 1.8, buckets)
        share = backward / buckets * (share + heavy)
        return {"step": (forward, backward, share.round(5).tolist(), overlap),
                "about": f"forward {forward} s, backward {backward} s, buckets of {share.round(3).tolist()} s, overlap = {overlap}"}  # fmt: skip

    odd = int(random.integers(5, 15)) * 2 + 1
    nodes = [(2, 4), (4, 8), (3, 4), (8, 2)]
    return {
        "ring": sums("ring", *((int(n), 1) for n in random.integers(3, 300, 4)), (1, 1)),
        "tree": sums("tree", (2, 1), (64, 1), (1024, 1), (odd, 1), (1, 1)),
        "hierarchical": sums("hierarchical", *((n * m, m) for n, m in nodes)),
        "separate": [step(False, n, 0.0) for n in (1, 3, 5)],
        "overlap": [step(True, n, heavy) for n in (1, 3, 4, 6) for heavy in (-0.25, 0.6)],
    }


def observe_model(case, all_reduce_seconds, step_seconds):
    if "sum" in case:
        return all_reduce_seconds(*case["sum"])
    forward, backward, buckets, overlap = case["step"]
    return step_seconds(forward, backward, list(buckets), overlap)


MODEL = Exercise(("all_reduce_seconds", "step_seconds"), _draw_steps, observe_model, {
    "ring": Part("Seconds of a ring", "the seconds of a ring are wrong"),
    "tree": Part("Seconds of a tree", "the seconds of a tree are wrong"),
    "hierarchical": Part("Seconds of a hierarchical all-reduce",
        "the seconds of a hierarchical all-reduce are wrong"),
    "separate": Part("A step without overlap", "without overlap the seconds of the step are wrong",
        "forward 1 s, backward 2 s and two buckets of 0.5 s make 4 s"),
    "overlap": Part("A step with overlap", "with overlap the seconds of the step are wrong",
        "forward 1 s, backward 2 s, two buckets: ready after 2 s and after 3 s. With 0.5 s each the step ends "
        "after 3.5 s; with 1.5 s each after 5 s"),
}, "4 ranks, 12 MB, α = 1 ms, β = 1 ns: a ring takes 24 ms, a tree 52, two nodes of two ranks 22")  # fmt: skip

# --- the fit


def _draw_fits(random):
    def rows(count):
        messages = random.choice([2, 4, 6, 14, 30], count).tolist()
        nbytes = (10 ** random.uniform(4, 8, count)).round().tolist()
        return [[float(m), n] for m, n in zip(messages, nbytes, strict=True)]

    def case(count, noise, about):
        x = [float(f"{one:.3g}") for one in 10 ** random.uniform((-4.5, -9.5), (-3, -8.5))]
        matrix = rows(count)
        factors = 1 + noise * random.uniform(-1, 1, count)
        seconds = [(a * x[0] + b * x[1]) * f for (a, b), f in zip(matrix, factors.tolist(), strict=True)]
        far = [float(random.integers(100, 4000)), float(random.integers(10**7, 10**8))]
        return {"rows": matrix, "seconds": seconds, "far": far, "about": about}

    def compute():
        """Three parameters: the function takes any number of columns."""
        matrix = [
            [1.0, float(b), float(p)]
            for b, p in zip(random.permutation(9) * 8 + 2, random.uniform(1, 9, 9), strict=True)
        ]
        seconds = [0.02 + 0.003 * b + 0.01 * p for _, b, p in matrix]
        factors = (1 + 0.05 * random.uniform(-1, 1, 9)).tolist()
        seconds = [s * f for s, f in zip(seconds, factors, strict=True)]
        return {"rows": matrix, "seconds": seconds, "far": [1.0, 500.0, 20.0], "about": "three parameters"}

    return {
        "exact": [case(8, 0.0, "times that the parameters make exactly") for _ in range(3)],
        "noise": [case(10, 0.08, "times that are off by up to 8 %") for _ in range(3)] + [compute()],
        "step": _draw_predictions(random),
    }


def _draw_predictions(random):
    def fitted(low, high):
        x = 10 ** random.uniform(low, high)
        half = random.uniform(-0.2, 0.2, (2, 2)) * x
        return x.tolist(), (half.T @ half).tolist()

    def case():
        ranks, nbytes = int(random.integers(20, 300)), float(random.integers(10**7, 10**8))
        return {
            "batch": int(random.integers(2, 64)), "computing": fitted((-2, -3), (-1, -2)),
            "link": fitted((-4, -9), (-3, -8.5)), "ranks": ranks, "nbytes": nbytes,
            "about": f"a ring of {ranks} ranks, {nbytes:,.0f} bytes",
        }  # fmt: skip

    return [case() for _ in range(4)]


def observe_fit(case, fit, predict, predict_step):
    if "batch" in case:

        def sum_seconds(alpha, beta):
            return 2 * (case["ranks"] - 1) * (alpha + beta * case["nbytes"] / case["ranks"])

        computing, link = (tuple(map(np.array, case[name])) for name in ("computing", "link"))
        value, error = predict_step(case["batch"], computing, link, sum_seconds)
        return {"value": _number(value), "error": _number(error)}
    parameters, covariance = fit(np.array(case["rows"]), np.array(case["seconds"]))
    value, error = predict(np.array(case["far"]), np.array(parameters), np.array(covariance))
    return {
        "parameters": _floats(parameters), "covariance": [_floats(row) for row in np.asarray(covariance)],
        "value": _number(value), "error": _number(error),
    }  # fmt: skip


def _floats(values):
    return [float(value) for value in np.asarray(values).tolist()]


def _number(value):
    value = np.asarray(value)
    return float(value.item()) if value.size == 1 else None


def _same_band(seen, right):
    """Variances of α and β differ by ten orders of magnitude: each is compared in units of its standard error."""
    error = np.sqrt(np.diag(right[0]))
    covariance = np.array(seen[0], dtype=float) / np.outer(error, error)
    return (
        covariance.shape == (len(error), len(error))
        and np.allclose(covariance, np.array(right[0]) / np.outer(error, error), rtol=0, atol=1e-3)
        and equal(seen[1:], right[1:], 1e-3)
    )


FIT = Exercise(("fit", "predict", "predict_step"), _draw_fits, observe_fit, {
    "exact": Part("Finds the parameters that made the times",
        "where the times are exactly the model's, fit does not find the parameters that made them",
        "make times from two parameters of your own, fit them, and compare", keys="parameters", tolerance=1e-3),
    "noise": Part("Weighs each time by its size",
        "with times that are off by 8 %, the parameters are not the best ones",
        "divide each row, and its right-hand side, by its seconds", keys="parameters", needs="exact", tolerance=1e-3),
    "band": Part("The standard error of a prediction",
        "the covariance, or the standard error of a prediction, is wrong: √(row · C · row)",
        "print √ of the diagonal of the covariance: these are the standard errors of the parameters",
        cases="noise", keys="covariance value error", needs="noise", same=_same_band),
    "step": Part("A step's seconds, with the errors of both fits",
        "the seconds of a step, or their standard error, are wrong: both fits' values add, their errors as √(e₁² + e₂²)",
        "give it fits without any error: then the error is 0, and the seconds are t0 + c·b + the sum's",
        keys="value error"),
}, "make times from two parameters of your own, fit them, and compare; then multiply each by 1 ± 0.05")  # fmt: skip

# --- result files


def _draw_files(random):
    def run(ranks, *, batch=256, first=4.0, disturbed=False):
        rate = float(random.uniform(500, 900)) * ranks ** float(random.uniform(0.7, 0.95))
        apart = float(random.uniform(0.02, 0.05))
        rates = rate * np.array([1.0, 1 + apart, 1.0, 1 - apart])  # but for the first, the mean is the median
        if disturbed:
            rates = rate * random.uniform(0.95, 1.05, 6)
            rates[1 + int(random.integers(0, 5))] /= 20
        rates[0] /= first
        rates = rates.round(2)
        steps = int(random.integers(20, 60))
        rows = [
            {"number": n + 1, "epochs": len(rates), "steps": steps, "images_per_sec": float(r),
             "seconds": round(steps * batch * ranks / float(r), 4), "loss": 2.0, "accuracy": 0.3}
            for n, r in enumerate(rates.tolist())
        ]  # fmt: skip
        return {"ranks": ranks, "network": "resnet152v2", "batch_size": batch, "epochs": rows}

    def folder(about, *runs):
        return {"files": {f"ranks-{one['ranks']}.json": one for one in runs}, "about": about}

    return {
        "first": [folder("1, 2 and 4 ranks", *(run(n) for n in (1, 2, 4)))],
        "median": [folder("a disturbed epoch", *(run(n, first=1.0, disturbed=True) for n in (1, 2)))],
        "order": [folder("2, 16 and 128 ranks", *(run(n) for n in (128, 2, 16)))],
    }


def observe_files(case, read_results):
    with tempfile.TemporaryDirectory() as folder:
        for name, content in case["files"].items():
            (Path(folder) / name).write_text(json.dumps(content))
        (Path(folder) / "slurm-17.out").write_text("results: runs/scaling-17\n")
        table = read_results(Path(folder))
    if not isinstance(table, dict):
        return {"ranks": None, "table": None}
    rows = {f"{int(ranks)} rank(s)": _three(row) for ranks, row in table.items()}
    return {"ranks": [int(ranks) for ranks in table], "table": rows}


def _three(row):
    return [float(value) for value in row] if isinstance(row, list | tuple) else row


RESULTS = Exercise(("read_results",), _draw_files, observe_files, {
    "first": Part("Throughput without the first epoch, speed-up and efficiency",
        "the table {ranks: (images/s, speed-up, efficiency)} is wrong", keys="table"),
    "median": Part("The median of the other epochs",
        "where one epoch is disturbed, the throughput is not that of the median epoch", keys="table", needs="first"),
    "order": Part("Ranks in order, against the smallest number of ranks",
        "the keys are not the numbers of ranks from small to large, or the smallest is not the reference",
        keys="ranks table", needs="first"),
}, "write two small files by hand, with three epochs each, and read them")  # fmt: skip

# --- memory per rank


def _draw_memory(random):
    def case(stage, ranks=None):
        return int(random.integers(10**6, 10**10)), ranks or int(random.integers(2, 512)), stage

    return {
        "whole": [case(0) for _ in range(3)],
        "optimizer": [case(1) for _ in range(4)] + [case(1, 1)],
        "sharded": [case(stage) for stage in (2, 3) for _ in range(4)] + [case(3, 1)],
    }


def observe_memory(case, memory_per_rank):
    return memory_per_rank(*case)


def _bytes(seen, right):
    return equal(float(finite(seen)), float(right), 1e-6)


MEMORY = Exercise(("memory_per_rank",), _draw_memory, observe_memory, {
    "whole": Part("Data parallelism: 16 bytes for each parameter", "stage 0 is not 16 bytes for each parameter",
        same=_bytes),
    "optimizer": Part("Stage 1: the optimizer's state is sharded", "with stage 1 the bytes are wrong", same=_bytes),
    "sharded": Part("Stages 2 and 3: gradients and parameters, too", "with stage 2 or 3 the bytes are wrong",
        same=_bytes),
}, "with 1,000 parameters on 4 ranks the stages 0 to 3 need 16,000, 7,000, 5,500 and 4,000 bytes",
    "{0:,} parameters, {1} rank(s), stage {2}")  # fmt: skip

EXERCISES = {
    "measure": MEASURE, "scaling": SCALING, "serial": SERIAL, "bytes": BYTES, "model": MODEL, "fit": FIT,
    "results": RESULTS, "memory": MEMORY,
}  # fmt: skip
