"""Lab 09: HogWild. Collisions, the sparse step, shares of an epoch, the reading of curves, the training loop."""

from __future__ import annotations

import itertools
import math
import mmap
import os
import pathlib
import tempfile

import numpy as np
import torch
from torch import nn

from course_lib.exercises.comparing import equal
from course_lib.exercises.description import Exercise, Part

__all__ = ["EXERCISES"]

# --- collision_probability


def _draw_collisions(random):
    def question(processes):
        nonzeros = int(random.integers(2, 12))
        return nonzeros, nonzeros * int(random.integers(3, 40)), int(processes)

    return {
        "two": [*(question(2) for _ in range(4)), (20, int(random.integers(10**5, 10**6)), 2)],
        "many": [
            *(question(processes) for processes in random.integers(3, 10, 4)),
            (4, int(random.integers(300, 500)), 6),
        ],
        # With two processes, the sum over the others would be right for the second.
        "edges": [(7, 7, 2), (5, 8, int(random.integers(3, 6))), (3, 40, 1)],
    }


def observe_collision(case, collision_probability):
    return collision_probability(*case)


collision = Exercise(
    ("collision_probability",),
    _draw_collisions,
    observe_collision,
    {
        "two": Part("Two processes", "wrong for two processes"),
        "many": Part(
            "More than two processes",
            "wrong for more than two processes",
            "with three processes, two others must both miss yours",
        ),
        "edges": Part(
            "Dense updates, and a process alone",
            "wrong where updates must meet, or where there is one process",
            "try as many nonzeros as features, more than half of them, and a single process",
            needs="two",
        ),
    },
    "count by hand: 2 of 4 features, two processes; of the six ways to choose the other's, one misses yours",
    "{0} of {1:,} features, {2} process(es)",
)

# --- sparse_step

COUNTED = 2**21  # weights of the model whose memory pages are counted: 16 MiB
LIMITED = 2**30  # weights that take 8 GiB, twice the memory that the rubric allows
MAP_NORESERVE = 0x4000  # Python 3.11's mmap has no name for it


def _draw_updates(random):
    features, active, samples = int(random.integers(80, 200)), int(random.integers(2, 6)), int(random.integers(3, 7))
    lr = float(random.uniform(0.1, 0.5))

    def case(kind, about):
        weights = torch.from_numpy(random.normal(0, 1, features))
        indices = torch.from_numpy(random.permutation(features)[: samples * active].reshape(samples, active))
        if kind == "between":
            indices[:, 0] = indices[0, 0]
        elif kind == "within":
            indices[1, 1] = indices[1, 0]
        elif kind == "hidden":
            kept = weights[indices].clone()
            weights[:] = math.nan
            weights[indices] = kept
        labels = torch.from_numpy(random.integers(0, 2, samples).astype(float))
        labels[:2] = torch.tensor([0.0, 1.0])
        return {"weights": weights, "indices": indices, "labels": labels, "lr": lr, "about": about}

    large = {
        "features": COUNTED,
        "indices": torch.from_numpy(random.choice(COUNTED, (4, 5), replace=False)),
        "values": torch.from_numpy(random.normal(0, 1, (4, 5))),
        "labels": torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64),
        "lr": lr,
        "about": f"{COUNTED:,} weights, 4 samples of 5 features",
    }
    size = f"{samples} samples with {active} features each"
    return {
        "apart": [case("apart", f"{size}, none twice")],
        "hidden": [case("hidden", f"{size}, all other weights not a number")],
        "repeated": [
            case("between", f"{size}, all of them share one"),
            case("within", f"{size}, the second has one of its features twice (its value there is 2)"),
        ],
        "memory": [large],
    }


def _beyond_memory(cases):
    """More weights than there is memory for: an update that goes through all of them never returns."""
    # A kernel that never promises more memory than it has does not lend it; then the pages are counted.
    if pathlib.Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2":
        return cases
    return cases | {"memory": [case | {"features": LIMITED} for case in cases["memory"]]}


def observe_update(case, sparse_step):
    if "features" in case:
        return observe_large(case, sparse_step)
    weights, indices = case["weights"].clone(), case["indices"].clone()
    sparse_step(weights, indices, case["labels"].clone(), case["lr"])
    return {"weights": weights, "kept": torch.equal(indices, case["indices"])}


