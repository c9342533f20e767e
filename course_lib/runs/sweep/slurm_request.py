"""What a trial requests from Slurm: GPUs and cores on one node, time, and the user's ``--slurm KEY=VALUE``."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.runs.slurm.options import slurm_option, submitit_parameters
from course_lib.runs.slurm.squeue import SlurmError

__all__ = ["Request", "sweep_option"]

MINUTES = 240
# At most, and no more than a node has for each GPU: images are in memory, so that a GPU needs few. Without GPUs a rank
# is a process of so many threads.
CORES_PER_GPU, CORES_PER_RANK = 4, 1
# A trial is one process on one node, which starts the ranks; their number is the trial's.
_RESERVED = (
    "cpus_per_task", "gpu_bind", "gpus", "gpus_per_socket", "gpus_per_task", "gres", "ntasks", "ntasks_per_core",
    "ntasks_per_gpu", "ntasks_per_node", "ntasks_per_socket", "tres_per_task",
)  # fmt: skip
_GPU_TYPE = re.compile(r"0|[A-Za-z][A-Za-z0-9_.-]*")


def sweep_option(text: str) -> tuple[str, str]:
    """Read one ``KEY=VALUE`` for a sweep's jobs.

    ``gpus-per-node=TYPE`` names a type of GPU, as in ``h100``, since their number is the trial's; ``gpus-per-node=0``
    requests none. ``cpus-per-gpu`` is the number of cores per rank, with and without GPUs.

    Raises
    ------
    ValueError
        Not an option, or one that the sweep sets; one line.
    """
    key, value = slurm_option(text, "sweep", _RESERVED)
    if key == "gpus_per_node" and not _GPU_TYPE.fullmatch(value):
        raise ValueError(
            f"{key}={value}: the number of GPUs is each trial's num_gpus; give the type alone, as in "
            "gpus-per-node=h100, or 0 for CPU processes"
        )
    return key, value


@dataclass(frozen=True)
class Request:
    """What the trials of a sweep request.

    Parameters
    ----------
    options : mapping
        Keys and values as `sweep_option` returns them.
    gpus : bool
        Whether a rank has a GPU; it is a CPU process otherwise.
    cores_per_rank : int
    """

    options: Mapping[str, str]
    gpus: bool
    cores_per_rank: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Request:
        """With GPUs where the user names a type of them, or their partition has any.

        Raises
        ------
        SlurmError
            sinfo does not answer.
        """
        kind = options.get("gpus_per_node")
        share = _cores_per_gpu(_nodes(options), kind) if kind != "0" else None
        gpus = share is not None or kind not in (None, "0")
        cores = min(CORES_PER_GPU, share or CORES_PER_GPU) if gpus else CORES_PER_RANK
        return cls(options, gpus, int(options.get("cpus_per_gpu", cores)))

    def parameters(self, ranks: int) -> dict[str, Any]:
        """For submitit's executor: one process on one node that has the GPUs and the cores of all ranks."""
        options = {key: value for key, value in self.options.items() if key not in ("cpus_per_gpu", "gpus_per_node")}
        if self.gpus:
            kind = self.options.get("gpus_per_node")
            # --gres, because --gpus-per-node needs a select plugin that not every cluster has.
            options["gres"] = f"gpu:{kind}:{ranks}" if kind else f"gpu:{ranks}"
        return submitit_parameters(options, ranks * self.cores_per_rank, MINUTES)

    def describe(self, ranks: int) -> str:
        """The same in words."""
        cores, minutes = ranks * self.cores_per_rank, self.parameters(ranks)["time"]
        gpus = f"{ranks} GPU{'s' * (ranks > 1)}, " if self.gpus else ""
        return f"num_gpus = {ranks} ({gpus}{cores} core{'s' * (cores > 1)} on one node, {minutes} min)"


def _nodes(options: Mapping[str, str]) -> list[tuple[int, str]]:
    """Cores and generic resources of the partition's kinds of nodes."""
    partition = options.get("partition") or os.environ.get("SBATCH_PARTITION")
    command = ["sinfo", "--noheader", "--format", "%P|%c|%G", *(["--partition", partition] if partition else [])]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines() or ["no message"]
        raise SlurmError(f"sinfo does not answer ({lines[-1]}); is Slurm up?") from None
    nodes = []
    for line in answer.stdout.splitlines():
        name, cores, resources = (*line.strip().split("|", 2), "", "")[:3]
        if partition is not None or name.endswith("*"):  # the default partition's mark
            nodes.append((int(re.match(r"\d*", cores).group() or 1), resources))  # 64+: nodes differ
    return nodes


def _cores_per_gpu(nodes: Sequence[tuple[int, str]], kind: str | None) -> int | None:
    """Cores that a node has for each of its GPUs, of the nodes with the fewest; None without GPUs."""
    shares = []
    for cores, resources in nodes:
        # gpu:2, gpu:h100:8(S:0-1)
        gpus = re.findall(r"(?:^|,)gpu(?::([A-Za-z][^:,(]*))?:(\d+)", resources)
        count = sum(int(number) for name, number in gpus if kind is None or name == kind)
        if count:
            shares.append(max(1, cores // count))
    return min(shares, default=None)
