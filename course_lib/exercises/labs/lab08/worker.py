"""Lab 08: a worker's training. Batches, averages and both clocks come from the grader, which counts them.

The clocks are pretended: a batch, a forward pass, a wait and an averaging take seconds that were drawn. So right seconds
are the sum of known numbers on any machine.
"""

from __future__ import annotations

import contextlib
import sys
import time
import types

import torch
from torch import nn

from course_lib.exercises.comparing import equal, finite, is_number, short
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.labs.lab08.messages import network

__all__ = ["WORKER"]

MOST = 2_000  # events of a training
UNSET = -1  # the epoch of batches whose set_epoch was never called


class Training:
    """Hands out batches and averages, and moves two clocks."""

    def __init__(self, case):
        self.case, self.events = case, 0
        self.steps, self.places, self.averages, self.barriers = 0, [], [], []
        self.clocks = dict(case["clocks"])
        self.process, self.waited, self.averaging = 0.0, 0.0, 0.0  # since the beginning: seconds of what

    def answer(self, name, rank, *args):
        self.events += 1
        if self.events > MOST:
            raise ValueError("far too many steps")
        return getattr(self, f"_{name}")(*args)

    def _pass(self, process, wall):
        self.clocks["process"] += process
        self.clocks["wall"] += wall

    def _clock(self, which):
        self._pass(1e-7, 1e-7)
        return self.clocks["process" if which == "process" else "wall"]

    def _barrier(self):
        self.barriers.append(self.steps)
        self._pass(0.7 * self.case["barrier"], self.case["barrier"])
        self.waited += self.case["barrier"]

    def _batch(self, epoch, place):
        """Of the epoch that is set, or of the first; each epoch has batches of its own."""
        if epoch == UNSET:
            epoch = self.case["epochs"][0]
        batches = self.case["batches"].get(epoch) if type(epoch) is int else None
        if batches is None or type(place) is not int or not 0 <= place < len(batches):
            return None
        self._compute(self.case["fetch"][self.steps % len(self.case["fetch"])])
        self.steps += 1
        return batches[place]

    def _forward(self):
        self._compute(self.case["forward"][self.steps % len(self.case["forward"])])

    def _compute(self, seconds):
        self._pass(seconds, 1.3 * seconds)
        self.process += seconds

    def _average(self, parameters):
        """The parameters times a number, as another rank would change them."""
        shapes = [one.shape for one in parameters] if isinstance(parameters, list) else None
        if shapes != _shapes(self.case):
            raise ValueError("average(model) was given another model")
        seconds = self.case["averaging"][len(self.places) % len(self.case["averaging"])]
        self._pass(0.6 * seconds, seconds)
        self.averaging += seconds
        self.places.append(self.steps)
        self.averages.append(parameters)
        return [one * self.case["factor"] for one in parameters]

    def evidence(self):
        return {
            "steps": self.steps, "places": self.places, "averages": self.averages, "barriers": self.barriers,
            "process": self.process, "waited": self.waited, "averaging": self.averaging,
        }  # fmt: skip


# --- cases


def _draw_trainings(random):
    width, hidden, classes = (int(n) for n in random.integers(4, 8, 3))

    def normal(*shape):
        return torch.from_numpy(random.normal(0, 1, shape)).float()

    # Batch norm tells a model that trains from one that is left in evaluation mode.
    state = [normal(hidden, width), normal(hidden), 1 + 0.2 * normal(hidden), normal(hidden), torch.zeros(hidden),
             torch.ones(hidden), torch.zeros((), dtype=torch.long), normal(classes, hidden), normal(classes)]  # fmt: skip
    lr, factor = float(random.uniform(0.2, 0.5)), float(random.uniform(0.6, 0.9))

    def case(every, steps, epochs):
        first = int(random.integers(0, 5))
        numbers = list(range(first, first + epochs))
        batches = {
            epoch: [(normal(8, width), torch.from_numpy(random.integers(0, classes, 8))) for _ in range(steps)]
            for epoch in numbers
        }
        drawn = {
            name: [float(s) for s in random.uniform(low, high, 97)]
            for name, low, high in (("fetch", 0.1, 0.4), ("forward", 1, 2), ("averaging", 0.5, 0.9))
        }
        clocks = {"process": float(random.uniform(5, 90)), "wall": float(random.uniform(1e3, 1e4))}
        about = f"every = {every}, {epochs} epochs of {steps} steps"
        return {
            "state": state, "lr": lr, "factor": factor, "every": every, "steps": steps, "epochs": numbers, "batches": batches,
            "barrier": float(random.uniform(3, 9)), "clocks": clocks, "about": about, **drawn,
        }  # fmt: skip

    steps = int(random.integers(5, 7))  # so that the first interval leaves a remainder
    total = 3 * steps
    return {
        "once": [case(0, steps, 2), case(0, steps - 1, 3)],
        "often": [case(every, steps, 3) for every in (steps - 1, steps, steps + 2, total + 5, 1)],
    }


