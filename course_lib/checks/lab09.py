"""Checks of lab 09."""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from course_lib.checks.lab09_loop import loop
from course_lib.checks.lab09_sparse import sparse
from course_lib.checks.registry import CheckFailed
from course_lib.checks.run_evidence import check_run

__all__ = ["CHECKS"]


def share(answer: Callable[..., Any]) -> None:
    for samples, processes in ((12, 2), (11, 3), (1000, 4), (9, 1)):
        epochs = []
        for epoch in range(3):
            shares = []
            for rank in range(processes):
                torch.manual_seed(100 * epoch + rank)  # processes do not share the state of a generator
                shares.append(_positions(_leaving_generators(answer, samples, processes, rank, epoch), samples))
            _dealt(shares, samples, processes)
            epochs.append(shares)
        if epochs[0] == epochs[1]:
            raise CheckFailed(
                f"{samples} samples: epochs 0 and 1 have the same order. Draw it from seed + epoch, or from both in some other way"
            )
        if samples == 1000 and set(epochs[0][0]) == set(epochs[1][0]):
            raise CheckFailed(
                f"{samples} samples over {processes} processes: process 0 takes the same samples in every epoch, in another order. "
                "Shuffle all samples first, then deal them out, so that it is dealt others in each epoch"
            )
        steps = [b > a for part in epochs[0] for a, b in itertools.pairwise(part)]
        if samples == 1000 and not 0.4 < sum(steps) / len(steps) < 0.6:  # a shuffled order goes up at half of its steps
            raise CheckFailed(
                f"{samples} samples over {processes} processes come in the order of the data set: shuffle before you deal them out"
            )
    again = [_positions(answer(1000, 2, 1, 3, seed), 1000) for seed in (5, 5, 6)]
    if again[0] != again[1]:
        raise CheckFailed(
            "the same arguments gave two different shares: the order must come from a generator of its own, seeded by the arguments"
        )
    if again[0] == again[2]:
        raise CheckFailed("seeds 5 and 6 gave the same share: another seed should give another order")
    print("my_share: every sample once an epoch, on 1 to 4 processes, in a new order each time")


def _leaving_generators(answer: Callable[..., Any], *question: int) -> Any:
    before = torch.get_rng_state(), np.random.get_state()[1:3]
    found = answer(*question, 5)
    after = torch.get_rng_state(), np.random.get_state()[1:3]
    if not torch.equal(before[0], after[0]):
        raise CheckFailed(
            "torch's global generator is another one afterwards. Dropout draws from it: after torch.manual_seed all processes drop "
            "the same units, in every epoch. Draw from torch.Generator().manual_seed(…) by randperm(…, generator=…)"
        )
    if not (np.array_equal(before[1][0], after[1][0]) and before[1][1] == after[1][1]):
        raise CheckFailed(
            "numpy's global generator is another one afterwards, and others draw from it. Take np.random.default_rng(…)"
        )
    return found


def _positions(found: Any, samples: int) -> list[int]:
    try:
        positions = [int(position) for position in found]
    except (TypeError, ValueError):
        raise CheckFailed(
            f"return positions, a list or a tensor of whole numbers; yours returned {_name(found)}"
        ) from None
    outside = [position for position in positions if not 0 <= position < samples]
    if outside:
        raise CheckFailed(f"positions of {samples} samples lie in 0…{samples - 1}; yours has {outside[0]}")
    return positions


def _dealt(shares: list[list[int]], samples: int, processes: int) -> None:
    told = f"{samples} samples, {processes} process(es)"
    lengths = [len(part) for part in shares]
    dealt = [position for part in shares for position in part]
    if processes > 1 and lengths == [samples] * processes:
        raise CheckFailed(
            f"{told}: every process takes all {samples} samples. That is {processes} times the work, and whatever it gains is no "
            "speed-up: deal them out"
        )
    twice = next((position for position in dealt if dealt.count(position) > 1), None) if samples < 100 else None
    if twice is not None or len(set(dealt)) < len(dealt):
        where = f"sample {twice} is taken twice" if twice is not None else "some samples are taken twice"
        raise CheckFailed(
            f"{told}: {where}. All processes must deal out one and the same order: it may depend on seed and epoch, not on the rank"
        )
    if len(dealt) < samples:
        raise CheckFailed(
            f"{told}: {samples - len(dealt)} sample(s) are in no share. A remainder goes to some of the processes, one sample each"
        )
    if max(lengths) - min(lengths) > 1:
        raise CheckFailed(f"{told}: the shares have {lengths} samples; they may differ by one at most")


