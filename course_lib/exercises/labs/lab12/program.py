"""Lab 12's program, as a whole: its data, network, recipe and clock are stand-ins, everything else is the student's.

The network writes down what passes through it: which images, with which weights. The accuracies on the test images are
the grader's, who sends the network's outputs for them epoch by epoch. So nobody knows an accuracy before its evaluation.
The gradients are computed again from the weights and images of each step: only a training makes weights that are right.
`judging.py` beside this file says what is right.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
import types

import torch
import torch.distributed as dist
from torch import nn

from course_lib.data import ImageData, Split
from course_lib.exercises.ranks.broker_process_group import joined
from course_lib.exercises.ranks.collective_process_group import CollectiveProcessGroup
from course_lib.exercises.ranks.programs import (
    ENTERING,
    HERE,
    Killed,
    Restarted,
    ask_grader,
    give_stand_ins,
    named,
    pretended,
    started,
    started_twice,
    weights_of,
)

__all__ = ["RANKS", "Program", "draw_programs", "known_to_ranks", "observe_program", "ranks_of", "small_network"]

RANKS = 3  # at most
CLASSES, SIDE, HIDDEN = 4, 4, 4
WEIGHTS = 28 * HIDDEN + 2 * HIDDEN + (4 * HIDDEN + 1) * CLASSES


class Program(Restarted):
    """It answers with the test images' outputs of the epoch."""

    def __init__(self, case):
        super().__init__(case["ranks"])
        self.case = case
        self.epochs = [0] * case["ranks"]  # begun
        self._stepped, self._killed = [False] * case["ranks"], [False] * case["ranks"]

    def last_layer(self):
        states = named(self.calls[0], "evaluate")
        return small_network(states[-1]["weights"])[-1].weight.detach().clone() if states else None

    def called(self, rank, name, facts):
        super().called(rank, name, facts)
        if name == "again":
            self._stepped[rank] = False
        if name == "forward":
            if not self._stepped[rank]:
                self._stepped[rank], self.epochs[rank] = True, self.epochs[rank] + 1
            if self.epochs[rank] - 1 == self.case["killed"] and not self._killed[rank]:
                self._killed[rank] = True
                return "killed"
        if name == "evaluate":
            self._stepped[rank] = False
            epoch = min(max(self.epochs[rank] - 1, 0), len(self.case["outputs"]) - 1)
            return self.case["outputs"][epoch][facts["images"]]
        return None

    def evidence(self):
        carried = [sum(each.nbytes(rank) for each in self.collectives) for rank in range(self.size)]
        return super().evidence() | {"carried": carried}


# --- drawing

# How many of each rank's test images are right, epoch by epoch. The ranks' shares are 3, 2 and 2 images. The target is
# above four sevenths and below five. It is reached in epochs 1, 3 and 4; neither by one rank's own accuracy in both of the
# last two, nor by the mean of the ranks' accuracies.
STOPPING = ((3, 1, 1), (1, 1, 2), (3, 1, 1), (2, 2, 1), (3, 2, 2), (1, 0, 1))


def draw_programs(random):
    def outputs(right, labels):
        """Outputs of which so many are right; the order of the test images is rank 0's first, rank 1's first, …"""
        logits = torch.from_numpy(random.normal(0, 1, (len(labels), CLASSES))).float()
        counts = list(right)
        for image, label in enumerate(labels.tolist()):
            rank = image % len(right)
            place = logits[image].argmax().item()
            wrong = (label + 1 + int(random.integers(CLASSES - 1))) % CLASSES
            wanted = label if counts[rank] > 0 else wrong
            counts[rank] -= 1
            logits[image, [place, wanted]] = logits[image, [wanted, place]]
        return logits

    def case(ranks, images, batch, right, about, killed=-1, **options):
        def labels(count):
            return torch.from_numpy(random.integers(0, CLASSES, count))

        tests = 7
        test_labels = labels(tests)
        return {
            "ranks": ranks, "killed": killed, "about": about, "group": killed < 0,
            "images": [_images(random, images, False), _images(random, tests, True)],
            "labels": [labels(images), test_labels],
            "outputs": [outputs(each, test_labels) for each in right],
            "batch_size": batch, "seed": int(random.integers(1, 10_000)), "target": float(random.uniform(0.675, 0.705)),
            "base_lr": float(random.uniform(0.05, 0.2)), "momentum": round(float(random.uniform(0.5, 0.9)), 2),
            "smoothing": round(float(random.uniform(0.05, 0.2)), 2), "sync": False, "most": len(right),
            "seconds": [float(random.uniform(1 + 2 * rank, 2 + 2 * rank)) for rank in range(ranks)],
            # Of each start, each rank's own: wrapping the model gives all ranks rank 0's.
            "weights": [[_normal(random, WEIGHTS) for _ in range(ranks)] for _ in range(2)],
            **options,
        }  # fmt: skip

    few = ((1, 1, 0), (2, 0, 1), (0, 1, 1))
    two = ((1, 1), (2, 0), (1, 2), (2, 2))
    return {
        "whole": [
            case(3, 14, 3, few, "3 ranks with a process group, 14 training and 7 test images, batches of 3, 3 epochs",
                 target=0.95)
        ],
        "sync": [case(2, 12, 3, two[:2], "2 ranks with sync_batchnorm, 2 epochs", target=0.95, sync=True)],
        "stopping": [
            case(3, 12, 2, STOPPING, "3 ranks, at most 6 epochs; the target is reached after epochs 1, 3 and 4")
        ],
        "resumed": [
            case(2, 12, 3, two, "2 ranks without a process group, 4 epochs, and the job is killed in the third", killed=2,
                 target=0.95),
            case(2, 12, 3, ((3, 3), (3, 3), (1, 1)), "2 ranks without a process group; the target is reached after epoch 2, "
                 "and the job is started again", killed=99),
        ],
    }  # fmt: skip


