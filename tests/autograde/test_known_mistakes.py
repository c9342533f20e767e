"""Each known mistake loses the parts that its table says, and no other, whatever inputs are drawn."""

import pytest
from known_mistakes import lost_over, mistakes, namespace_of

LABS = ["01_single_gpu", "04_momentum_warmup_novograd"]
SLOW = ("throughput", "novograd")  # a clock, or seconds of work for each draw
KNOWN = [
    pytest.param(lab, *rest, id=f"{lab[:2]} {name}")
    for lab in LABS
    for name, *rest in mistakes(lab)
    if rest[0] not in SLOW
]


@pytest.mark.parametrize("lab, exercise, source, lost", KNOWN)
def test_a_mistake_loses_its_parts_for_every_seed(lab, exercise, source, lost):
    assert set(lost_over(lab, exercise, namespace_of(lab, exercise, source), range(25))) == {lost}

