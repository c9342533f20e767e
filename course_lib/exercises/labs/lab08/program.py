"""Lab 08's program. The functions that it calls have stand-ins: what is wrong in one of them costs nothing here.

The stand-ins do the work over the grader's communicator. The grader repeats the whole training in one process. Only a
program that starts all ranks from rank 0's network, trains each on its share and averages has those weights at the end.

The clocks are pretended, one of each kind for each rank. Loading, training, averaging, forward passes and messages take
seconds that were drawn; nothing else does. So the right seconds are known, and contain nothing but the training.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import sys
import time
import timeit

import numpy as np
import torch
from torch import nn

from course_lib.data import Batches, load
from course_lib.exercises.comparing import equal, finite
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.ranks.mpi_broker import MPIBroker
from course_lib.exercises.ranks.mpi_comm import mpi_comm
from course_lib.exercises.ranks.mpi_ranks import on_mpi
from course_lib.exercises.ranks.programs import HERE, Noted, ask_grader, give_stand_ins, named, pretended, weights_of
from course_lib.training import evaluate

__all__ = ["PROGRAM"]

RANKS = 2
DATASET = "fashion-mnist-small"
PIXELS, CLASSES = 49, 10


LOADING = 1000.0  # seconds: longer than everything else together
PROCESSOR = 0.6  # of the wall clock's seconds, a process computes


class Program(Noted, MPIBroker):
    """What the stand-ins say, in order, by rank; the ranks' clocks, and what `train_local` took by them."""

    def __init__(self, case):
        super().__init__(RANKS)
        self.seconds, self.clocks = case["seconds"], list(case["clocks"])
        self.began, self.took = [0.0] * RANKS, [[] for _ in range(RANKS)]

    @property
    def answers(self):
        return {**super().answers, "clock": self.clock, "forward": self.forward}

    def clock(self, rank, kind):
        return self.clocks[rank] * (PROCESSOR if kind == "process" else 1)

    def forward(self, rank):
        self.clocks[rank] += self.seconds["forward"]

    def called(self, rank, name, facts):
        super().called(rank, name, facts)
        if name == "train":
            self.began[rank] = self.clocks[rank]
            epochs = self.seconds["training"][rank]
            self.clocks[rank] += epochs[len(self.took[rank]) % len(epochs)]
        elif name == "trained":
            self.took[rank].append(self.clocks[rank] - self.began[rank])
        else:
            self.clocks[rank] += LOADING if name == "loaded" else self.seconds["other"]

    def evidence(self):
        return {"said": self.calls, "names": [each.kind for each in self.collectives], "took": self.took}


def _draw_programs(random):
    batch_size = int(random.integers(7, 12))
    # One rank's share has one batch more than the other's, and one averaging, unless both take as many images.
    samples = 2 * batch_size * int(random.choice([5, 7])) - 1
    fast, slow = random.uniform(20, 40, 2), random.uniform(50, 90, 2)  # each rank is the slowest of one epoch
    return {
        "program": [
            {
                "samples": samples, "epochs": 2, "batch_size": batch_size, "lr": float(random.uniform(0.05, 0.15)),
                "every": 2, "seed": int(random.integers(1, 10_000)),
                "weights": [torch.from_numpy(random.normal(0, 0.3, PIXELS * CLASSES + CLASSES)).float() for _ in range(RANKS)],
                "clocks": [float(s) for s in random.uniform(1e3, 1e4, RANKS)],
                "seconds": {
                    "training": [[float(fast[0]), float(slow[0])], [float(slow[1]), float(fast[1])]],
                    "forward": float(random.uniform(0.2, 0.5)), "other": float(random.uniform(2, 5)),
                },
                "about": f"2 ranks, {samples} images, batches of {batch_size}, 2 epochs",
            }
        ]
    }  # fmt: skip


def _known_to_a_rank(case, rank):
    return {name: value for name, value in case.items() if name not in ("clocks", "seconds")} | {
        "weights": case["weights"][rank]
    }


