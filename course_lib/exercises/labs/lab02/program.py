"""Lab 02's program. The functions that it calls have stand-ins: what is wrong in one of them costs nothing here.

The stand-ins ask the grader for the numbers that they return, and send it what they were given. So nobody knows an
accuracy before the validation that it belongs to. The program could send such words itself. So the grader also gets the
weights before and after every epoch, and repeats each epoch from them: only a training makes weights that are right. It
changes the weights in the checkpoint before the second start: only a restored file has them.
"""

from __future__ import annotations

import argparse
import math
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from course_lib.data import load
from course_lib.exercises.comparing import equal, finite
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.ranks.broker_process_group import joined
from course_lib.exercises.ranks.collective_process_group import CollectiveProcessGroup
from course_lib.exercises.ranks.programs import (
    HERE,
    Killed,
    Restarted,
    ask_grader,
    give_stand_ins,
    named,
    near,
    pretended,
    started,
    started_twice,
    weights_of,
)
from course_lib.exercises.ranks.watched_ranks import watched
from course_lib.optim.schedules import warmup_then_decay

__all__ = ["PROGRAM"]

RANKS, BATCHES, BATCH = 2, 3, 2
IMAGES, WEIGHTS = RANKS * BATCHES * BATCH, 1174
NEVER = 99  # an epoch in which a job would be killed, and which never comes
METRICS = ("images_per_sec", "train_loss", "train_accuracy", "val_loss", "val_accuracy")


class Program(Restarted):
    """The numbers of every epoch.

    `killed` is the epoch in which the job ends the first time; -1 for never. Clocks are this process's.
    """

    def __init__(self, case):
        super().__init__(RANKS)
        self.case = case
        self._done = [0] * RANKS  # epochs that it has trained
        self._killed = [False] * RANKS
        self._first = [time.perf_counter()] * RANKS
        self._began, self._took = list(self._first), [0.0] * RANKS

    def last_layer(self):
        ended = named(self.calls[0], "trained")
        return _last_layer(ended[-1]["ended"]) if ended else None

    def called(self, rank, name, facts):
        now = time.perf_counter()
        clocks = {"took": self._took[rank], "most": now - self._first[rank]} if name == "throughput" else {}
        super().called(rank, name, facts)
        self.calls[rank][-1][1] = facts | clocks
        if name == "train":
            self._began[rank] = now
            if self._done[rank] == self.case["killed"] and not self._killed[rank]:
                self._killed[rank] = True
                return "killed"
            return None
        if name == "trained":
            self._took[rank] = now - self._began[rank]
            self._done[rank] += 1
        done = self._done[rank]
        if name == "stop":
            return done >= self.case["stops_after"]
        if not 0 < done <= len(self.case["epochs"]):
            return [0.0, 0.0, 1.0] if name in ("trained", "evaluate") else [0.0, 0.0]
        numbers = self.case["epochs"][done - 1]
        if name == "trained":
            return numbers["trained"][rank]
        if name == "throughput":
            return [numbers["images_per_sec"], numbers["seconds"]]
        if name == "evaluate":
            return numbers["validated"][rank]
        if name == "metrics":
            for which in ("trained", "validated"):
                if equal(facts["given"], list(map(float, numbers[which][rank]))):
                    return numbers["means"][which]
            return [-1.0, -1.0]
        return None


def _normal(random, *shape, scale=1.0):
    return torch.from_numpy(random.normal(0, scale, shape)).float()


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
            "images": _normal(random, IMAGES, 1, 28, 28), "labels": torch.from_numpy(random.integers(0, 10, IMAGES)),
            # Of each start, each rank's: wrapping the model gives all ranks rank 0's.
            "weights": [[_normal(random, WEIGHTS, scale=0.2) for _ in range(RANKS)] for _ in range(2)],
        }  # fmt: skip

    return {
        "whole": [
            case(-1, 6, 4, "2 ranks with a process group, at most 6 epochs, two accuracies above the target after 4")
        ],
        "resumed": [case(2, 4, 5, "2 ranks without a process group, 4 epochs, and the job is killed in the third")],
        "ended": [case(NEVER, 5, 3, "2 ranks without a process group, started again after the target was reached")],
    }


def _known_to_ranks(case, rank):
    known = {name: value for name, value in case.items() if name not in ("epochs", "weights")}
    return known | {"most": len(case["epochs"]), "weights": [start[rank] for start in case["weights"]]}


# --- what is sent beside the student's code


