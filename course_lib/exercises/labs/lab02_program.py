"""Lab 02's program. The functions that it calls have stand-ins: what is wrong in one of them costs nothing here.

The stand-ins ask the grader for the numbers that they return, and tell it what they were given. So nobody knows an
accuracy before the validation that it belongs to.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import pathlib
import shutil
import tempfile
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset

from course_lib.data import load
from course_lib.exercises.comparing import equal, finite
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.ranks.broker_process_group import left
from course_lib.exercises.ranks.collective_broker import CollectiveBroker
from course_lib.exercises.ranks.collective_process_group import CollectiveProcessGroup, collective_group, joined
from course_lib.exercises.ranks.watched_ranks import on_watched_ranks
from course_lib.optim.schedules import warmup_then_decay

__all__ = ["PROGRAM"]

RANKS, BATCHES = 2, 3
METRICS = ("images_per_sec", "train_loss", "train_accuracy", "val_loss", "val_accuracy")


class Program(CollectiveBroker):
    """The numbers of every epoch, and what each rank's program did with its functions, in order.

    `killed` is the epoch in which the job ends the first time; -1 for never.
    """

    def __init__(self, case):
        super().__init__(RANKS)
        self.case = case
        self.calls = [[] for _ in range(RANKS)]  # of each rank: [name, facts]
        self._done = [0] * RANKS  # epochs that it has trained
        self._killed = [False] * RANKS

    @property
    def answers(self):
        return {**super().answers, "called": self.called, "again": self.again}

    def again(self, rank):
        """The job starts once more."""
        self.calls[rank].append(["again", {}])

    def called(self, rank, name, facts):
        """What a stand-in of that name returns."""
        if len(self.calls[rank]) > 500 or not isinstance(facts, dict):
            raise ValueError
        self.calls[rank].append([name, facts])
        if name == "train":
            if self._done[rank] == self.case["killed"] and not self._killed[rank]:
                self._killed[rank] = True
                return "killed"
            self._done[rank] += 1
        done = self._done[rank]
        if name == "stop":
            return done >= self.case["stops_after"]
        if not 0 < done <= len(self.case["epochs"]):
            return [0.0, 0.0, 1.0] if name in ("train", "evaluate") else [0.0, 0.0]
        now = self.case["epochs"][done - 1]
        if name == "train":
            return now["trained"][rank]
        if name == "throughput":
            return [now["images_per_sec"], now["seconds"]]
        if name == "evaluate":
            return now["validated"][rank]
        if name == "metrics":
            for which in ("trained", "validated"):
                if equal(facts["given"], list(map(float, now[which][rank]))):
                    return now["means"][which]
            return [-1.0, -1.0]
        return None

    def evidence(self):
        return {"calls": self.calls}


def _draw_programs(random):
    def numbers(accuracy):
        trained, validated = (
            [
                [float(random.uniform(5, 90)), int(random.integers(10, 90)), int(random.integers(100, 200))]
                for _ in range(RANKS)
            ]
            for _ in range(2)
        )
        means = {
            "trained": random.uniform(0.1, 0.9, 2).tolist(),
            "validated": [float(random.uniform(0.1, 0.9)), accuracy],
        }
        return {
            "trained": trained, "validated": validated, "means": means, "seconds": float(random.uniform(1, 9)),
            "images_per_sec": float(random.uniform(100, 900)),
        }  # fmt: skip

    def case(killed, most, stops_after, about):
        target = round(float(random.uniform(0.4, 0.6)), 3)
        high = [float(random.uniform(target + 0.01, 0.95)) for _ in range(most)]
        low = [float(random.uniform(0.1, target - 0.01)) for _ in range(most)]
        # A good epoch, a bad one, then two good ones: the rule of the multi-GPU tutorial.
        good = [False] * most
        for epoch in (stops_after - 4, stops_after - 2, stops_after - 1):
            if epoch >= 0 and stops_after <= most:
                good[epoch] = True
        accuracies = [h if g else one for g, h, one in zip(good, high, low, strict=True)]
        return {
            "killed": killed, "stops_after": stops_after, "epochs": [numbers(accuracy) for accuracy in accuracies],
            "batch_size": int(random.integers(8, 17)), "base_lr": float(random.uniform(0.01, 0.1)),
            "momentum": round(float(random.uniform(0.5, 0.9)), 2), "target": target, "seed": int(random.integers(1, 10_000)),
            "samples": int(random.integers(120, 200)), "about": about,
        }  # fmt: skip

    return {
        "whole": [
            case(-1, 6, 4, "2 ranks with a process group, at most 6 epochs, two accuracies above the target after 4")
        ],
        "resumed": [case(2, 4, 5, "2 ranks without a process group, 4 epochs, and the job is killed in the third")],
    }


def _known_to_ranks(case, rank):
    return {name: value for name, value in case.items() if name != "epochs"} | {"most": len(case["epochs"])}


# --- what is sent beside the student's code

HERE = threading.local()  # the ranks of a test are threads


SEED, SEEDS = torch.manual_seed, threading.Lock()
noting = 0  # ranks that note their seeds


def noted_seed(seed):
    HERE.seed = int(seed)
    return SEED(seed)


@contextlib.contextmanager
def seeds_noted():
    """Each rank's last torch.manual_seed; ranks that are threads share one generator, but not this note."""
    global noting
    with SEEDS:
        noting += 1
        torch.manual_seed = torch.random.manual_seed = noted_seed
    try:
        yield
    finally:
        with SEEDS:
            noting -= 1
            if noting == 0:
                torch.manual_seed = torch.random.manual_seed = SEED


