"""What Slurm's words mean to the one who submitted: states of jobs that ended, reasons why jobs wait, refusals."""

from __future__ import annotations

import re

__all__ = ["BECAME", "FOR_EVER", "TOO_MANY"]

# State of a job that ended → what became of it
BECAME = {
    "CANCELLED": "was cancelled",
    "COMPLETED": "ended, and its outcome is not to be seen; is the folder shared with the nodes?",
    "DEADLINE": "came to its deadline",
    "NODE_FAIL": "lost its node",
    "OUT_OF_MEMORY": "ran out of memory; --slurm mem=SIZE asks for more",
    "PREEMPTED": "had to make room for others",
    "TIMEOUT": "came to its time limit; --slurm time=MINUTES asks for more",
    "gone": "is not known to Slurm any more",
}
# Reason to wait that time does not heal → what would
FOR_EVER = {
    "BadConstraints": "no node has what is asked for",
    "InvalidAccount": "--slurm account=NAME",
    "InvalidQOS": "--slurm qos=NAME",
    "JobHeldAdmin": "an administrator holds them",
    "JobHeldUser": "scontrol release lets them go",
    "PartitionConfig": "no node of the partition has what is asked for",
    "PartitionNodeLimit": "the partition does not give so many nodes",
    "PartitionTimeLimit": "the partition does not give so much time; --slurm time=MINUTES asks for less",
    "launch failed requeued held": "a node could not start them",
}
# sbatch's refusals that pass when jobs end, or the controller is less busy
TOO_MANY = re.compile(r"submit limit|MaxSubmit|MaxJobCount|temporarily|timed out", re.IGNORECASE)
