"""Asynchronous SGD with a parameter server (the HW4 slides, Algorithm 2).

Some ranks serve, the others work. A worker computes a gradient, sends it, and gets the parameters back; the server applies
gradients in the order in which they come. Nobody waits for anybody else, so a gradient may have been computed on
parameters that are some updates old: its staleness.
"""

from course_lib.distributed.parameter_server.errors import (
    ModelMismatchError,
    ParameterServerError,
    ServerLostError,
    WorkerLostError,
)
from course_lib.distributed.parameter_server.messages import shards_of, split_by_size
from course_lib.distributed.parameter_server.record import ServerRecord, Update, staleness_of_order
from course_lib.distributed.parameter_server.server import serve, serve_in_turns
from course_lib.distributed.parameter_server.worker import Exchange, ParameterServerWorker, WorkerRecord

__all__ = [
    "Exchange",
    "ModelMismatchError",
    "ParameterServerError",
    "ParameterServerWorker",
    "ServerLostError",
    "ServerRecord",
    "Update",
    "WorkerLostError",
    "WorkerRecord",
    "serve",
    "serve_in_turns",
    "shards_of",
    "split_by_size",
    "staleness_of_order",
]