# --- what is sent beside the student's code

CLOCKS = {"wall": ("perf_counter", "monotonic", "time"), "process": ("process_time", "thread_time")}


def clock(kind, real, unit):
    """A clock of the grader's on a rank, a second in its `unit` and type; the real one for everything else in this process."""

    def read():
        outside = getattr(HERE, "outside", None)
        return real() if outside is None else type(unit)(outside("clock", kind) * unit)

    return read


def pretended_clocks():
    """For `pretended`: a stand-in for each clock that a program may read."""
    places = [(time, name, kind, 1.0) for kind, names in CLOCKS.items() for name in names]
    places += [(time, f"{name}_ns", kind, 10**9) for _, name, kind, _ in places]
    places += [(timeit, "default_timer", "wall", 1.0)]
    if "mpi4py.MPI" in sys.modules:
        places += [(sys.modules["mpi4py.MPI"], "Wtime", "wall", 1.0)]
    clocks = [(module, name, clock(kind, getattr(module, name), unit)) for module, name, kind, unit in places]
    return [*clocks, (datetime, "datetime", clock_of_dates(clock("wall", time.time, 1.0)))]


def clock_of_dates(read):
    """`datetime.datetime`, whose now is this clock's."""

    class Datetime(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(read(), tz)

        @classmethod
        def utcnow(cls):
            return cls.fromtimestamp(read(), datetime.UTC).replace(tzinfo=None)

    return Datetime


def drawn_from():
    """The seed of this rank's random numbers; ranks that are threads share one generator, but not this note."""
    return torch.initial_seed() if HERE.seed is None else HERE.seed


def linear_network(weights):
    """A small network with these weights."""
    model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(PIXELS, CLASSES))
    nn.utils.vector_to_parameters(weights.clone(), model.parameters())
    return model


def stand_in_network(*given):
    model = linear_network(HERE.weights)
    model.register_forward_pre_hook(forward_takes_time)
    return model


def forward_takes_time(*given):
    HERE.outside("forward")


def stand_in_load(name, *given, **named):
    ask_grader("loaded")
    return small_set(name, named.get("train_samples", 0))


@functools.cache
def small_set(name, samples):
    return load(name, train_samples=samples)


def stand_in_partition(labels, size, rank, seed, by_label=False):
    ask_grader("partition", size=size, rank=rank, seed=int(seed), images=len(labels))
    return share_of(len(labels), size, rank, int(seed))


def share_of(images, size, rank, seed):
    return torch.randperm(images, generator=torch.Generator().manual_seed(seed))[rank::size]


def stand_in_broadcast_state(comm, model):
    buffer = weights_of(model).numpy().copy()
    comm.Bcast(buffer, root=0)
    nn.utils.vector_to_parameters(torch.from_numpy(buffer), model.parameters())
    ask_grader("broadcast")


def stand_in_average_models(comm, model, samples):
    mine = np.append(weights_of(model).numpy() * samples, np.float32(samples))
    total = np.empty_like(mine)
    comm.Allreduce(mine, total)
    with torch.no_grad():
        nn.utils.vector_to_parameters(torch.from_numpy(total[:-1] / total[-1]), model.parameters())
    ask_grader("averaged")


def stand_in_train_local(comm, model, batches, lr, epochs, average, every):
    epochs = [int(epoch) for epoch in epochs]
    ask_grader("train", epochs=epochs, lr=float(lr), every=int(every), batches=len(batches), size=int(batches.batch_size),
        order=int(batches.seed), shuffled=bool(batches.shuffle), seed=drawn_from())  # fmt: skip
    start = time.process_time()
    steps, last = 0, len(epochs) * len(batches)
    model.train()
    for epoch in epochs:
        batches.set_epoch(epoch)
        for images, labels in batches:
            model.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= lr * parameter.grad
            steps += 1
            if steps == last or (every and steps % every == 0):
                average(model)
    ask_grader("trained")
    return time.process_time() - start, 0.0