def stand_in_set_up():
    ask_grader("set_up")
    joined({"rank": HERE.rank, "size": HERE.size}, HERE.outside, CollectiveProcessGroup)
    return torch.device("cpu")


def stand_in_rank_device():
    return torch.device("cpu")


def stand_in_prepare_once(prepare):
    ask_grader("prepare")
    HERE.preparing = True
    try:
        return prepare()
    finally:
        HERE.preparing = False


def stand_in_load(*given, **named):
    ask_grader("load", inside=HERE.preparing)
    return load(*given, **named)


def small_network(weights):
    """A network with these weights, all in one tensor."""
    layers = [nn.Conv2d(1, 3, 5, stride=4), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 10)]
    model = nn.Sequential(*layers)
    nn.utils.vector_to_parameters(weights.clone(), model.parameters())
    return model


def velocity_of(optimizer):
    """The momentum of all weights in one tensor; None before the first step."""
    found = [optimizer.state[parameter].get("momentum_buffer")
             for group in optimizer.param_groups for parameter in group["params"] if parameter in optimizer.state]  # fmt: skip
    if not found or any(each is None for each in found):
        return None
    return torch.cat([each.detach().flatten() for each in found])


def stand_in_network(*given):
    return small_network(HERE.weights)


def stand_in_make_loaders(train_set, validation_set, batch_size, seed):
    data = TensorDataset(HERE.images, HERE.labels)
    sampler = DistributedSampler(data, RANKS, HERE.rank, seed=seed)
    HERE.train = DataLoader(data, BATCH, sampler=sampler, drop_last=True)
    HERE.validation = DataLoader(TensorDataset(HERE.images[:4], HERE.labels[:4]), 2)
    ask_grader("loaders", batch_size=int(batch_size), seed=int(seed), sizes=[len(train_set), len(validation_set)])
    return HERE.train, HERE.validation


def stand_in_wrap(model, device, sync_batchnorm):
    HERE.model = nn.parallel.DistributedDataParallel(model)
    ask_grader("wrap", sync=bool(sync_batchnorm))
    return HERE.model


def stand_in_train_epoch(model, loader, epoch, optimizer, scheduler, loss_fn, device):
    own = [id(parameter) for parameter in HERE.model.parameters()]
    group = optimizer.param_groups[0]
    state = optimizer.state.get(group["params"][0], {})
    killed = ask_grader(
        "train", epoch=epoch, wrapped=model is HERE.model, loader=loader is HERE.train, lr=float(group["lr"]),
        momentum=float(group.get("momentum", 0)), nesterov=bool(group.get("nesterov")), steps=int(scheduler.last_epoch),
        own=[id(parameter) for parameter in group["params"]] == own, moving=state.get("momentum_buffer") is not None,
        decay=float(group.get("weight_decay", 0)), dampening=float(group.get("dampening", 0)), drawn_from=HERE.seed,
        started=weights_of(HERE.model), velocity=velocity_of(optimizer),
    )  # fmt: skip
    if killed == "killed":
        raise Killed
    loader.sampler.set_epoch(epoch)
    model.train()
    rates = []
    for images, labels in loader:
        rates.append(float(group["lr"]))
        optimizer.zero_grad()
        # Each rank by itself: rank 0's weights are what is saved.
        nn.functional.cross_entropy(HERE.model.module(images), labels).backward()
        optimizer.step()
        scheduler.step()
    return tuple(ask_grader("trained", ended=weights_of(HERE.model), rates=rates))


def stand_in_equalise_buffers(model):
    ask_grader("equalise", own=model is HERE.model or model is HERE.model.module)


def stand_in_evaluate(model, batches, loss_fn):
    images = sum(len(labels) for _, labels in batches)
    wrapped = isinstance(model, nn.parallel.DistributedDataParallel)
    own = model is HERE.model.module
    return tuple(ask_grader("evaluate", own=own, wrapped=wrapped, images=images, weights=weights_of(model)))


def stand_in_reduce_throughput(images, seconds, device):
    return tuple(ask_grader("throughput", images=float(images), seconds=float(seconds)))


def stand_in_reduce_metrics(loss_sum, correct, images, device):
    return tuple(ask_grader("metrics", given=[float(loss_sum), float(correct), float(images)]))


def stand_in_stop_together(wish, device):
    return ask_grader("stop", wish=bool(wish))