def _known_to_the_worker(case, rank):
    return {name: case[name] for name in ("state", "lr", "every", "steps", "epochs")}


# --- what is sent beside the student's code


class Batches:
    """Other batches in every epoch."""

    def __init__(self, steps, outside):
        self.steps, self.epoch, self.outside = steps, UNSET, outside

    def set_epoch(self, epoch):
        self.epoch = int(epoch)

    def __len__(self):
        return self.steps

    def __iter__(self):
        for place in range(self.steps):
            batch = self.outside("batch", self.epoch, place)
            if batch is None:
                raise LookupError(f"there is no epoch {self.epoch} among the epochs that were asked for")
            yield tuple(batch)


class OneRank:
    """A communicator of one rank; a barrier takes its time."""

    rank, size = 0, 1

    def __init__(self, outside):
        self.outside = outside

    def Get_rank(self):
        return 0

    def Get_size(self):
        return 1

    def Barrier(self):
        self.outside("barrier")

    barrier = Barrier


@contextlib.contextmanager
def pretended_clocks(function, outside):
    """`time` with clocks of the grader's, for a function and for what it imports."""
    names, pretended = getattr(function, "__globals__", {}), types.ModuleType("time")
    pretended.__dict__.update(vars(time))
    for name in ("process_time", "thread_time"):
        setattr(pretended, name, lambda: outside("clock", "process"))
    for name in ("perf_counter", "monotonic", "time"):
        setattr(pretended, name, lambda: outside("clock", "wall"))
    replaced = {name: value for name, value in names.items() if value is time}
    replaced |= {
        name: value
        for name, value in names.items()
        if any(value is getattr(time, each) for each in ("process_time", "thread_time", "perf_counter", "monotonic"))
    }
    names.update({
        name: pretended if value is time else getattr(pretended, value.__name__) for name, value in replaced.items()
    })  # fmt: skip
    sys.modules["time"] = pretended
    try:
        yield
    finally:
        sys.modules["time"] = time
        names.update(replaced)


def weights_of(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def observe_worker(case, outside, train_local):
    model = network(case["state"]).eval()  # as an evaluation left it
    model.register_forward_pre_hook(lambda *given: outside("forward"))

    def average(model):
        averaged = outside("average", weights_of(model))
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), averaged, strict=True):
                parameter.copy_(value)

    batches = Batches(case["steps"], outside)
    with pretended_clocks(train_local, outside):
        found = train_local(OneRank(outside), model, batches, case["lr"], case["epochs"], average, case["every"])
    found = [float(n) if isinstance(n, float) else n for n in found] if isinstance(found, tuple | list) else found
    return {"end": weights_of(model), "found": found}


# --- judging


def _shapes(case):
    return [parameter.shape for parameter in network(case["state"]).parameters()]


def _trained(case, places, *, zero=True, train=True, order=None, momentum=0.0):
    """Weights at averagings after the steps `places`, and at the end, of plain SGD that continues from the averages."""
    model = network(case["state"]).train(train)
    optimizer = torch.optim.SGD(model.parameters(), lr=case["lr"], momentum=momentum)
    averages, step = [], 0
    for epoch in order or case["epochs"]:
        for images, labels in case["batches"][epoch]:
            if zero:
                optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            step += 1
            for _ in range(places.count(step)):
                averages.append(weights_of(model))
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.mul_(case["factor"])
    return averages, weights_of(model)


def _total(case):
    return case["steps"] * len(case["epochs"])


def _is(case, seen, **mistake):
    averages, end = _trained(case, seen["places"], **mistake)
    return equal(seen["averages"], averages, 1e-3) and equal(seen["end"], end, 1e-3)


_NO_SGD = "the parameters are not those of plain SGD over all epochs, each in its own order"


def _plain_sgd(case, seen, right):
    if seen["steps"] != _total(case):
        if seen["steps"] == case["steps"]:
            return "it goes through the batches once, not once for every epoch in `epochs`"
        return "the training does not take every batch of every epoch once"
    if _is(case, seen):
        return ""
    undone = len(seen["places"]) > 0 and equal(seen["averages"][:1], _trained(case, seen["places"])[0][:1], 1e-3)
    for reason, mistake in {
        "the model is left in evaluation mode: model.train()": {"train": False},
        "gradients are not set to zero before each step": {"zero": False},
        "set_epoch is not called with each epoch's number, so all epochs have one order": {"order": [case["epochs"][0]] * len(case["epochs"])},
    }.items():  # fmt: skip
        if _is(case, seen, **mistake):
            return reason
    if undone:
        return "up to the first averaging it is plain SGD; from there on it does not continue from the average"
    return _NO_SGD


