"""Throughput, speed-up, efficiency, and the batch size at which throughput saturates."""

import statistics
from collections.abc import Mapping, Sequence

__all__ = ["efficiency", "saturation_knee", "speedup", "steady_throughput"]


def steady_throughput(images: int, epoch_seconds: Sequence[Sequence[float]]) -> float:
    """Images a second of all ranks together, once a training runs steadily.

    An epoch lasts as long as its slowest rank's. The first is left out ("it has to create structures in memory and
    initialize them", the UPC article, section 4.3); of the others the median counts.

    Parameters
    ----------
    images : int
        Of an epoch, over all ranks together.
    epoch_seconds : sequence of sequences of float
        For each rank the seconds of its epochs.

    Raises
    ------
    ValueError
        No rank, fewer than two epochs, or not as many on every rank.
    """
    counts = {len(seconds) for seconds in epoch_seconds}
    if len(counts) != 1 or min(counts) < 2:
        raise ValueError(f"two epochs at least, as many on every rank, are needed; ranks have {sorted(counts)} epochs")
    slowest = [max(epoch) for epoch in zip(*epoch_seconds, strict=True)]
    return images / statistics.median(slowest[1:])


def speedup(times: Mapping[int, float]) -> dict[int, float]:
    """Strong scaling: S(N) = T(1) / T(N) for the same work (the UPC article, section 1.1).

    Parameters
    ----------
    times : mapping of ranks to seconds
        Must hold 1 rank.

    Raises
    ------
    ValueError
        Without a time for 1 rank, or with one that is not positive.
    """
    _check(times)
    return {ranks: times[1] / seconds for ranks, seconds in sorted(times.items())}


def efficiency(times: Mapping[int, float]) -> dict[int, float]:
    """Speed-up per rank, E(N) = S(N) / N; 1 is ideal. Raises as `speedup` does."""
    return {ranks: gain / ranks for ranks, gain in speedup(times).items()}


def saturation_knee(throughput: Mapping[int, float], share: float = 0.9) -> int:
    """The smallest batch size whose throughput reaches `share` of the best measured.

    Parameters
    ----------
    throughput : mapping of batch size to images per second
    share : float in 0…1
    """
    if not throughput:
        raise ValueError("no measurements")
    wanted = share * max(throughput.values())
    return min(size for size, images_per_sec in throughput.items() if images_per_sec >= wanted)


def _check(times: Mapping[int, float]) -> None:
    if 1 not in times:
        raise ValueError(f"speed-up needs the time on 1 rank; there are times for {sorted(times)}")
    wrong = {ranks: seconds for ranks, seconds in times.items() if not seconds > 0}
    if wrong:
        raise ValueError(f"times must be positive seconds, got {wrong}")
