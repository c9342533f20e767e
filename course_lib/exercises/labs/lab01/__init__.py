"""Lab 01: one device's data loaders, throughput and activation memory; `training` has the training."""

from __future__ import annotations

import time
import warnings

import numpy as np
import torch
from torch import nn

from course_lib.exercises.comparing import finite, is_number, kind_of
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.labs.lab01.training import (
    ACCUMULATE,
    EVALUATE,
    MOST_QUESTIONS,
    TRAIN_STEP,
    TRAINING,
    PeakOfSaved,
    normal,
    pair,
)

__all__ = ["EXERCISES"]

# --- make_loaders


def _draw_loaders(random):
    def case(ask, batch_size, more=0):
        validation, b = int(random.integers(501, 540)), batch_size
        training = b * int(random.integers(5, 9)) + (int(random.integers(1, b)) if b > 1 else 0)
        about = f"{validation + training} images, {validation + more} of them for validation, batches of {b}"
        return {"ask": ask, "images": validation + training, "validation": validation + (training + more if more else 0),
                "batch_size": b, "seed": int(random.integers(0, 10**6)), "about": about}  # fmt: skip

    batch_size = int(random.integers(8, 17))
    refused = case("refused", batch_size, 3)
    refused["about"] = (
        f"{refused['images']} images, {refused['validation']} of them for validation: no training image is left"
    )
    passed = case("passed", batch_size)
    passed["about"] = "two workers, pinned memory (what the loaders have: num_workers, pin_memory)"
    return {"split": [case("read", 1)], "batches": [case("read", batch_size)], "edges": [passed, refused]}


class Numbered(torch.utils.data.Dataset):
    """Images whose labels are their numbers."""

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return self.images

    def __getitem__(self, number):
        if not 0 <= number < self.images:
            raise IndexError(number)
        return torch.full((1, 2, 2), float(number)), number


def generator_states():
    """The states of torch's and numpy's global generators."""
    _, numbers, place, *_ = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), numbers.tobytes(), place


def numbers_read(loader):
    """The numbers of the images, batch by batch; None for what cannot be read."""
    try:
        return [[int(label) for label in labels] for _, labels in loader]
    except (TypeError, ValueError):
        return None


def observe_loaders(case, make_loaders):
    """What two epochs read: with the seed, with it again, and with another."""
    images, known = Numbered(case["images"]), torch.utils.data.DataLoader
    question = images, case["validation"], case["batch_size"]
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if case["ask"] == "refused":
            try:
                make_loaders(*question, 0, False, case["seed"])
            except ValueError:
                return {"refused": True}
            return {"refused": False}
        if case["ask"] == "passed":
            found = pair(make_loaders(*question, 2, True, case["seed"]), "training", "validation").values()
            types = [isinstance(loader, known) for loader in found]
            readable = found if all(types) else []
            contexts = [
                each.multiprocessing_context and each.multiprocessing_context.get_start_method() for each in readable
            ]
            options = [(loader.num_workers, loader.pin_memory) for loader in readable]
            return {"loaders": types, "passed": options, "contexts": contexts}
        runs = []
        for number, seed in enumerate((case["seed"], case["seed"], case["seed"] + 1)):
            torch.manual_seed(number)  # nothing is to come of the global generator
            before = generator_states()
            found = pair(make_loaders(*question, 0, False, seed), "training", "validation")
            untouched = generator_states() == before
            orders = {name: [numbers_read(loader) for _ in range(2)] for name, loader in found.items()}
            runs.append(orders | {"untouched": untouched})
        return {"runs": runs}


def _joined(batches):
    if not isinstance(batches, list):
        raise TypeError
    return [number for batch in batches for number in batch]


def _split(case, seen, right):
    splits = []
    for run in seen["runs"]:
        training, validation = (_joined(run[name][0]) for name in ("training", "validation"))
        if run["untouched"] is not True:
            return ("the global generator of torch or numpy, from which weights and dropout are drawn, is changed: draw "
                    "the split from torch.Generator().manual_seed(seed)")  # fmt: skip
        if set(training) & set(validation):
            return "some image is both for training and for validation: the accuracy would be of images already learnt"
        if len(set(validation)) != case["validation"]:
            return ("the second loader does not read validation_images images: are the two loaders in the wrong order, or is "
                    "a batch dropped?")  # fmt: skip
        if sorted(training + validation) != list(range(case["images"])):
            return "with batches of one image, some image is in neither loader, or in one twice"
        splits.append(set(validation))
    if splits[0] != splits[1]:
        return "the same seed does not give the same split: draw it from torch.Generator().manual_seed(seed)"
    return "another seed gives the same split: draw it from the seed" if splits[0] == splits[2] else ""


