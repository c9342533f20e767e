"""The fork server of grading workers. It imports once what every worker needs, while the command prepares its work."""

import multiprocessing
from multiprocessing import forkserver

__all__ = ["start_worker_server"]

PRELOAD = ["course_lib.system.fork_server_setup", "autograde.batch.worker", "course_lib.system.fork_server_ready"]


def start_worker_server() -> None:
    """Start it in the background. A fork server that this process already has, for example `launch`'s, serves as well."""
    multiprocessing.set_forkserver_preload(PRELOAD)
    forkserver.ensure_running()
