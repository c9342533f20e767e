"""Hidden checks of lab 08's workers. Batches and averages come from here, so steps, averagings and seconds are counted here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from autograde.checks.compare import is_number, number, same_tensors, trusted
from autograde.checks.registry import Ask, Findings
from autograde.rubric.criteria import Finding
from autograde.sandbox.rank_channel import DelayedReply

__all__ = ["local_sgd", "psgd"]

BARRIER = 0.3  # seconds that it takes, outside
MOST = 100  # averagings of a training


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
        "batches": [[batch() for _ in range(steps)] for _ in range(epochs)],
        "lr": float(random.uniform(0.2, 0.5)),
        "factor": float(random.uniform(0.6, 0.9)),
    }


def _reference(given: dict[str, Any], places: list[int]) -> tuple[list[list[torch.Tensor]], list[torch.Tensor]]:
    """Parameters at averagings after the steps `places`, and at the end."""
    model = trusted("lab08.psgd", "make_model")(given["spec"], given["state"]).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=given["lr"])
    averaged, step = [], 0
    for epoch in given["batches"]:
        for images, labels in epoch:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            step += 1
            for _ in range(places.count(step)):
                averaged.append([p.detach().clone() for p in model.parameters()])
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.mul_(given["factor"])
    return averaged, [p.detach().clone() for p in model.parameters()]


class _Training:
    """What one worker asks for, and gets.

    Attributes
    ----------
    steps : int
        Batches that it took.
    places, averages : list
        For each averaging, the steps before it, and the parameters that were sent.
    barriers : list of int
        For each barrier, the steps before it.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self.given, self.steps, self.places, self.averages, self.barriers = given, 0, [], [], []
        self.start = list(trusted("lab08.psgd", "make_model")(given["spec"], given["state"]).parameters())

    def run(self, ask: Ask, function: str, answers: Mapping[str, Callable[..., Any]] | None = None, **more: Any) -> Any:
        """What the driver returned; `answers` stand in for `barrier`, `batch` and `average`."""
        own = {"barrier": self.barrier, "batch": self.batch, "average": self.average}
        told = {name: self.given[name] for name in ("spec", "state", "lr")}
        sizes = {"steps": len(self.given["batches"][0]), "epochs": len(self.given["batches"])}
        found = ask.call(function, told | sizes | more, own | (answers or {}))
        return found if isinstance(found, dict) else {}

    def barrier(self, rank: int) -> None:
        self.barriers.append(self.steps)

    def batch(self, rank: int, epoch: Any, place: Any) -> Any:
        """Of the epoch that is set; more epochs than there are begin again."""
        batches = self.given["batches"]
        if type(epoch) is not int or type(place) is not int or not 0 <= place < len(batches[0]):
            return None
        self.steps += 1
        return batches[epoch % len(batches)][place]

    def average(self, rank: int, parameters: Any) -> Any:
        """The parameters times a number, as another rank would change them."""
        shapes = [one.shape for one in parameters] if isinstance(parameters, list) else None
        if shapes != [one.shape for one in self.start] or len(self.places) >= MOST:
            return None
        self.places.append(self.steps)
        self.averages.append(parameters)
        return self._averaged()

    def _averaged(self) -> list[torch.Tensor]:
        return [one * self.given["factor"] for one in self.averages[-1]]

    def moved(self) -> bool:
        """Training had changed the weights before the first averaging."""
        return bool(self.averages) and not same_tensors(self.averages[0], self.start, 1e-6)

    def once(self, end: Any) -> bool:
        """It moved the weights, averaged after its last step and no other, and left the average as it was."""
        return self.moved() and self.places == [self.steps] and same_tensors(end, self._averaged(), 1e-3)

    def is_plain_sgd(self, end: Any) -> bool:
        """All steps were taken; the weights at each averaging, wherever it came, and at the end are those of plain SGD.

        Without an `end`, averagings alone are compared.
        """
        averages, last = _reference(self.given, self.places)
        all_steps = self.steps == sum(map(len, self.given["batches"])) and len(averages) == len(self.averages)
        right = all_steps and all(same_tensors(a, b, 1e-3) for a, b in zip(self.averages, averages, strict=True))
        return right and (end is None or same_tensors(end, last, 1e-3))


