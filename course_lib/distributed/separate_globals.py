"""Ranks that are threads, each with global variables of its own."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from course_lib.distributed.launch import _pack

__all__ = ["as_another_process"]


def as_another_process(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with global variables of its own, copies as they are now: so every process has them.

    It goes the way of `mpi_launch`: what a module on disk defines is shared still, what a notebook's cell defines is not. What
    cannot be sent to a process is returned as it is.
    """
    try:
        return pickle.loads(_pack(function, (), {}))[0]
    except Exception:
        return function
