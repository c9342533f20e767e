"""Who and where this rank is."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

__all__ = ["rank_device", "world_size"]


def rank_device() -> torch.device:
    """The device of this rank: ``cuda:<local rank>`` where there are GPUs (shared when ranks outnumber them), else CPU."""
    present = torch.cuda.device_count()
    if not present:
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % present)


def world_size() -> int:
    """Number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1