def stand_in_reduce_results(comm, loss_sum, correct, images, seconds):
    mine = np.array([loss_sum, correct, images], dtype=np.float64)
    total = np.empty_like(mine)
    comm.Reduce(mine, total, root=0)
    slowest = comm.reduce(float(seconds), op=max, root=0)
    ask_grader("reduced", images=float(images), seconds=float(seconds), loss=float(loss_sum), correct=float(correct))
    if comm.Get_rank() != 0:
        return None
    return total[0] / total[2], total[1] / total[2], slowest


def stand_in_report(run, args, epoch, time, images, train, test):
    ask_grader("reported", epoch=int(epoch), time=float(time), images=float(images), train=[float(n) for n in train],
        test=[float(n) for n in test], run=run is HERE.run)  # fmt: skip


class Run:
    """In the place of a run folder."""

    def save_model(self, model):
        ask_grader("saved", weights=weights_of(model))


def observe_program(case, rank, outside, main):
    HERE.outside, HERE.weights, HERE.run, HERE.seed = outside, case["weights"], Run(), None
    clocks = pretended_clocks()
    imported = [(getattr(module, name), read) for module, name, read in clocks]
    names = give_stand_ins(main, [
        stand_in_load, stand_in_partition, stand_in_broadcast_state, stand_in_average_models, stand_in_train_local,
        stand_in_reduce_results, stand_in_report,
    ], imported)  # fmt: skip
    names["ParallelSGDNet"] = stand_in_network
    args = argparse.Namespace(
        dataset=DATASET, train_samples=case["samples"], epochs=case["epochs"], batch_size=case["batch_size"],
        base_lr=case["lr"], average_every=case["every"], seed=case["seed"],
    )  # fmt: skip
    with pretended(*clocks), mpi_comm(rank, RANKS, outside) as comm:
        returned = main(comm, args, HERE.run)
    ended = None
    if isinstance(returned, dict) and all(isinstance(each, torch.Tensor) for each in returned.values()):
        ended = torch.cat([torch.zeros(0), *[tensor.detach().flatten() for tensor in returned.values()]])
    return {"ended": ended}


# --- judging


def _simulated(case):
    """The whole training in one process: weights at each epoch's end."""
    data = small_set(DATASET, case["samples"])
    each = case["samples"] // RANKS
    shares = [share_of(case["samples"], RANKS, rank, case["seed"])[:each] for rank in range(RANKS)]
    batches = [
        Batches(
            data.train.part(mine), case["batch_size"], mean=data.mean, std=data.std, shuffle=True, seed=case["seed"]
        )
        for mine in shares
    ]
    models, ends = [linear_network(case["weights"][0]) for _ in range(RANKS)], []
    for epoch in range(case["epochs"]):
        for one in batches:
            one.set_epoch(epoch)
        for step, each_rank in enumerate(zip(*batches, strict=True), 1):
            for model, (images, labels) in zip(models, each_rank, strict=True):
                model.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= case["lr"] * parameter.grad
            if step == len(batches[0]) or step % case["every"] == 0:
                mean = torch.stack([weights_of(model) for model in models]).mean(0)
                for model in models:
                    nn.utils.vector_to_parameters(mean.clone(), model.parameters())
        ends.append(weights_of(models[0]))
    return ends


def _timing(case, seen):
    """Why the seconds that a rank gives to reduce_results are wrong; "" where they are right."""
    for said, took in zip(seen["said"], seen["took"], strict=True):
        given = [finite(facts["seconds"]) for facts in named(said, "reduced")]
        if len(took) != case["epochs"] or len(given) != 2 * case["epochs"]:
            return "each rank calls train_local once and reduce_results twice in an epoch"
        for seconds, right in zip(given[1::2], took, strict=True):
            if equal(seconds, right * PROCESSOR):
                return "the seconds are processor time, which leaves out waiting: take time.perf_counter()"
            if seconds > right + LOADING / 2:
                return "the seconds contain the loading of the data: read the clock just before train_local"
            if seconds > right and not equal(seconds, right):
                return "the seconds contain the evaluation: read the clock again just after train_local"
            if not equal(seconds, right):
                return "the seconds are not those that train_local took: time.perf_counter() before and after it"
    return ""


