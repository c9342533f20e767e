"""Time and bytes of the all-reduces built from messages, against the backend's own, on the same tensor.

The ways alternate within one run, and the ratio to the backend is taken round by round. Bytes are those that the busiest
rank sends; 2(N−1)/N of the tensor is the least that is possible. Target: ring / backend at most 2.5 at 16 MiB on 2 ranks.

    python benchmarks/collectives.py [--ranks 2] [--mib 0.0625 1 16 64] [--rounds 15]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from conditions import conditions, spread

from course_lib.distributed import launch, ring_all_reduce, trace_messages, whole_tensor_all_reduce
from course_lib.metrics.communication_cost import bus_bandwidth

WAYS: dict[str, Callable[[torch.Tensor], None]] = {
    "backend's all_reduce": dist.all_reduce,
    "ring_all_reduce": ring_all_reduce,
    "ring_all_reduce, check=False": lambda tensor: ring_all_reduce(tensor, check=False),
    "whole_tensor_all_reduce": lambda tensor: whole_tensor_all_reduce(tensor, check=False),
}


def measure(nbytes: int, rounds: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Seconds of each round, and bytes that this rank sends, by way."""
    tensor = torch.zeros(nbytes // 4)
    sent = {}
    for name, way in WAYS.items():
        with trace_messages() as trace:
            way(tensor)
        sent[name] = trace.bytes_sent
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for turn in range(rounds):
        for name in list(WAYS)[:: 1 if turn % 2 == 0 else -1]:
            dist.barrier()
            start = time.perf_counter()
            WAYS[name](tensor)
            seconds[name].append(time.perf_counter() - start)
    return seconds, sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mib", type=float, nargs="+", default=[0.0625, 1, 16, 64])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    backend = "gloo"  # the tensors are on the CPU
    print(conditions(ranks=options.ranks, backend=backend, rounds=options.rounds, dtype="float32"))
    for mib in options.mib:
        nbytes = int(mib * 2**20)
        results = launch(measure, options.ranks, (nbytes, options.rounds), backend=backend)
        # The slowest rank's time is the collective's.
        seconds = {name: [max(turn) for turn in zip(*(s[name] for s, _ in results), strict=True)] for name in WAYS}
        least = 2 * (options.ranks - 1) / options.ranks * nbytes
        print(f"{mib:g} MiB; the least that a rank can send: {least / 2**20:.3f} MiB")
        theirs = seconds["backend's all_reduce"]
        for name, times in seconds.items():
            busiest = max(sent[name] for _, sent in results)
            ratio = [ours / reference for ours, reference in zip(times, theirs, strict=True)]
            bandwidth = bus_bandwidth(nbytes, min(times), options.ranks)
            moved = f"{busiest / 2**20:.3f} MiB sent, " if busiest else ""
            print(
                f"  {name}: {spread([1000 * t for t in times])} ms, {bandwidth / 1e9:.2f} GB/s at best, "
                f"{moved}time / backend's: {spread(ratio, 2)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