def collision(answer: Callable[..., Any]) -> None:
    for nonzeros, features, processes in (
        (1, 10, 2), (2, 10, 2), (3, 50, 2), (20, 2**18, 2), (20, 2**10, 2), (5, 100, 4), (20, 2**10, 12),
        (4, 1000, 1), (10, 10, 2), (6, 10, 3),
    ):  # fmt: skip
        found = answer(nonzeros, features, processes)
        if not _is_number(found):
            raise CheckFailed(f"return a probability, a number; yours returned {_name(found)}")
        apart = _apart(nonzeros, features)
        right = 1 - apart ** (processes - 1)
        if math.isclose(found, right, rel_tol=1e-4, abs_tol=1e-12):
            continue
        raise CheckFailed(
            f"{nonzeros} of {features:,} features, {processes} process(es): the probability is {right:.6g}, yours is {found:.6g}. "
            + _why_collision(float(found), nonzeros, features, processes, apart)
        )
    print("collision_probability: right from one feature to all of them, for 1 to 12 processes")


def _apart(nonzeros: int, features: int) -> float:
    """Probability that two updates have no feature in common."""
    return math.comb(features - nonzeros, nonzeros) / math.comb(features, nonzeros)


def _why_collision(found: float, k: int, n: int, processes: int, apart: float) -> str:
    reasons = {
        apart ** (processes - 1): "That is the probability that nothing is shared; the collision is the other case",
        1 - apart: f"That is for one other process; here there are {processes - 1}, and none of them may meet yours",
        1 - apart**processes: "Count the other processes only: an update does not collide with itself",
        min(1.0, (processes - 1) * (1 - apart)): "Adding probabilities counts double meetings twice: multiply those of not meeting",
        k / n: "That is for one of your features; any of your nonzeros may be the one that is shared",
        min(1.0, k * k / n * (processes - 1)): "k²/n is the approximation for sparse updates; take the product over the features",
        1 - (1 - k / n) ** (k * (processes - 1)): "The other's features are distinct: each one that missed leaves one place fewer to "
        "miss, (n − k)/n, then (n − k − 1)/(n − 1), …",
    }  # fmt: skip
    told = next((why for value, why in reasons.items() if math.isclose(found, value, rel_tol=1e-6)), "")
    if not 0 <= found <= 1:
        return "A probability lies in 0…1. " + told
    if told:
        return told
    if processes == 1:
        return "Alone there is nobody to collide with"
    if 2 * k > n:
        return "Two updates with more than half of the features each must share one"
    return "Lay down your k features; of the C(n, k) ways to choose the other's, C(n − k, k) miss all of yours"


CURVES = {  # (seconds, samples, accuracy)
    "serial": [(10.0, 1000, 0.50), (20.0, 2000, 0.70), (30.0, 3000, 0.80), (40.0, 4000, 0.82)],
    "fixed total": [(6.0, 1000, 0.48), (12.0, 2000, 0.69), (18.0, 3000, 0.79), (24.0, 4000, 0.81)],
    "twice the work": [(11.0, 2000, 0.70), (22.0, 4000, 0.80), (33.0, 6000, 0.84), (44.0, 8000, 0.85)],
    "never": [(5.0, 1000, 0.30), (10.0, 2000, 0.35)],
    "up and down": [(5.0, 1000, 0.30), (10.0, 2000, 0.81), (15.0, 3000, 0.60), (20.0, 4000, 0.82)],
}


