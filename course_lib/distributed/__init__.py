"""Ranks and how they talk: launching, process groups, reductions."""

from course_lib.distributed.agreement import CollectiveMismatchError, check_agreement
from course_lib.distributed.broadcast import linear_broadcast, tree_broadcast
from course_lib.distributed.bucketed_data_parallel import BucketedDataParallel
from course_lib.distributed.errors import LaunchStoppedError, LaunchTimeoutError, RankFailedError
from course_lib.distributed.gather_scatter import gather, linear_all_gather, scatter
from course_lib.distributed.hogwild import hogwild, meet, share_of_epoch
from course_lib.distributed.hogwild_sgd import SharedRun, train_hogwild, train_serial
from course_lib.distributed.launch import default_backend, launch, threads_per_rank, warm_up
from course_lib.distributed.lost_updates import LostIncrements, LostUpdates, count_lost_increments, measure_lost_updates
from course_lib.distributed.message_trace import Message, MessageTrace, trace_messages
from course_lib.distributed.mpi_command import MPINotFoundError
from course_lib.distributed.mpi_launch import mpi_launch, mpi_run
from course_lib.distributed.naive_data_parallel import NaiveDataParallel
from course_lib.distributed.overlapped_data_parallel import OverlappedDataParallel
from course_lib.distributed.parallel_sgd import WorkerReport, critical_path, deal_shares, parallel_sgd, worker_batches
from course_lib.distributed.parameter_averaging import MPIPeers, TorchPeers, average_on_master, average_parameters
from course_lib.distributed.parameter_server import (
    ParameterServerError,
    ParameterServerWorker,
    ServerLostError,
    ServerRecord,
    WorkerLostError,
    serve,
)
from course_lib.distributed.process_groups import (
    PortInUseError,
    RanksMissingError,
    StaleFileError,
    environment_group,
    file_group,
    store_on_free_port,
    tcp_group,
)
from course_lib.distributed.rank import leave_process_group, rank_device, world_size
from course_lib.distributed.reduce import linear_reduce, tree_reduce
from course_lib.distributed.replicas import ModelMismatchError
from course_lib.distributed.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter, whole_tensor_all_reduce
from course_lib.distributed.shared_memory import share
from course_lib.distributed.sync_batchnorm import convert_sync_batchnorm
from course_lib.distributed.synchronous_sgd import average_buffers, average_gradients, synchronise_initial_state

__all__ = [
    "BucketedDataParallel",
    "CollectiveMismatchError",
    "LaunchStoppedError",
    "LaunchTimeoutError",
    "LostIncrements",
    "LostUpdates",
    "MPINotFoundError",
    "MPIPeers",
    "Message",
    "MessageTrace",
    "ModelMismatchError",
    "NaiveDataParallel",
    "OverlappedDataParallel",
    "ParameterServerError",
    "ParameterServerWorker",
    "PortInUseError",
    "RankFailedError",
    "RanksMissingError",
    "ServerLostError",
    "ServerRecord",
    "SharedRun",
    "StaleFileError",
    "TorchPeers",
    "WorkerLostError",
    "WorkerReport",
    "average_buffers",
    "average_gradients",
    "average_on_master",
    "average_parameters",
    "check_agreement",
    "convert_sync_batchnorm",
    "count_lost_increments",
    "critical_path",
    "deal_shares",
    "default_backend",
    "environment_group",
    "file_group",
    "gather",
    "hogwild",
    "launch",
    "leave_process_group",
    "linear_all_gather",
    "linear_broadcast",
    "linear_reduce",
    "measure_lost_updates",
    "meet",
    "mpi_launch",
    "mpi_run",
    "parallel_sgd",
    "rank_device",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
    "scatter",
    "serve",
    "share",
    "share_of_epoch",
    "store_on_free_port",
    "synchronise_initial_state",
    "tcp_group",
    "threads_per_rank",
    "trace_messages",
    "train_hogwild",
    "train_serial",
    "tree_broadcast",
    "tree_reduce",
    "warm_up",
    "whole_tensor_all_reduce",
    "worker_batches",
    "world_size",
]
