"""What a script for torchrun would do on machines with GPUs, read off its calls; no GPU is needed, and no rank."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import types
from unittest import mock

import torch
import torch.distributed as dist

from course_lib import distributed
from course_lib.checks.registry import CheckFailed

__all__ = ["check_on_gpus"]

RANKS = 2


def check_on_gpus(script: str) -> None:
    """Raise CheckFailed unless two ranks of one node join by NCCL, each on a GPU of its own, or else by Gloo."""
    for rank in range(RANKS):
        backend, gpu = _joined(script, rank, gpus=1)
        if backend == "nccl":
            raise CheckFailed(
                "on a machine with one GPU your script would start two ranks with NCCL, which refuses two ranks on one "
                'GPU ("Duplicate GPU detected"): take nccl only where torch.cuda.device_count() >= LOCAL_WORLD_SIZE'
            )
        backend, gpu = _joined(script, rank, gpus=RANKS)
        if backend != "nccl":
            raise CheckFailed(
                f"on a machine with a GPU for each rank your script takes {backend}; NCCL is faster there"
            )
        if gpu != rank:
            raise CheckFailed(
                f"local rank {rank} joined the group with GPU {gpu} as its current device: call "
                "torch.cuda.set_device(local_rank) before the group starts, else all ranks work on GPU 0"
            )


def _joined(script: str, rank: int, gpus: int) -> tuple[str | None, int]:
    """The backend that local rank `rank` asks for where there are so many GPUs, and its current GPU at that moment."""
    current, joined = 0, []

    def set_device(device) -> None:
        nonlocal current
        current = device if isinstance(device, int) else torch.device(device).index or 0

    def join(backend=None, *others, device_id=None, **options) -> int:
        bound = device_id if device_id is None or isinstance(device_id, int) else torch.device(device_id).index
        joined.append((backend, current if bound is None else bound))
        return rank

    steps = types.ModuleType("steps")
    steps.parse_arguments = lambda argv=None: types.SimpleNamespace(output_dir="run")
    steps.start_process_group = join
    steps.open_run = lambda args: None
    steps.worker = lambda *args: {"stopped": False}
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS}
    stand_ins = {
        torch.cuda: {"is_available": lambda: True, "device_count": lambda: gpus, "set_device": set_device},
        torch.accelerator: {"is_available": lambda: True, "device_count": lambda: gpus},
        dist: {
            "init_process_group": join, "destroy_process_group": lambda *group: None, "get_rank": lambda *group: rank,
            "get_world_size": lambda *group: RANKS, "is_initialized": lambda: bool(joined), "barrier": lambda *group: None,
        },
        distributed: {"leave_process_group": lambda: None},
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {name: str(value) for name, value in places.items()}))
        stack.enter_context(mock.patch.dict(sys.modules, {"steps": steps}))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        for module, names in stand_ins.items():
            for name, stand_in in names.items():
                stack.enter_context(mock.patch.object(module, name, stand_in))
        exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})
    return joined[0] if joined else (None, 0)