class Killed(Exception):
    """The job ends in the middle of an epoch."""


def told(name, **facts):
    return HERE.outside("called", name, facts)


def stand_in_set_up():
    told("set_up")
    joined({"rank": HERE.rank, "size": HERE.size}, HERE.outside, CollectiveProcessGroup)
    return torch.device("cpu")


def stand_in_rank_device():
    return torch.device("cpu")


def stand_in_prepare_once(prepare):
    told("prepare")
    HERE.preparing = True
    try:
        return prepare()
    finally:
        HERE.preparing = False


def stand_in_load(*given, **named):
    told("load", inside=HERE.preparing)
    return load(*given, **named)


def stand_in_network(*given):
    return nn.Sequential(nn.Conv2d(1, 3, 5, stride=4), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 10))


def stand_in_make_loaders(train_set, validation_set, batch_size, seed):
    sampler = DistributedSampler(Subset(train_set, range(RANKS * BATCHES * 2)), RANKS, HERE.rank, seed=seed)
    HERE.train = DataLoader(Subset(train_set, range(RANKS * BATCHES * 2)), 2, sampler=sampler, drop_last=True)
    HERE.validation = DataLoader(Subset(validation_set, range(4)), 2)
    told("loaders", batch_size=int(batch_size), seed=int(seed), sizes=[len(train_set), len(validation_set)])
    return HERE.train, HERE.validation


def stand_in_wrap(model, device, sync_batchnorm):
    HERE.model = nn.parallel.DistributedDataParallel(model)
    told("wrap", sync=bool(sync_batchnorm))
    return HERE.model


def stand_in_train_epoch(model, loader, epoch, optimizer, scheduler, loss_fn, device):
    own = [id(parameter) for parameter in HERE.model.parameters()]
    group = optimizer.param_groups[0]
    state = optimizer.state.get(group["params"][0], {})
    numbers = told(
        "train", epoch=epoch, wrapped=model is HERE.model, loader=loader is HERE.train, lr=float(group["lr"]),
        momentum=float(group.get("momentum", 0)), nesterov=bool(group.get("nesterov")), steps=int(scheduler.last_epoch),
        own=[id(parameter) for parameter in group["params"]] == own, moving=state.get("momentum_buffer") is not None,
        weight=float(group["params"][0].detach().double().sum()), drawn_from=HERE.seed,
    )  # fmt: skip
    began = time.perf_counter()
    if numbers == "killed":
        raise Killed
    loader.sampler.set_epoch(epoch)
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        loss_fn(HERE.model.module(images), labels).backward()  # each rank by itself: rank 0's weights are what is saved
        optimizer.step()
        scheduler.step()
    HERE.weight = float(group["params"][0].detach().double().sum())
    HERE.took = time.perf_counter() - began
    return tuple(numbers)


def stand_in_equalise_buffers(model):
    told("equalise", own=model is HERE.model or model is HERE.model.module)


