"""Warm-up and decay: each step's learning rate in closed form, and no warning from torch."""

import math

import pytest
import torch

from course_lib.optim import NovoGrad, linear_warmup, warmup_then

pytestmark = pytest.mark.filterwarnings("error")


def optimizer_of(*rates):
    params = [torch.nn.Parameter(torch.zeros(1)) for _ in rates]
    return torch.optim.SGD([{"params": [param], "lr": lr} for param, lr in zip(params, rates, strict=True)])


def rates_of(optimizer, schedule, count):
    rates = []
    for _ in range(count):
        rates.append([group["lr"] for group in optimizer.param_groups])
        assert schedule.get_last_lr() == rates[-1]
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize("world_size, epochs", [(4, 5), (1, 2), (8, 1)])
def test_linear_warmup_is_the_tutorial_s(world_size, epochs):
    optimizer = optimizer_of(0.8, 0.2)
    result = rates_of(optimizer, linear_warmup(optimizer, world_size, epochs), epochs + 3)
    start = 1 / world_size
    for epoch, rates in enumerate(result):
        factor = start + (1 - start) * min(epoch / epochs, 1)
        assert rates == pytest.approx([0.8 * factor, 0.2 * factor])


CASES = [(10, 3), (12, 0), (50, 49), (1, 0)]
AFTER = {
    "cosine": lambda i, w, total: 0.5 * (1 + math.cos(math.pi * (i - w) / (total - w))),
    "linear": lambda i, w, total: (total - i) / (total - w),
    "step": lambda i, w, total: 0.2 ** sum(milestone <= i for milestone in (6, 8)),
    "constant": lambda i, w, total: 1.0,
}


@pytest.mark.parametrize("total, warmup", CASES)
@pytest.mark.parametrize("decay", AFTER)
def test_each_step_is_the_closed_form(decay, total, warmup):
    optimizer = optimizer_of(0.8, 0.05)
    milestones = (6, 8) if decay == "step" and warmup < 6 else ()
    schedule = warmup_then(optimizer, total, warmup, 0.25, decay, milestones, gamma=0.2)
    result = rates_of(optimizer, schedule, total + 1)
    for i, rates in enumerate(result):
        after = AFTER[decay](i, warmup, total) if decay != "step" or milestones else 1.0
        factor = 0.25 + 0.75 * i / warmup if i < warmup else after
        assert rates == pytest.approx([0.8 * factor, 0.05 * factor], abs=1e-12)


@pytest.mark.parametrize("decay", AFTER)
@pytest.mark.parametrize("stop", [2, 3, 7])
def test_a_resumed_schedule_goes_on_where_it_was(decay, stop):
    def make():
        param = torch.nn.Parameter(torch.zeros(1))
        optimizer = NovoGrad([param], lr=0.8)
        return optimizer, warmup_then(optimizer, 10, 3, 0.25, decay, (6, 8) if decay == "step" else ())

    straight = rates_of(*make(), 11)
    optimizer, schedule = make()
    assert rates_of(optimizer, schedule, stop) == straight[:stop]
    saved = optimizer.state_dict(), schedule.state_dict()
    again, resumed = make()
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    assert rates_of(again, resumed, 11 - stop) == straight[stop:]


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((10, 10, 0.5), "warmup_steps must lie in 0…9"),
        ((10, -1, 0.5), "warmup_steps"),
        ((0, 0, 0.5), "total_steps"),
        ((10, 2, 0.0), "start_factor"),
        ((10, 2, 1.5), "start_factor"),
        ((10, 2, 0.5, "exponential"), "decay must be cosine, linear, step or constant"),
        ((10, 2, 0.5, "step", (2,)), "milestones"),
        ((10, 2, 0.5, "step", (8, 6)), "milestones"),
        ((10, 2, 0.5, "cosine", (6,)), "milestones"),
    ],
)
def test_a_schedule_that_does_not_fit_is_one_line_and_leaves_the_optimizer(arguments, words):
    optimizer = optimizer_of(1.0)
    with pytest.raises(ValueError, match=words) as raised:
        warmup_then(optimizer, *arguments)
    assert "\n" not in str(raised.value)
    assert optimizer.param_groups[0]["lr"] == 1.0 and "initial_lr" not in optimizer.param_groups[0]


@pytest.mark.parametrize("arguments, name", [((0, 5), "world_size"), ((4, 0), "warmup_epochs")])
def test_a_warmup_of_nothing_is_one_line(arguments, name):
    with pytest.raises(ValueError, match=name):
        linear_warmup(optimizer_of(1.0), *arguments)
