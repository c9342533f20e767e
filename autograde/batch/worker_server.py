"""The fork server of grading workers. It imports once what every worker needs, while the command prepares its work."""

from course_lib.system.fork_server import start_fork_server

__all__ = ["start_worker_server"]


def start_worker_server() -> None:
    """Start it in the background."""
    start_fork_server(["autograde.batch.worker"])