def stand_in_evaluate(model, batches, loss_fn):
    images = sum(len(labels) for _, labels in batches)
    wrapped = isinstance(model, nn.parallel.DistributedDataParallel)
    return tuple(told("evaluate", own=model is HERE.model.module, wrapped=wrapped, images=images))


def stand_in_reduce_throughput(images, seconds, device):
    told_seconds = {"took": HERE.took, "most": time.perf_counter() - HERE.began}
    return tuple(told("throughput", images=float(images), seconds=float(seconds), **told_seconds))


def stand_in_reduce_metrics(loss_sum, correct, images, device):
    return tuple(told("metrics", given=[float(loss_sum), float(correct), float(images)]))


def stand_in_stop_together(wish, device):
    return told("stop", wish=bool(wish))


class Run:
    """In the place of a run folder."""

    def append(self, record, seconds):
        told("append", record=[record.epoch, record.time, *(getattr(record, name) for name in METRICS), record.lr],
             seconds=float(seconds))  # fmt: skip

    def early_stop(self, epoch):
        told("early_stop", epoch=int(epoch))

    def save_model(self, model):
        told("save_model", own=model is HERE.model.module)

    def restore(self, *given):
        """A run folder may be told what a checkpoint had."""


def observe_program(case, rank, outside, main):
    HERE.rank, HERE.size, HERE.outside, HERE.preparing = rank, 2, outside, False
    HERE.began, HERE.took, HERE.seed = time.perf_counter(), 0.0, None
    names = getattr(main, "__globals__", {})
    stand_ins = [
        stand_in_set_up, stand_in_rank_device, stand_in_prepare_once, stand_in_load, stand_in_network, stand_in_make_loaders, stand_in_wrap,
        stand_in_train_epoch, stand_in_equalise_buffers, stand_in_evaluate, stand_in_reduce_throughput,
        stand_in_reduce_metrics, stand_in_stop_together, warmup_then_decay,
    ]  # fmt: skip
    names.update({name: noted_seed for name, value in names.items() if value is SEED})
    for function in stand_ins:
        names[function.__name__.removeprefix("stand_in_")] = function
    folder = tempfile.mkdtemp()
    args = argparse.Namespace(
        dataset="fashion-mnist-small", train_samples=case["samples"], epochs=case["most"], batch_size=case["batch_size"],
        base_lr=case["base_lr"], momentum=case["momentum"], warmup_epochs=0.5, width=1, sync_batchnorm=False,
        target_accuracy=case["target"], patience=2, seed=case["seed"], checkpoint="",
    )  # fmt: skip
    run = Run()
    try:
        with seeds_noted():
            if case["killed"] < 0:
                with collective_group(rank, 2, outside):
                    returned = main(args, run)
                    up = dist.is_initialized()
                return facts_of(returned) | {"up": up, "files": []}
            return resumed(case, rank, outside, main, args, run, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def resumed(case, rank, outside, main, args, run, folder):
    """The program twice; every rank has a file of its own in the place of the shared one, to see who writes."""
    args.checkpoint = os.path.join(folder, "state.safetensors")
    raised = True
    try:
        with contextlib.suppress(Killed):
            main(args, run)
        left()
        written = os.path.exists(args.checkpoint)
        with collective_group_for_files(rank, outside):
            file = [pathlib.Path(args.checkpoint).read_bytes() if rank == 0 and written else None]
            dist.broadcast_object_list(file, src=0)
        if rank != 0 and file[0] is not None:
            pathlib.Path(args.checkpoint).write_bytes(file[0])
        outside("again")
        returned = main(args, run)
        up = dist.is_initialized()
        left()
        raised = False
        return facts_of(returned) | {"up": up, "files": [written]}
    finally:
        left()
        outside("left", raised)


@contextlib.contextmanager
def collective_group_for_files(rank, outside):
    joined({"rank": rank, "size": 2}, outside, CollectiveProcessGroup)
    try:
        yield
    finally:
        left()


def facts_of(returned):
    """What main returned, in plain data, and whether the weights in it are the model's."""
    if not isinstance(returned, dict):
        return {"keys": None}
    weights, model = returned.get("weights"), HERE.model.module
    held = (
        isinstance(weights, dict)
        and weights.keys() == model.state_dict().keys()
        and all(torch.equal(value, model.state_dict()[name]) for name, value in weights.items())
    )
    prints = [weight.detach().double().sum().item() for weight in model.parameters()]
    orders = returned.get("orders")
    return {
        "keys": sorted(map(str, returned)), "accuracies": returned.get("accuracies"), "stopped": returned.get("stopped"),
        "time": returned.get("time"), "orders": [list(order) for order in orders] if isinstance(orders, list) else None,
        "held": held, "none": weights is None, "printed": returned.get("fingerprint"), "prints": prints,
        "ends": HERE.weight,
    }  # fmt: skip


# --- judging


def _named(calls, name):
    return [facts for called, facts in calls if called == name]


def _epochs_of(case):
    return min(case["stops_after"], len(case["epochs"]))


def _schedule(case):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=case["base_lr"])
    steps = len(case["epochs"]) * BATCHES
    scheduler, rates = warmup_then_decay(optimizer, steps, min(steps - 1, round(0.5 * BATCHES))), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates[::BATCHES]


