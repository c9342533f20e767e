"""One rank of a process group whose other ranks the grader plays (`played_ranks`): one process, no network, no waiting.

The source is sent to the sandbox, beside `observe`.
"""

import contextlib
import sys

import torch.distributed as dist

from course_lib.exercises.ranks.broker_process_group import BrokerProcessGroup

PLAYING = []  # who answers this process's rank, last


@contextlib.contextmanager
def played_group(rank, size, outside):
    """The process group while the answer is called, as `rank` of `size`."""
    if dist.is_initialized():
        raise RuntimeError("a process group is up in this notebook; dist.destroy_process_group() ends it")
    if "played" not in dist.Backend.backend_list:
        dist.Backend.register_backend(
            "played", lambda store, rank, size, timeout: BrokerProcessGroup(rank, size, PLAYING[-1]), devices=["cpu"]
        )
    PLAYING.append(outside)
    hook = sys.excepthook
    dist.init_process_group("played", store=dist.HashStore(), rank=rank, world_size=size)
    sys.excepthook = hook  # PyTorch's writes the rank before each line
    try:
        yield
    finally:
        dist.destroy_process_group()
        PLAYING.pop()
