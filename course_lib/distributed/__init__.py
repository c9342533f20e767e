"""Launching ranks, collectives, and the parallel training algorithms."""

from course_lib.distributed.collectives.broadcast import linear_broadcast
from course_lib.distributed.collectives.reduce import linear_reduce
from course_lib.distributed.collectives.ring import ring_all_reduce, whole_tensor_all_reduce
from course_lib.distributed.data_parallel.bucketed import BucketedDataParallel
from course_lib.distributed.data_parallel.naive import NaiveDataParallel
from course_lib.distributed.data_parallel.overlapped import OverlappedDataParallel
from course_lib.distributed.data_parallel.replicas import ModelMismatchError
from course_lib.distributed.data_parallel.sync_batchnorm import (
    convert_sync_batchnorm,
    synchronise_batchnorm_on_cpu,
)
from course_lib.distributed.data_parallel.synchronous_sgd import average_gradients
from course_lib.distributed.launching.errors import LaunchStoppedError, LaunchTimeoutError, RankFailedError
from course_lib.distributed.launching.forked_ranks import warm_up
from course_lib.distributed.launching.launch import default_backend, launch, threads_per_rank
from course_lib.distributed.launching.mpi_launch import mpi_launch, mpi_run
from course_lib.distributed.launching.rank import leave_process_group, rank_device, world_size
from course_lib.distributed.local_sgd.neuron_matching import best_matching
from course_lib.distributed.local_sgd.parameter_averaging import average_parameters
from course_lib.distributed.messages.agreement import CollectiveMismatchError, check_agreement
from course_lib.distributed.messages.message_trace import Message, MessageTrace, trace_messages
from course_lib.distributed.parameter_server import (
    ParameterServerError,
    ParameterServerWorker,
    ServerLostError,
    ServerRecord,
    WorkerLostError,
    serve,
)
from course_lib.distributed.pipeline import Pipeline
from course_lib.distributed.sharded_data_parallel import ShardedDataParallel
from course_lib.distributed.sharded_optimizer import ShardedOptimizer
from course_lib.distributed.shared_memory.hogwild import barrier, hogwild, shard_indices
from course_lib.distributed.shared_memory.hogwild_sgd import SharedRun, train_hogwild, train_serial
from course_lib.distributed.shared_memory.lost_updates import LostUpdates, measure_lost_updates
from course_lib.distributed.shared_memory.tensors import share_memory
from course_lib.distributed.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from course_lib.system.mpi_command import MPINotFoundError

__all__ = [
    "BucketedDataParallel",
    "CollectiveMismatchError",
    "ColumnParallelLinear",
    "LaunchStoppedError",
    "LaunchTimeoutError",
    "LostUpdates",
    "MPINotFoundError",
    "Message",
    "MessageTrace",
    "ModelMismatchError",
    "NaiveDataParallel",
    "OverlappedDataParallel",
    "ParameterServerError",
    "ParameterServerWorker",
    "Pipeline",
    "RankFailedError",
    "RowParallelLinear",
    "ServerLostError",
    "ServerRecord",
    "ShardedDataParallel",
    "ShardedOptimizer",
    "SharedRun",
    "WorkerLostError",
    "average_gradients",
    "average_parameters",
    "barrier",
    "best_matching",
    "check_agreement",
    "convert_sync_batchnorm",
    "default_backend",
    "hogwild",
    "launch",
    "leave_process_group",
    "linear_broadcast",
    "linear_reduce",
    "measure_lost_updates",
    "mpi_launch",
    "mpi_run",
    "rank_device",
    "ring_all_reduce",
    "serve",
    "shard_indices",
    "share_memory",
    "synchronise_batchnorm_on_cpu",
    "threads_per_rank",
    "trace_messages",
    "train_hogwild",
    "train_serial",
    "warm_up",
    "whole_tensor_all_reduce",
    "world_size",
]
