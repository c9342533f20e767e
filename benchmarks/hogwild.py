"""HogWild at fixed total work: serial, locked and lock-free, on the sparse problem and on a small convolutional network.

Each round runs all of them; speed-ups are against the serial run of the same round. Starting the processes is not
timed. Lost updates are measured in a run of their own, because that takes time.

    python benchmarks/hogwild.py [--processes 2] [--rounds 5] [--samples 200000] [--dense-samples 5000]
"""

import argparse
import statistics
from collections.abc import Callable

import torch
from harness import alternate, conditions, parse_options, ratios, summary

from course_lib.data.batches import Batches, load
from course_lib.distributed.shared_memory.hogwild_sgd import SharedRun, train_hogwild, train_serial
from course_lib.models import SmallCNN
from course_lib.training.sparse_logistic import (
    SparseRun,
    evaluate_sparse,
    make_sparse_data,
    train_sparse,
    train_sparse_serial,
)

Runner = Callable[[int, bool, bool], tuple[SparseRun | SharedRun, float]]
"""``run(processes, locked, count_lost)`` → the run and its accuracy; 0 processes: serial."""


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
    candidates = {
        "serial": lambda count=False: run(0, False, count),
        "one process": lambda count=False: run(1, False, count),
        f"{processes} locked": lambda count=False: run(processes, True, count),
        f"{processes} lock-free": lambda count=False: run(processes, False, count),
    }
    results = alternate(candidates, rounds)
    seconds, processor = (
        {key: [getattr(result, clock) for result, _ in values] for key, values in results.items()}
        for clock in ("seconds", "processor_seconds")
    )
    print(name)
    for key, values in results.items():
        print(
            f"  {key:12s} {statistics.median(seconds[key]):.2f} s; "
            f"speed-up {summary(ratios(seconds['serial'], seconds[key]), 2)}; "
            f"processor time × {statistics.median(ratios(processor[key], processor['serial'])):.2f}; "
            f"accuracy {statistics.median(accuracy for _, accuracy in values):.3f}; "
            f"updates lost {candidates[key](True)[0].lost.fraction:.1e}",
            flush=True,
        )


def main() -> None:
    options = parse_options(
        __doc__, processes=2, rounds=5, samples=200_000, features=2**18,
        words=(50_000, "vocabulary: so many features at most are in use"), epochs=5, batch_size=128,
        dataset="fashion-mnist-small", dense_samples=5000, dense_epochs=3,
    )  # fmt: skip
    processes, rounds = options.processes, options.rounds
    print(conditions(processes=processes, threads_per_process=1, rounds=rounds))
    sparse = f"{options.samples:,} made-up samples, {options.words:,} words, {options.features:,} features"
    report(f"hashed logistic regression, sparse updates ({sparse})", sparse_problem(options, False), processes, rounds)
    report(f"the same by dense updates, one epoch ({sparse})", sparse_problem(options, True), processes, rounds)
    data = load(options.dataset, train_samples=options.dense_samples)
    report(f"convolutional network ({data})", network(options), processes, rounds)


if __name__ == "__main__":
    main()
