"""What communication costs: the α–β model of a link, and what it predicts.

A message of n bytes takes α + βn seconds: α is the latency, 1/β the bandwidth (Hockney 1994). A collective is a sequence
of such messages, of which some pass at the same time; its time is that of the longest chain (Thakur, Rabenseifner and
Gropp 2005). Arithmetic, and links that several messages share, are left out.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["ALL_REDUCE_COSTS", "Link", "all_reduce_seconds", "bus_bandwidth"]


@dataclass(frozen=True)
class Link:
    """A link between two ranks.

    Attributes
    ----------
    alpha : float
        Latency of a message, seconds.
    beta : float
        Seconds for each byte; `bandwidth` is its reciprocal.
    covariance : tuple of three floats
        Variance of `alpha`, variance of `beta`, and their covariance, from the fit; zeros where they are given.
    """

    alpha: float
    beta: float
    covariance: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return 1 / self.beta if self.beta else math.inf

    @property
    def alpha_error(self) -> float:
        """Standard error of `alpha`, seconds."""
        return math.sqrt(self.covariance[0])

    @property
    def beta_error(self) -> float:
        """Standard error of `beta`, seconds per byte."""
        return math.sqrt(self.covariance[1])

    def seconds(self, messages: float, nbytes: float) -> float:
        """Time of a chain of `messages` messages with `nbytes` bytes in all."""
        return messages * self.alpha + nbytes * self.beta

    def seconds_error(self, messages: float, nbytes: float) -> float:
        """Standard error of `seconds`, from the fit alone: that the model is wrong is not in it."""
        alpha, beta, both = self.covariance
        return math.sqrt(max(0.0, messages**2 * alpha + nbytes**2 * beta + 2 * messages * nbytes * both))


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


def all_reduce_seconds(link: Link, algorithm: str, nbytes: float, ranks: int) -> tuple[float, float]:
    """Predicted time of an all-reduce, and its standard error, in seconds.

    Parameters
    ----------
    algorithm : str
        A key of `ALL_REDUCE_COSTS`.
    nbytes : float
        Of the tensor.
    ranks : int

    Raises
    ------
    ValueError
        No such algorithm, or fewer than one rank.
    """
    if algorithm not in ALL_REDUCE_COSTS:
        raise ValueError(f"no algorithm {algorithm!r}; there are {', '.join(ALL_REDUCE_COSTS)}")
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, got {ranks}")
    chain = ALL_REDUCE_COSTS[algorithm](nbytes, ranks)
    return link.seconds(*chain), link.seconds_error(*chain)


def bus_bandwidth(nbytes: float, seconds: float, ranks: int) -> float:
    """Bytes per second that an all-reduce of `nbytes` bytes moves over each rank's link.

    2(N−1)/N · n / t, nccl-tests' definition: it can be compared with the link's own bandwidth for any number of ranks,
    which n/t cannot. 0 for one rank, where nothing is moved.
    """
    return 2 * (ranks - 1) / ranks * nbytes / seconds
