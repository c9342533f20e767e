"""The visible check's process for an exercise that starts processes itself: a fork of a server that has no threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from course_lib.distributed import launch
from course_lib.exercises.comparing import plain
from course_lib.exercises.description import Exercise
from course_lib.exercises.ranks.launched_ranks import failure, shown_to_the_student

__all__ = ["in_a_process"]

TIMEOUT = 60.0  # seconds


def in_a_process(exercise: Exercise, case: Any, functions: Sequence[Callable[..., Any]]) -> Any:
    """`Exercise.transport`: observe a case in a process of `launch`, from which processes may be forked.

    Raises
    ------
    CheckFailed
        It raised, or did not end.
    """
    with shown_to_the_student("it does not end.", lambda error: f"your function failed: {failure(error)}."):
        (seen,) = launch(_observe, 1, (exercise, case, functions), timeout=TIMEOUT, process_group=False, threads=1)
    return seen


def _observe(exercise: Exercise, case: Any, functions: Sequence[Callable[..., Any]]) -> Any:
    return plain(exercise.observe(case, *functions))
