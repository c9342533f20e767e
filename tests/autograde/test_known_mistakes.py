"""Each known mistake loses the parts that its table says, and no other, whatever inputs are drawn.

The tables are those of the hidden checks' tests. What the visible checks' tests see refused is tried, too: it loses a part.
"""

import pytest
from known_mistakes import (
    lost_on_ranks,
    lost_over,
    mistakes,
    names_of,
    namespace_of,
    reasons,
    refused_by_the_visible_check,
)

from autograde.checks.registry import find_check
from course_lib.checks import CheckFailed, check

SEEDS = {"12_assessment": 5}
BOTH_WAYS = ["12_assessment"]
SLOW = ("throughput", "network")  # a clock, or seconds of work for each draw
# What the visible check does not try: a seed, and what raises by itself.
UNSEEN = ("12 seed forgotten", "12 nesterov always")
IN_THE_SANDBOX = ("patience of its own",)  # what the lab's own setting makes wrong


def in_one_process(lab, exercise):
    return exercise not in SLOW and find_check(f"lab{lab[:2]}.{exercise}").ranks == 1


KNOWN = [
    pytest.param(lab, *rest, id=f"{lab[:2]} {name}")
    for lab in SEEDS
    for name, *rest in mistakes(lab)
    if in_one_process(lab, rest[0]) and name not in IN_THE_SANDBOX
]
REFUSED = [
    pytest.param(lab, *rest, id=f"{lab[:2]} {name}")
    for lab in BOTH_WAYS
    for name, *rest in refused_by_the_visible_check(lab)
    if in_one_process(lab, rest[0])
]
SEEN = [one for one in KNOWN if one.values[0] in BOTH_WAYS and one.id not in UNSEEN]


@pytest.mark.parametrize("lab, exercise, source, lost", KNOWN)
def test_a_mistake_loses_its_parts_for_one_reason(lab, exercise, source, lost):
    """A reason that differs between two seeds tells something of the inputs."""
    namespace = namespace_of(lab, exercise, source)
    first, second = (reasons(lab, exercise, namespace, seed) for seed in (11, 12))
    assert first == second and set(first) == lost


@pytest.mark.parametrize("lab, exercise, source, lost", KNOWN)
def test_a_mistake_loses_its_parts_for_every_seed(lab, exercise, source, lost):
    assert set(lost_over(lab, exercise, namespace_of(lab, exercise, source), range(SEEDS[lab]))) == {lost}


@pytest.mark.parametrize("lab, exercise, defined", REFUSED)
def test_what_the_visible_check_refuses_loses_the_same_parts_for_every_seed(lab, exercise, defined):
    lost = lost_over(lab, exercise, namespace_of(lab, exercise) | defined, range(SEEDS[lab]))
    assert len(lost) == 1 and frozenset() not in lost, lost


@pytest.mark.parametrize("lab, exercise, source, lost", SEEN)
def test_the_visible_check_refuses_what_loses_a_part(lab, exercise, source, lost):
    namespace = namespace_of(lab, exercise, source)
    answer = tuple(namespace[name] for name in names_of(lab)[exercise])
    with pytest.raises(CheckFailed):
        check(f"lab{lab[:2]}.{exercise}", answer if len(answer) > 1 else answer[0])


ON_RANKS = [("12_assessment", "metrics")]


@pytest.mark.parametrize("lab, exercises", ON_RANKS, ids=str)
def test_a_mistake_loses_its_parts_on_ranks(lab, exercises):
    known = [
        (name, exercise, source, lost)
        for name, exercise, source, lost in mistakes(lab)
        if exercise in exercises.split()
    ]
    found = lost_on_ranks(lab, [(exercise, source) for _, exercise, source, _ in known], range(3))
    assert {name: set(counts) for (name, *_), counts in zip(known, found, strict=True)} == {
        name: {lost} for name, _, _, lost in known
    }
