"""Steps of the three data-parallel wrappers and of DistributedDataParallel, on a model of many small tensors.

All four alternate within one launch, and each is set beside the naive one of the same round.

    python benchmarks/data_parallel.py [--ranks 2] [--layers 50] [--width 32] [--rounds 15]
"""

import statistics
import time
from functools import partial

import torch
import torch.distributed as dist
from harness import alternate, conditions, parse_options, ratios, summary
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


def step_seconds(model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, steps: int) -> float:
    """Seconds per step, the slowest rank's."""
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
    return slowest.item()


def measure(layers: int, width: int, batch_size: int, rounds: int, steps: int) -> dict[str, list[float]]:
    """Seconds per step of each wrapper, by round."""
    images, candidates = torch.randn(batch_size, width), {}
    for name, wrap in WRAPPERS.items():
        torch.manual_seed(0)
        model = wrap(nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        candidates[name] = partial(step_seconds, model, optimizer, images, steps)
    alternate(candidates, 1)  # a warm-up
    return alternate(candidates, rounds)


def main() -> None:
    options = parse_options(
        __doc__, ranks=2, layers=(50, "linear layers, of two tensors each"), width=32, batch_size=32, rounds=15,
        steps=(10, "per round"), threads=(int, "per rank; by default the cores divided between the ranks"),
    )  # fmt: skip
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
        faster = summary(ratios(seconds["naive"], values), 2)
        print(f"{name:10s} {1e3 * statistics.median(values):6.2f} ms per step; faster than naive × {faster}")


if __name__ == "__main__":
    main()
