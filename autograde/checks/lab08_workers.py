"""Hidden checks of lab 08's workers: the parameters at each averaging, and a clock outside."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from ..criteria import Finding
from .compare import is_number, number, same_tensors, trusted
from .registry import Ask, Findings, Later

__all__ = ["local_sgd", "psgd"]

BARRIER = 0.3  # seconds that it takes, outside


def _draw(ask: Ask, steps: int, epochs: int) -> dict[str, Any]:
    random = ask.random
    width, hidden, classes = (int(n) for n in random.integers(4, 8, 3))
    # Batch norm tells a model that trains from one that is left in evaluation mode.
    spec = [("linear", (width, hidden)), ("norm1d", (hidden,)), ("tanh", ()), ("linear", (hidden, classes))]

    def normal(*shape: int) -> torch.Tensor:
        return torch.from_numpy(random.normal(0, 1, shape)).float()

    state = [normal(hidden, width), normal(hidden), 1 + 0.2 * normal(hidden), normal(hidden), torch.zeros(hidden),
             torch.ones(hidden), torch.zeros((), dtype=torch.long), normal(classes, hidden), normal(classes)]  # fmt: skip

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        return normal(8, width), torch.from_numpy(random.integers(0, classes, 8))

    return {
        "spec": spec,
        "state": state,
        "epochs": [[batch() for _ in range(steps)] for _ in range(epochs)],
        "lr": float(random.uniform(0.2, 0.5)),
        "factor": float(random.uniform(0.6, 0.9)),
    }


def _reference(given: dict[str, Any], stops: set[int]) -> tuple[list[list[torch.Tensor]], list[torch.Tensor]]:
    """Parameters at each averaging, and at the end."""
    model = trusted("lab08.psgd", "make_model")(given["spec"], given["state"]).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=given["lr"])
    at_stops, step = [], 0
    for epoch in given["epochs"]:
        for images, labels in epoch:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            step += 1
            if step in stops:
                at_stops.append([p.detach().clone() for p in model.parameters()])
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.mul_(given["factor"])
    return at_stops, [p.detach().clone() for p in model.parameters()]


def _averages(answer: Any) -> tuple[list[Any], list[Any]]:
    """Steps and parameters of the averagings that the driver saw."""
    averages = answer.get("averages") if isinstance(answer, dict) else None
    averages = [one for one in averages if isinstance(one, dict)] if isinstance(averages, list) else []
    return [one.get("step") for one in averages], [one.get("parameters") for one in averages]


def psgd(ask: Ask) -> Findings:
    """A short training, with a slow barrier, slow batches and a slow averaging, timed outside.

    Times are drawn, so that no constant lies among them; all batches together take longer than the averaging.
    """
    steps, epochs = int(ask.random.integers(3, 6)), int(ask.random.integers(2, 4))
    given = _draw(ask, steps, epochs) | {"slow": True}
    total = steps * epochs
    averaging, pauses = float(ask.random.uniform(0.06, 0.1)), iter(ask.random.uniform(0.025, 0.033, total).tolist())
    asked: list[float] = []
    times: list[float] = []  # when batches and averagings were asked for
    averaged: list[int] = []

    def barrier(rank: int) -> Later:
        asked.append(time.monotonic())
        return Later(BARRIER)

    def batch(rank: int) -> Later:
        times.append(time.monotonic())
        return Later(next(pauses, 0.0))

    def average(rank: int) -> Later:
        times.append(time.monotonic())
        averaged.append(rank)
        return Later(averaging)

    found = ask.call("psgd", given, {"barrier": barrier, "batch": batch, "average": average})
    training_time = times[-1] - times[0] if times else 0.0  # lies within what a right clock tells
    wall = time.monotonic() - asked[0] if asked else 0.0  # from the moment at which the barrier was reached
    answer = found if isinstance(found, dict) else {}
    places, parameters = _averages(answer)
    (wanted,), end = _reference(given, {total})
    trained = bool(parameters) and same_tensors(parameters[-1], wanted, 1e-3) and places[-1] == total
    once = trained and places == [total] and same_tensors(answer.get("end"), end, 1e-3)
    seconds, barriers = answer.get("returned"), answer.get("barriers")
    look = "train two epochs of three batches beside torch.optim.SGD, and print the step at which average is called"
    if not places:
        training = "average(model) was never called"
    elif places[-1] != total:
        training = "the training did not go once through all batches of every epoch before the averaging"
    else:
        training = "the parameters that were averaged are not those of plain SGD over all epochs, each in its own order"
    ready = isinstance(barriers, list) and barriers[:1] == [0]
    counted = is_number(seconds) and not isinstance(seconds, torch.Tensor)
    told = number(seconds) if counted else 0.0
    if not ready:
        timed = "there is no barrier before the first step"
    elif not counted:
        timed = "the seconds should be a number"
    elif not averaged or told < training_time + 0.95 * averaging:  # who waited was told so; a busy machine adds to both
        missing = "averaging" if told >= 0.95 * training_time else "training"
        timed = f"the {missing} is not in the seconds"
    elif told > wall - BARRIER * 0.95:
        timed = "the seconds contain the waiting at the barrier"
    else:
        timed = ""
    return {
        "training": Finding(trained, "plain SGD over all epochs" if trained else training, look),
        "once": Finding(once, "averaged once, at the end" if once else
                        training if not trained else "it averages more than once, or goes on after it", look),
        "time": Finding(not timed, timed or "the clock runs from the barrier to the end of the averaging",
                        "let one rank come a second late, and print every rank's seconds"),
    }  # fmt: skip


def local_sgd(ask: Ask) -> Findings:
    """Intervals that divide an epoch's steps, that do not, that exceed all steps; every step; and 0."""
    steps, epochs = int(ask.random.integers(4, 7)), 3
    total = steps * epochs
    every = [steps - 1, steps, steps + 2, total + 5, 1, 0]
    given = _draw(ask, steps, epochs) | {"every": every}
    found = ask.call("local_sgd", given, {"barrier": lambda rank: None, "average": lambda rank: None})
    answers = found if isinstance(found, list) and len(found) == len(every) else [None] * len(every)
    schedule, values, never = [], [], True
    for interval, answer in zip(every, answers, strict=True):
        stops = sorted({*range(interval, total + 1, interval), total}) if interval else [total]
        places, parameters = _averages(answer)
        never = never and not places
        schedule.append(places == stops)
        at_stops, end = _reference(given, set(stops))
        right = schedule[-1] and all(same_tensors(a, b, 2e-3) for a, b in zip(parameters, at_stops, strict=True))
        values.append(right and same_tensors(answer.get("end"), end, 2e-3))
    look = "print the step at which average is called, for 3 epochs of 4 steps and H = 3, 5, 100 and 0"
    on_time = all(schedule)
    return {
        "schedule": Finding(on_time, "averages after every H-th step and after the last" if on_time else
                            "average(model) was never called" if never else
                            "for some H the averagings do not come after the right steps", look),
        "values": Finding(all(values), "the training is plain SGD that goes on from the averages" if all(values) else
                          "the parameters at the averagings are not those of plain SGD that goes on from the averages", look),
    }  # fmt: skip