_NO_STATE = "should return the model's state dict on every rank"


def _trained(case, seen, right):
    for rank, (said, one) in enumerate(zip(seen["said"], seen["ranks"], strict=True)):
        if fault := _prepared(case, rank, said):
            return fault
        trainings = named(said, "train")
        if not trainings:
            return "train_local is never called"
        if [facts["epochs"] for facts in trainings] != [[epoch] for epoch in range(case["epochs"])]:
            return "train_local is not called once for each epoch, with its number in a list: [epoch]"
        for facts in trainings:
            if fault := _training(case, facts):
                return fault
        if not isinstance(one["ended"], torch.Tensor):
            return _NO_STATE
    seeds = [{facts["seed"] for facts in named(said, "train")} for said in seen["said"]]
    if seeds[0] & seeds[1]:
        return "both ranks draw the same dropout masks: torch.manual_seed(args.seed + rank)"
    if "Bcast" not in seen["names"]:
        return "the ranks do not start with one model: broadcast_state(comm, model)"
    if "Allreduce" not in seen["names"]:
        return "the models are never averaged: average must call average_models(comm, model, …)"
    last = _simulated(case)[-1]
    if not all(_near(one["ended"], last) for one in seen["ranks"]):
        return "the weights at the end are not those of local SGD from rank 0's network on both shares"
    return ""


def _prepared(case, rank, said):
    given = named(said, "partition")
    if not given:
        return "partition is never called"
    wanted = {"size": RANKS, "rank": rank, "seed": case["seed"], "images": case["samples"]}
    if any(facts["images"] != case["samples"] for facts in given):
        return "main trains on other data than load(args.dataset, train_samples=args.train_samples)"
    if any(facts != wanted for facts in given):
        return "it does not give partition the training labels, the number of ranks, this rank and args.seed"
    return ""


def _training(case, facts):
    if facts["size"] != case["batch_size"] or not facts["shuffled"] or facts["order"] != case["seed"]:
        return "the training batches are not Batches(…, args.batch_size, shuffle=True, seed=args.seed)"
    if facts["batches"] != case["samples"] // RANKS // case["batch_size"]:
        return "a rank trains on other images than ⌊m/P⌋ of its own share"
    if not equal(facts["lr"], case["lr"]) or facts["every"] != case["every"]:
        return "train_local is not given args.base_lr and args.average_every"
    return ""


def _near(found, right):
    return isinstance(found, torch.Tensor) and found.shape == right.shape and bool((found - right).abs().max() < 1e-3)


def _scores(case):
    """(mean loss, accuracy) of the averaged model on all test images, by epoch; and the images."""
    data = small_set(DATASET, case["samples"])
    found = []
    for weights in _simulated(case):
        batches = Batches(data.test, 250, mean=data.mean, std=data.std)
        with torch.no_grad():
            loss, correct, images = evaluate(linear_network(weights), batches, nn.functional.cross_entropy)
        found.append((loss / images, correct / images))
    return found, len(data.test)


def _trained_scores(case, weights):
    """(mean loss, accuracy) of the averaged model on all shares, at an epoch's end."""
    data, each = small_set(DATASET, case["samples"]), case["samples"] // RANKS
    shares = torch.cat([share_of(case["samples"], RANKS, rank, case["seed"])[:each] for rank in range(RANKS)])
    batches = Batches(data.train.part(shares), 250, mean=data.mean, std=data.std)
    with torch.no_grad():
        loss, correct, images = evaluate(linear_network(weights), batches, nn.functional.cross_entropy)
    return [loss / images, correct / images]