def _normal(random, count):
    return torch.from_numpy(random.normal(0, 0.3, count)).float()


def _images(random, count, test):
    """Images that tell which they are: their number, whether they are test images, and room for a mark."""
    images = torch.from_numpy(random.integers(0, 256, (count, 3, SIDE, SIDE))).to(torch.uint8)
    images[:, :, 0, 0] = torch.stack([torch.arange(count), torch.full((count,), int(test)), torch.zeros(count)], 1)
    return images


def ranks_of(case):
    return case["ranks"]


def known_to_ranks(case, rank):
    known = {name: value for name, value in case.items() if name not in ("outputs", "weights", "seconds", "killed")}
    return known | {"weights": [start[rank] for start in case["weights"]], "step_seconds": case["seconds"][rank],
                    "resumes": case["killed"] >= 0}  # fmt: skip


# --- what is sent beside the student's code

JOIN = dist.init_process_group


def pretended_join(*given, **options):
    """In the place of init_process_group: the group that the grader carries."""
    if getattr(HERE, "outside", None) is None or given[:1] == ("by_the_grader",):
        return JOIN(*given, **options)
    joined({"rank": HERE.rank, "size": HERE.size}, HERE.outside, CollectiveProcessGroup)
    return ask_grader("join", backend=str(given[0] if given else options.get("backend")))


@contextlib.contextmanager
def pretended_machine():
    """No GPU, torchrun's environment and the grader's group; ranks that are threads share all of it."""
    places = {"RANK": HERE.rank, "LOCAL_RANK": HERE.rank, "WORLD_SIZE": HERE.size, "LOCAL_WORLD_SIZE": HERE.size}
    with ENTERING:
        before = dict(os.environ)
        os.environ.update({name: str(value) for name, value in places.items()})
    try:
        with pretended(
            (dist, "init_process_group", pretended_join),
            (torch.cuda, "device_count", lambda: 0),
            (torch.cuda, "is_available", lambda: False),
        ):
            yield
    finally:
        with ENTERING:
            for name in places:
                os.environ.pop(name, None)
            os.environ.update({name: before[name] for name in places if name in before})


def small_network(weights):
    """A network with these weights, all in one tensor."""
    layers = [nn.Conv2d(3, HIDDEN, 3), nn.BatchNorm2d(HIDDEN), nn.Tanh(), nn.Flatten(), nn.Linear(4 * HIDDEN, CLASSES)]
    model = nn.Sequential(*layers)
    nn.utils.vector_to_parameters(weights.clone(), model.parameters())
    return model


def statistics_of(model):
    return torch.cat([buffer.detach().double().flatten() for buffer in model.buffers()])


class Watched(nn.Module):
    """The network, which notes what passes through it. Its outputs for test images are the grader's."""

    def __init__(self, weights):
        super().__init__()
        self.layers = small_network(weights)

    def train(self, mode=True):
        if mode and getattr(HERE, "outside", None) is not None:
            ask_grader("mode")
        return super().train(mode)

    def forward(self, x):
        pixels = (x.detach()[:, :, 0, 0] * 255).round().long()
        images, tests, marked = pixels[:, 0], pixels[:, 1] > 0, bool((pixels[:, 2] > 0).any())
        if bool(tests.any()) and not (self.training and torch.is_grad_enabled()):
            HERE.clock += 1000.0  # evaluation takes long, and is no training time
            return ask_grader(
                "evaluate", images=images, training=self.training, marked=marked, weights=weights_of(self.layers),
                statistics=statistics_of(self.layers),
            )  # fmt: skip
        if self.training and torch.is_grad_enabled():
            if ask_grader("forward", seed=HERE.seed) == "killed":
                raise Killed
            HERE.clock += HERE.case["step_seconds"]
            HERE.passed.append({"images": images, "tests": tests, "marked": marked, "seed": HERE.seed})
        return self.layers(x)


