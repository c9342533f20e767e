"""Each known mistake loses the parts that its table says, and no other, whatever inputs are drawn."""

import pytest
from known_mistakes import lost_over, mistakes, namespace_of

LABS = ["01_single_gpu", "04_momentum_warmup_novograd", "09_hogwild"]
SLOW = ("throughput", "sparse", "loop", "novograd")  # a clock, or seconds of work for each draw
KNOWN = [
    pytest.param(lab, *rest, id=f"{lab[:2]} {name}")
    for lab in LABS
    for name, *rest in mistakes(lab)
    if rest[0] not in SLOW
]


@pytest.mark.parametrize("lab, exercise, source, lost", KNOWN)
def test_a_mistake_loses_its_parts_for_every_seed(lab, exercise, source, lost):
    assert set(lost_over(lab, exercise, namespace_of(lab, exercise, source), range(25))) == {lost}


def test_the_sum_over_the_others_is_no_probability_for_any_seed():
    """Right for two processes; with more it passes 1, where updates must meet."""
    source = """
def collision_probability(nonzeros, features, processes):
    return (processes - 1) * (1 - math.comb(features - nonzeros, nonzeros) / math.comb(features, nonzeros))
"""
    lost = lost_over("09_hogwild", "collision", namespace_of("09_hogwild", "collision", source), range(200))
    assert set(lost) == {frozenset({"many", "edges"})}
