"""What an instructor may tell Slurm about the grading jobs, and what the grader tells it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from course_lib.runs.slurm import options

__all__ = ["CPUS_PER_TASK", "sbatch_parameters", "slurm_option", "threads_per_task"]

CPUS_PER_TASK = 2
_RESERVED = ("nodes", "ntasks", "ntasks_per_node")  # a task is one process on one node


def slurm_option(text: str) -> tuple[str, str]:
    """Read one ``KEY=VALUE``; see `course_lib.runs.slurm.options.slurm_option`, whose errors it raises."""
    return options.slurm_option(text, "grader", _RESERVED)


def threads_per_task(given: Mapping[str, str]) -> int:
    """Cores that each task has."""
    return int(given.get("cpus_per_task", CPUS_PER_TASK))


def sbatch_parameters(given: Mapping[str, str], seconds: float) -> dict[str, Any]:
    """Options in the form in which submitit's executor takes them.

    Parameters
    ----------
    given : mapping
        Keys and values as `slurm_option` returns them.
    seconds : float
        That a task may take; its time limit where `given` has none.
    """
    return {
        "time": options.minutes(given["time"]) if "time" in given else math.ceil(seconds / 60),
        "cpus_per_task": threads_per_task(given),
        "additional_parameters": {key: value for key, value in given.items() if key not in ("time", "cpus_per_task")},
    }
