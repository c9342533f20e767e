"""Speed-up, efficiency, and the batch size at which throughput saturates."""

from collections.abc import Mapping

__all__ = ["efficiency", "saturation_knee", "speedup"]


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
    if 1 not in times:
        raise ValueError(f"speed-up needs the time on 1 rank; there are times for {sorted(times)}")
    if wrong := {ranks: seconds for ranks, seconds in times.items() if not seconds > 0}:
        raise ValueError(f"times must be positive seconds, got {wrong}")
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