def psgd(ask: Ask) -> Findings:
    """A short training, with a slow barrier, slow batches and a slow averaging, timed outside.

    Times are drawn, so that no constant lies among them; all batches together take longer than the averaging.
    """
    steps, epochs = int(ask.random.integers(3, 6)), int(ask.random.integers(2, 4))
    given = _draw(ask, steps, epochs)
    training, total = _Training(given), steps * epochs
    averaging, pauses = float(ask.random.uniform(0.06, 0.1)), iter(ask.random.uniform(0.025, 0.033, total).tolist())
    asked: list[float] = []
    times: list[float] = []  # when batches and averagings were asked for

    def barrier(rank: int) -> DelayedReply:
        asked.append(time.monotonic())
        return DelayedReply(BARRIER, training.barrier(rank))

    def batch(rank: int, epoch: Any, place: Any) -> DelayedReply:
        times.append(time.monotonic())
        return DelayedReply(next(pauses, 0.0), training.batch(rank, epoch, place))

    def average(rank: int, parameters: Any) -> DelayedReply:
        times.append(time.monotonic())
        return DelayedReply(averaging, training.average(rank, parameters))

    answer = training.run(ask, "psgd", {"barrier": barrier, "batch": batch, "average": average})
    training_time = times[-1] - times[0] if times else 0.0  # lies within what a right clock tells
    wall = time.monotonic() - asked[0] if asked else 0.0  # from the moment at which the barrier was reached
    end, seconds = answer.get("end"), answer.get("returned")
    trained = training.is_plain_sgd(
        None if training.places else end or []
    )  # after an averaging, the end is the next part's
    once = training.once(end)
    look = "train two epochs of three batches beside torch.optim.SGD, and print the step at which average is called"
    if training.steps != total:
        wrong = "the training does not go once through all batches of every epoch"
    else:
        wrong = "the parameters are not those of plain SGD over all epochs, each in its own order"
    if not training.places:
        averaged = "average(model) was never called"
    elif not training.moved():
        averaged = "there is nothing to average: the weights have not moved"
    else:
        averaged = "it averages more than once, or goes on after it"
    counted = is_number(seconds) and not isinstance(seconds, torch.Tensor)
    told = number(seconds) if counted else 0.0
    if training.barriers[:1] != [0]:
        timed = "there is no barrier before the first step"
    elif not counted:
        timed = "the seconds should be a number"
    elif (
        not training.places or told < training_time + 0.95 * averaging
    ):  # who waited was told so; a busy machine adds to both
        missing = "averaging" if told >= 0.95 * training_time else "training"
        timed = f"the {missing} is not in the seconds"
    elif told > wall - BARRIER * 0.95:
        timed = "the seconds contain the waiting at the barrier"
    else:
        timed = ""
    return {
        "training": Finding(trained, "plain SGD over all epochs" if trained else wrong, look),
        "once": Finding(once, "averaged once, at the end" if once else averaged, look),
        "time": Finding(not timed, timed or "the clock runs from the barrier to the end of the averaging",
                        "let one rank come a second late, and print every rank's seconds"),
    }  # fmt: skip


def local_sgd(ask: Ask) -> Findings:
    """Intervals that divide an epoch's steps, that do not, that exceed all steps; every step; and 0."""
    steps, epochs = int(ask.random.integers(4, 7)), 3
    total = steps * epochs
    every = [steps - 1, steps, steps + 2, total + 5, 1, 0]
    given = _draw(ask, steps, epochs)
    schedule, values, never, goes_on = [], [], True, False
    for interval in every:
        training = _Training(given)
        answer = training.run(ask, "local_sgd", every=interval)
        stops = sorted({*range(interval, total + 1, interval), total}) if interval else [total]
        never = never and not training.places
        goes_on = goes_on or any(place < training.steps for place in training.places)
        schedule.append(training.places == stops and training.moved())
        values.append(training.is_plain_sgd(answer.get("end") or []))
    look = "print the step at which average is called, for 3 epochs of 4 steps and H = 3, 5, 100 and 0"
    on_time, sgd = all(schedule), all(values) and goes_on
    return {
        "schedule": Finding(on_time, "averages after every H-th step and after the last" if on_time else
                            "average(model) was never called" if never else
                            "for some H the averagings do not come after the right steps", look),
        "values": Finding(sgd, "the training is plain SGD that goes on from the averages" if sgd else
                          "the parameters at the averagings are not those of plain SGD that goes on from the averages", look),
    }  # fmt: skip