class NotedSGD(torch.optim.SGD):
    """Notes each step: the images since the last one, the weights before it, their gradient, the learning rate."""

    def step(self, closure=None):
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        gradient = [torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in parameters]
        ask_grader(
            "step", passed=HERE.passed, weights=torch.cat([p.detach().flatten() for p in parameters]),
            gradient=torch.cat([each.flatten() for each in gradient]), lr=float(self.param_groups[0]["lr"]),
        )  # fmt: skip
        HERE.passed = []
        return super().step(closure)


def falling(step):
    return 1 / (1 + 0.1 * step)


def stand_in_recipe(model, args, ranks, steps_per_epoch):
    ask_grader("recipe", ranks=int(ranks), steps=int(steps_per_epoch))
    optimizer = NotedSGD(model.parameters(), HERE.case["base_lr"], momentum=HERE.case["momentum"])
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, falling)


def stand_in_load(*given, **named):
    train, test = (Split(x.clone(), y.clone()) for x, y in zip(HERE.case["images"], HERE.case["labels"], strict=True))
    names = tuple(str(number) for number in range(CLASSES))
    return ImageData("hidden", train, test, names, (0.0,) * 3, (1.0,) * 3, "synthetic", "")


def stand_in_load_data(*given):
    return stand_in_load()


def stand_in_network(*given):
    HERE.clock += 100.0
    return Watched(HERE.weights)


def stand_in_rank_device():
    return torch.device("cpu")


def stand_in_assessment_print(*values):
    ask_grader("print", text=" ".join(map(str, values)))


def stand_in_same_on_all_ranks(model):
    ask_grader("same", weights=weights_of(model))
    return True


def marked_images(images, generator=None):
    """In the place of an augmentation."""
    images = images.clone()
    images[:, 2, 0, 0] = 1.0
    return images


def clock_now():
    return HERE.clock


class Run:
    """In the place of a run folder."""

    def append(self, record, seconds=None):
        names = ("epoch", "time", "images_per_sec", "train_loss", "train_accuracy", "val_loss", "val_accuracy", "lr")
        ask_grader("append", record=[float(getattr(record, name)) for name in names], twice=seconds is not None)

    def early_stop(self, epoch):
        ask_grader("append", record=[], twice=True)

    def save_model(self, model):
        layers = getattr(model, "layers", None)
        ask_grader("save_model", weights=None if layers is None else weights_of(layers))

    def restore(self, records, seconds):
        ask_grader(
            "restore", epochs=[int(record.epoch) for record in records], seconds=[float(each) for each in seconds]
        )


def observe_program(case, rank, outside, main):
    HERE.rank, HERE.size, HERE.outside = rank, case["ranks"], outside
    HERE.case, HERE.weights, HERE.clock, HERE.seed, HERE.passed = case, case["weights"][0], 50.0, None, []
    clock, clocks = types.ModuleType("time"), ("perf_counter", "monotonic", "time")
    clock.__dict__.update(vars(time))
    clock.__dict__.update(dict.fromkeys(clocks, clock_now))
    stand_ins = [
        stand_in_recipe, stand_in_load, stand_in_load_data, stand_in_network, stand_in_rank_device, stand_in_assessment_print,
        stand_in_same_on_all_ranks,
    ]  # fmt: skip
    imported = [(time, clock), (JOIN, pretended_join), *((getattr(time, name), clock_now) for name in clocks)]
    names = give_stand_ins(main, stand_ins, imported)
    names["AUGMENTATIONS"] = {"none": None, "crop": marked_images, "affine": None}
    args = argparse.Namespace(
        dataset="hidden", train_samples=0, test_samples=0, epochs=case["most"], batch_size=case["batch_size"],
        base_lr=case["base_lr"], momentum=case["momentum"], weight_decay=0.0, warmup_epochs=0.0,
        label_smoothing=case["smoothing"], augmentation="crop", width=1, sync_batchnorm=case["sync"],
        target_accuracy=case["target"], patience=2, seed=case["seed"], checkpoint="", output_dir="",
        hold_out=False,
    )  # fmt: skip
    try:
        with pretended_machine():
            if case["resumes"]:
                returned, ended = started_twice(main, args, Run(), rank, case["ranks"], outside, second_weights)
            else:
                returned, ended = started(main, args, Run(), rank, case["ranks"], outside)
            return facts_of(returned) | ended
    finally:
        HERE.outside = None


def second_weights():
    HERE.weights, HERE.passed, HERE.seed = HERE.case["weights"][1], [], None


def facts_of(returned):
    """What main returned, in plain data."""
    if not isinstance(returned, dict):
        return {"accuracies": None, "stopped": None, "time": None, "same": None}
    accuracies = returned.get("accuracies")
    return {
        "accuracies": [float(each) for each in accuracies] if isinstance(accuracies, list | tuple) else None,
        "stopped": returned.get("stopped"), "time": returned.get("time"), "same": returned.get("same"),
    }  # fmt: skip
