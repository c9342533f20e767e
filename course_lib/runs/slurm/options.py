"""Options for the jobs: ``--slurm KEY=VALUE``, KEY being a long option of sbatch."""

import re
from collections.abc import Collection, Mapping
from typing import Any

__all__ = ["minutes", "slurm_option", "submitit_parameters"]

# Set by whatever submits: with these changed it would not find its jobs or their results.
_RESERVED = re.compile(
    "array|chdir|clusters?|error|get_user_env|gid|help|input|job_name|open_mode|output|parsable|signal|test_only|uid|"
    "usage|version|wait|wrap"
)
_FORMS = {
    "cpus_per_gpu": (re.compile(r"[1-9][0-9]{0,3}"), "a number of cores"),
    "cpus_per_task": (re.compile(r"[1-9][0-9]{0,3}"), "a number of cores"),
    "mem": (re.compile(r"[0-9]+[KMGT]?"), "memory per node, as in 8G"),
    "nodes": (re.compile(r"[1-9][0-9]{0,3}"), "a number of nodes"),
    "time": (re.compile(r"(?:[0-9]+|[0-9]+(?::[0-9]+){1,2}|[0-9]+-[0-9]+(?::[0-9]+){0,2})"), "minutes, or D-HH:MM:SS"),
}
_KEY = re.compile(r"[a-z][a-z0-9-]*")
_VALUE = re.compile(r"[\x21-\x7e]{1,200}")


def slurm_option(text: str, setter: str, reserved: Collection[str] = ()) -> tuple[str, str]:
    """Read one ``KEY=VALUE``.

    Parameters
    ----------
    text : str
        Such as ``partition=short``, ``cpus-per-task=4`` or ``cpus_per_task=4``.
    setter : str
        What sets the reserved options, for the message: ``grader`` or ``sweep``.
    reserved : collection of str
        Options, with underscores, that `setter` sets besides those that every submitter must.

    Returns
    -------
    tuple of str
        Key, with underscores, and value.

    Raises
    ------
    ValueError
        Not an option, or a reserved one; one line.
    """
    key, equals, value = text.partition("=")
    key = key.replace("_", "-")
    if not equals or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
        raise ValueError(f"{_quote(text)} is not KEY=VALUE with an option of sbatch, as in partition=short")
    key = key.replace("-", "_")
    if _RESERVED.fullmatch(key) or key in reserved:
        raise ValueError(f"{key} is set by the {setter} itself; leave it out")
    form, meaning = _FORMS.get(key, (_VALUE, ""))
    if not form.fullmatch(value) or (key == "time" and not 0 < minutes(value) < 10**6):
        raise ValueError(f"{key}={_quote(value)}: expected {meaning}")
    return key, value


def minutes(text: str) -> int:
    """Read a time in one of sbatch's forms, rounded up: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S."""
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if dash:
        hours, whole, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, whole, seconds = parts
    else:
        hours, whole, seconds = 0, *(*parts, 0)[:2]
    return 1440 * int(days or 0) + 60 * hours + whole + (seconds > 0)


def submitit_parameters(options: Mapping[str, str], cores: int, time: int) -> dict[str, Any]:
    """Parameters for submitit's executor: a task is one process on one node.

    Parameters
    ----------
    options : mapping
        Keys and values as `slurm_option` returns them.
    cores : int
        Per task.
    time : int
        Minutes; the time limit where `options` has none.
    """
    own = ("cpus_per_task", "nodes", "time")
    return {
        "time": minutes(options["time"]) if "time" in options else time,
        "nodes": int(options.get("nodes", 1)),
        "ntasks_per_node": 1,
        "cpus_per_task": cores,
        "additional_parameters": {key: value for key, value in options.items() if key not in own},
    }


def _quote(text: str) -> str:
    return ascii(text[:60]) + ("..." if len(text) > 60 else "")
