"""What communication costs: messages and bytes of each way to sum over ranks.

A message of n bytes takes α + βn seconds: α is the latency, 1/β the bandwidth (Hockney 1994). A collective is a sequence
of such messages, of which some pass at the same time; its time is that of the longest chain (Thakur, Rabenseifner and
Gropp 2005). Arithmetic, and links that several messages share, are left out.
"""

import math
from collections.abc import Callable, Mapping

__all__ = ["ALL_REDUCE_COSTS", "bus_bandwidth"]


def _one_by_one(nbytes: float, ranks: int) -> tuple[float, float]:
    return 2 * (ranks - 1), 2 * (ranks - 1) * nbytes


def _tree(nbytes: float, ranks: int) -> tuple[float, float]:
    rounds = 2 * math.ceil(math.log2(ranks))
    return rounds, rounds * nbytes


def _halving(nbytes: float, ranks: int) -> tuple[float, float]:
    return 2 * math.ceil(math.log2(ranks)), 2 * (ranks - 1) / ranks * nbytes


def _ring(nbytes: float, ranks: int) -> tuple[float, float]:
    return 2 * (ranks - 1), 2 * (ranks - 1) / ranks * nbytes


# Way to sum n bytes over N ranks and give everybody the sum → (n, N) → messages and bytes of the longest chain.
ALL_REDUCE_COSTS: Mapping[str, Callable[[float, int], tuple[float, float]]] = {
    "parameter server": _one_by_one,  # everybody's tensor through one rank's link, in and out
    "tree": _tree,  # reduce and broadcast, whole tensors over ⌈log₂ N⌉ levels each
    "recursive halving and doubling": _halving,  # Rabenseifner's; exact for powers of two
    "ring": _ring,  # reduce-scatter and all-gather
}


def bus_bandwidth(nbytes: float, seconds: float, ranks: int) -> float:
    """Bytes per second that an all-reduce of `nbytes` bytes moves over each rank's link.

    2(N−1)/N · n / t, nccl-tests' definition: it can be compared with the link's own bandwidth for any number of ranks,
    which n/t cannot. 0 for one rank, where nothing is moved.
    """
    return 2 * (ranks - 1) / ranks * nbytes / seconds
