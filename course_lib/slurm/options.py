"""What an instructor may tell Slurm about the grading jobs: ``--slurm KEY=VALUE``, KEY being a long option of sbatch."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from .quoting import quote

__all__ = ["CPUS_PER_TASK", "sbatch_parameters", "slurm_option", "threads_per_task"]

CPUS_PER_TASK = 2
# The grader's own part of the conversation: with these changed it would not find its tasks or their results.
_RESERVED = re.compile(
    "array|chdir|clusters?|error|get_user_env|gid|help|input|job_name|nodes|ntasks|ntasks_per_node|open_mode|output|"
    "parsable|signal|test_only|uid|usage|version|wait|wrap"
)
_FORMS = {
    "cpus_per_task": (re.compile(r"[1-9][0-9]{0,3}"), "a number of cores"),
    "mem": (re.compile(r"[0-9]+[KMGT]?"), "memory per node, as in 8G"),
    "time": (re.compile(r"(?:[0-9]+|[0-9]+(?::[0-9]+){1,2}|[0-9]+-[0-9]+(?::[0-9]+){0,2})"), "minutes, or D-HH:MM:SS"),
}
_KEY = re.compile(r"[a-z][a-z0-9-]*")
_VALUE = re.compile(r"[\x21-\x7e]{1,200}")


def slurm_option(text: str) -> tuple[str, str]:
    """Read one ``KEY=VALUE``.

    Parameters
    ----------
    text : str
        Such as ``partition=short``, ``cpus-per-task=4`` or ``cpus_per_task=4``.

    Returns
    -------
    tuple of str
        Key, with underscores, and value.

    Raises
    ------
    ValueError
        It is none; one line.
    """
    key, found, value = text.partition("=")
    key = key.replace("_", "-")
    if not found or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
        raise ValueError(f"{quote(text)} is not KEY=VALUE with an option of sbatch, as in partition=short")
    key = key.replace("-", "_")
    if _RESERVED.fullmatch(key):
        raise ValueError(f"{key} is set by the grader itself; leave it out")
    form, meant = _FORMS.get(key, (_VALUE, ""))
    if not form.fullmatch(value):
        raise ValueError(f"{key}={quote(value)}: expected {meant}")
    if key == "time" and not 0 < _minutes(value) < 10**6:
        raise ValueError(f"{key}={quote(value)}: expected {meant}")
    return key, value


def threads_per_task(options: Mapping[str, str]) -> int:
    """Cores that each task has."""
    return int(options.get("cpus_per_task", CPUS_PER_TASK))


def sbatch_parameters(options: Mapping[str, str], seconds: float) -> dict[str, Any]:
    """Options in the form in which submitit's executor takes them.

    Parameters
    ----------
    options : mapping
        Keys and values as `slurm_option` returns them.
    seconds : float
        That a task may take; its time limit where `options` has none.
    """
    others = {key: value for key, value in options.items() if key not in ("time", "cpus_per_task")}
    return {
        "time": _minutes(options["time"]) if "time" in options else math.ceil(seconds / 60),
        "cpus_per_task": threads_per_task(options),
        "additional_parameters": others,
    }


def _minutes(text: str) -> int:
    """sbatch's forms of a time, rounded up: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S."""
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if dash:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, minutes, seconds = 0, *(*parts, 0)[:2]
    return 1440 * int(days or 0) + 60 * hours + minutes + (seconds > 0)