def _training(case, seen, right):
    rest = case["images"] - case["validation"]
    for run in seen["runs"]:
        for batches in run["training"]:
            if any(len(batch) != case["batch_size"] for batch in batches):
                return ("a training batch has another size than batch_size: the incomplete last batch is dropped "
                        "(drop_last=True), because a small batch has a noisy gradient")  # fmt: skip
            if len(batches) != rest // case["batch_size"] or len(set(_joined(batches))) != len(_joined(batches)):
                return "an epoch does not read each training image once, in whole batches"
        first, second = map(_joined, run["training"])
        if first == sorted(first):
            return "the training images are not shuffled"
        if first == second:
            return "two epochs read the training images in the same order: shuffle anew in each (shuffle=True)"
    if seen["runs"][0]["training"] != seen["runs"][1]["training"]:
        return "the same seed does not give the same order of training: give the DataLoader a generator with that seed"
    return ""


def _validation(case, seen, right):
    for run in seen["runs"]:
        first, second = run["validation"]
        if sorted(_joined(first)) != sorted(set(_joined(first))) or len(_joined(first)) != case["validation"]:
            return "the validation loader does not read each validation image once: no batch of it is dropped"
        if first != second:
            return "two passes read the validation images in different orders: they need no shuffling"
        if [len(batch) for batch in first] != [500, case["validation"] - 500]:
            return "the validation batches are of 500 images, and the rest"
    return ""


def _edges(case, seen, right):
    if case["ask"] == "refused":
        return "" if seen["refused"] is True else "a split that leaves no training image must raise ValueError"
    if list(seen["loaders"]) != [True, True]:
        return "should return a pair of torch.utils.data.DataLoader"
    if [tuple(options) for options in seen["passed"]] != [(2, True)] * 2:
        return "num_workers and pin_memory must reach both loaders"
    if list(seen["contexts"]) != ["forkserver"] * 2:
        return (
            'workers must come from the fork server, multiprocessing_context="forkserver" where there are workers: a '
            "process that has used OpenMP or CUDA must not be forked"
        )
    return ""


_NO_LOADERS = "should return two loaders, whose batches are pairs (images, labels)"

LOADERS = Exercise(("make_loaders",), _draw_loaders, observe_loaders, {
    "split": Part("A split that comes from the seed alone", _NO_LOADERS, judge=_split),
    "training": Part("Training batches: shuffled anew, whole, reproducible", _NO_LOADERS, cases="batches", judge=_training),
    "validation": Part("Validation batches: every image, in a fixed order", _NO_LOADERS, cases="batches",
        judge=_validation),
    "edges": Part("Workers and pinned memory passed on, an empty split refused", _NO_LOADERS, judge=_edges),
}, "give it a data set whose labels are 0, 1, 2, …, and print the labels of two epochs")  # fmt: skip

# --- images_per_second

POLL = 0.001  # seconds
ATTEMPTS = 4
MOST_CALLS = 1000


def _draw_devices(random):
    """Two devices, the second at least 2.2 times as fast or slow: no guess is right for both."""

    def device(speed):
        warmup, steps, batch_size = (int(n) for n in random.integers([2, 12, 20], [5, 17, 200]))
        fast = float(0.007 * 8**speed)
        slow = float(random.uniform(0.8, 1.2)) * steps * fast / warmup  # the warm-up lasts as long as the rest
        about = (
            f"a pretend device: {warmup} + {steps} steps of {batch_size} images, {1000 * fast:.0f} ms each once warm"
        )
        return {"warmup": warmup, "steps": steps, "batch_size": batch_size, "fast": fast, "slow": slow, "about": about}

    speed = random.uniform()
    return {"devices": [device(speed), device((speed + random.uniform(0.4, 0.6)) % 1)]}


