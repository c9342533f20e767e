"""Each known mistake loses the parts that its table says, and no other, whatever inputs are drawn."""

import pytest
from known_mistakes import lost_over, mistakes, namespace_of, reasons

LABS = ["01_single_gpu", "02_ddp", "03_batch_size_scaling", "04_momentum_warmup_novograd", "10_kfac", "12_assessment"]
OFTEN = LABS[:1] + LABS[3:4]
SLOW = ("throughput",)  # a clock, or seconds of work for each draw
IN_THE_SANDBOX = ("patience of its own",)  # what the lab's own setting makes wrong
KNOWN = [
    pytest.param(lab, *rest, id=f"{lab[:2]} {name}")
    for lab in LABS
    for name, *rest in mistakes(lab)
    if rest[0] not in SLOW and name not in IN_THE_SANDBOX
]


@pytest.mark.parametrize("lab, exercise, source, lost", KNOWN)
def test_a_mistake_loses_its_parts_for_one_reason(lab, exercise, source, lost):
    """A reason that differs between two seeds tells something of the inputs."""
    namespace = namespace_of(lab, exercise, source)
    first, second = (reasons(lab, exercise, namespace, seed) for seed in (11, 12))
    assert first == second and set(first) == lost


@pytest.mark.parametrize(
    "lab, exercise, source, lost", [case for case in KNOWN if case.values[0] in OFTEN and case.values[1] != "novograd"]
)
def test_a_mistake_loses_its_parts_for_every_seed(lab, exercise, source, lost):
    assert set(lost_over(lab, exercise, namespace_of(lab, exercise, source), range(25))) == {lost}
