"""Lab 09: the loop of one process. Its step, barrier and clock are stand-ins that record what happens when.

Time is pretended: a step and the wait at the barrier take seconds that were drawn, so right times are known on any machine.
"""

from __future__ import annotations

import torch

from course_lib.exercises.comparing import equal, finite
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.labs.lab08.worker import pretended_clocks

__all__ = ["WORKER"]

MOST = 2_000  # steps of a process
FAULT = 1000.0  # what is between a sample and its label


def _draw_jobs(random):
    def case(size, samples, epochs):
        return {
            "size": size, "samples": samples, "epochs": epochs, "batch_size": int(random.integers(3, 7)),
            "seed": int(random.integers(0, 10**6)), "lr": float(random.uniform(0.05, 0.5)),
            "step_seconds": float(random.uniform(0.2, 0.9)), "wait_seconds": float(random.uniform(5, 50)),
            "began": float(random.uniform(1e3, 1e5)), "about": f"{samples} samples, {size} process(es), epochs {epochs}",
        }  # fmt: skip

    def samples(size):
        return size * int(random.integers(20, 40)) + int(random.integers(1, size)) if size > 1 else 41

    first = int(random.integers(1, 5))
    return {
        "jobs": [
            case(2, samples(2), [0, 1]),
            case(3, samples(3), [first]),
            case(1, samples(1), [0, 1]),
            case(4, samples(4), [first, first + 1, first + 2]),
        ]
    }


class Gate:
    """A barrier at which the others come later."""

    def __init__(self, events, clock, seconds):
        self.events, self.clock, self.seconds = events, clock, seconds

    def wait(self, timeout=None):
        self.events.append({"what": "wait"})
        self.clock["wall"] += self.seconds
        return 0


class Door:
    """A lock that need not be held here: the step takes it."""

    def __init__(self, events):
        self.events = events

    def __enter__(self):
        self.events.append({"what": "lock"})

    def __exit__(self, *exc_info):
        pass


def observe_processes(case, worker):
    """What each process does, one after the other: their memory is the same, their random numbers begin alike.

    `alone` is the first process's last epoch in a call of its own.
    """
    samples = torch.arange(case["samples"], dtype=torch.float64)
    data = torch.stack([samples, samples * samples], 1), samples + FAULT
    weights = torch.zeros(2, dtype=torch.float64)
    done = torch.zeros(case["size"], dtype=torch.int64)
    clocks = torch.zeros(case["size"], 2, dtype=torch.float64)
    shared = weights, data, done, clocks
    ranks = [_observe_process(case, worker, rank, case["epochs"], *shared) for rank in range(case["size"])]
    seen = {"ranks": ranks, "weights": weights.tolist()}
    if len(case["epochs"]) > 1:
        seen["alone"] = _observe_process(case, worker, 0, case["epochs"][-1:], *shared)["events"]
    seeded = case | {"seed": case["seed"] + 1}
    seen["seeded"] = _observe_process(seeded, worker, 0, case["epochs"][:1], *shared)["events"]
    return seen


def _observe_process(case, worker, rank, epochs, weights, data, done, clocks):
    events, clock = [], {"wall": case["began"] + 7 * rank, "process": 0.5}
    door, threads = Door(events), torch.get_num_threads()

    def step(model, batch, lr, lock):
        if len(events) >= MOST:
            raise ValueError("far too many steps")
        inputs, labels = batch
        own = isinstance(model, torch.Tensor) and model.data_ptr() == weights.data_ptr()
        paired = bool(((labels - inputs[:, 0]) == FAULT).all()) and len(labels) == len(inputs)
        events.append({
            "what": "step", "samples": [int(n) for n in inputs[:, 0]], "paired": paired, "own": own, "lr": float(lr),
            "lock": lock is door, "drawn": float(torch.rand(())), "threads": torch.get_num_threads(), "done": int(done[rank]),
        })  # fmt: skip
        model += 1.0
        for name in clock:
            clock[name] += case["step_seconds"]

    job = {name: case[name] for name in ("lr", "batch_size", "seed")} | {"step": step, "epochs": list(epochs)}
    gate = Gate(events, clock, case["wait_seconds"])
    torch.manual_seed(20_090_417)
    torch.set_num_threads(2)
    before = [done.tolist(), clocks.tolist()]
    try:
        with pretended_clocks(worker, lambda name, which: clock[which]):
            worker(rank, case["size"], weights, data, job, door, gate, done, clocks)
    finally:
        torch.set_num_threads(threads)
    kept = all(
        [row for n, row in enumerate(now) if n != rank] == [row for n, row in enumerate(old) if n != rank]
        for now, old in zip((done.tolist(), clocks.tolist()), before, strict=True)
    )
    return {"events": events, "kept": kept, "done": done.tolist()[rank], "clock": clocks.tolist()[rank]}


