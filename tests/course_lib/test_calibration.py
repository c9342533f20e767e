"""The reference step's figure, with a clock of ours."""

from itertools import count

import pytest
import torch

from course_lib.metrics import calibration
from course_lib.metrics.calibration import Calibration, calibrate


@pytest.fixture
def clock(monkeypatch):
    """Each look at the clock is 20 ms after the one before."""
    ticks = count()
    monkeypatch.setattr(calibration.time, "perf_counter", lambda: 0.02 * next(ticks))
    calibrate.cache_clear()
    yield
    calibrate.cache_clear()


def test_images_per_second_are_those_of_the_step(clock):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    measured = calibrate(0.1)
    assert measured.images_per_second == pytest.approx(64 / 0.02)
    assert torch.equal(torch.get_rng_state(), before)
    assert calibrate(0.1) is measured


def test_a_slow_machine_makes_one_step_that_counts(clock, monkeypatch):
    steps = []
    loss = calibration.functional.cross_entropy
    monkeypatch.setattr(calibration.functional, "cross_entropy", lambda *given: steps.append(1) or loss(*given))
    assert calibrate(0.0).images_per_second == pytest.approx(64 / 0.02)
    assert len(steps) == 2


def test_what_is_said_of_a_machine():
    rate, seconds = calibration.LAB_01
    slow, fast = Calibration(rate / 4, "cpu", False), Calibration(rate * 3, "cuda", True)
    assert slow.seconds(10) == pytest.approx(40)
    minutes = round(4 * seconds / 60)
    assert str(slow).endswith("bfloat16 no") and slow.expectation().endswith(f"in about {minutes} minutes")
    assert "(cuda), bfloat16 yes" in str(fast) and fast.expectation().endswith("about a minute")
