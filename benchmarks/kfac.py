"""K-FAC against SGD with momentum on FashionMNIST: epochs and seconds to an accuracy, and the cost of a step.

A residual network of three basic blocks (8, 16, 32 channels; a stride of 2 in the stem: maps of 14×14, 7×7 and 4×4),
batches of 512 of 6,000 images, which is where K-FAC is at home: few steps, little noise. Warm-up over half an epoch,
then linear decay. Both have the same grid, learning rates × schedule lengths × seeds, and each is given the cell that
reaches the accuracy in the fewest epochs on average over the seeds. Momentum, weight decay, damping and clip are fixed.

    python benchmarks/kfac.py epochs [--seeds 3] [--minutes 3]     runs what the output folder lacks, then the table
    python benchmarks/kfac.py table                                the table of what there is
    python benchmarks/kfac.py cost [--rounds 3] [--ranks 1]        a step at update intervals 1, 10, 100

Target: at most 0.75 of SGD's epochs. The runs are JSON files, one each, in --output; the same command continues.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import alternate, conditions, parse_options, ratios, summary
from torch import nn

from course_lib.data.batches import Batches, ImageData, load
from course_lib.distributed import launch, trace_messages
from course_lib.models.residual_blocks import BasicBlock
from course_lib.optim import KFAC
from course_lib.system.atomic import write_atomically
from course_lib.training.loop import evaluate, train_epoch, train_step, warmup_then_decay

LEARNING_RATES = [0.05, 0.1, 0.2, 0.4]
LENGTHS = [4, 8]  # epochs of the schedule
SETTINGS = {"damping": 0.03, "factor_update_steps": 2, "inverse_update_steps": 6, "kl_clip": 0.01}
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4


def small_resnet(channels: int, width: int = 8) -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        BasicBlock(width, width),
        BasicBlock(width, 2 * width, stride=2),
        BasicBlock(2 * width, 4 * width, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.5  # an epoch has few steps: with 0.1 the first tests would be of old statistics
    return model


def sgd(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True)


def preconditioned(kfac: KFAC | None) -> Callable[..., Any]:
    """`train_step`, with K-FAC between backward and the optimiser's step."""
    if kfac is None:
        return train_step

    def step(model, images, labels, optimizer, loss_fn):
        logits = model(images)
        loss = loss_fn(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        kfac.step()
        optimizer.step()
        return loss.detach(), logits.detach()

    return step


def run(data: ImageData, method: str, lr: float, length: int, seed: int, batch: int) -> dict[str, Any]:
    """One training: accuracy after each epoch, and training seconds so far, wall clock and processor."""
    torch.manual_seed(seed)
    model, loss_fn = small_resnet(data.channels), nn.CrossEntropyLoss()
    train = Batches(data.train, batch, mean=data.mean, std=data.std, shuffle=True, seed=seed)
    test = Batches(data.test, 1000, mean=data.mean, std=data.std)
    optimizer = sgd(model, lr)
    schedule = warmup_then_decay(optimizer, length * len(train), len(train) // 2)
    kfac = KFAC(model, **SETTINGS, lr=lambda: optimizer.param_groups[0]["lr"]) if method == "K-FAC" else None
    wall = processor = 0.0
    epochs = []
    for epoch in range(length):
        train.set_epoch(epoch)
        starts = time.perf_counter(), time.process_time()
        step = preconditioned(kfac)
        loss, _, images = train_epoch(model, train, optimizer, loss_fn, scheduler=schedule, step=step).tolist()
        wall, processor = wall + time.perf_counter() - starts[0], processor + time.process_time() - starts[1]
        _, correct, tested = evaluate(model, test, loss_fn)
        epochs.append({"accuracy": correct / tested, "train_loss": loss / images, "wall": wall, "processor": processor})
    return {"method": method, "lr": lr, "length": length, "seed": seed, "batch": batch, "epochs": epochs}


def cells(options: argparse.Namespace) -> Iterator[tuple[str, float, int, int]]:
    """Methods, learning rates, lengths and seeds; whole seeds first, so that what is there early is comparable."""
    for seed, length, index, method in itertools.product(
        range(options.seeds), options.lengths, range(len(options.lrs_sgd)), ("SGD", "K-FAC")
    ):
        yield method, (options.lrs_sgd if method == "SGD" else options.lrs_kfac)[index], length, seed


def file_of(options: argparse.Namespace, method: str, lr: float, length: int, seed: int) -> Path:
    return options.output / f"{method}-lr{lr:g}-length{length}-seed{seed}.json"


def measure_epochs(options: argparse.Namespace) -> None:
    data = load("fashion-mnist", train_samples=options.train_samples, test_samples=options.test_samples)
    options.output.mkdir(parents=True, exist_ok=True)
    facts = {"data": data.describe(), "kfac": SETTINGS, "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY}
    print(conditions(ranks=1, batch=options.batch, data=data, kfac=SETTINGS))
    end = time.monotonic() + 60 * options.minutes
    shard, shards = options.share
    for number, cell in enumerate(cells(options)):
        file = file_of(options, *cell)
        if (number + number // shards) % shards != shard or file.exists():  # a K-FAC run costs more: mix them
            continue
        if time.monotonic() > end:
            print("time is up; the same command continues")
            break
        result = run(data, *cell, options.batch)
        write_atomically(file, json.dumps(result | facts | {"conditions": conditions(ranks=1)}))
        last = result["epochs"][-1]
        print(
            f"{file.stem}: accuracy {last['accuracy']:.4f}, {last['wall']:.1f} s, processor {last['processor']:.1f} s",
            flush=True,
        )
    print_table(options)


def print_table(options: argparse.Namespace) -> None:
    """The best cell of each method for each target, its epochs and seconds by seed, and the ratios."""
    runs: dict[tuple[str, float, int], list[dict[str, Any]]] = {}
    for cell in cells(options):
        if (file := file_of(options, *cell)).exists():
            runs.setdefault(cell[:3], []).append(json.loads(file.read_text()))
    complete = {cell: group for cell, group in runs.items() if len(group) == options.seeds}
    print(f"{len(complete)} of {2 * len(options.lrs_sgd) * len(options.lengths)} cells have all {options.seeds} seeds")
    for target in options.targets:
        best = {}
        for cell, group in complete.items():
            reached = [first_reached(run, target) for run in group]
            if None in reached:
                continue
            mean = statistics.fmean(epoch for epoch, _, _ in reached)
            if cell[0] not in best or mean < best[cell[0]][0]:
                best[cell[0]] = (mean, cell, reached)
        for method, (mean, (_, lr, length), reached) in sorted(best.items()):
            epochs, wall, processor = zip(*reached, strict=True)
            print(
                f"{target:.1%} {method}: lr {lr:g}, schedule of {length}: {mean:.2f} epochs {list(epochs)}; "
                f"{summary(wall, 1)} s of training, processor {summary(processor, 1)} s"
            )
        if len(best) == 2:
            kfac, plain = (best[name] for name in ("K-FAC", "SGD"))
            seconds = [statistics.fmean(r[2] for r in best_cell[2]) for best_cell in (kfac, plain)]
            print(
                f"{target:.1%} K-FAC / SGD: {kfac[0] / plain[0]:.2f} in epochs, "
                f"{seconds[0] / seconds[1]:.2f} in processor seconds"
            )
        else:
            print(f"{target:.1%}: not with every seed by {' and '.join(sorted({'SGD', 'K-FAC'} - set(best)))}")


def first_reached(run: dict[str, Any], target: float) -> tuple[int, float, float] | None:
    """Epoch, wall-clock and processor seconds of training when the accuracy was first there."""
    for number, epoch in enumerate(run["epochs"], start=1):
        if epoch["accuracy"] >= target:
            return number, epoch["wall"], epoch["processor"]
    return None


INTERVALS = (1, 10, 100)


def step_costs(rounds: int, batch: int, distribution: str) -> dict[str, Any]:
    """On each rank: milliseconds a step, wall clock and processor, of SGD and of K-FAC at each update interval."""
    ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    torch.manual_seed(0)
    images, labels = torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))
    steps = {"SGD": 10, **{f"interval {interval}": max(10, interval) for interval in INTERVALS}}
    loss_fn, trainings = nn.CrossEntropyLoss(), {}

    def milliseconds(name: str) -> tuple[float, float]:
        model, optimizer, _, step = trainings[name]
        starts = time.perf_counter(), time.process_time()
        for _ in range(steps[name]):
            step(model, images, labels, optimizer, loss_fn)
        ends = time.perf_counter(), time.process_time()
        return tuple((end - start) / steps[name] * 1e3 for start, end in zip(starts, ends, strict=True))

    for name, interval in zip(steps, (None, *INTERVALS), strict=True):
        model = small_resnet(1)
        model = nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
        optimizer, kfac = sgd(model, 0.01), None
        if interval:
            kfac = KFAC(model, 0.03, 0.95, interval, interval, distribution=distribution)
        trainings[name] = (model, optimizer, kfac, preconditioned(kfac))
        train_step(model, images, labels, optimizer, loss_fn)  # what only the first pays
        if kfac:
            for layer in kfac.layers.values():
                layer.forget_batch()
    times = alternate({name: partial(milliseconds, name) for name in steps}, rounds)
    costs: dict[str, Any] = {
        name: dict(zip(("wall", "processor"), map(list, zip(*pairs, strict=True)), strict=True))
        for name, pairs in times.items()
    }
    if ranks > 1:
        model, optimizer, kfac, step = trainings["interval 1"]
        with trace_messages() as trace:
            step(model, images, labels, optimizer, loss_fn)
        costs["bytes of a full update"] = sum(message.nbytes for message in trace.collectives)
        costs["bytes by the formula"] = sum(kfac.message_bytes().values())
    return costs


def measure_costs(options: argparse.Namespace) -> None:
    arguments = (options.rounds, options.batch, options.distribution)
    print(conditions(ranks=options.ranks, rounds=arguments[0], batch=arguments[1], distribution=arguments[2]))
    alone = options.ranks == 1
    costs = step_costs(*arguments) if alone else launch(step_costs, options.ranks, arguments, timeout=600)[0]
    for name, times in costs.items():
        if not isinstance(times, dict):
            print(f"{name}: {times:,}")
            continue
        print(
            f"{name}: {summary(times['wall'], 1)} ms per step, processor {summary(times['processor'], 1)} ms; "
            f"processor / SGD's {summary(ratios(times['processor'], costs['SGD']['processor']), 2)}"
        )
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        write_atomically(options.output / f"cost-ranks{options.ranks}.json", json.dumps(costs))


def main() -> None:
    options = parse_options(
        __doc__, "epochs", "table", "cost", output=Path("runs/kfac"), threads=1,
        batch=(512, "images per step; of `cost`, a rank's"), train_samples=6000, test_samples=(5000, "0: all 10,000"),
        seeds=3, lrs_sgd=LEARNING_RATES, lrs_kfac=LEARNING_RATES, lengths=LENGTHS, targets=[0.78, 0.8, 0.82, 0.83],
        minutes=(1e6, "start no run after that long"), share=([0, 1], "I N: every N-th run from I on"),
        rounds=3, ranks=1, distribution=("comm-opt", "or mem-opt"),
    )  # fmt: skip
    if len(options.lrs_sgd) != len(options.lrs_kfac):
        raise SystemExit("error: --lrs-sgd and --lrs-kfac must be as many: both are searched equally")
    torch.set_num_threads(options.threads)
    {"epochs": measure_epochs, "table": print_table, "cost": measure_costs}[options.part](options)


if __name__ == "__main__":
    main()