class Run:
    """In the place of a run folder."""

    def append(self, record, seconds):
        ask_grader("append", record=[record.epoch, record.time, *(getattr(record, name) for name in METRICS), record.lr],
             seconds=float(seconds))  # fmt: skip

    def early_stop(self, epoch):
        ask_grader("early_stop", epoch=int(epoch))

    def save_model(self, model):
        ask_grader("save_model", own=model is HERE.model.module)

    def restore(self, *given):
        """A run folder can restore what a checkpoint held."""


def observe_program(case, rank, outside, main):
    HERE.rank, HERE.size, HERE.outside, HERE.preparing = rank, 2, outside, False
    HERE.seed, HERE.images, HERE.labels, HERE.weights = None, case["images"], case["labels"], case["weights"][0]
    give_stand_ins(main, [
        stand_in_set_up, stand_in_rank_device, stand_in_prepare_once, stand_in_load, stand_in_network, stand_in_make_loaders, stand_in_wrap,
        stand_in_train_epoch, stand_in_equalise_buffers, stand_in_evaluate, stand_in_reduce_throughput,
        stand_in_reduce_metrics, stand_in_stop_together, warmup_then_decay,
    ])  # fmt: skip
    args = argparse.Namespace(
        dataset="fashion-mnist-small", train_samples=case["samples"], epochs=case["most"], batch_size=case["batch_size"],
        base_lr=case["base_lr"], momentum=case["momentum"], warmup_epochs=0.5, width=1, sync_batchnorm=False,
        target_accuracy=case["target"], patience=2, seed=case["seed"], checkpoint="",
    )  # fmt: skip
    with pretended():
        if case["killed"] < 0:
            returned, ended = started(main, args, Run(), rank, 2, outside)
        else:
            HERE.next_weights = case["weights"][1]
            give_stand_ins(main, [stand_in_report])
            returned, ended = started_twice(main, args, None, rank, 2, outside, second_weights)
    return facts_of(returned) | ended


def stand_in_report(run, record, seconds, stopped):
    """In the place of the notebook's where there is no run folder: it would print."""


def second_weights():
    HERE.weights = HERE.next_weights


def facts_of(returned):
    """What main returned, in plain data."""
    if not isinstance(returned, dict):
        return {"keys": None}
    weights, orders = returned.get("weights"), returned.get("orders")
    if isinstance(weights, dict):
        weights = {str(name): value.clone() for name, value in weights.items() if isinstance(value, torch.Tensor)}
    return {
        "keys": sorted(map(str, returned)), "accuracies": returned.get("accuracies"), "stopped": returned.get("stopped"),
        "time": returned.get("time"), "orders": [list(order) for order in orders] if isinstance(orders, list) else None,
        "weights": weights, "none": weights is None, "fingerprint": returned.get("fingerprint"),
        "statistics": returned.get("statistics"),
    }  # fmt: skip


# --- judging


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
        trainings = named(calls, "train")
        if fault := _loop(trainings, list(range(_epochs_of(case)))):
            return fault
        for facts, rate in zip(trainings, _schedule(case), strict=False):
            if fault := _training(case, facts, rate):
                return fault
        if seen["ranks"][rank]["keys"] is None:
            return "should return a dict, as the docstring says"
        if seen["ranks"][rank]["up"] is not True:
            return "it destroys a process group that it has not made: `launch` still needs it"
    seeds = [[facts["drawn_from"] for facts in named(calls, "train")] for calls in seen["calls"]]
    if None in seeds[0] + seeds[1]:
        return "no rank is seeded before it trains: torch.manual_seed(args.seed + rank)"
    if any(one == other for one, other in zip(*seeds, strict=False)):
        return "both ranks draw the same dropout masks: torch.manual_seed(args.seed + rank)"
    ended = [small_network(named(calls, "trained")[-1]["ended"]) for calls in seen["calls"]]
    if not _holds(seen["ranks"][0]["weights"], ended[0]) or seen["ranks"][1]["none"] is not True:
        return (
            "the weights that it returns are not those of the trained model: on rank 0 a state dict, None on the others"
        )
    for one, model in zip(seen["ranks"], ended, strict=True):
        if not equal(one["fingerprint"], [weight.detach().double().sum().item() for weight in model.parameters()]):
            return "the fingerprint is not the sum of each of the trained model's parameters"
    names = [name for name, _ in ended[0].named_buffers()]
    sums = [seen["ranks"][0]["weights"][name].double().sum().item() for name in names]
    if not equal(seen["ranks"][0]["statistics"], sums) or len(seen["ranks"][1]["statistics"]) != len(names):
        return "the statistics are not the sum of each of the trained model's buffers"
    return ""


