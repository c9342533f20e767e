"""What can go wrong between workers and servers, as types."""

from __future__ import annotations

__all__ = ["ModelMismatchError", "ParameterServerError", "ServerLostError", "WorkerLostError"]


class ParameterServerError(RuntimeError):
    """A training with a parameter server that cannot go on; one line: which rank, why, what to do."""


class WorkerLostError(ParameterServerError):
    """A worker is gone before it has finished, or has not answered for too long.

    Attributes
    ----------
    rank : int
        The worker's.
    reason : str
    """

    def __init__(self, rank: int, reason: str) -> None:
        self.rank, self.reason = rank, reason
        super().__init__(
            f"worker rank {rank} {reason}; look for the first error that it printed, and start again from the last checkpoint"
        )

    def __reduce__(self):
        return type(self), (self.rank, self.reason)


class ServerLostError(ParameterServerError):
    """A parameter server is gone, or has not answered for too long.

    Attributes
    ----------
    rank : int
        The server's.
    reason : str
    """

    def __init__(self, rank: int, reason: str) -> None:
        self.rank, self.reason = rank, reason
        super().__init__(
            f"parameter server rank {rank} {reason}; look for the first error that it printed, and start again from the "
            "last checkpoint"
        )

    def __reduce__(self):
        return type(self), (self.rank, self.reason)


class ModelMismatchError(ParameterServerError):
    """A worker's model has other parameters than the server's."""


def why_lost(error: RuntimeError, timeout: float) -> str:
    """Gloo's message in a reader's words."""
    if "timed out waiting" in str(error).lower():
        return f"has not been heard of for {timeout:g} s"
    return "is gone: its connection closed (killed, out of memory, ended by an error of its own, or without finish())"
