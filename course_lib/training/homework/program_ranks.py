"""Start a program's ranks on this machine, unless `torchrun` has started them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from course_lib.distributed import RankFailedError, launch

__all__ = ["ProgramError", "on_ranks"]


class ProgramError(RuntimeError):
    """A rank's one-line error, or the loss of a rank."""


def on_ranks(ranks: int, train: Callable[..., Any], *args: Any, known: tuple[type[Exception], ...] = ()) -> None:
    """Call ``train(*args)`` on each rank: on `ranks` of this machine, or on those that `torchrun` has started.

    Parameters
    ----------
    known : tuple of exception types
        Errors whose message is enough; they become a `ProgramError`.

    Raises
    ------
    ProgramError
        A rank raised one of `known`, or was killed.
    RankFailedError
        A rank raised another error; its traceback is in the message.
    """
    if dist.is_torchelastic_launched():
        train(*args)
        return
    try:
        launch(_in_one_line, ranks, (train, args, known), timeout=None)
    except RankFailedError as error:
        before, _, message = error.reason.partition(f"{ProgramError.__name__}: ")
        if message and before.endswith("."):
            raise ProgramError(message) from None
        if error.rank_traceback:
            raise
        raise ProgramError(
            f"rank {error.rank} of {ranks}: {error.reason}; give the same command again to continue"
        ) from None


def _in_one_line(train: Callable[..., Any], args: tuple[Any, ...], known: tuple[type[Exception], ...]) -> None:
    try:
        train(*args)
    except known as error:
        raise ProgramError(str(error)) from None
