"""This rank's number and device, and its leave from the process group."""

from __future__ import annotations

import gc
import os

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # imported after the group, its defaults would hold the group for ever

__all__ = ["leave_process_group", "rank_device", "require_rank", "world_size"]


def rank_device() -> torch.device:
    """The device of this rank: ``cuda:<local rank>`` where there are GPUs (shared when ranks outnumber them), else CPU."""
    present = torch.cuda.device_count()
    if not present:
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % present)


def world_size() -> int:
    """Number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def require_rank(call: str, **ranks: int) -> None:
    """Raise ValueError unless each of the named ranks exists: ``require_rank("gather", dst=dst)``."""
    for name, rank in ranks.items():
        if not 0 <= rank < world_size():
            raise ValueError(f"{call}: {name} must be in 0…{world_size() - 1}, got {rank}")


def leave_process_group() -> None:
    """Destroy the process group at the end of a script.

    While anything refers to a group, its threads run until the interpreter ends; C++ then sometimes aborts
    ("terminate called without an active exception"). Wrapped models are in reference cycles, so they are collected
    first. The functions of ``torch.distributed.nn.functional``, which the first wrapped model imports, keep the current
    group as a default argument (PyTorch 2.13); this module imports them before there is a group.
    """
    gc.collect()
    dist.destroy_process_group()