# --- judging


def _steps(one):
    """The steps after the barrier; where there is none, those on the shared weights."""
    events = one["events"]
    names = [event["what"] for event in events]
    if "wait" not in names:
        return [event for event in events if event["what"] == "step" and event["own"]]
    return [event for event in events[names.index("wait") :] if event["what"] == "step"]


def _own_memory(case, seen, right):
    for one in seen["ranks"]:
        steps = _steps(one)
        if not steps:
            return 'after the barrier job["step"] is never called'
        if not all(step["own"] for step in steps):
            return "the steps change a copy of the model, which no other process sees"
        if not all(step["lock"] for step in steps):
            return "a step is not given the lock that the worker got"
        if not all(step["paired"] for step in steps):
            return "a batch's labels are not those of its inputs: take both at the same places"
        if not all(equal(step["lr"], case["lr"]) for step in steps):
            return 'a step is not given job["lr"]'
        if any(event["what"] == "lock" for event in one["events"]):
            return "the worker holds the lock itself: only the step knows which lines need it"
        if any(step["threads"] != 1 for step in steps):
            return "a step runs with more than one thread, so the processes compete for the cores: torch.set_num_threads(1)"
    return ""


def _epochs(case, seen):
    """The samples of each epoch, by rank; None where the steps do not divide so."""
    found = []
    for one in seen["ranks"]:
        samples = [n for step in _steps(one) for n in step["samples"]]
        each, rest = divmod(len(samples), len(case["epochs"]))
        if rest:
            return None
        found.append([samples[each * n : each * (n + 1)] for n in range(len(case["epochs"]))])
    return list(zip(*found, strict=True))


def _fixed_work(case, seen, right):
    size, samples = case["size"], case["samples"]
    taken = [[n for step in _steps(one) for n in step["samples"]] for one in seen["ranks"]]
    total, wanted = sum(map(len, taken)), samples * len(case["epochs"])
    if size > 1 and total == size * wanted:
        return f"{size} processes do {size} times the work: each takes all samples. Divide them: order[rank::size]"
    if len(case["epochs"]) > 1 and total == samples:
        return 'it trains one epoch, not every epoch in job["epochs"]'
    epochs = _epochs(case, seen)
    if epochs is None or total < wanted:
        return "some sample is left out: the last batch of an epoch may be smaller, and a remainder goes to some of the processes"
    for shares in epochs:
        together = [n for share in shares for n in share]
        if len(set(together)) < len(together):
            return (
                "some sample is used twice in an epoch: all processes must draw the same order, which may depend on the seed "
                "and the epoch, not on the rank"
            )
        if set(together) != set(range(samples)):
            return "not every sample is used once in every epoch"
        if max(map(len, shares)) - min(map(len, shares)) > case["batch_size"]:
            return "the shares differ by more than a batch"
    full = case["batch_size"]
    for one in seen["ranks"]:
        sizes = [len(step["samples"]) for step in _steps(one)]
        if max(sizes) > full:
            return 'a batch has more than job["batch_size"] samples'
        mine = len(taken[0]) // len(case["epochs"])
        if sum(n < full for n in sizes) > len(case["epochs"]) and mine > full:
            return 'only the last batch of an epoch may have fewer than job["batch_size"] samples'
    return ""


