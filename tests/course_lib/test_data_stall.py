"""Waiting for input against stepping, with a clock that only our loader and our steps move."""

import pytest
import torch

from course_lib.data.data_stall import DataStallTimer


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class SlowLoader:
    """Three batches that take so many seconds each, and a second to find that there are no more."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds = clock, seconds

    def __iter__(self):
        for k in range(3):
            self.clock.now += self.seconds
            yield k
        self.clock.now += 1


def run(timer, clock, step, until=None):
    seen = []
    for batch in timer:
        seen.append(batch)
        clock.now += step
        if batch == until:
            break
    return seen


@pytest.mark.parametrize("loading, step", [(9.0, 1.0), (0.5, 20.0), (4.0, 0.0)])
def test_waiting_and_stepping_are_told_apart(loading, step):
    clock = Clock()
    timer = DataStallTimer(SlowLoader(clock, loading), clock=clock)
    assert timer.share == 0
    for passes in (1, 2):
        assert run(timer, clock, step) == [0, 1, 2]
        assert timer.waited == pytest.approx(passes * (3 * loading + 1))
        assert timer.stepped == pytest.approx(passes * 3 * step)
        assert timer.share == pytest.approx(timer.waited / (timer.waited + timer.stepped))
    timer.reset()
    assert (timer.waited, timer.stepped, timer.share) == (0, 0, 0)


def test_a_warm_up_step_is_left_out():
    clock = Clock()
    timer = DataStallTimer(SlowLoader(clock, 2.0), clock=clock)
    for batch in timer:
        clock.now += 50.0 if batch == 0 else 3.0
        if batch == 0:
            timer.reset()
    assert (timer.waited, timer.stepped) == (2 * 2 + 1, 2 * 3)


def test_the_step_that_breaks_off_is_counted():
    clock = Clock()
    timer = DataStallTimer(SlowLoader(clock, 2.0), clock=clock)
    assert run(timer, clock, 5.0, until=1) == [0, 1]
    assert (timer.waited, timer.stepped) == (4, 10)


def test_a_gpu_is_waited_for_before_the_clock_is_read(monkeypatch):
    clock = Clock()
    pending = [0.0]

    def synchronize(device):
        assert device.type == "cuda"
        clock.now += pending.pop()
        pending.append(0.0)

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    timer = DataStallTimer(SlowLoader(clock, 1.0), "cuda", clock)
    for _ in timer:
        pending[0] = 10.0  # what the loop has put on the device and not waited for
    assert timer.stepped == 30 and timer.waited == 4
