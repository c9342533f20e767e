"""Time and bytes of the all-reduces built from messages, against the backend's own, on the same tensor.

The algorithms alternate within one run, and the ratio to the backend is taken round by round. Bytes are those that the
busiest rank sends; 2(N−1)/N of the tensor is the least that is possible. Target: ring / backend at most 2.5 at 16 MiB on
2 ranks.

    python benchmarks/collectives.py [--ranks 2] [--mib 0.0625 1 16 64] [--rounds 15]
"""

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from harness import alternate, conditions, parse_options, ratios, summary

from course_lib.distributed import launch, ring_all_reduce, trace_messages, whole_tensor_all_reduce
from course_lib.metrics.communication_cost import bus_bandwidth

BACKEND = "backend's all_reduce"
ALGORITHMS: dict[str, Callable[[torch.Tensor], None]] = {
    BACKEND: dist.all_reduce,
    "ring_all_reduce": ring_all_reduce,
    "ring_all_reduce, check=False": partial(ring_all_reduce, check=False),
    "whole_tensor_all_reduce": partial(whole_tensor_all_reduce, check=False),
}


def timed(algorithm: Callable[[torch.Tensor], None], tensor: torch.Tensor) -> float:
    dist.barrier()
    start = time.perf_counter()
    algorithm(tensor)
    return time.perf_counter() - start


def measure(nbytes: int, rounds: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Seconds of each round, and bytes that this rank sends, by algorithm."""
    tensor = torch.zeros(nbytes // 4)
    sent = {}
    for name, algorithm in ALGORITHMS.items():
        with trace_messages() as trace:
            algorithm(tensor)
        sent[name] = trace.bytes_sent
    return alternate({name: partial(timed, algorithm, tensor) for name, algorithm in ALGORITHMS.items()}, rounds), sent


def main() -> None:
    options = parse_options(__doc__, ranks=2, mib=[0.0625, 1.0, 16.0, 64.0], rounds=15)
    backend = "gloo"  # the tensors are on the CPU
    print(conditions(ranks=options.ranks, backend=backend, rounds=options.rounds, dtype="float32"))
    for mib in options.mib:
        nbytes = int(mib * 2**20)
        results = launch(measure, options.ranks, (nbytes, options.rounds), backend=backend)
        # The slowest rank's time is the collective's.
        seconds = {
            name: [max(turn) for turn in zip(*(s[name] for s, _ in results), strict=True)] for name in ALGORITHMS
        }
        least = 2 * (options.ranks - 1) / options.ranks * nbytes
        print(f"{mib:g} MiB; the least that a rank can send: {least / 2**20:.3f} MiB")
        for name, times in seconds.items():
            busiest = max(sent[name] for _, sent in results)
            moved = f"{busiest / 2**20:.3f} MiB sent, " if busiest else ""
            print(
                f"  {name}: {summary([1000 * t for t in times])} ms, "
                f"{bus_bandwidth(nbytes, min(times), options.ranks) / 1e9:.2f} GB/s at best, "
                f"{moved}time / backend's: {summary(ratios(times, seconds[BACKEND]), 2)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
