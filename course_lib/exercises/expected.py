"""What the visible checks compare with: computed from the answers in a checkout, read from a file without them.

A wheel for students has the files ``expected/labNN.pt.gz`` and no answers. They are part of the repository, because a wheel
is also built where PyTorch is not installed yet. ``python -m course_lib.exercises.expected lab15`` writes a lab's anew if
it is not `up_to_date`, without a lab those of all, which takes minutes; a test says so of each.
"""

from __future__ import annotations

import gzip
import io
import sys
from functools import cache
from typing import Any

import numpy as np
import torch

from course_lib.exercises.comparing import equal
from course_lib.exercises.judging import Expectation
from course_lib.exercises.registry import HERE, answers_of, exercises_of, known_labs

__all__ = ["computed", "expectation_of", "stored", "up_to_date"]

SEED = 0


@cache
def expectation_of(lab: str, name: str) -> Expectation:
    """What the visible check of an exercise compares with."""
    return stored(lab, name) if answers_of(lab) is None else computed(lab, name)


def computed(lab: str, name: str, seed: int = SEED) -> Expectation:
    """From the answers, on the cases of `seed`."""
    exercise = exercises_of(lab)[name]
    return Expectation.of(exercise, answers_of(lab)[name], exercise.draw(np.random.default_rng(seed)))


def stored(lab: str, name: str) -> Expectation:
    """From the lab's file."""
    entry = _file(lab)[name]
    return Expectation(entry["cases"], entry["right"], entry["diagnoses"], lambda *key: entry["mistaken"].get(key))


@cache
def _file(lab: str) -> dict[str, Any]:
    data = gzip.decompress((HERE / "expected" / f"{lab}.pt.gz").read_bytes())
    return torch.load(io.BytesIO(data), weights_only=True)


def up_to_date(lab: str) -> bool:
    """Whether a lab's file has what the answers give; the last digits differ from machine to machine."""
    if not (HERE / "expected" / f"{lab}.pt.gz").is_file() or set(_file(lab)) != set(exercises_of(lab)):
        return False
    return all(_alike(stored(lab, name), expectation_of(lab, name)) for name in exercises_of(lab))


def _alike(one: Expectation, other: Expectation) -> bool:
    if one.diagnoses != other.diagnoses or not equal(one.cases, other.cases, 1e-9):
        return False
    keys = [(mistake, kind) for mistake in other.diagnoses for kind in other.cases]
    return equal(one.right, other.right) and all(equal(one.seen_with(*key), other.seen_with(*key)) for key in keys)


def write(lab: str) -> None:
    """Write a lab's file."""
    entries = {}
    for name in exercises_of(lab):
        known = computed(lab, name)
        keys = [(mistake, kind) for mistake in known.diagnoses for kind in known.cases]
        entries[name] = {
            "cases": known.cases,
            "right": known.right,
            "diagnoses": dict(known.diagnoses),
            "mistaken": {key: known.seen_with(*key) for key in keys},
        }
    (HERE / "expected").mkdir(exist_ok=True)
    file = io.BytesIO()
    torch.save(entries, file)
    (HERE / "expected" / f"{lab}.pt.gz").write_bytes(gzip.compress(file.getvalue(), mtime=0))


if __name__ == "__main__":
    for each in sys.argv[1:] or known_labs():
        if not up_to_date(each):
            write(each)
            print(f"{each}: written")