class Device:
    """A pretend device, which works behind the caller's back: only it knows how long it took.

    A process that a busy machine stops between the last step and the return is asked again; one who always puts the
    return off gains nothing by it.
    """

    def __init__(self, case):
        self.case, self.attempts, self.questions = case, 0, 0
        self.begin()

    def answer(self, name, rank, *arguments):
        self.questions += 1
        if self.questions > MOST_QUESTIONS:
            raise ValueError("the device was asked too often")
        actions = {
            "begin": self.begin,
            "step": self.step,
            "synchronize": self.synchronize,
            "ready": self.ready,
            "end": self.end,
        }
        return actions[name](*arguments)

    def begin(self):
        self.calls, self.waits, self.busy_until, self.found, self.returned = [], [], 0.0, None, 0.0
        self.attempts += 1

    def step(self):
        now = time.perf_counter()
        warm = len(self.calls) >= self.case["warmup"]
        self.busy_until = max(now, self.busy_until) + self.case["fast" if warm else "slow"]
        self.calls.append(now)
        if len(self.calls) > MOST_CALLS:
            raise ValueError("step() was called too often")

    def synchronize(self):
        self.waits.append((len(self.calls), max(time.perf_counter(), self.busy_until)))
        if len(self.waits) > MOST_CALLS:
            raise ValueError("synchronize() was called too often")

    def ready(self):
        return time.perf_counter() >= self.busy_until

    def end(self, found):
        """Whether it is to be done again."""
        self.found, self.returned = found, time.perf_counter()
        bounds = self.bounds()
        late = bounds is not None and is_number(found) and found <= bounds[0] and self.returned > self.latest()
        return late and self.attempts < ATTEMPTS

    def when(self, calls):
        """When the device was done with so many steps and had been waited for; an empty list if it was not."""
        return [clock for after, clock in self.waits if after == calls]

    def latest(self):
        """The latest end of the measurement that counts: one who puts off the return cannot widen the bounds."""
        done, ready = self.when(len(self.calls))[0], self.when(self.case["warmup"])[-1]
        return done + 0.3 * (done - ready) + 0.05

    def bounds(self):
        """Bounds of the rate, which hold on a busy machine; None if the steps or the waits are not those asked for."""
        warmup, steps = self.case["warmup"], self.case["steps"]
        ready, done = self.when(warmup), self.when(warmup + steps)
        if len(self.calls) != warmup + steps or not ready or not done:
            return None
        # The inner clock starts between the device's being ready and its first timed step, and stops between its
        # being done and the return.
        longest = min(self.returned, self.latest()) - ready[-1]
        lowest, highest = (self.case["batch_size"] * steps / t for t in (longest, done[0] - self.calls[warmup]))
        return [0.99 * lowest, 1.01 * highest]

    def evidence(self):
        first, last = self.case["warmup"], self.case["warmup"] + self.case["steps"]
        return {
            "calls": len(self.calls), "bounds": self.bounds(), "found": self.found, "ready": bool(self.when(first)),
            "done": bool(self.when(last)), "within": sum(first < calls < last for calls, _ in self.waits),
        }  # fmt: skip


def observe_throughput(case, outside, images_per_second):
    def synchronize():
        outside("synchronize")
        while not outside("ready"):
            time.sleep(POLL)

    again = True
    while again:
        outside("begin")
        found = images_per_second(
            lambda: outside("step"), case["batch_size"], case["steps"], case["warmup"], synchronize
        )
        again = outside("end", found)
    return {}


def _calls(case, seen, right):
    asked = case["warmup"] + case["steps"]
    if seen["calls"] == asked:
        return ""
    return f"your function calls step() {'more' if seen['calls'] > asked else 'less'} often than warmup + steps times"


def _rate(case, seen, right):
    if not is_number(seen["found"]):
        return f"should return a number, it returned {kind_of(seen['found'])}"
    if not seen["done"]:
        return (
            "the clock was read while the device was still at work: call synchronize() before each reading of the clock"
        )
    if not seen["ready"]:
        return ("the clock was started while the device was still busy with the warm-up steps: synchronize() after them, "
                "and start the clock only then")  # fmt: skip
    rate, (lowest, highest) = finite(seen["found"]), seen["bounds"]
    truth = case["batch_size"] / case["fast"]
    if lowest < rate < highest and not (seen["within"] and rate < 0.85 * truth):
        return ""
    if rate >= highest:
        return ("the rate is higher than what the device did in the timed steps: divide batch_size · steps, without the "
                "warm-up steps, by the seconds from the first timed step until the device has finished")  # fmt: skip
    factors = {"batch_size": "count images, not steps", "steps": "count all timed steps"}
    for name, why in factors.items():
        if lowest < case[name] * rate < highest:
            return f"the rate is lower than what the device did in the timed steps, by the factor {name}: {why}"
    if seen["within"]:
        return ("the rate is lower than what the device did in the timed steps: synchronize() within them makes the "
                "device wait for Python; call it once before each reading of the clock")  # fmt: skip
    return ("the rate is lower than what the device did in the timed steps: the warm-up is not timed, and the rate is "
            "batch_size · steps / seconds")  # fmt: skip