def _shuffled(case, seen, right):
    epochs = _epochs(case, seen)
    order = epochs[0][0]
    if list(order) == sorted(order):
        return "the samples come in the order of the data set: shuffle them"
    if len(epochs) > 1 and (epochs[0] == epochs[1]):
        return 'two epochs have the same order: draw it from job["seed"] and the epoch'
    if len(epochs) > 1 and case["size"] > 1 and set(epochs[0][0]) == set(epochs[1][0]):
        return "a process has the same samples in every epoch: shuffle all samples first, then divide them"
    if len(epochs) > 1 and [n for step in _steps({"events": seen["alone"]}) for n in step["samples"]] != epochs[-1][0]:
        return (
            "an epoch has another order if the call begins with it: draw the order from the seed and the epoch's number, not "
            "from a generator that goes on from epoch to epoch"
        )
    if [n for step in _steps({"events": seen["seeded"]}) for n in step["samples"]] == epochs[0][0]:
        return 'with another job["seed"] an epoch has the same order: draw it from the seed and the epoch'
    drawn = [tuple(step["drawn"] for step in _steps(one))[:3] for one in seen["ranks"]]
    if len(set(drawn)) < len(drawn):
        return (
            "all processes draw the same random numbers, so their dropout masks are equal: the order needs a generator of its "
            "own, and torch.manual_seed another seed for each process"
        )
    starts = [
        step["drawn"]
        for one in seen["ranks"]
        for step in _steps(one)[:: len(_steps(one)) // len(epochs)][: len(epochs)]
    ]
    again = len(epochs) > 1 and _steps({"events": seen["alone"]})[0]["drawn"] == starts[0]
    if again or len(set(starts)) < len(starts):
        return "an epoch begins with the random numbers of another epoch or process: torch.manual_seed, another seed in each process and epoch"
    return ""


def _counted(case, seen, right):
    for one in seen["ranks"]:
        mine = sum(len(step["samples"]) for step in _steps(one))
        if one["kept"] is not True:
            return "it writes into another process's place of `done` or `clock`"
        if one["done"] != mine:
            if one["done"] == len(_steps(one)):
                return "`done` counts batches: count their samples"
            return "done[rank] is not the number of samples that this process trained on"
        trained = 0
        for step in _steps(one):
            if step["done"] not in (trained, trained + len(step["samples"])):
                return "done[rank] is not kept up to date: after each step it is the number of samples trained so far"
            trained += len(step["samples"])
    return ""


def _on_time(case, seen, right):
    for rank, one in enumerate(seen["ranks"]):
        names = [event["what"] for event in one["events"]]
        if names.count("wait") != 1:
            return "it should wait at the barrier once" if "wait" in names else "it never waits: barrier.wait()"
        before = one["events"][: names.index("wait")]
        if not any(event["what"] == "step" for event in before):
            return "before the barrier there is no step: the first step of a process sets things up, and that time is no training"
        if any(event["what"] == "step" and event["own"] for event in before):
            return "the step before the barrier changes the shared weights: give it a copy"
        start = case["began"] + 7 * rank + len(before) * case["step_seconds"] + case["wait_seconds"]
        end = start + len(_steps(one)) * case["step_seconds"]
        found = [finite(n) for n in one["clock"]]
        if equal(found, [start, end], 1e-9):
            continue
        if equal(found[0], start - case["wait_seconds"], 1e-9):
            return "the start is read before the barrier, so waiting for slow starters counts as training: read it after barrier.wait()"
        if equal(found[0], case["began"] + 7 * rank, 1e-9):
            return "the start is read before the first step and the barrier: read it after barrier.wait()"
        if max(found) < case["began"]:
            return "the clock is not one that all processes share: time.monotonic()"
        return "clock[rank] does not have the times right after the barrier and right after the last step"
    return ""


_NO_LOOP = "it does not do what the docstring asks for"
_PRINTS = "call it with a step that prints its batch, for rank 0 and rank 1 of 2"

WORKER = Exercise(("worker",), _draw_jobs, observe_processes, {
    "steps": Part("Steps on the shared weights, each with its batch and the lock", _NO_LOOP, judge=_own_memory, cases="jobs"),
    "work": Part("Every sample once in each epoch, over all processes", _NO_LOOP, judge=_fixed_work, needs="steps", cases="jobs"),
    "random": Part("A new order in each epoch, and other random numbers in each process", _NO_LOOP, judge=_shuffled, needs="work",
                   cases="jobs"),
    "count": Part("Counts its samples in its own place", _NO_LOOP, judge=_counted, needs="steps", cases="jobs"),
    "clock": Part("Times from the barrier to its last step, after a first step on a copy", _NO_LOOP, judge=_on_time, needs="steps",
                  cases="jobs"),
}, _PRINTS)  # fmt: skip
