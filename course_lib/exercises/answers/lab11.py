"""Lab 11's answers, right and wrong."""

from __future__ import annotations

import json
import math
from statistics import fmean, median

import numpy as np

from course_lib.exercises.description import Answers, Mistake

__all__ = ["ANSWERS"]


def _table(
    base=lambda sequential, times: sequential,
    work=lambda n, kind: n if kind == "weak" else 1,
    ratio=lambda base, seconds: base / seconds,
    efficiency=lambda gain, n: gain / n,
    ranks=lambda times: times,
):
    def scaling(sequential, times, kind):
        gains = {n: work(n, kind) * ratio(base(sequential, times), times[n]) for n in ranks(times)}
        return {n: (gain, efficiency(gain, n)) for n, gain in gains.items()}

    return scaling


def _studies(
    divided=lambda images, ranks: images % ranks == 0,
    share=lambda images, ranks: images // ranks,
    key=lambda images, ranks: images,
):
    def studies(sequential, parallel, ranks):
        weak = {b: _table()(t, {ranks: parallel[b]}, "weak")[ranks] for b, t in sequential.items() if b in parallel}
        strong = {
            key(b, ranks): _table()(t, {ranks: parallel[share(b, ranks)]}, "strong")[ranks]
            for b, t in sequential.items() if divided(b, ranks) and share(b, ranks) in parallel
        }  # fmt: skip
        return weak, strong

    return studies


