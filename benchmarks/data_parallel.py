"""Steps of the three data-parallel wrappers and of DistributedDataParallel, on a model of many small tensors.

All four alternate within one launch, and each is set beside the naive one of the same round.

    python benchmarks/data_parallel.py [--ranks 2] [--layers 50] [--width 32] [--rounds 15]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from conditions import conditions, spread
from torch import nn

from course_lib.distributed import launch, threads_per_rank
from course_lib.distributed.data_parallel.bucketed import BucketedDataParallel
from course_lib.distributed.data_parallel.naive import NaiveDataParallel
from course_lib.distributed.data_parallel.overlapped import OverlappedDataParallel

WRAPPERS = {
    "naive": NaiveDataParallel,
    "overlapped": OverlappedDataParallel,
    "bucketed": BucketedDataParallel,
    "DDP": nn.parallel.DistributedDataParallel,
}


def measure(layers: int, width: int, batch_size: int, rounds: int, steps: int) -> dict[str, list[float]]:
    """Seconds a step of each wrapper, by round, the slowest rank's."""
    images, trainings, seconds = torch.randn(batch_size, width), {}, {name: [] for name in WRAPPERS}
    for name, wrap in WRAPPERS.items():
        torch.manual_seed(0)
        model = wrap(nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))))
        trainings[name] = model, torch.optim.SGD(model.parameters(), lr=1e-3)
    for number in range(rounds + 1):
        for name, (model, optimizer) in trainings.items():
            dist.barrier()
            start = time.perf_counter()
            for _ in range(steps):
                optimizer.zero_grad()
                model(images).square().mean().backward()
                if hasattr(model, "finish_gradient_synchronization"):
                    model.finish_gradient_synchronization()
                optimizer.step()
            slowest = torch.tensor((time.perf_counter() - start) / steps)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            if number:  # the first round warms up
                seconds[name].append(slowest.item())
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=50, help="linear layers, of two tensors each")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10, help="a round")
    parser.add_argument(
        "--threads", type=int, default=None, help="a rank; by default the cores divided between the ranks"
    )
    options = parser.parse_args()
    print(
        conditions(
            ranks=options.ranks,
            threads_per_rank=options.threads or threads_per_rank(options.ranks),
            tensors=2 * options.layers,
            parameters=f"{options.layers * options.width * (options.width + 1):,}",
            batch=options.batch_size,
            data="random",
        )
    )
    arguments = (options.layers, options.width, options.batch_size, options.rounds, options.steps)
    seconds = launch(measure, options.ranks, arguments, threads=options.threads)[0]
    for name, values in seconds.items():
        ratios = [naive / value for naive, value in zip(seconds["naive"], values, strict=True)]
        print(f"{name:10s} {1e3 * statistics.median(values):6.2f} ms a step; faster than naive × {spread(ratios, 2)}")


if __name__ == "__main__":
    main()
