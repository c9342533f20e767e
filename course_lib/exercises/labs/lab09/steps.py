"""Lab 09: one step of SGD on shared weights, sparse and dense, and when each holds the lock."""

from __future__ import annotations

import math
import mmap
import os
import pathlib
import tempfile

import torch
from torch import nn

from course_lib.exercises.comparing import equal
from course_lib.exercises.description import Exercise, Part

__all__ = ["NETWORK", "SPARSE"]

# --- other processes, and the lock


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
        if factor != 1.0:
            for tensor in self.memory:
                tensor.mul_(factor)


def _factors(random):
    """What others make of the weights: by so much that each order of events leaves other weights."""
    return (random.choice([-1, 1], 2) * random.uniform(0.2, 0.3, 2) + 1).tolist()


def _known_to_the_step(case, rank):
    return {name: value for name, value in case.items() if name not in ("turns", "about")}


_NOT_ONCE = "the lock was not taken once for each batch, or something else than the update is between its ends"
_PRINT = "print something before and after `with lock:`, before the gradient, and after the update"

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
        turns = [_factors(random)] if kind == "beside" else []
        return {"weights": weights, "indices": indices, "labels": labels, "lr": lr, "turns": turns, "about": about}

    large = {
        "features": COUNTED,
        "indices": torch.from_numpy(random.choice(COUNTED, (4, 5), replace=False)),
        "values": torch.from_numpy(random.normal(0, 1, (4, 5))),
        "labels": torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64),
        "lr": lr,
        "turns": [],
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
        "beside": [
            case("beside", f"{size}, beside a process that changes the weights just before and after you hold the lock")
        ],
    }


def _beyond_memory(cases):
    """More weights than there is memory for: an update that goes through all of them never returns."""
    # A kernel that never promises more memory than it has does not lend it; then the pages are counted.
    if pathlib.Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2":
        return cases
    return cases | {"memory": [case | {"features": LIMITED} for case in cases["memory"]]}


def observe_update(case, outside, sparse_step):
    if "features" in case:
        return observe_large(case, outside, sparse_step)
    weights, indices = case["weights"].clone(), case["indices"].clone()
    sparse_step(weights, (indices, case["labels"].clone()), case["lr"], WatchedLock([weights], outside))
    return {"weights": weights, "kept": torch.equal(indices, case["indices"])}


def observe_large(case, outside, sparse_step):
    """One step on many weights: those of its features, and how many other pages of memory it reads or writes.

    The system gives a page to each place of a file with holes that is touched, and counts them in blocks of 512 bytes.
    """

    def step(weights):
        sparse_step(
            weights, (case["indices"].clone(), case["labels"].clone()), case["lr"], WatchedLock([weights], outside)
        )
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

SPARSE = Exercise(("sparse_step",), _draw_updates, observe_update, {
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
    "lock": Part(
        "The lock around the writing, and around nothing else",
        _NOT_ONCE,
        _PRINT,
        cases="beside",
        keys="weights calls",
        needs="apart",
    ),
}, "three features, one sample: do it by hand", guarded="memory", in_sandbox=_beyond_memory, watch=Turns,
    share=_known_to_the_step)  # fmt: skip

# --- network_step


def _draw_batches(random):
    lr, steps = float(random.uniform(0.05, 0.3)), int(random.integers(3, 6))

    def normal(*shape):
        return torch.from_numpy(random.normal(0, 1, shape))

    state = [normal(5, 6), normal(5), normal(4, 5), normal(4)]

    def case(about, turns):
        sizes = random.integers(3, 9, steps).tolist()
        batches = [(normal(size, 6), torch.from_numpy(random.integers(0, 4, size))) for size in sizes]
        return {"state": state, "lr": lr, "batches": batches, "turns": turns, "about": f"{about}, {steps} batches"}

    turns = [_factors(random) for _ in range(steps)]
    return {
        "alone": [case("one process", []) for _ in range(2)],
        "beside": [case("beside a process that changes the weights just before and after you hold the lock", turns)],
    }


def observe_batches(case, outside, network_step):
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    for parameter, value in zip(model.parameters(), case["state"], strict=True):
        parameter.data = value.clone()
        parameter.grad = torch.ones_like(value)  # left from an earlier training
    memory = [parameter.data for parameter in model.parameters()]  # what other processes see
    for images, labels in case["batches"]:
        network_step(model, (images.clone(), labels.clone()), case["lr"], WatchedLock(memory, outside))
    return {"weights": memory, "own": [parameter.detach() for parameter in model.parameters()]}


NETWORK = Exercise(("network_step",), _draw_batches, observe_batches, {
    "step": Part(
        "Plain SGD's step, in the memory that was given",
        "the weights are not those of plain SGD with the gradient of each batch's mean loss",
        cases="alone",
        keys="weights own",
    ),
    "lock": Part(
        "The lock around the update, and around nothing else",
        _NOT_ONCE,
        _PRINT,
        cases="beside",
        keys="weights calls",
        needs="step",
        forgives="writes back",
    ),
    "memory": Part(
        "Two processes on the same weights lose nothing under the lock",
        "of two processes' updates, made one after the other, not all are there",
        "let two processes add to one tensor under the lock, and compare with the sum",
        cases="beside",
        keys="weights calls",
        needs="step lock",
    ),
}, "train a linear layer on two batches, and do the second step by hand", watch=Turns, share=_known_to_the_step)  # fmt: skip
