"""What a point asks of Slurm: GPUs and cores on one node, time, and what the user adds by ``--slurm KEY=VALUE``."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.runs.slurm.options import minutes, slurm_option
from course_lib.runs.slurm.squeue import SlurmError

__all__ = ["Request", "sweep_option"]

MINUTES = 240
# At most, and no more than a node has for each GPU: images lie in memory, so that a GPU needs few. Without GPUs a rank
# is a process of so many threads.
CORES_PER_GPU, CORES_PER_RANK = 4, 1
# A point is one process on one node, which starts the ranks; their number is the point's.
_RESERVED = (
    "cpus_per_task", "gpu_bind", "gpus", "gpus_per_socket", "gpus_per_task", "gres", "ntasks", "ntasks_per_core",
    "ntasks_per_gpu", "ntasks_per_node", "ntasks_per_socket", "tres_per_task",
)  # fmt: skip
_GPU_TYPE = re.compile(r"0|[A-Za-z][A-Za-z0-9_.-]*")


def sweep_option(text: str) -> tuple[str, str]:
    """Read one ``KEY=VALUE`` for a sweep's jobs.

    ``gpus-per-node=TYPE`` names a type of GPU, as in ``h100``, since their number is the point's; ``gpus-per-node=0``
    asks for none. ``cpus-per-gpu`` is the number of cores a rank, with and without GPUs.

    Raises
    ------
    ValueError
        It is none, or is set by the sweep; one line.
    """
    key, value = slurm_option(text, "sweep", _RESERVED)
    if key == "gpus_per_node" and not _GPU_TYPE.fullmatch(value):
        raise ValueError(
            f"{key}={value}: the number of GPUs is each point's num_gpus; give the type alone, as in "
            "gpus-per-node=h100, or 0 for CPU processes"
        )
    return key, value


@dataclass(frozen=True)
class Request:
    """What the points of a sweep ask for.

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

    @property
    def minutes(self) -> int:
        return minutes(self.options["time"]) if "time" in self.options else MINUTES

    def parameters(self, ranks: int) -> dict[str, Any]:
        """For submitit's executor: one process on one node that has the GPUs and the cores of all ranks."""
        own = ("cpus_per_gpu", "gpus_per_node", "nodes", "time")
        others = {key: value for key, value in self.options.items() if key not in own}
        if self.gpus:
            kind = self.options.get("gpus_per_node")
            # --gres, because --gpus-per-node needs a select plugin that not every cluster has.
            others["gres"] = f"gpu:{kind}:{ranks}" if kind else f"gpu:{ranks}"
        return {
            "time": self.minutes,
            "nodes": int(self.options.get("nodes", 1)),
            "ntasks_per_node": 1,
            "cpus_per_task": ranks * self.cores_per_rank,
            "additional_parameters": others,
        }

    def describe(self, ranks: int) -> str:
        """The same in words."""
        cores = ranks * self.cores_per_rank
        parts = [f"{ranks} GPU{'s' * (ranks > 1)}"] if self.gpus else []
        return ", ".join([*parts, f"{cores} core{'s' * (cores > 1)}", f"{self.minutes} min"])


def _nodes(options: Mapping[str, str]) -> list[tuple[int, str]]:
    """Cores and generic resources of the partition's kinds of nodes."""
    partition = options.get("partition") or os.environ.get("SBATCH_PARTITION")
    command = ["sinfo", "--noheader", "--format", "%P|%c|%G", *(["--partition", partition] if partition else [])]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise SlurmError(f"sinfo does not answer ({said[-1] if said else 'it is silent'}); is Slurm up?") from None
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
        found = re.findall(r"(?:^|,)gpu(?::([A-Za-z][^:,(]*))?:(\d+)", resources)
        count = sum(int(number) for name, number in found if kind is None or name == kind)
        if count:
            shares.append(max(1, cores // count))
    return min(shares, default=None)