def _evaluated(case, seen, right):
    scores, images = _scores(case)
    own = [len(range(rank, images, RANKS)) for rank in range(RANKS)]
    for rank, said in enumerate(seen["said"]):
        counts = [facts["images"] for facts in named(said, "reduced")]
        if len(counts) < case["epochs"]:
            return "not every rank calls reduce_results after each epoch: all of them must, or they wait for each other"
        if images in counts:
            return "each rank evaluates all test images; a P-th of them per rank is enough, and Reduce adds up"
        if counts.count(own[rank]) < case["epochs"]:
            return "not every rank evaluates its part of the test images: Batches(…, rank=rank, world_size=size)"
    reports = named(seen["said"][0], "reported")
    if len(reports) != case["epochs"]:
        return "rank 0 does not report every epoch once"
    each = [named(said, "reduced")[::2] for said in seen["said"]]  # of the training images
    for weights, facts, *reduced in zip(_simulated(case), reports, *each, strict=True):
        if any(one["images"] > min(500, case["samples"] // RANKS) for one in reduced):
            return "the first reduction is of more than 500 images, or of more than a rank has trained on"
        total = sum(one["images"] for one in reduced)
        wanted = [sum(one[name] for one in reduced) / total for name in ("loss", "correct")]
        if total == case["samples"] // RANKS * RANKS:
            wanted = _trained_scores(case, weights)
        if not equal([finite(n) for n in facts["train"][:2]], wanted, 3e-3):
            return "the reported training results are not those of the averaged model on images that the ranks have trained on"
    for facts, (loss, accuracy) in zip(reports, scores, strict=True):
        if not equal(finite(facts["test"][1]), accuracy, 3e-3) or not equal(finite(facts["test"][0]), loss, 3e-3):
            if equal(finite(facts["train"][1]), accuracy, 3e-3):
                return "report is given the test results in the place of the training results"
            return "the reported test results are not those of the averaged model on all test images"
    return ""


def _reported(case, seen, right):
    if named(seen["said"][1], "reported") or named(seen["said"][1], "saved"):
        return "another rank than 0 reports or saves"
    reports = named(seen["said"][0], "reported")
    if [facts["epoch"] for facts in reports] != list(range(case["epochs"])):
        return "rank 0 does not report every epoch once, counted from 0"
    if not all(facts["run"] is True for facts in reports):
        return "report is not given the run"
    time, images = 0.0, case["samples"] // RANKS // case["batch_size"] * case["batch_size"] * RANKS
    for facts, took in zip(reports, zip(*seen["took"], strict=True), strict=True):
        time += max(took)  # of the ranks, in this epoch
        if not equal(finite(facts["time"]), time):
            summed = "the reported time is not the sum of the epochs' seconds so far, of the slowest rank"
            return _timing(case, seen) or summed
        if facts["images"] != images:
            return "the reported images are not those of the epoch: size ranks, each with len(batches) full batches"
    saved = named(seen["said"][0], "saved")
    if len(saved) != 1 or not _near(saved[0]["weights"], _simulated(case)[-1]):
        return "rank 0 does not save the averaged model at the end: run.save_model(model)"
    return ""


PROGRAM = Exercise(("main",), _draw_programs, observe_program, {
    "training": Part("Every rank ends with the weights of local SGD", _NO_STATE, cases="program", judge=_trained),
    "evaluation": Part("Each rank evaluates its part, rank 0 has the sums", _NO_STATE, cases="program", needs="training",
                       judge=_evaluated),
    "report": Part("Rank 0 alone reports and saves", _NO_STATE, cases="program", needs="training", judge=_reported,
                   hint="print the arguments of report"),
}, "write down which of your functions each rank calls, in which order, and what it returns", "{about}",
    share=_known_to_a_rank, **on_mpi(RANKS, Program))  # fmt: skip