THROUGHPUT = Exercise(("images_per_second",), _draw_devices, observe_throughput, {
    "calls": Part("Runs the steps that were asked for", hint="count the calls of step() by a counter of your own",
        cases="devices", judge=_calls),
    "rate": Part("Times the timed steps, all of them, and nothing else", cases="devices", needs="calls", judge=_rate),
}, "write down, in order, every call of step() and synchronize() and every reading of the clock", watch=Device,
)  # fmt: skip

# --- saved_bytes, forward_checkpointed


def _draw_memories(random):
    sizes = [int(n) for n in 3 + random.permutation(9)[:3]]  # no two alike: shapes tell the tensors apart
    dtypes = random.permutation(["float32", "float64", "bfloat16"]).tolist()

    def saved(kind, dtype, about):
        a, b, c = sizes
        return {"kind": kind, "dtype": dtype, "given": [normal(random, *shape) for shape in ((a, b), (b, c), (c, b))],
                "about": f"{about}, {dtype}"}  # fmt: skip

    def blocks(grad):
        shapes = [(6, 4), (6,), (4, 6), (4,)]
        state = [[normal(random, *shape, scale=0.5) for shape in shapes] for _ in range(4)]
        about = f"4 blocks, an input that {'needs a' if grad else 'needs no'} gradient (the blocks' numbers, in order)"
        return {"blocks": state, "x": normal(random, 5, 4), "grad": grad, "about": about}

    return {
        "bytes": [
            saved("layers", dtypes[0], "two linear layers with a ReLU between"),
            saved("layers", dtypes[1], "two linear layers with a ReLU between"),
            saved(
                "views",
                dtypes[2],
                "exp, sigmoid and tanh of a square, and a matrix without its first row times its transpose",
            ),
            saved("half", dtypes[0], "two linear layers, the first under torch.no_grad()"),
            saved("nothing", dtypes[1], "nothing needs a gradient"),
        ],
        "blocks": [blocks(True), blocks(False)],
    }


def computation(kind, x, first, last):
    """A function whose graph is alive until it returns."""
    if kind != "nothing":
        first, last = first.requires_grad_(), last.requires_grad_()

    def layers():
        return ((x @ first).relu() @ last).sum()

    def views():
        y = (first * first).exp().sigmoid().tanh()
        return (y[1:] @ y.T).tanh().sum()  # a view of a part, too

    def half():
        with torch.no_grad():
            y = (x @ first).tanh()
        return (y @ last).square().sum()

    return {"layers": layers, "views": views, "half": half, "nothing": layers}[kind]


def observe_memory(case, saved_bytes, forward_checkpointed):
    if "kind" in case:
        given = [tensor.to(getattr(torch, case["dtype"])) for tensor in case["given"]]
        return {"bytes": saved_bytes(computation(case["kind"], *given))}
    blocks, calls = [], []
    for number, state in enumerate(case["blocks"]):
        block = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)).double()
        for parameter, value in zip(block.parameters(), state, strict=True):
            parameter.data = value.clone()
        block.register_forward_pre_hook(lambda module, given, number=number: calls.append(number))
        blocks.append(block)
    x = case["x"].clone().requires_grad_(case["grad"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with PeakOfSaved() as saved:
            output = forward_checkpointed(list(blocks), x)
        forward, kept = list(calls), saved.now()
        if isinstance(output, torch.Tensor) and output.requires_grad:
            output.square().sum().backward()
    gradients = [parameter.grad for block in blocks for parameter in block.parameters()]
    inputs = len(blocks) * x.numel()
    return {"output": output, "forward": forward, "backward": calls[len(forward):], "gradients": gradients, "input": x.grad,
            "inputs-alone": kept < 2 * inputs}  # fmt: skip


MEMORY = Exercise(("saved_bytes", "forward_checkpointed"), _draw_memories, observe_memory, {
    "bytes": Part("Counts the bytes that autograd saves, each storage once",
        "the number of bytes is wrong: of each tensor that is saved, the storage's bytes, each storage once",
        "autograd saves x twice for x * x, in one storage; for x.exp() it saves the result; under torch.no_grad() nothing",
        keys="bytes"),
    "output": Part("The blocks' output", "the output is not that of the blocks, applied in turn", cases="blocks",
        keys="output forward"),
    "recomputed": Part("Each block computed again in the backward pass, with the right gradients",
        "in the backward pass the blocks are not computed again one by one, or a gradient is wrong", cases="blocks",
        keys="backward gradients input inputs-alone"),
}, "print the block's number in a forward hook, then call backward()")  # fmt: skip

EXERCISES = {
    "train-step": TRAIN_STEP, "loaders": LOADERS, "evaluate": EVALUATE, "throughput": THROUGHPUT, "training": TRAINING,
    "accumulate": ACCUMULATE, "memory": MEMORY,
}  # fmt: skip
