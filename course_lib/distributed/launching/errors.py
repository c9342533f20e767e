"""The errors of a launch."""

from __future__ import annotations

__all__ = ["LaunchStoppedError", "LaunchTimeoutError", "RankFailedError"]


class RankFailedError(RuntimeError):
    """A rank raised, exited or was killed; the launch ended the other ranks.

    Attributes
    ----------
    rank : int
        The rank that failed first.
    reason : str
        One line: the exception, the exit code or the signal.
    rank_traceback : str
        That rank's traceback; empty if there is none (``os._exit``, a signal).
    """

    def __init__(self, rank: int, world_size: int, reason: str, rank_traceback: str = "") -> None:
        self.rank = rank
        self.world_size = world_size
        self.reason = reason
        self.rank_traceback = rank_traceback
        text = f"rank {rank} of {world_size} failed: {reason}"
        if rank_traceback:
            text += f"\n\nOn rank {rank}:\n{rank_traceback.rstrip()}"
        super().__init__(text)

    def __reduce__(self):
        return type(self), (self.rank, self.world_size, self.reason, self.rank_traceback)


class LaunchTimeoutError(TimeoutError):
    """The ranks did not finish in time; all were ended.

    Attributes
    ----------
    timeout : float
        Seconds.
    positions : dict of int to str
        Rank → its stack, innermost call first.
    """

    def __init__(self, timeout: float, positions: dict[int, str]) -> None:
        self.timeout = timeout
        self.positions = positions
        lines = [f"the ranks did not finish within {timeout:g} s. Where each rank was (innermost call first):"]
        for rank, position in sorted(positions.items()):
            lines.append(f"rank {rank}:\n{position}")
        lines.append("A hang is usually a collective that not every rank calls, or a message nobody receives.")
        super().__init__("\n".join(lines))

    def __reduce__(self):
        return type(self), (self.timeout, self.positions)


class LaunchStoppedError(RuntimeError):
    """The launch was stopped from outside (`launch`'s `stop`); all ranks were ended."""
