"""A program's ranks: started on this machine unless `torchrun` has started them, joined, ended with a line on an error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.error import URLError

import torch
import torch.distributed as dist

from course_lib.distributed import (
    RankFailedError,
    default_backend,
    launch,
    leave_process_group,
    rank_device,
    threads_per_rank,
    world_size,
)
from course_lib.runs.records import TrainingDivergedError
from course_lib.training.checkpoint import CheckpointError
from course_lib.training.homework.resuming import RunMismatchError
from data_prep.errors import DataError

__all__ = ["KNOWN_ERRORS", "ProgramError", "exit_in_one_line", "joined_ranks", "on_ranks"]

_NO_DOWNLOAD = (
    "a file cannot be downloaded ({why}). Pre-trained weights: load them once where there is a network, such as the login "
    "node. Later runs read them from torch hub's cache, $TORCH_HOME or ~/.cache/torch"
)
GROUP_TIMEOUT = timedelta(minutes=10)  # how long a rank waits for another, which may have died with its node


class ProgramError(RuntimeError):
    """A rank's one-line error, or the loss of a rank."""


KNOWN_ERRORS = (
    TrainingDivergedError,
    DataError, CheckpointError, RunMismatchError, ProgramError, ValueError, OSError,
)  # fmt: skip


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


@contextlib.contextmanager
def joined_ranks() -> Iterator[tuple[int, int]]:
    """This rank and the number of ranks, with the process group up where `torchrun` has started several.

    Where the process group is up already it joins nothing: a program that trains twice keeps one process group.
    """
    if dist.is_initialized() or not dist.is_torchelastic_launched():
        yield (dist.get_rank(), world_size()) if dist.is_initialized() else (0, 1)
        return
    device = rank_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(default_backend(_local_ranks()), timeout=GROUP_TIMEOUT)
    torch.set_num_threads(threads_per_rank(_local_ranks()))
    try:
        yield dist.get_rank(), world_size()
    finally:
        leave_process_group()


def _local_ranks() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


@contextlib.contextmanager
def exit_in_one_line(name: str) -> Iterator[None]:
    """Turn an error that the caller can correct into one line on stderr and exit code 1."""
    try:
        yield
    except URLError as error:
        print(f"{name}.py: error: {_NO_DOWNLOAD.format(why=error.reason)}", file=sys.stderr, flush=True)
        sys.exit(1)
    except KNOWN_ERRORS as error:
        print(f"{name}.py: error: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    except KeyboardInterrupt:
        print(f"{name}.py: stopped; give the same command again to continue", file=sys.stderr, flush=True)
        sys.exit(130)
