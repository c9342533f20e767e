"""Taking turns on one machine, so that other executions cannot make a student exceed a time limit.

An execution runs at the same time as those of other workers. Where it exceeds a time limit and others may be the cause
(`Exceeded.disturbed`), it runs once more, alone. Only the second result is then a verdict. Workers, also of several
batches of one account, share two locked files. The kernel releases a lock when its process ends, for any reason.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from autograde.sandbox.limits import Exceeded, SandboxError

__all__ = ["alone", "beside_others", "in_turn", "one_of"]

T = TypeVar("T")
GLANCE = 0.2  # seconds between two looks at what is free


def in_turn(attempt: Callable[[], T]) -> T:
    """Run an attempt at the same time as others. If it exceeds a time limit because of them, run it once more alone.

    Raises `Exceeded` as the attempt does; where others may be the cause, only if the attempt was alone.
    """
    try:
        with beside_others():
            return attempt()
    except Exceeded as error:
        if not error.disturbed:
            raise
    with alone():
        return attempt()


@contextlib.contextmanager
def beside_others() -> Iterator[None]:
    """Execute at the same time as others. Waits for an execution that runs alone or waits to."""
    with _locked("queue", fcntl.LOCK_EX):
        running = _open("running")
        fcntl.flock(running, fcntl.LOCK_SH)
    try:
        yield
    finally:
        os.close(running)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Execute alone; later ones wait."""
    with _locked("queue", fcntl.LOCK_EX), _locked("running", fcntl.LOCK_EX):
        yield


@contextlib.contextmanager
def one_of(names: Iterable[str]) -> Iterator[str]:
    """Have one of several things, which nobody else has meanwhile. Waits until one is free.

    Parameters
    ----------
    names : iterable of str
        Names of files, in the order in which to try them.

    Yields the name.
    """
    files = {name: _open(name) for name in names}
    try:
        while (name := next((name for name, file in files.items() if _taken(file)), None)) is None:
            time.sleep(GLANCE)
        yield name
    finally:
        for file in files.values():
            os.close(file)


def _taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _locked(name: str, kind: int) -> Iterator[None]:
    descriptor = _open(name)
    try:
        fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)


def _open(name: str) -> int:
    return os.open(_folder() / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _folder() -> Path:
    """A folder of this account and machine. Anybody may have made one of that name in ``/tmp``: then it is at home."""
    name = f"autograde-turns-{os.geteuid()}"
    for folder in (Path(tempfile.gettempdir(), name), Path.home() / f".{name}-{platform.node()}"):
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            if not folder.is_symlink() and folder.stat().st_uid == os.geteuid():
                return folder
    raise SandboxError(f"{name} in {tempfile.gettempdir()} belongs to somebody else; set TMPDIR to a folder of your own")
