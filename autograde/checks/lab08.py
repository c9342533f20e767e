"""Hidden checks of lab 08."""

from __future__ import annotations

from typing import Any

import torch

from autograde.checks.compare import close, is_int, number, same_tensor, same_tensors
from autograde.checks.lab08_workers import local_sgd, psgd
from autograde.checks.registry import AnswerError, Ask, Findings, HiddenCheck, shape_of
from autograde.rubric.criteria import Finding
from course_lib.exercises.ranks.message_broker import MessageBroker

__all__ = ["CHECKS"]

RANKS = 4  # processes; a case may leave one out


def averaging(ask: Ask) -> Findings:
    """Four ranks with samples alike, three with samples that are not."""
    random = ask.random
    a, b, c = (int(n) for n in random.integers(2, 6, 3))
    spec = [("linear", (a, b)), ("tanh", ()), ("linear", (b, c))]
    shapes = [(b, a), (b,), (c, b), (c,)]
    alike = int(random.integers(20, 60))
    cases = [[alike] * 4, [int(n) for n in random.permutation([7, 31, 90]) + random.integers(0, 6, 3)]]
    states = [
        [[torch.from_numpy(random.normal(0, 1, shape)).float() for shape in shapes] for _ in samples]
        for samples in cases
    ]
    found, stuck = [], False
    for each, samples in zip(states, cases, strict=True):
        if not stuck:  # who has waited for ever once is not asked again
            told, stuck = _averaged(ask, spec, each, samples)
        found.append([{}] * len(samples) if stuck else told)
    means = []
    for samples, ranks in zip(cases, states, strict=True):
        means.append(
            [sum(n * w for n, w in zip(samples, each, strict=True)) / sum(samples) for each in zip(*ranks, strict=True)]
        )
    models = [[rank.get("parameters") for rank in one] for one in found]
    mean = same_tensors(models[0][0], means[0])
    everywhere = all(same_tensors(model, means[0]) for model in models[0])
    kept = all(rank.get("kept") is True for rank in found[0])
    weights = same_tensors(models[1][0], means[1])
    sent = any(rank.get("sent") is True for rank in found[0])
    look = "run it on three ranks with mpi_launch, and print the sum of a layer's weights on each"
    if stuck:
        wrong = (
            "the ranks do not make the same calls, or one waits for a message that nobody sends, or two that both send "
            "first wait for each other"
        )
    elif not sent:
        wrong = "nothing was sent: under MPI each rank has memory of its own"
    elif same_tensors(models[0][0], states[0][0]):
        wrong = "rank 0's model is as it was"
    else:
        wrong = "rank 0's model does not hold the mean of the ranks' parameters"
    return {
        "mean": Finding(mean, "rank 0 holds the mean of the ranks' parameters" if mean else wrong, look),
        "everywhere": Finding(everywhere and kept, "every rank holds it, in the parameters it had" if everywhere and kept else
                              wrong if not mean else "not every rank ends with the mean" if not everywhere else
                              "the model got other parameter objects, which no optimiser knows", look),
        "weights": Finding(weights, "models count by their samples" if weights else
                           wrong if not mean else "with unequal samples the mean is not the weighted one",
                           "take two ranks, 10 and 30 samples, and write the mean of one weight down by hand"),
    }  # fmt: skip


def _averaged(
    ask: Ask, spec: list[Any], states: list[list[torch.Tensor]], samples: list[int]
) -> tuple[list[dict[str, Any]], bool]:
    """What each rank's process told, and whether one waited for ever."""
    size = len(samples)
    office = MessageBroker(size)
    given: list[Any] = [
        {"spec": spec, "rank": rank, "size": size, "state": state, "samples": count}
        for rank, (state, count) in enumerate(zip(states, samples, strict=True))
    ]
    try:
        told = ask.call("averaging", given + [None] * (RANKS - size), office.answers)
    except AnswerError:
        if not office.stuck:
            raise
        return [], True
    return [one if isinstance(one, dict) else {} for one in told[:size]], office.stuck