def _moved(case, seen):
    return bool(seen["averages"]) and not equal(seen["averages"][0], weights_of(network(case["state"])), 1e-6)


def _average_once(case, seen, right):
    if not seen["places"]:
        return "average(model) was never called"
    if not _moved(case, seen) or seen["steps"] < case["steps"]:
        return "there is nothing to average: no training came before it"
    if seen["places"] != [seen["steps"]]:
        return "with every = 0 it should average once, after the last step"
    last = [one * case["factor"] for one in seen["averages"][-1]]
    return "" if equal(seen["end"], last, 1e-3) else "it changes the weights after the last averaging"


def _stops(case):
    total = _total(case)
    return sorted({*range(case["every"], total + 1, case["every"]), total})


def _on_time(case, seen, right):
    places, stops, total = seen["places"], _stops(case), _total(case)
    if not places:
        return "average(model) was never called"
    if not _moved(case, seen):
        return "there is nothing to average: the weights have not moved"
    if places == stops:
        return ""
    if len(places) > len(set(places)):
        return "it averages twice after one step, at the end: once is enough"
    if places == stops[:-1]:
        return "the steps after the last full H are not averaged: the workers end with different models"
    steps, every = case["steps"], case["every"]
    anew = {epoch * steps + n for epoch in range(len(case["epochs"])) for n in range(every, steps + 1, every)}
    if set(places) | {total} == anew | {total}:
        return "it counts the steps of each epoch anew: count on over the epochs"
    if places == [total]:
        return "it averages at the end only, whatever H is"
    return "for some H the averagings do not come after the right steps"


_NO_PAIR = "should return a pair of numbers, (compute, averaging)"


def _both_clocks(case, seen, right):
    found = seen["found"]
    if not isinstance(found, list) or len(found) != 2 or not all(map(is_number, found)):
        return _NO_PAIR
    compute, averaging = map(finite, found)
    if seen["barriers"][:1] != [0]:
        return "there is no barrier before the first step: comm.Barrier()"
    process, spent, waited = seen["process"], seen["averaging"], seen["waited"]
    if not _near(compute, process):
        for reason, wrong in {
            "the processor seconds contain those of the averaging: stop that clock before average(model), or subtract them": process + 0.6 * spent,
            "the processor seconds contain the waiting at the barrier: read the clock after it": process + 0.7 * waited,
            "the processor seconds contain the waiting at the barrier and the averaging": process + 0.7 * waited + 0.6 * spent,
            "compute is read from the wall clock: other programs take their turns in it. time.process_time()": 1.3 * process,
            "compute is read from the wall clock, averaging included: time.process_time()": 1.3 * process + spent,
            "the two numbers are swapped: (compute, averaging)": spent,
        }.items():  # fmt: skip
            if _near(compute, wrong):
                return reason
        return "the processor seconds are not those from the barrier to the last step"
    if _near(averaging, spent):
        return ""
    if _near(averaging, 0.6 * spent):
        return "averaging is read from time.process_time(), which leaves out waiting: time.perf_counter()"
    if averaging < spent:
        return "the seconds of some averaging are missing: add up all of them"
    return "the seconds of averaging contain more than the calls of average(model)"


def _near(a, b):
    """Reading a clock takes a ten-millionth of a second."""
    return abs(a - b) < 1e-4 + 1e-5 * abs(b)


def _shown(case, seen):
    returned = short(seen["found"]) if isinstance(seen["found"], list) else "no pair"
    clocks = f"the clocks say ({seen['process']:.4f}, {seen['averaging']:.4f}), you returned {returned}"
    return f"{case['about']}: you averaged after step {', '.join(map(str, seen['places'])) or '(none)'}; {clocks}"


WORKER = Exercise(("train_local",), _draw_trainings, observe_worker, {
    "training": Part("Plain SGD over all epochs, continuing from the averages", _NO_SGD, cases="once often", judge=_plain_sgd),
    "once": Part("With every = 0 one averaging, at the end", cases="once", judge=_average_once),
    "schedule": Part("Averages after every H-th step and after the last", cases="often", judge=_on_time,
                     hint="print the step at which average is called, for 3 epochs of 4 steps and H = 3, 5, 100 and 1"),
    "time": Part("Processor seconds of the training, wall-clock seconds of the averagings", _NO_PAIR, cases="once often",
                 needs="training", judge=_both_clocks, hint="let average sleep for a second, and print both numbers"),
}, "train two epochs of three batches beside torch.optim.SGD, and print the step at which average is called", _shown,
    watch=Training, share=_known_to_the_worker)  # fmt: skip