scaling = Answers(
    (_table(), _studies()),
    {
        "parallel on 1": Mistake("you divide by the parallel program's time on 1 rank; the baseline is the sequential "
            "program", _table(lambda sequential, times: times.get(1, sequential)), None),
        "smallest": Mistake("the baseline is the sequential program, not the smallest number of ranks",
            _table(lambda sequential, times: times[min(times)]), None),
        "no efficiency": Mistake("the efficiency is the speed-up again; divide it by the ranks",
            _table(efficiency=lambda gain, n: gain), None),
        "upside down": Mistake("upside down: the speed-up has the sequential time over the parallel one",
            _table(ratio=lambda base, seconds: seconds / base), None),
        "strong as weak": Mistake("in strong scaling the work is the same, so N is not in the speed-up",
            _table(work=lambda n, kind: n), None),
        "weak as strong": Mistake("in weak scaling each rank has done as much as the sequential program, N times the "
            "work in all", _table(work=lambda n, kind: 1), None),
        "without 1 rank": Mistake("1 rank is missing: the keys of the table are those of `times`, all of them",
            _table(ranks=lambda times: [n for n in times if n > 1]), None),
        "odd batches": Mistake("a batch that the ranks cannot divide has no strong counterpart",
            None, _studies(divided=lambda images, ranks: True)),
        "same batch": Mistake("strong scaling compares B images in sequence with B/N images per rank",
            None, _studies(lambda images, ranks: True, lambda images, ranks: images)),
        "per rank": Mistake("the strong table's keys are the images in all, not per rank",
            None, _studies(key=lambda images, ranks: images // ranks)),
    },
)  # fmt: skip


def _fraction(ranks, speedup):
    return (1 / speedup - 1 / ranks) / (1 - 1 / ranks)


serial = Answers(
    (_fraction,),
    {
        "cut off": Mistake("it is cut off at 0; a negative fraction says that the baseline is wrong",
            lambda n, s: max(0.0, _fraction(n, s))),
        "parallel": Mistake("that is the parallel fraction, 1 − s", lambda n, s: 1 - _fraction(n, s)),
        "not divided": Mistake("divide by 1 − 1/N", lambda n, s: 1 / s - 1 / n),
        "efficiency": Mistake("that is the lost efficiency, 1 − S/N", lambda n, s: 1 - s / n),
        "percent": Mistake("a fraction was asked for, not per cent", lambda n, s: 100 * _fraction(n, s)),
    },
)  # fmt: skip


def _sends(ring=lambda size, n: 2 * (n - 1) / n * size, server=lambda size, n, k: (n + k - 2) * size / k):
    return lambda way, size, n, k=1: ring(size, n) if way == "ring" else server(size, n, k)


_TO_ITSELF = "a server sends nothing to itself: the sum goes to the N − 1 others, and it keeps its part of the gradient"

bytes_ = Answers(
    (_sends(),),
    {
        "half a ring": Mistake("that is the reduce-scatter alone; the all-gather sends as much again",
            _sends(lambda size, n: (n - 1) / n * size)),
        "whole messages": Mistake("each message has one part of N, not the whole gradient",
            _sends(lambda size, n: 2 * (n - 1) * size)),
        "to itself": Mistake(_TO_ITSELF, _sends(server=lambda size, n, k: (n + k - 1) * size / k)),
        "keeps nothing": Mistake(_TO_ITSELF, _sends(server=lambda size, n, k: (n - 1 + k * (k > 1)) * size / k)),
        "no worker": Mistake("a server is a worker too: it sends the other servers' parts of its own gradient",
            _sends(server=lambda size, n, k: (n - 1) * size / k)),
        "as if one": Mistake("a server sends its own part only, n/k bytes; yours is the same for any number of servers",
            _sends(server=lambda size, n, k: (n - 1) * size)),
        "whole sums": Mistake("a server sends its own part of the sum only, n/k bytes",
            _sends(server=lambda size, n, k: (n - 1) * size + (k - 1) * size / k)),
        "received too": Mistake("that counts what the server receives besides; asked is what it sends",
            _sends(server=lambda size, n, k: 2 * (n - 1) * size / k)),
        "a worker's": Mistake("that is what a worker sends; the server sends more",
            _sends(server=lambda size, n, k: (max(k, 2) - 1) * size / k)),
    },
)  # fmt: skip


def _ring(nbytes, ranks, alpha, beta):
    return 2 * (ranks - 1) * (alpha + beta * nbytes / ranks)


def _tree(nbytes, ranks, alpha, beta, levels=lambda ranks: math.ceil(math.log2(ranks))):
    return 2 * levels(ranks) * (alpha + beta * nbytes)


def _nodes(nbytes, ranks, alpha, beta, size):
    inside = 2 * (size - 1) * (alpha + beta * nbytes / size)
    return inside + _ring(nbytes / size, ranks // size, alpha, beta)


def _sum(ring=_ring, tree=_tree, nodes=_nodes):
    def all_reduce_seconds(algorithm, nbytes, ranks, alpha, beta, per_node=1):
        if algorithm == "hierarchical":
            return nodes(nbytes, ranks, alpha, beta, per_node)
        return {"ring": ring, "tree": tree}[algorithm](nbytes, ranks, alpha, beta)

    return all_reduce_seconds


def _overlapped(forward, backward, buckets):
    end = 0.0
    for number, seconds in enumerate(buckets, 1):
        end = max(end, forward + backward * number / len(buckets)) + seconds
    return end


def _step(overlapped=_overlapped, separate=lambda f, b, buckets: f + b + sum(buckets)):
    return lambda f, b, buckets, overlap: (overlapped if overlap else separate)(f, b, buckets)


model = Answers(
    (_sum(), _step()),
    {
        "half a ring": Mistake("that is the reduce-scatter alone; the all-gather takes as long again",
            _sum(ring=lambda n, p, a, b: _ring(n, p, a, b) / 2), None),
        "whole messages": Mistake("each message of a ring has n/N bytes", _sum(ring=lambda n, p, a, b: 2 * (p - 1) * (a + b * n)), None),
        "no latency": Mistake("the latency is missing: α for each message", _sum(ring=lambda n, p, a, b: _ring(n, p, 0, b)), None),
        "one latency": Mistake("each of the messages has a latency, not only the first",
            _sum(ring=lambda n, p, a, b: a + _ring(n, p, 0, b)), None),
        "one way": Mistake("that is the reduction; the sum must come back down the tree",
            _sum(tree=lambda n, p, a, b: _tree(n, p, a, b) / 2), None),
        "no ceiling": Mistake("a tree has whole levels: round log₂ N up", _sum(tree=lambda *four: _tree(*four, levels=math.log2)), None),
        "rounded down": Mistake("a tree has whole levels: round log₂ N up",
            _sum(tree=lambda *four: _tree(*four, levels=lambda p: int(math.log2(p)))), None),
        "parts in a tree": Mistake("a message of this tree has all n bytes",
            _sum(tree=lambda n, p, a, b: 2 * math.ceil(math.log2(p)) * (a + b * n / p)), None),
        "as a ring": Mistake("that is a ring over all ranks", _sum(nodes=lambda n, p, a, b, m: _ring(n, p, a, b)), None),
        "whole between nodes": Mistake("between the nodes each rank sums its share of n/m bytes only",
            _sum(nodes=lambda n, p, a, b, m: _ring(n, m, a, b) + _ring(n, p // m, a, b)), None),
        "nodes only": Mistake("the reduce-scatter and the all-gather inside a node are missing",
            _sum(nodes=lambda n, p, a, b, m: _ring(n / m, p // m, a, b)), None),
        "no gather": Mistake("the all-gather inside a node is missing",
            _sum(nodes=lambda n, p, a, b, m: _nodes(n, p, a, b, m) - (m - 1) * (a + b * n / m)), None),
        "always apart": Mistake("that is the step without overlap", None, _step(overlapped=lambda f, b, s: f + b + sum(s))),
        "all hidden": Mistake("the communication is not hidden as a whole: the last bucket is ready when backward ends",
            None, _step(overlapped=lambda f, b, s: f + max(b, sum(s)))),
        "last alone": Mistake("buckets queue: one starts when it is ready and the bucket before it has been summed",
            None, _step(overlapped=lambda f, b, s: f + b + s[-1])),
        "no forward": Mistake("forward is missing", None, _step(lambda f, b, s: _overlapped(0, b, s), lambda f, b, s: b + sum(s))),
        "overlap always": Mistake("without overlap the first bucket waits for the end of backward", None, _step(separate=_overlapped)),
    },
)  # fmt: skip


def _least_squares(relative=True, freedom=True, scaled=True, covariance=None):
    def fit(rows, seconds):
        weight = 1 / seconds if relative else np.ones(len(seconds))
        matrix, right = rows * weight[:, None], seconds * weight
        scale = np.linalg.norm(matrix, axis=0)
        matrix = matrix / scale
        x = np.linalg.lstsq(matrix, right, rcond=None)[0]
        residual = matrix @ x - right
        variance = residual @ residual / (len(right) - len(x) if freedom else len(right)) if scaled else 1.0
        found = np.linalg.inv(matrix.T @ matrix) * variance / np.outer(scale, scale)
        return x / scale, covariance(found) if covariance else found

    return fit


def _predict(error=lambda row, covariance: math.sqrt(row @ covariance @ row)):
    return lambda row, parameters, covariance: (row @ parameters, error(row, covariance))


def _step_of(error=math.hypot, value=lambda a, b: a + b):
    def predict_step(batch, compute_fit, sum_fit, sum_seconds):
        row = np.array([sum_seconds(1.0, 0.0), sum_seconds(0.0, 1.0)])
        (a, a_error), (b, b_error) = _predict()(np.array([1.0, batch]), *compute_fit), _predict()(row, *sum_fit)
        return value(a, b), error(a_error, b_error)

    return predict_step


fit = Answers(
    (_least_squares(), _predict(), _step_of()),
    {
        "absolute": Mistake("the long times decide your fit", _least_squares(relative=False), None, None),
        "no freedom": Mistake("divide the sum of squared residuals by the rows minus the parameters",
            _least_squares(freedom=False), None, None),
        "no variance": Mistake("the covariance is (AᵀA)⁻¹ times the residuals' variance", _least_squares(scaled=False), None, None),
        "diagonal": Mistake("the errors of the parameters are not independent: the covariance has entries off its diagonal",
            _least_squares(covariance=lambda found: np.diag(np.diag(found))), None, None),
        "variance": Mistake("the second number is the variance; its square root was asked for",
            None, _predict(lambda row, covariance: row @ covariance @ row), None),
        "sum of errors": Mistake("the errors of the parameters are not independent: use row · C · row",
            None, _predict(lambda row, covariance: float(np.abs(row) @ np.sqrt(np.diag(covariance)))), None),
        "squares alone": Mistake("the errors of the parameters are not independent: use row · C · row",
            None, _predict(lambda row, covariance: math.sqrt(row**2 @ np.diag(covariance))), None),
        "two errors": Mistake("that is two standard errors; one was asked for",
            None, _predict(lambda row, covariance: 2 * math.sqrt(row @ covariance @ row)), None),
        "errors added": Mistake("independent errors add as √(e₁² + e₂²), not as e₁ + e₂", None, None, _step_of(lambda a, b: a + b)),
        "computing alone": Mistake("the all-reduce's error is missing", None, None, _step_of(lambda a, b: a)),
        "sum alone": Mistake("the computing's error is missing", None, None, _step_of(lambda a, b: b)),
        "computing left out": Mistake("the seconds of the computing are missing", None, None, _step_of(value=lambda a, b: b)),
    },
)  # fmt: skip


def _read(
    epochs=lambda rates: rates[1:],
    middle=median,
    files=lambda folder: sorted(
        (json.loads(path.read_text()) for path in folder.glob("ranks-*.json")), key=lambda run: run["ranks"]
    ),
    efficiency=lambda gain, n, least: gain * least / n,
    reference=min,
):
    def read_results(folder):
        runs = files(folder)
        rates = {run["ranks"]: middle(epochs([epoch["images_per_sec"] for epoch in run["epochs"]])) for run in runs}
        least = reference(rates)
        gains = {n: rate / rates[least] for n, rate in rates.items()}
        return {n: (rates[n], gain, efficiency(gain, n, least)) for n, gain in gains.items()}

    return read_results


def _by_name(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.glob("ranks-*.json"))]


results = Answers(
    (_read(),),
    {
        "first in": Mistake("the first epoch is in it; leave it out", _read(epochs=list)),
        "last": Mistake("that is the last epoch alone; take the median of all but the first", _read(epochs=lambda rates: rates[-1:])),
        "mean": Mistake("that is the mean of the epochs; one disturbed epoch moves it, so take the median", _read(middle=fmean)),
        "best": Mistake("that is the fastest epoch; take the median", _read(middle=max)),
        "no efficiency": Mistake("the efficiency is the speed-up again; divide it by the ranks", _read(efficiency=lambda gain, n, least: gain)),
        "of one rank": Mistake("the efficiency compares with the smallest number of ranks, which may be more than 1",
            _read(efficiency=lambda gain, n, least: gain / n)),
        "by name": Mistake("ranks-128.json comes before ranks-2.json by name: sort by the number of ranks",
            _read(files=_by_name)),
        "largest": Mistake("the reference is the smallest number of ranks, not the largest", _read(reference=max)),
    },
)  # fmt: skip


def _memory(whole=16, kept=None, state=12):
    kept = kept or {1: 4, 2: 2, 3: 0}

    def memory_per_rank(params, ranks, stage):
        if stage == 0:
            return whole * params
        return (kept[stage] + (4 + state - kept[stage]) / ranks) * params

    return memory_per_rank


memory = Answers(
    (_memory(),),
    {
        "float32": Mistake("that is plain float32 with Adam; here parameters and gradients have 2 bytes, the optimizer 12",
            _memory(16, {1: 8, 2: 4, 3: 0})),
        "no copy": Mistake("the float32 copy of the parameters is missing: the optimiser has 4 + 4 + 4 bytes",
            _memory(12, state=8)),
        "everything": Mistake("every stage shards everything in yours; stage 1 shards the optimiser's state alone",
            _memory(kept={1: 0, 2: 0, 3: 0})),
        "one stage on": Mistake("each stage shards too much in yours: 1 the optimiser's state, 2 the gradients, too, 3 all",
            _memory(kept={1: 2, 2: 0, 3: 0})),
        "one stage behind": Mistake("each stage shards too little in yours: 1 the optimiser's state, 2 the gradients, too, 3 all",
            lambda params, ranks, stage: _memory()(params, ranks, stage - 1) if stage else 16 * params),
    },
)  # fmt: skip

measure = Answers()  # what time is right depends on the program; the judges name the mistakes

ANSWERS = {
    "measure": measure, "scaling": scaling, "serial": serial, "bytes": bytes_, "model": model, "fit": fit,
    "results": results, "memory": memory,
}  # fmt: skip