def _holds(found, model):
    """Whether a state dict has the model's entries and its weights."""
    weights = dict(model.named_parameters())
    return (
        isinstance(found, dict)
        and found.keys() == model.state_dict().keys()
        and all(equal(found[name], weight.detach(), 1e-6) for name, weight in weights.items())
    )


def _last_layer(weights):
    """The weights of the network's linear layer."""
    return small_network(weights)[-1].weight.detach().clone()


# --- whether there was a training


def _repeated(case, rank, seed, train, rates):
    """The weights after an epoch from what was told of its beginning."""
    model = small_network(train["started"]).train()
    options = {name: finite(train[name]) for name in ("momentum", "dampening")}
    optimizer = torch.optim.SGD(
        model.parameters(), 1.0, **options, weight_decay=finite(train["decay"]), nesterov=train["nesterov"] is True
    )
    if train["velocity"] is not None:
        start = 0
        for parameter in model.parameters():
            part = train["velocity"][start : start + parameter.numel()].view_as(parameter)
            optimizer.state[parameter]["momentum_buffer"], start = part.clone(), start + parameter.numel()
    indices = _whole_order(case, rank, seed, train["epoch"])
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = finite(rate)
        batch = indices[step * BATCH : (step + 1) * BATCH]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(case["images"][batch]), case["labels"][batch]).backward()
        optimizer.step()
    return weights_of(model)


_NOT_TRAINED = (
    "an epoch's weights are not those that train_epoch makes of the weights before it, by SGD with the optimiser's "
    "momentum and learning rates"
)


def _really(case, seen, right):
    """Every epoch that was told is a training of the weights that it had, from those that wrapping gave."""
    for rank, calls in enumerate(seen["calls"]):
        begins, seed, train, last = True, case["seed"], None, None
        for name, facts in calls:
            if name == "again":
                begins = True
            elif name == "loaders":
                seed = facts["seed"]
            elif name == "train":
                train = facts
                expected = case["weights"][0][0] if last is None else last
                if (last is None or not begins) and not near(facts["started"], expected, 1e-5):
                    return "an epoch does not begin with the weights of the epoch before, the first one with rank 0's"
                begins = False
            elif name == "trained":
                if train is None or len(facts["rates"]) != BATCHES:
                    return _NOT_TRAINED
                expected, last = _repeated(case, rank, seed, train, facts["rates"]), facts["ended"]
                if not near(last, expected, 0.02 * float((expected - train["started"]).norm()) + 1e-5):
                    return _NOT_TRAINED
                train = None
            elif name == "evaluate" and not begins and not near(facts["weights"], last, 1e-5):
                return "it does not evaluate the weights that the epoch's training has left"
    return ""


def _prepared(case, calls):
    if not named(calls, "prepare") or not named(calls, "loaders") or not named(calls, "wrap"):
        return "it must prepare the data by prepare_once, and use make_loaders and wrap"
    if not all(facts["inside"] for facts in named(calls, "load")):
        return "the data is loaded outside prepare_once, so no rank waits for rank 0: prepare_once(lambda: load(…))"
    facts = named(calls, "loaders")[0]
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
    done, wishes = 0, []
    for name, facts in seen["calls"][0]:
        done += name == "train"
        if name == "stop":
            wishes.append((facts["wish"], done))
    if all(wish == (done >= case["stops_after"]) for wish, done in wishes):
        return ""
    if all(wish == (done > case["stops_after"]) for wish, done in wishes):
        return (
            "stop_together is asked before the epoch's accuracy is in the list, so training ends an epoch late or never"
        )
    return "rank 0's wish to stop does not follow from the accuracies of all ranks: reached(accuracies, args)"


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
        if "stop" in names[: names.index("evaluate")] and "stop" not in names[names.index("evaluate") :]:
            return (
                "stop_together is asked before evaluate, so it decides without the epoch's own accuracy: ask after it"
            )
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
    rows = named(seen["calls"][0], "append")
    if named(seen["calls"][1], "append"):
        return "another rank than 0 reports"
    if len(rows) != count:
        return "rank 0 does not report every epoch once"
    if count < len(case["epochs"]) and named(seen["calls"][0], "early_stop") != [{"epoch": count}]:
        return (
            "rank 0 does not report that the last epoch stopped the training: ask stop_together before report, which takes "
            "its answer"
        )
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
        throughputs = named(calls, "throughput")
        if any(not f["took"] <= f["seconds"] <= f["most"] < math.inf for f in throughputs):
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
        if named(seen["calls"][0], "save_model") == [{"own": True}]
        else "rank 0 does not save the trained network at the end"
    )