def observe_large(case, sparse_step):
    """One step on many weights: those of its features, and how many other pages of memory it reads or writes.

    The system gives a page to each place of a file with holes that is touched, and counts them in blocks of 512 bytes.
    """

    def step(weights):
        sparse_step(weights, case["indices"].clone(), case["labels"].clone(), case["lr"])
        return weights[case["indices"]]

    if case["features"] > COUNTED:  # memory that nobody touches takes none
        memory = mmap.mmap(-1, 8 * case["features"], mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
        weights = torch.frombuffer(memory, dtype=torch.float64)
        weights[case["indices"]] = case["values"]
        return {"weights": step(weights), "pages": 0}
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        path = pathlib.Path(file.name)
        file.truncate(8 * case["features"])
        weights = torch.from_file(str(path), shared=True, size=case["features"], dtype=torch.float64)
        page, empty = os.sysconf("SC_PAGE_SIZE"), path.stat().st_blocks
        weights[case["indices"]] = case["values"]
        own = path.stat().st_blocks - empty
        after = step(weights)
        counts = 0 < 512 * own <= 4 * page * case["indices"].numel()  # not every file system does
        return {"weights": after, "pages": 512 * (path.stat().st_blocks - empty - own) // page if counts else 0}


def _own_pages(case, seen, right):
    if not equal(seen["weights"], right["weights"], 1e-8):
        return "in a model of many weights the step is wrong"
    return "" if seen["pages"] <= 2 * case["indices"].numel() else _TOO_MANY


_TOO_MANY = (
    "it reads or writes far more of the weights than the batch has features: read weights[indices] only, and write with "
    "index_add_, so that nobody else's numbers are written back"
)
_EXACT = {"keys": "weights kept", "tolerance": 1e-8}

sparse = Exercise(
    ("sparse_step",),
    _draw_updates,
    observe_update,
    {
        "apart": Part("", "wrong where no feature occurs twice", **_EXACT),
        "step": Part("The step on the batch's own features", cases="hidden", needs="apart", **_EXACT),
        "repeated": Part(
            "Features that occur more than once",
            "where a feature occurs more than once, not all of its updates arrive",
            "two samples with the same single feature: its weight must move twice as far as with one",
            needs="apart",
            **_EXACT,
        ),
        "memory": Part(
            "Touches the memory of its own features only",
            _TOO_MANY,
            "look for an operation on all of `weights`, or a tensor of its size",
            needs="apart",
            judge=_own_pages,
        ),
    },
    "three features, one sample: do it by hand",
    guarded="memory",
    in_sandbox=_beyond_memory,
)

# --- my_share


def _draw_shares(random):
    jobs = [(int(random.integers(3, 7)) * int(random.integers(20, 60)), 1)]
    for processes in (2, int(random.integers(3, 6))):
        whole = processes * int(random.integers(20, 60))
        jobs += [(whole, processes), (whole + int(random.integers(1, processes)), processes)]
    jobs.append((1000, 2))  # enough to tell a shuffled order
    return {"jobs": [(samples, processes, int(random.integers(0, 10**6))) for samples, processes in jobs]}


def observe_shares(case, my_share):
    """All shares of three epochs; one of them again, and with another seed; whether the global generators stayed."""
    samples, processes, seed = case
    shares, untouched = [], True
    for epoch in range(3):
        shares.append([])
        for rank in range(processes):
            torch.manual_seed(processes * epoch + rank)  # processes do not share a generator's state
            before = generators()
            found = my_share(samples, processes, rank, epoch, seed)
            untouched = untouched and generators() == before
            shares[-1].append(positions(found))
    again = [positions(my_share(samples, processes, 0, 1, seed + other)) for other in (0, 1)]
    return {"shares": shares, "again": again, "untouched": untouched}


def positions(found):
    """A share as a list of int; None for what is none."""
    try:
        return [int(position) for position in (found.tolist() if isinstance(found, torch.Tensor) else found)]
    except (TypeError, ValueError, OverflowError):
        return None


def generators():
    """The states of torch's and numpy's global generators."""
    _, numbers, place, *_ = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), numbers.tobytes(), place


def _once(case, seen, right):
    samples, processes, _ = case
    for parts in seen["shares"]:
        dealt = [position for part in parts for position in part]
        if any(type(position) is not int or not 0 <= position < samples for position in dealt):
            return "positions of n samples lie in 0…n − 1"
        if processes > 1 and [len(part) for part in parts] == [samples] * processes:
            return "every process takes all samples: that is as many times the work, and no speed-up; deal them out"
        if len(set(dealt)) < len(dealt):
            return (
                "some sample is in more than one share: all processes must deal out one and the same order, which may "
                "depend on seed and epoch, not on the rank"
            )
        if len(dealt) < samples:
            return "some sample is in no share of an epoch: a remainder goes to some of the processes, one sample each"
    return ""


def _even(case, seen, right):
    spread = max(max(map(len, parts)) - min(map(len, parts)) for parts in seen["shares"])
    return "the shares differ by more than one sample" if spread > 1 else ""


def _order(case, seen, right):
    (samples, processes, _), epochs, (same, other) = case, seen["shares"], seen["again"]
    if seen["untouched"] is not True:
        return (
            "the global generator of torch or numpy, from which dropout draws, is changed: draw from a generator of your "
            "own, torch.Generator().manual_seed(…) or np.random.default_rng(…)"
        )
    if epochs[1][0] != same:
        return "the same arguments do not give the same order: it must come from a generator that they seed"
    steps = [b > a for parts in epochs for part in parts for a, b in itertools.pairwise(part)]
    if samples >= 500 and not 0.4 < sum(steps) / len(steps) < 0.6:  # a shuffled order goes up at half of its steps
        return "the samples are not shuffled: they come in the order of the data set"
    if epochs[0] == epochs[1] or epochs[1] == epochs[2]:
        return "two epochs have the same order: draw it from seed and epoch"
    if same == other:
        return "another seed gives the same order: draw it from seed and epoch"
    if processes > 1 and len({frozenset(parts[0]) for parts in epochs}) == 1:
        return "a process takes the same samples in every epoch: shuffle all samples first, then deal them out"
    return ""


_NO_SHARE = "should return positions, a list or a tensor of whole numbers"

share = Exercise(
    ("my_share",),
    _draw_shares,
    observe_shares,
    {
        "once": Part("Every sample once an epoch, over all processes", _NO_SHARE, cases="jobs", judge=_once),
        "even": Part("Shares of equal size, to one sample", _NO_SHARE, cases="jobs", needs="once", judge=_even),
        "order": Part(
            "A new order in each epoch, the same for the same seed", _NO_SHARE, cases="jobs", needs="once", judge=_order
        ),
    },
    "print the shares of 11 samples on 3 processes, for two epochs",
    "{0} samples, {1} process(es), three epochs",
)

# --- time_to_accuracy, speed_up


def _draw_curves(random):
    def curve(factor):
        points = int(random.integers(4, 9))
        seconds = random.uniform(1, 9, points).cumsum().round(3)
        accuracies = random.uniform(0.2, 0.9, points).round(3)
        return [
            (float(t), factor * 1000 * (i + 1), float(a))
            for i, (t, a) in enumerate(zip(seconds, accuracies, strict=True))
        ]

    def best(one):
        return max(accuracy for *_, accuracy in one)

    def time(one, target):
        return {"curve": one, "target": target, "about": f"curve {one}, target {target}"}

    def pair(serial, other, target):
        about = f"serial {serial}, parallel {other}, target {target}"
        return {"serial": serial, "other": other, "target": target, "about": about}

    curves = [curve(int(random.integers(1, 4))) for _ in range(6)]
    low, high = sorted(curves[:2], key=best)
    between = (best(low) + best(high)) / 2  # one of the two gets there
    return {
        "time": [
            *(time(one, one[int(random.integers(0, len(one)))][2]) for one in curves),  # met exactly
            time(curves[0], best(curves[0])),  # nothing lies above
            *(time(one, round(best(one) - 0.001, 3)) for one in curves[:3]),
            *(time(one, 0.95) for one in curves[:2]),
        ],
        "pairs": [
            *(pair(a, b, min(best(a), best(b))) for a, b in itertools.pairwise(curves)),
            pair(curves[0], curves[1], 0.95),
            pair(low, high, between),
            pair(high, low, between),
        ],
    }


def observe_reading(case, time_to_accuracy, speed_up):
    if "curve" in case:
        return time_to_accuracy(list(case["curve"]), case["target"])
    try:
        found = speed_up(list(case["serial"]), list(case["other"]), case["target"])
    except TypeError:  # of a time that is None
        return {"rate": "stopped", "timed": "stopped"}
    if not isinstance(found, tuple | list) or len(found) != 2:
        return None
    return {"rate": found[0], "timed": found[1]}


reading = Exercise(
    ("time_to_accuracy", "speed_up"),
    _draw_curves,
    observe_reading,
    {
        "time": Part(
            "Time to an accuracy",
            "wrong for some curve: one that meets the target exactly, reaches it more than once, or never does",
        ),
        "throughput": Part(
            "Speed-up of throughput",
            "wrong where the two runs did different numbers of samples, or different times",
            "double the samples of one run and nothing else: the number must double",
            cases="pairs",
            keys="rate",
        ),
        "accuracy": Part(
            "Speed-up of time to accuracy",
            "wrong for some pair of curves, or not None where a run never reaches the target",
            "call it with the same curve twice: the answer is 1",
            cases="pairs",
            keys="timed",
        ),
    },
    "write down four points, two of them at the target, and read them by hand",
)

# --- train_share


def _draw_loops(random):
    lr, steps = float(random.uniform(0.05, 0.3)), int(random.integers(3, 6))

    def normal(*shape):
        return torch.from_numpy(random.normal(0, 1, shape))

    state = [normal(5, 6), normal(5), normal(4, 5), normal(4)]

    def case(about, turns):
        sizes = random.integers(3, 9, steps).tolist()
        batches = [(normal(size, 6), torch.from_numpy(random.integers(0, 4, size))) for size in sizes]
        return {"state": state, "lr": lr, "batches": batches, "turns": turns, "about": f"{about}, {steps} batches"}

    # What others make of the weights: by so much that each order of events leaves other weights.
    turns = [(random.choice([-1, 1], 2) * random.uniform(0.2, 0.3, 2) + 1).tolist() for _ in range(steps)]
    return {
        "alone": [case("one process", []) for _ in range(2)],
        "beside": [case("beside a process that changes the weights before and after the lock is yours", turns)],
    }


class Turns:
    """Other processes have their turns before and after each of this one: how they scale the weights."""

    def __init__(self, case):
        self.turns, self.calls = case["turns"], []

    def answer(self, name, rank):
        which = ("enter", "exit").index(name)
        self.calls.append(name)
        place = self.calls.count(name) - 1
        return self.turns[place][which] if place < len(self.turns) else 1.0

    def evidence(self):
        return {"calls": self.calls}


class WatchedLock:
    """Each entry and exit is reported, and what others make of the weights meanwhile is done to them."""

    def __init__(self, memory, outside):
        self.memory, self.outside = memory, outside

    def __enter__(self):
        self.others("enter")

    def __exit__(self, *exc_info):
        self.others("exit")

    def others(self, which):
        factor = self.outside(which)
        for tensor in self.memory:
            tensor.mul_(factor)


def observe_loop(case, outside, train_share):
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    for parameter, value in zip(model.parameters(), case["state"], strict=True):
        parameter.data = value.clone()
        parameter.grad = torch.ones_like(value)  # left from an earlier training
    memory = [parameter.data for parameter in model.parameters()]  # what other processes see
    batches = [(images.clone(), labels.clone()) for images, labels in case["batches"]]
    samples = train_share(model, batches, case["lr"], WatchedLock(memory, outside))
    return {"weights": memory, "own": [parameter.detach() for parameter in model.parameters()], "samples": samples}


loop = Exercise(
    ("train_share",),
    _draw_loops,
    observe_loop,
    {
        "weights": Part(
            "",
            "the weights are not those of plain SGD with the gradient of each batch's mean loss",
            cases="alone",
            keys="weights own",
        ),
        "steps": Part(
            "Plain SGD's steps, and the number of samples",
            "the weights are right, the number of samples is not: it is an int, of all labels",
            cases="alone",
            keys="samples",
            needs="weights",
        ),
        "lock": Part(
            "The lock around the updates, and around nothing else",
            "the lock was not taken once for each batch, or something else than the update is between its ends",
            "print something before and after `with lock:`, before the forward, and after the backward",
            cases="beside",
            keys="weights calls",
            needs="weights",
            forgives="writes back",
        ),
        "memory": Part(
            "Two processes on the same weights lose nothing under the lock",
            "of two processes' updates, made one after the other, not all are there",
            "let two processes add to one tensor under the lock, and compare with the sum",
            cases="beside",
            keys="weights calls",
            needs="weights lock",
        ),
    },
    "train a linear layer on two batches, and do the second step by hand",
    watch=Turns,
)

EXERCISES = {"share": share, "loop": loop, "sparse": sparse, "collision": collision, "reading": reading}
