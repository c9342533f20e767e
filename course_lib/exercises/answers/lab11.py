"""Lab 11's answers, right and wrong."""

from __future__ import annotations

from statistics import fmean, median

import numpy as np

from course_lib.exercises.description import Answers, Mistake

__all__ = ["ANSWERS"]


def _rate(pick=max, epochs=lambda seconds: seconds[1:], middle=median):
    return lambda images, seconds: images / middle(epochs([pick(epoch) for epoch in zip(*seconds, strict=True)]))


throughput = Answers(
    (_rate(),),
    {
        "first in": Mistake("the first epoch is in it; leave it out", _rate(epochs=list)),
        "first in and mean": Mistake("the first epoch is in it, and the mean is not the median", _rate(max, list, fmean)),
        "mean": Mistake("that is the mean of the epochs; one disturbed epoch moves it, so take the median",
            _rate(middle=fmean)),
        "rank 0": Mistake("that is rank 0's own; an epoch ends when the slowest rank has finished",
            _rate(lambda epoch: epoch[0])),
        "fastest": Mistake("that is the fastest rank's; an epoch ends when the slowest has finished", _rate(min)),
        "all epochs": Mistake("that is the median over all ranks' epochs; first find each epoch's slowest rank",
            lambda images, seconds: images / median(s for one in seconds for s in one[1:])),
        "ranks first": Mistake("you took each rank's median first; the slowest rank of an epoch may be another one each "
            "time", lambda images, seconds: images / max(median(one[1:]) for one in seconds)),
        "times the ranks": Mistake("the images are those of all ranks together already; do not multiply by the ranks",
            lambda images, seconds: len(seconds) * _rate()(images, seconds)),
        "seconds": Mistake("that is the seconds, not images a second", lambda _, seconds: 1 / _rate()(1, seconds)),
    },
)  # fmt: skip


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


speedups = Answers(
    (_table(),),
    {
        "parallel on 1": Mistake("you divide by the parallel program's time on 1 rank; the baseline is the sequential "
            "program", _table(lambda sequential, times: times.get(1, sequential))),
        "smallest": Mistake("the baseline is the sequential program, not the smallest number of ranks",
            _table(lambda sequential, times: times[min(times)])),
        "no efficiency": Mistake("the efficiency is the speed-up again; divide it by the ranks",
            _table(efficiency=lambda gain, n: gain)),
        "upside down": Mistake("upside down: the speed-up has the sequential time over the parallel one",
            _table(ratio=lambda base, seconds: seconds / base)),
        "strong as weak": Mistake("in strong scaling the work is the same, so N is not in the speed-up",
            _table(work=lambda n, kind: n)),
        "weak as strong": Mistake("in weak scaling each rank has done as much as the sequential program, N times the "
            "work in all", _table(work=lambda n, kind: 1)),
        "without 1 rank": Mistake("1 rank is missing: the keys of the table are those of `times`, all of them",
            _table(ranks=lambda times: [n for n in times if n > 1])),
    },
)  # fmt: skip


def _amdahl(ranks, serial):
    return 1 / (serial + (1 - serial) / ranks)


def _gustafson(ranks, serial):
    return serial + (1 - serial) * ranks


def _slope(x, y):
    return float(x @ y / (x @ x))


def _share(slope=_slope):
    def serial_share(speedups):
        ranks, gains = np.array([pair for pair in speedups.items() if pair[0] > 1]).T
        return slope(1 - 1 / ranks, 1 / gains - 1 / ranks)

    return serial_share


_TURNED = "`serial` is the share that does not divide: "
_AMDAHL, _GUSTAFSON = "1 / (s + (1 − s)/N)", "s + (1 − s)·N"

