"""Ranks and how they talk: launching, process groups, reductions."""

from course_lib.distributed.errors import LaunchStoppedError, LaunchTimeoutError, RankFailedError
from course_lib.distributed.launch import default_backend, launch, threads_per_rank, warm_up
from course_lib.distributed.rank import leave_process_group, rank_device, world_size
from course_lib.distributed.sync_batchnorm import convert_sync_batchnorm

__all__ = [
    "LaunchStoppedError",
    "LaunchTimeoutError",
    "RankFailedError",
    "convert_sync_batchnorm",
    "default_backend",
    "launch",
    "leave_process_group",
    "rank_device",
    "threads_per_rank",
    "warm_up",
    "world_size",
]
