"""Asynchronous SGD with a parameter server (the HW4 slides, Algorithm 2).

Rank 0 is the server, the others are workers. A worker computes a gradient, sends it, and gets the parameters back.
The server applies gradients in the order in which they arrive. No worker waits for another, so a gradient may have been
computed on parameters that are some updates old: its staleness.
"""

from course_lib.distributed.parameter_server.errors import (
    ModelMismatchError,
    ParameterServerError,
    ServerLostError,
    WorkerLostError,
)
from course_lib.distributed.parameter_server.record import ServerRecord, Update, staleness_of_order
from course_lib.distributed.parameter_server.server import serve
from course_lib.distributed.parameter_server.worker import ParameterServerWorker

__all__ = [
    "ModelMismatchError",
    "ParameterServerError",
    "ParameterServerWorker",
    "ServerLostError",
    "ServerRecord",
    "Update",
    "WorkerLostError",
    "serve",
    "staleness_of_order",
]
