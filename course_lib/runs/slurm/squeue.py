"""Slurm's own commands: which tasks live (squeue), cancelling them (scancel), and what its words mean.

squeue answers from the controller's memory, so no accounting is needed; the controller forgets a job some minutes after
its end (``MinJobAge``). Jobs are asked for by name, which is known before they exist; an unknown job id is an error.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["BECAME", "FOR_EVER", "TOO_MANY", "SlurmError", "TaskState", "cancel", "check_slurm", "tasks_by_name"]

_OVER = re.compile("BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|REVOKED|TIMEOUT")
# State of a job that ended → what happened to it
BECAME = {
    "CANCELLED": "was cancelled",
    "COMPLETED": "ended without a visible result; is the folder shared with the nodes?",
    "DEADLINE": "reached its deadline",
    "NODE_FAIL": "lost its node",
    "OUT_OF_MEMORY": "ran out of memory; --slurm mem=SIZE asks for more",
    "PREEMPTED": "was preempted by other jobs",
    "TIMEOUT": "reached its time limit; --slurm time=MINUTES asks for more",
    "gone": "is no longer known to Slurm",
}
# Reason for waiting that time does not remove → the remedy
FOR_EVER = {
    "BadConstraints": "no node has what is asked for",
    "InvalidAccount": "--slurm account=NAME",
    "InvalidQOS": "--slurm qos=NAME",
    "JobHeldAdmin": "an administrator holds them",
    "JobHeldUser": "scontrol release starts them",
    "PartitionConfig": "no node of the partition has what is asked for",
    "PartitionNodeLimit": "the partition does not give so many nodes",
    "PartitionTimeLimit": "the partition does not give so much time; --slurm time=MINUTES asks for less",
    "launch failed requeued held": "a node could not start them",
}
# sbatch's refusals that pass when jobs end, or the controller is less busy
TOO_MANY = re.compile(r"submit limit|MaxSubmit|MaxJobCount|temporarily|timed out", re.IGNORECASE)


class SlurmError(RuntimeError):
    """Slurm is missing, refuses the jobs, or does not answer; one line with the remedy."""


@dataclass(frozen=True)
class TaskState:
    """A task as squeue shows it: its state, such as ``RUNNING``, and why it waits."""

    name: str
    reason: str

    @property
    def live(self) -> bool:
        """Whether it runs, or may yet run."""
        return _OVER.fullmatch(self.name) is None


def tasks_by_name(names: Collection[str]) -> dict[str, dict[int, TaskState]] | None:
    """Tasks of your jobs with these names, including those that ended a short time ago.

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
    states: dict[str, dict[int, TaskState]] = {name: {} for name in names}
    for line in answer.stdout.splitlines():
        index, state, reason, name = (*line.strip().split("|", 3), "", "", "", "")[:4]
        if name in states:
            states[name][int(index) if index.isdigit() else 0] = TaskState(state, reason.strip("()"))
    return states


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