def _trained(case, seen, right):
    for rank, calls in enumerate(seen["calls"]):
        if fault := _prepared(case, calls):
            return fault
        trainings = _named(calls, "train")
        if fault := _loop(trainings, list(range(_epochs_of(case)))):
            return fault
        for facts, rate in zip(trainings, _schedule(case), strict=False):
            if fault := _training(case, facts, rate):
                return fault
        if seen["ranks"][rank]["keys"] is None:
            return "should return a dict, as the docstring says"
        if seen["ranks"][rank]["up"] is not True:
            return "it destroys a process group that it has not made: `launch` still needs it"
    seeds = [[facts["drawn_from"] for facts in _named(calls, "train")] for calls in seen["calls"]]
    if None in seeds[0] + seeds[1]:
        return "no rank is seeded before it trains: torch.manual_seed(args.seed + rank)"
    if any(one == other for one, other in zip(*seeds, strict=False)):
        return "both ranks draw the same dropout masks: torch.manual_seed(args.seed + rank)"
    first = seen["ranks"][0]
    if first["held"] is not True or seen["ranks"][1]["none"] is not True:
        return (
            "the weights that it returns are not those of the trained model: on rank 0 a state dict, None on the others"
        )
    if any(not equal(one["printed"], one["prints"]) for one in seen["ranks"]):
        return "the fingerprint is not the sum of each of the trained model's parameters"
    return ""


def _prepared(case, calls):
    if not _named(calls, "prepare") or not _named(calls, "loaders") or not _named(calls, "wrap"):
        return "it must prepare the data by prepare_once, and use make_loaders and wrap"
    if not all(facts["inside"] for facts in _named(calls, "load")):
        return "the data is loaded outside prepare_once, so no rank waits for rank 0: prepare_once(lambda: load(…))"
    facts = _named(calls, "loaders")[0]
    if facts["batch_size"] != case["batch_size"] or facts["seed"] != case["seed"]:
        return "make_loaders is not given args.batch_size and args.seed: every rank needs the same seed"
    return (
        ""
        if sum(facts["sizes"]) == case["samples"]
        else "make_loaders is not given the two parts of the training images"
    )


def _loop(trainings, wanted):
    epochs = [facts["epoch"] for facts in trainings]
    if not epochs:
        return "train_epoch is never called"
    if epochs == wanted:
        return ""
    if epochs == [epoch + 1 for epoch in wanted]:
        return "the epochs of train_epoch count from 0"
    if len(set(epochs)) == 1 and len(wanted) > 1:
        return "train_epoch is given the same epoch each time, so every epoch has one order"
    if len(epochs) > len(wanted):
        return "training continues after the epoch at which stop_together said stop"
    return "train_epoch is not called once for each epoch, with its number"


def _training(case, facts, rate):
    if facts["wrapped"] is not True:
        return "train_epoch is not given the wrapped model, so every rank trains a network of its own"
    if facts["loader"] is not True:
        return "train_epoch is not given the training loader"
    if facts["own"] is not True:
        return "the optimiser does not have the wrapped model's parameters"
    if not equal(facts["momentum"], case["momentum"]) or facts["nesterov"] is not True:
        return "the optimiser is not train_single's: SGD with args.momentum, Nesterov's"
    return (
        "" if equal(facts["lr"], rate) else "the learning rate at an epoch's beginning is not train_single's schedule's"
    )


