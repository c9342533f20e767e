"""What communication costs: messages and bytes of each way to sum over ranks.

A message of n bytes takes α + βn seconds: α is the latency, 1/β the bandwidth (Hockney 1994). A collective is a sequence
of such messages, of which some pass at the same time; its time is that of the longest chain (Thakur, Rabenseifner and
Gropp 2005). Arithmetic, and links that several messages share, are left out.
"""

import math
from collections.abc import Callable, Mapping

__all__ = ["ALL_REDUCE_COSTS", "bus_bandwidth"]


def _levels(ranks: int) -> int:
    return math.ceil(math.log2(ranks))


# Way to sum n bytes over N ranks and give everybody the sum → (n, N) → messages and bytes of the longest chain.
ALL_REDUCE_COSTS: Mapping[str, Callable[[float, int], tuple[float, float]]] = {
    # everybody's tensor through one rank's link, in and out
    "parameter server": lambda nbytes, ranks: (2 * (ranks - 1), 2 * (ranks - 1) * nbytes),
    # reduce and broadcast, whole tensors over ⌈log₂ N⌉ levels each
    "tree": lambda nbytes, ranks: (2 * _levels(ranks), 2 * _levels(ranks) * nbytes),
    # Rabenseifner's; exact for powers of two
    "recursive halving and doubling": lambda nbytes, ranks: (2 * _levels(ranks), 2 * (ranks - 1) / ranks * nbytes),
    # reduce-scatter and all-gather
    "ring": lambda nbytes, ranks: (2 * (ranks - 1), 2 * (ranks - 1) / ranks * nbytes),
}


def bus_bandwidth(nbytes: float, seconds: float, ranks: int) -> float:
    """Bytes per second that an all-reduce of `nbytes` bytes moves over each rank's link.

    2(N−1)/N · n / t, nccl-tests' definition: it can be compared with the link's own bandwidth for any number of ranks,
    which n/t cannot. 0 for one rank, where nothing is moved.
    """
    return 2 * (ranks - 1) / ranks * nbytes / seconds
