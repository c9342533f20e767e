"""The parts of a step add up to the step, a part inside another one counts once; K-FAC's multiplications by hand."""

import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.metrics.step_parts import StepParts, kfac_multiplications, kfac_step_parts


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def test_a_part_inside_another_counts_for_itself_alone(clock):
    parts = StepParts()
    kfac = SimpleNamespace(step=lambda: clock(2), send=lambda: clock(5))
    parts.watch(kfac, "send", "messages")
    with parts("update"):
        clock(1)
        kfac.send()
        kfac.step()
    clock(100)  # between two steps
    with parts("update"):
        clock(4)
    assert parts.seconds == {"update": 7, "messages": 5}


def test_an_error_closes_the_part(clock):
    parts = StepParts()
    with parts("whole"):
        with pytest.raises(ValueError), parts("inner"):
            clock(1)
            raise ValueError
        clock(2)
    assert parts.seconds == {"inner": 1, "whole": 2}


def test_multiplications_of_a_convolution_and_a_linear_layer():
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Flatten(), nn.Linear(100, 5))
    found = kfac_multiplications(model, torch.zeros(3, 2, 5, 5))
    assert found == (3 * 25 * 18 * 4 + 3 * 500, 25 * (18**2 + 4**2) + 100**2 + 5**2, 18**3 + 4**3 + 100**3 + 5**3)


def test_the_parts_of_a_kfac_step(clock, monkeypatch):
    monkeypatch.setattr(dist, "all_reduce", lambda: clock(0.5))
    kfac = SimpleNamespace(invert=lambda: clock(2))

    def average():
        clock(1)
        dist.all_reduce()

    def step(lr):
        kfac.average()
        kfac.invert()
        clock(0.25)

    kfac.average, kfac.step = average, step
    model, before = nn.Linear(3, 2), dist.all_reduce
    model.register_forward_hook(lambda *_: clock(4))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    found = kfac_step_parts(model, kfac, sgd, torch.zeros(5, 3), torch.zeros(5).long(), steps=3)
    wanted = {"forward": 4000, "backward": 0, "factors": 1000, "inverses": 2000, "update": 250, "messages": 500}
    assert found == pytest.approx(wanted) and dist.all_reduce is before
