"""HogWild at fixed total work: serial, locked and lock-free, on the sparse problem and on a small convolutional network.

Each round runs all of them; speed-ups are against the serial run of the same round. Starting the processes is not
timed. Lost updates are measured in a run of their own, because that takes time.

    python benchmarks/hogwild.py [--processes 2] [--rounds 5] [--samples 200000] [--dense-samples 5000]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from conditions import conditions, spread

from course_lib.data.batches import Batches, load
from course_lib.distributed.shared_memory.hogwild_sgd import SharedRun, train_hogwild, train_serial
from course_lib.distributed.shared_memory.lost_updates import count_lost_increments
from course_lib.models import SmallCNN
from course_lib.training.sparse_logistic import (
    SparseRun,
    evaluate_sparse,
    make_sparse_data,
    train_sparse,
    train_sparse_serial,
)

Runner = Callable[[int, bool, bool], tuple[SparseRun | SharedRun, float]]


def sparse_problem(options: argparse.Namespace, dense: bool) -> Runner:
    train, test = make_sparse_data(options.samples, options.features, words=options.words).split(options.samples // 10)
    settings = {"epochs": 1 if dense else options.epochs, "batch_size": options.batch_size, "dense": dense}

    def run(processes: int, locked: bool, count: bool) -> tuple[SparseRun | SharedRun, float]:
        if processes:
            result = train_sparse(train, processes, locked=locked, count_lost=count, **settings)
        else:
            result = train_sparse_serial(train, count_lost=count, **settings)
        return result, evaluate_sparse(result.weights, test)[1]

    return run


def network(options: argparse.Namespace) -> Runner:
    data = load(options.dataset, train_samples=options.dense_samples)
    normalise = {"mean": data.mean, "std": data.std}
    images, labels = next(iter(Batches(data.train, len(data.train), **normalise)))
    test_images, test_labels = next(iter(Batches(data.test, len(data.test), **normalise)))
    settings = {"epochs": options.dense_epochs, "batch_size": 16, "lr": 0.05, "decay": True}

    def run(processes: int, locked: bool, count: bool) -> tuple[SparseRun | SharedRun, float]:
        torch.manual_seed(0)
        model = SmallCNN((8, 16))
        if processes:
            result = train_hogwild(model, images, labels, processes, locked=locked, count_lost=count, **settings)
        else:
            result = train_serial(model, images, labels, count_lost=count, **settings)
        with torch.no_grad():
            accuracy = (model.eval()(test_images).argmax(1) == test_labels).double().mean().item()
        return result, accuracy

    return run


def report(name: str, run: Runner, processes: int, rounds: int) -> None:
    ways = {
        "serial": (0, False),
        "one process": (1, False),
        f"{processes} locked": (processes, True),
        f"{processes} lock-free": (processes, False),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    processor: dict[str, list[float]] = {way: [] for way in ways}
    accuracies: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, (count, locked) in ways.items():
            result, accuracy = run(count, locked, False)
            seconds[way].append(result.seconds)
            processor[way].append(result.processor_seconds)
            accuracies[way].append(accuracy)
    print(name)
    for way, (count, locked) in ways.items():
        speedups = [serial / took for serial, took in zip(seconds["serial"], seconds[way], strict=True)]
        work = [took / serial for serial, took in zip(processor["serial"], processor[way], strict=True)]
        print(
            f"  {way:12s} {statistics.median(seconds[way]):.2f} s; speed-up {spread(speedups, 2)}; processor time × "
            f"{statistics.median(work):.2f}; accuracy {statistics.median(accuracies[way]):.3f}; "
            f"updates lost {run(count, locked, True)[0].lost.fraction:.1e}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--features", type=int, default=2**18)
    parser.add_argument("--words", type=int, default=50_000, help="vocabulary: so many features at most are in use")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--dataset", default="fashion-mnist-small")
    parser.add_argument("--dense-samples", type=int, default=5000)
    parser.add_argument("--dense-epochs", type=int, default=3)
    options = parser.parse_args()
    print(conditions(processes=options.processes, threads_a_process=1, rounds=options.rounds))
    for locked in (False, True):
        counted = count_lost_increments(options.processes, 100_000, locked=locked)
        print(
            f"counter, {'locked' if locked else 'lock-free'}: {counted.lost:,} of {counted.expected:,} increments lost"
        )
    sparse = f"{options.samples:,} made-up samples, {options.words:,} words, {options.features:,} features"
    report(
        f"hashed logistic regression, sparse updates ({sparse})",
        sparse_problem(options, False),
        options.processes,
        options.rounds,
    )
    report(
        f"the same by dense updates, one epoch ({sparse})",
        sparse_problem(options, True),
        options.processes,
        options.rounds,
    )
    data = load(options.dataset, train_samples=options.dense_samples)
    report(f"convolutional network ({data})", network(options), options.processes, options.rounds)


if __name__ == "__main__":
    main()
