"""Errors between workers and the server."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

__all__ = ["ModelMismatchError", "ParameterServerError", "ServerLostError", "WorkerLostError"]


class ParameterServerError(RuntimeError):
    """A training with a parameter server cannot continue. The message is one line: which rank, why, what to do."""


class _RankLostError(ParameterServerError):
    role = ""

    def __init__(self, rank: int, reason: str) -> None:
        self.rank, self.reason = rank, reason
        super().__init__(
            f"{self.role} rank {rank} {reason}; look for the first error that it printed, and start again from the "
            "last checkpoint"
        )

    def __reduce__(self):
        return type(self), (self.rank, self.reason)


class WorkerLostError(_RankLostError):
    """A worker ended before it called `finish`, or has not answered within the time limit.

    Attributes
    ----------
    rank : int
        The worker's.
    reason : str
    """

    role = "worker"


class ServerLostError(_RankLostError):
    """The parameter server ended, or has not answered within the time limit. Attributes as for `WorkerLostError`."""

    role = "parameter server"


class ModelMismatchError(ParameterServerError):
    """A worker's model has other parameters than the server's."""


def model_mismatch(worker: int) -> ModelMismatchError:
    """The error that both sides raise."""
    return ModelMismatchError(
        f"worker rank {worker} has another model than the server, rank 0: the shapes of parameters and buffers must "
        "agree; make it by the same code, with the same options, on every rank"
    )


def wait_for(work: dist.Work, rank: int, timeout: float, lost: type[_RankLostError]) -> None:
    """Wait for a message from or to `rank`; raise `lost`, with Gloo's error in plain words, if it does not arrive."""
    try:
        work.wait(timedelta(seconds=timeout))
    except RuntimeError as error:
        if "timed out waiting" in str(error).lower():
            reason = f"has sent nothing for {timeout:g} s"
        else:
            reason = (
                "is gone: its connection closed "
                "(killed, out of memory, ended by an error of its own, or without finish())"
            )
        raise lost(rank, reason) from error