def _order(case, rank, number):
    return _whole_order(case, rank, case["seed"], number)[:16]


def _whole_order(case, rank, seed, number):
    sampler = DistributedSampler(range(IMAGES), RANKS, rank, seed=seed)
    sampler.set_epoch(number)
    return list(sampler)


def _resumes(case, seen, right):
    most, killed = len(case["epochs"]), case["killed"]
    if killed == NEVER:
        return _trains_no_further(case, seen)
    if not any(one["files"] == [True] for one in seen["ranks"]):
        return "no rank writes args.checkpoint"
    if seen["ranks"][0]["files"] != [True]:
        return "rank 0 does not write the checkpoint"
    if seen["ranks"][1]["files"] != [False]:
        return "every rank writes the checkpoint, all into the same file: rank 0 alone"
    if seen["saved"] is not True:
        return "the checkpoint does not have the weights that rank 0 has trained"
    for calls, one in zip(seen["calls"], seen["ranks"], strict=True):
        names = [name for name, _ in calls]
        second = calls[names.index("again") :] if "again" in names else []
        trainings = named(second, "train")
        epochs = [facts["epoch"] for facts in trainings]
        if epochs[:1] == [0]:
            return "the second start trains from epoch 0: it does not restore the checkpoint"
        if epochs != list(range(killed, most)):
            return "the second start does not continue with the epoch after the last saved one"
        seeds = {facts["epoch"]: facts["drawn_from"] for facts in named(calls, "train")}
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
        if not equal(one["time"], sum(each["seconds"] for each in case["epochs"])):
            return "after the second start the time is not that of both: restore the epochs' seconds, too"
        if one["up"] is not False:
            return "at the end the process group that set_up made is still there: dist.destroy_process_group()"
    return _really(case, seen, right) or (
        "" if _restored(seen) else "the second start does not have the weights that are in the checkpoint"
    )


def _trains_no_further(case, seen):
    """A restored training that has reached its target."""
    for calls, one in zip(seen["calls"], seen["ranks"], strict=True):
        if named(calls[len(_first_start(calls)) :], "train"):
            return "a restored training that has reached its target trains on: ask stop_together before the first epoch, too"
        if one["keys"] is None or len(one["accuracies"]) != case["stops_after"] or one["stopped"] is not True:
            return "where the restored training had reached its target, `accuracies` or `stopped` does not say so"
    return ""


def _drawn_before(calls, epoch):
    """The seeds of an epoch before the job was killed."""
    return [facts["drawn_from"] for facts in named(_first_start(calls), "train") if facts["epoch"] == epoch]


def _restored(seen):
    """Whether every rank's second start has the weights of rank 0's checkpoint, as they were changed there."""
    saved = [facts for name, facts in _first_start(seen["calls"][0]) if name == "trained"][-1]["ended"]
    expected = small_network(saved)
    expected[-1].weight.data.copy_(seen["changed"])
    for calls in seen["calls"]:
        second = named(calls[len(_first_start(calls)) :], "train")[0]
        if not near(second["started"], weights_of(expected), 1e-5):
            return False
    return True


def _first_start(calls):
    return calls[: [name for name, _ in calls].index("again")]


_NO_DICT = "should return a dict, as the docstring says"

PROGRAM = Exercise(("main",), _draw_programs, observe_program, {
    "really": Part("", _NO_DICT, cases="whole", judge=_really),
    "training": Part("Trains the wrapped model in every epoch, by the schedule", _NO_DICT, cases="whole", needs="really", judge=_trained),
    "validation": Part("Every rank validates the same network, and they stop together", _NO_DICT, cases="whole", needs="really", judge=_validation),
    "records": Part("Rank 0 reports the whole job's numbers", _NO_DICT, cases="whole", needs="really", judge=_records,
                    hint="print the record of each epoch"),
    "resumes": Part("Continues from rank 0's checkpoint, and leaves the group that it made", _NO_DICT, cases="resumed ended",
                    judge=_resumes, hint="run it twice with the same args.checkpoint, and stop the first run after an epoch"),
}, "write down which function each + line of section 1 calls, in which order, and what it returns", guarded="resumed ended",
    share=_known_to_ranks, **watched(RANKS, Program))  # fmt: skip