def _validation(case, seen, right):
    accuracies = [each["means"]["validated"][1] for each in case["epochs"][: _epochs_of(case)]]
    for calls, one in zip(seen["calls"], seen["ranks"], strict=True):
        if fault := _each_epoch(case, calls):
            return fault
        if one["keys"] is None or not equal(one["accuracies"], accuracies):
            return "the accuracies that it returns are not those of all ranks' validation images, one for each epoch"
        if one["stopped"] is not (case["stops_after"] <= len(case["epochs"])):
            return "`stopped` does not say whether the target ended the training"
    done = 0
    for name, facts in seen["calls"][0]:
        done += name == "train"
        if name == "stop" and facts["wish"] != (done >= case["stops_after"]):
            return "rank 0's wish to stop does not follow from the accuracies of all ranks: reached(accuracies, args)"
    return ""


def _each_epoch(case, calls):
    """Buffers, then the bare network on the validation images, then all ranks' counts, then the decision."""
    epochs: list[list] = []
    for name, facts in calls:
        if name == "train":
            epochs.append([])
        elif epochs:
            epochs[-1].append((name, facts))
    if not epochs:
        return "train_epoch is never called"
    for number, steps in enumerate(epochs):
        names = [name for name, _ in steps]
        if "evaluate" not in names:
            return "some rank does not evaluate in every epoch: all of them must, or they wait for each other"
        facts = steps[names.index("evaluate")][1]
        if facts["wrapped"] is True:
            return (
                "it evaluates the wrapped model, whose forward pass waits for all ranks, and for as many batches of each: "
                "evaluate model.module"
            )
        if facts["own"] is not True or facts["images"] != 4:
            return "it does not evaluate the trained network on the validation loader"
        if "equalise" not in names or names.index("equalise") > names.index("evaluate"):
            return "before evaluate, equalise_buffers(model): else every rank evaluates another network"
        validated = case["epochs"][number]["validated"] if number < len(case["epochs"]) else []
        given = [step["given"] for name, step in steps[names.index("evaluate") :] if name == "metrics"]
        if not any(equal(each, list(map(float, own))) for each in given for own in validated):
            return "what evaluate returns is not reduced over the ranks: reduce_metrics(*validated, device)"
        if "stop" not in names[names.index("evaluate") :]:
            return "not every rank asks stop_together after every epoch: a rank that decides alone leaves the others waiting"
    return ""


_MEANING = {
    "epoch": "the number of the epoch, from 1",
    "time": "the sum of the epochs' seconds so far, of the slowest rank",
    "images_per_sec": "the first number that reduce_throughput returns",
    "train_loss": "the mean over all ranks' training images, by reduce_metrics",
    "train_accuracy": "the share of all ranks' training images, by reduce_metrics",
    "val_loss": "the mean over all ranks' validation images, by reduce_metrics",
    "val_accuracy": "the share of all ranks' validation images, by reduce_metrics",
    "lr": "the learning rate of the epoch's first step; read it before train_epoch",
}


def _records(case, seen, right):
    count, rates, total = _epochs_of(case), _schedule(case), 0.0
    rows = _named(seen["calls"][0], "append")
    if _named(seen["calls"][1], "append"):
        return "another rank than 0 reports"
    if len(rows) != count:
        return "rank 0 does not report every epoch once"
    for number, (row, now) in enumerate(zip(rows, case["epochs"], strict=False)):
        total += now["seconds"]
        (train_loss, train_accuracy), (val_loss, val_accuracy) = now["means"]["trained"], now["means"]["validated"]
        wanted = [
            number + 1,
            total,
            now["images_per_sec"],
            train_loss,
            train_accuracy,
            val_loss,
            val_accuracy,
            rates[number],
        ]
        if not equal(row["seconds"], now["seconds"]):
            return "an epoch's seconds are not those of the slowest rank"
        for value, one, name in zip(row["record"], wanted, ("epoch", "time", *METRICS, "lr"), strict=True):
            if not equal(finite(value), float(one)):
                return f"the field {name} of a record is wrong; it is {_MEANING[name]}"
    if not equal(seen["ranks"][0]["time"], total):
        return "the time that it returns is not the sum of the epochs' seconds"
    for rank, (calls, one) in enumerate(zip(seen["calls"], seen["ranks"], strict=True)):
        throughputs = _named(calls, "throughput")
        if any(not 0.9 * finite(f["took"]) <= f["seconds"] <= f["most"] < math.inf for f in throughputs):
            return (
                "the seconds of an epoch are not those that train_epoch took: time.perf_counter() before and after it"
            )
        images = [float(now["trained"][rank][2]) for now in case["epochs"][:count]]
        if not equal([facts["images"] for facts in throughputs], images):
            return "reduce_throughput is not given the images that this rank trained in the epoch"
        if one["orders"] != [_order(case, rank, number) for number in range(count)]:
            return "`orders` does not have the first 16 indices of this rank's sampler, for each epoch"
    return (
        ""
        if _named(seen["calls"][0], "save_model") == [{"own": True}]
        else "rank 0 does not save the trained network at the end"
    )