def reading(answer: tuple[Callable[..., Any], Callable[..., Any]]) -> None:
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise CheckFailed("give the check both functions: (time_to_accuracy, speed_up)")
    time_to_accuracy, speed_up = answer
    for name, target, right in (
        ("serial", 0.80, 30.0), ("serial", 0.75, 30.0), ("serial", 0.10, 10.0), ("up and down", 0.80, 10.0),
        ("never", 0.80, None), ("serial", 0.83, None),
    ):  # fmt: skip
        found = time_to_accuracy(list(CURVES[name]), target)
        told = f"curve {CURVES[name]}, target {target}"
        if right is None:
            if found is not None:
                raise CheckFailed(
                    f"{told}: no point reaches the target, so the answer is None; yours is {found!r}. The last point's time "
                    "would claim an accuracy that was never seen; with None nobody computes on by mistake"
                )
        elif not _is_number(found) or not math.isclose(found, right, rel_tol=1e-6):
            why = "Take the first point whose accuracy is at least the target"
            if _is_number(found) and math.isclose(found, CURVES[name][-1][0]) and name == "up and down":
                why = "That is the last such point; the target was reached before"
            elif _is_number(found) and found < right and target == 0.75:
                why = "Between two points nothing was measured: no interpolation"
            elif target == 0.80 and name == "serial":
                why = "An accuracy equal to the target counts"
            shown = f"{found:g}" if _is_number(found) else _name(found)
            raise CheckFailed(f"{told}: the answer is {right:g} s, yours is {shown}. {why}")
    for serial, name, target, right in (
        ("serial", "fixed total", 0.79, ((4000 / 24) / 100, 30 / 18)),
        ("serial", "twice the work", 0.80, ((8000 / 44) / 100, 30 / 22)),
        ("serial", "serial", 0.80, (1.0, 1.0)), ("serial", "never", 0.80, (2.0, None)),
        ("never", "serial", 0.80, (0.5, None)), ("never", "never", 0.80, (1.0, None)),
    ):  # fmt: skip
        try:
            found = speed_up(list(CURVES[serial]), list(CURVES[name]), target)
        except TypeError as error:
            if right[1] is not None:
                raise
            raise CheckFailed(
                f"target {target}: {_who(serial, name)} never reaches it, and your function stopped there ({error}). The speed-up "
                "is None if either has no time"
            ) from None
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise CheckFailed(
                f"speed_up returns the pair (of throughput, of time to accuracy); yours returned {_name(found)}"
            )
        _told_speed(serial, name, target, found, right)
    print(
        "time_to_accuracy, speed_up: right on five curves, one of them with twice the work, one that never gets there"
    )


def _who(serial: str, parallel: str) -> str:
    if serial == parallel == "never":
        return "each of the two runs"
    return "the serial run" if serial == "never" else "the parallel run"


def _told_speed(first: str, second: str, target: float, found: Any, right: tuple[float, float | None]) -> None:
    serial, parallel = CURVES[first], CURVES[second]
    told = f"serial: {serial[-1][1]:,} samples in {serial[-1][0]:g} s; the other: {parallel[-1][1]:,} samples in {parallel[-1][0]:g} s"
    rate, timed = found
    if not _is_number(rate) or not math.isclose(rate, right[0], rel_tol=1e-6):
        why = "It is the ratio of samples per second, the parallel run's over the serial one's"
        if _is_number(rate) and math.isclose(rate, serial[-1][0] / parallel[-1][0]):
            why = "A ratio of seconds holds for equal work only; divide samples per second by samples per second"
        elif _is_number(rate) and math.isclose(rate, 1 / right[0]):
            why = "It is turned: faster than serial is more than 1"
        elif _is_number(rate) and math.isclose(rate, 2 * serial[-1][0] / parallel[-1][0]):
            why = "Do not assume how many workers there are: the samples that were done stand in the curve"
        raise CheckFailed(f"{told}. The speed-up of throughput is {right[0]:.4g}, yours is {_number(rate)}. {why}")
    if right[1] is None:
        if timed is not None:
            raise CheckFailed(
                f"target {target}: {_who(first, second)} never reaches it, so the speed-up is None; yours is {timed!r}"
            )
        return
    if not _is_number(timed) or not math.isclose(timed, right[1], rel_tol=1e-6):
        why = "It is the serial run's time to the target, over the parallel run's"
        if _is_number(timed) and math.isclose(timed, 1 / right[1]):
            why = "It is turned: faster than serial is more than 1"
        raise CheckFailed(
            f"target {target}: the speed-up of time to accuracy is {right[1]:.4g}, yours is {_number(timed)}. {why}"
        )


def _number(value: Any) -> str:
    return f"{value:.4g}" if _is_number(value) else _name(value)


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and value.dtype is not torch.bool
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _name(value: Any) -> str:
    return "nothing (None): is there a return?" if value is None else f"a {type(value).__name__}"


CHECKS = {
    "share": share,
    "loop": loop,
    "sparse": sparse,
    "collision": collision,
    "reading": reading,
    "run": lambda folder: check_run(folder, "09_hogwild"),
}
