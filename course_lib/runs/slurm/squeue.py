"""Asking Slurm which tasks of jobs live, and cancelling them: squeue and scancel, by the jobs' names.

squeue answers from the controller's memory, so no accounting is needed; the controller forgets a job some minutes after
its end (``MinJobAge``). By the name, because it is known before the jobs are, and because an unknown job id is an error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["SlurmError", "TaskState", "cancel", "check_slurm", "tasks_by_name"]

_OVER = re.compile("BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|REVOKED|TIMEOUT")


class SlurmError(RuntimeError):
    """Slurm is not there, refuses the jobs, or does not answer; one line with the remedy."""


@dataclass(frozen=True)
class TaskState:
    """A task as squeue shows it: its state, such as ``RUNNING``, and why it waits."""

    name: str
    reason: str

    @property
    def live(self) -> bool:
        """Whether it runs, or may yet run."""
        return _OVER.fullmatch(self.name) is None

    @property
    def running(self) -> bool:
        """Whether it is on a node."""
        return self.live and self.name != "PENDING"


def tasks_by_name(names: Collection[str]) -> dict[str, dict[int, TaskState]] | None:
    """Tasks of your jobs of these names, those that ended a short time ago included.

    Returns
    -------
    dict or None
        Name to index in the array (0 for a job that is no array) to state. None where squeue does not answer.
    """
    if not names:
        return {}
    command = ["squeue", "--noheader", "--array", "--states=all", "--user", str(os.getuid())]
    try:
        answer = subprocess.run(
            [*command, "--name", ",".join(names), "--format", "%K|%T|%r|%j"],
            capture_output=True, text=True, errors="replace", timeout=60, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    found: dict[str, dict[int, TaskState]] = {name: {} for name in names}
    for line in answer.stdout.splitlines():
        index, state, reason, name = (*line.strip().split("|", 3), "", "", "", "")[:4]
        if name in found:
            found[name][int(index) if index.isdigit() else 0] = TaskState(state, reason)
    return found


def cancel(name: str) -> bool:
    """Cancel your jobs of a name; False where Slurm does not answer."""
    command = ["scancel", "--user", str(os.getuid()), "--name", name]
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def check_slurm() -> None:
    """Raise `SlurmError` where there is no Slurm to submit to."""
    for command in ("sbatch", "squeue", "scancel", "srun"):
        if shutil.which(command) is None:
            raise SlurmError(
                f"no Slurm here: {command} is not on PATH; run this on a login node of the cluster, or without "
                "--executor slurm"
            )