laws = Answers(
    (_amdahl, _gustafson, _share()),
    {
        "Gustafson for Amdahl": Mistake(f"that is Gustafson's law; Amdahl's is {_AMDAHL}", _gustafson, None, None),
        "Amdahl turned": Mistake(_TURNED + _AMDAHL, lambda n, s: _amdahl(n, 1 - s), None, None),
        "Amdahl for Gustafson": Mistake(f"that is Amdahl's law; Gustafson's is {_GUSTAFSON}", None, _amdahl, None),
        "Gustafson turned": Mistake(_TURNED + _GUSTAFSON, None, lambda n, s: _gustafson(n, 1 - s), None),
        "cut off": Mistake("it is cut off at 0; a negative share tells that the baseline is wrong",
            None, None, _share(lambda x, y: max(0.0, _slope(x, y)))),
        "parallel share": Mistake("that is the parallel share, 1 − s", None, None, _share(lambda x, y: 1 - _slope(x, y))),
        "mean of shares": Mistake("that is the mean of the single shares y/x; Σxy / Σx² lets large N count more",
            None, None, _share(lambda x, y: float((y / x).mean()))),
        "sums": Mistake("that is Σy / Σx; the least-squares slope is Σxy / Σx²",
            None, None, _share(lambda x, y: float(y.sum() / x.sum()))),
        "largest alone": Mistake("that is the share of the largest number of ranks alone",
            None, None, _share(lambda x, y: float(y[-1] / x[-1]))),
        "intercept": Mistake("the line has an intercept; this one goes through the origin",
            None, None, _share(lambda x, y: float(np.polyfit(x, y, 1)[0]) if len(x) > 1 else _slope(x, y))),
    },
)  # fmt: skip


def _sends(ring=lambda size, n: 2 * (n - 1) / n * size, server=lambda size, n, k: (n + k - 2) * size / k):
    return lambda way, size, n, k=1: ring(size, n) if way == "ring" else server(size, n, k)


_TO_ITSELF = "a server sends nothing to itself: the sum goes to the N − 1 others, and it keeps its part of the gradient"

sent = Answers(
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


def _fit(relative=True, messages=2, part=lambda size, n: size / n, order=(0, 1, 2, 3)):
    def fit_step(rows):
        matrix = np.array([[1, b, messages * (n - 1), messages * (n - 1) * part(size, n)] for n, b, size, _ in rows])
        seconds = np.array([row[3] for row in rows])
        weight = 1 / seconds if relative else np.ones(len(rows))
        return tuple(np.linalg.lstsq(matrix * weight[:, None], seconds * weight, rcond=None)[0][list(order)].tolist())

    return fit_step


def _worth(model, batch, nbytes, least, most=4096):
    t0, c, alpha, beta = model
    alone, ranks = t0 + c * batch, np.arange(1, most + 1)
    return int(ranks[alone / (alone + 2 * (ranks - 1) * (alpha + beta * nbytes / ranks)) >= least].max())


_ORDER = "the four numbers are in another order than (t0, c, alpha, beta)"
_ROW = "the row is [1, b, 2(N − 1), 2(N − 1)·n/N]"

model = Answers(
    (_fit(), _worth),
    {
        "absolute": Mistake("the long steps decide your fit", _fit(relative=False), None),
        "half the messages": Mistake(f"twice too large: a ring has 2(N − 1) messages, N − 1 twice; {_ROW}",
            _fit(messages=1), None),
        "whole gradients": Mistake(f"each message of a ring has n/N bytes; {_ROW}", _fit(part=lambda size, n: size), None),
        "link first": Mistake(_ORDER, _fit(order=(2, 3, 0, 1)), None),
        "backwards": Mistake(_ORDER, _fit(order=(3, 2, 1, 0)), None),
        "beta first": Mistake(_ORDER, _fit(order=(0, 1, 3, 2)), None),
        "one too many": Mistake("that is the first number of ranks that is not worth it any more",
            None, lambda *question: _worth(*question) + 1),
        "to the end": Mistake("you ran to the end: T(N) has what is sent, too",
            None, lambda model, batch, nbytes, least, most=4096: most),
        "none": Mistake("one rank is always worth it: nothing is sent there", None, lambda *_: 0),
        "a float": Mistake("should return an int", None, lambda *question: float(_worth(*question))),
        "no most": Mistake("it does not stop at `most`", None, lambda *question: _worth(*question[:4])),
    },
)  # fmt: skip

ANSWERS = {"throughput": throughput, "scaling": speedups, "laws": laws, "bytes": sent, "model": model}