def interpolate(ask: Ask) -> Findings:
    """Points within and beyond, on states of several tensors."""
    random = ask.random
    shapes = {"features.0.weight": (3, 2, 2), "features.0.bias": (3,), "classifier.weight": (2, 5)}
    states = [
        {name: torch.from_numpy(random.normal(0, 1, shape)).float() for name, shape in shapes.items()} for _ in range(2)
    ]
    points = [0.0, 1.0, 0.5, *(float(t) for t in random.uniform([0.1, 0.6, -0.5, 1.1], [0.4, 0.9, -0.1, 1.5]))]
    found = ask.call("interpolate", {"states": states, "points": points})
    odd = not (isinstance(found, list) and len(found) == len(points) and all(isinstance(one, dict) for one in found))
    answers = [{}] * len(points) if odd else found
    first, second = states

    def is_state(state: Any, wanted: Any = None, tolerance: float = 1e-4) -> bool:
        """Numbers of the right names and shapes, and the wanted ones."""
        numbers = isinstance(state, dict) and set(state) == set(shapes) and all(
            isinstance(state[name], torch.Tensor) and state[name].shape == shape and bool(state[name].isfinite().all())
            for name, shape in shapes.items()
        )  # fmt: skip
        return numbers and (wanted is None or all(same_tensor(state[n], wanted(n), tolerance) for n in shapes))

    right = all(
        is_state(answer.get("found"), lambda name, t=t: (1 - t) * first[name] + t * second[name])
        for answer, t in zip(answers, points, strict=True)
    )
    # What returns a given state at every point has made no point, and has nothing to keep its hands off.
    points_made = [answer.get("found") for answer in answers if is_state(answer.get("found"))]
    made = any(not any(is_state(point, state.get) for state in states) for point in points_made)
    after = [answer.get("states") for answer in answers]
    untouched = made and all(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and all(is_state(state, given.get, 0.0) for state, given in zip(pair, states, strict=True))
        for pair in after
    )
    look = "take two tensors of one number each, and try t = 0, 1 and 0.25"
    return {
        "line": Finding(right, "right within the line, at its ends and beyond" if right else
                        "the state dict at some t is not the one on the line", look),
        "inputs": Finding(untouched, "the given state dicts are as they were" if untouched else
                          "the given state dicts were changed, or no point between them was made",
                          "print a weight of `first` before and after the call"),
    }  # fmt: skip


def speedup_table(ask: Ask) -> Findings:
    """Two tables of drawn times; the slowest worker is seldom the first."""
    random, tables = ask.random, []
    for _ in range(2):
        single, table = float(random.uniform(20, 60)), {}
        for count in (1, *sorted(int(n) for n in random.choice(range(2, 9), 3, replace=False))):
            compute = single / count * random.uniform(0.9, 1.3, count)
            averaging = 0.2 + compute.max() - compute + random.uniform(0.0, 0.1, count)
            table[count] = [(float(c), float(a)) for c, a in zip(compute, averaging, strict=True)]
        tables.append(table)
    found = ask.call("speedup_table", [list(table.items()) for table in tables])
    found = found if isinstance(found, list) and len(found) == 2 else [None, None]
    right = {"time": True, "speedup": True, "efficiency": True}
    for table, told in zip(tables, found, strict=True):
        rows = (
            {row[0]: row[1] for row in told if isinstance(row, list) and is_key(row[0], table)}
            if isinstance(told, list)
            else {}
        )
        rows = {count: row for count, row in rows.items() if isinstance(row, tuple | list) and len(row) == 3}
        own, gains = ({count: number(row[place]) for count, row in rows.items()} for place in (0, 1))
        # Speed-up and efficiency are judged by the answer's own seconds, unless these are all alike.
        if set(own) != set(table) or not all(n > 0 for n in own.values()) or len(set(own.values())) < len(table):
            right = dict.fromkeys(right, False)
            continue
        for count, pairs in table.items():
            seconds, gain, share = rows[count]
            quotient = own[1] / own[count]
            right["time"] &= close(seconds, max(c for c, _ in pairs) + min(a for _, a in pairs))
            right["speedup"] &= close(gain, quotient)
            right["efficiency"] &= close(share, quotient / count) or close(share, gains[count] / count)
        right["efficiency"] &= len(set(gains.values())) == len(table)
    shown = f"should return a dictionary, it returned {shape_of(found[0])}" if not isinstance(found[0], list) else ""
    look = "try two workers, (6.0, 0.75) and (6.5, 0.25), against 12 s, by hand"
    return {
        "time": Finding(right["time"], "the slowest worker's compute and the averaging's own time" if right["time"] else
                        shown or "the seconds are not those of a core a worker", look),
        "speedup": Finding(right["speedup"], "T(1) / T(P)" if right["speedup"] else
                           shown or "the speed-up is not the quotient of the seconds", look),
        "efficiency": Finding(right["efficiency"], "speed-up a worker" if right["efficiency"] else
                              shown or "the efficiency is not the speed-up divided by the workers", look),
    }  # fmt: skip


def is_key(key: Any, table: dict[int, Any]) -> bool:
    """Whether a key that came back is one of the table's."""
    return any(is_int(key, count) for count in table)


CHECKS = {
    "averaging": HiddenCheck(
        averaging,
        {
            "mean": "Rank 0 holds the mean of the parameters",
            "everywhere": "So does every rank",
            "weights": "Models count by their samples",
        },
        ranks=RANKS,
        process_group=False,
        network=False,
    ),
    "psgd": HiddenCheck(
        psgd,
        {
            "training": "Plain SGD over all epochs",
            "once": "One averaging, at the end",
            "time": "The seconds from the barrier to the end",
        },
    ),
    "local-sgd": HiddenCheck(
        local_sgd,
        {
            "schedule": "Averages after every H-th step and after the last",
            "values": "Goes on from the averaged parameters",
        },
    ),
    "interpolate": HiddenCheck(interpolate, {"line": "A point on the line", "inputs": "Changes neither state dict"}),
    "speedup-table": HiddenCheck(
        speedup_table,
        {"time": "Seconds with a core a worker", "speedup": "Speed-up", "efficiency": "Efficiency"},
    ),
}
