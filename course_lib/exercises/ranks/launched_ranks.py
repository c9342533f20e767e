"""Processes of `launch` for the visible check: their time limit, and what a student is shown of them."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from course_lib.distributed import LaunchTimeoutError, RankFailedError, launch
from course_lib.live_view.check_failed import CheckFailed

__all__ = ["failure", "launch_for_check", "shown_to_the_student"]

TIMEOUT = 12.0  # seconds in which a rank computes, or all wait


@contextlib.contextmanager
def shown_to_the_student(hangs: str, raised: Callable[[RankFailedError], str]) -> Iterator[None]:
    """What ranks of `launch` print, and `CheckFailed` with these words where they do not end well."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    except LaunchTimeoutError as error:
        raise CheckFailed(f"{hangs}\n{error}") from None
    except RankFailedError as error:
        raise CheckFailed(f"{raised(error)}\n{error}") from None
    finally:  # what the student's function prints is worth reading; how many cores there are is not
        lines = [line for line in printed.getvalue().splitlines() if not line.startswith("note: ")]
        print(*lines, sep="\n", end="\n" if lines else "")


def failure(error: RankFailedError) -> str:
    """The first line of why a rank failed, without a full stop. It may quote inputs: for visible checks only."""
    return error.reason.split("\n", 1)[0].rstrip(" .")


def launch_for_check(worker: Callable[..., Any], ranks: int, args: Sequence[Any], **options: Any) -> list[Any]:
    """`launch` with a time limit that ranks on a busy machine do not reach, but ranks that wait for each other do."""
    return launch(worker, ranks, args, timeout=TIMEOUT, own_time=True, threads=1, **options)