def _order(case, rank, number):
    sampler = DistributedSampler(range(RANKS * BATCHES * 2), RANKS, rank, seed=case["seed"])
    sampler.set_epoch(number)
    return list(sampler)[:16]


def _resumes(case, seen, right):
    most, killed = len(case["epochs"]), case["killed"]
    if not any(one["files"] == [True] for one in seen["ranks"]):
        return "no rank writes args.checkpoint"
    if seen["ranks"][0]["files"] != [True]:
        return "rank 0 does not write the checkpoint"
    if seen["ranks"][1]["files"] != [False]:
        return "every rank writes the checkpoint, all into the same file: rank 0 alone"
    for calls, one in zip(seen["calls"], seen["ranks"], strict=True):
        names = [name for name, _ in calls]
        second = calls[names.index("again") :] if "again" in names else []
        trainings = _named(second, "train")
        epochs = [facts["epoch"] for facts in trainings]
        if epochs[:1] == [0]:
            return "the second start trains from epoch 0: it does not restore the checkpoint"
        if epochs != list(range(killed, most)):
            return "the second start does not continue with the epoch after the last saved one"
        seeds = {facts["epoch"]: facts["drawn_from"] for facts in _named(calls, "train")}
        if None not in seeds.values() and (
            len(set(seeds.values())) < len(seeds) or seeds[killed] not in _drawn_before(calls, killed)
        ):
            return "a restored epoch has other dropout masks than without the kill: call checkpoint.seed_epoch before each epoch"
        first = trainings[0]
        if first["steps"] != killed * BATCHES or not equal(first["lr"], _schedule(case)[killed]):
            return "the second start begins the schedule anew: restore scheduler, too"
        if first["moving"] is not True:
            return "the second start has lost the optimiser's momentum: restore optimizer, too"
        if one["keys"] is None or len(one["accuracies"]) != most:
            return "after the second start there is not one accuracy for each epoch of both"
        if one["up"] is not False:
            return "at the end the process group that set_up made is still there: dist.destroy_process_group()"
    return (
        "" if _same_weights(seen, killed) else "the second start does not have the weights that the first one had saved"
    )


def _drawn_before(calls, epoch):
    """The seeds of an epoch before the job was killed."""
    before = calls[: [name for name, _ in calls].index("again")]
    return [facts["drawn_from"] for facts in _named(before, "train") if facts["epoch"] == epoch]


def _same_weights(seen, killed):
    trainings = _named(seen["calls"][0], "train")
    at = [facts["weight"] for facts in trainings if facts["epoch"] == killed]
    return len(at) == 2 and equal(at[0], at[1], 1e-6)


_NO_DICT = "should return a dict, as the docstring says"

PROGRAM = Exercise(
    ("main",),
    _draw_programs,
    observe_program,
    {
        "training": Part("Trains the wrapped model in every epoch, by the schedule", _NO_DICT, cases="whole", judge=_trained),
        "validation": Part("Every rank validates the same network, and they stop together", _NO_DICT, cases="whole", judge=_validation),
        "records": Part("Rank 0 reports the whole job's numbers", _NO_DICT, cases="whole", judge=_records,
                        hint="print the record of each epoch"),
        "resumes": Part("Continues from rank 0's checkpoint, and leaves the group that it made", _NO_DICT, cases="resumed",
                        judge=_resumes, hint="run it twice with the same args.checkpoint, and stop the first run after an epoch"),
    },
    "write down which function each + line of section 1 calls, in which order, and what it returns",
    guarded="resumed",
    watch=Program,
    ranks=RANKS,
    share=_known_to_ranks,
    transport=on_watched_ranks,
    seconds=40.0,
)  # fmt: skip
