"""One task of a job array, on its compute node: run a function, and report its start and its end.

A report is a small file in the array's folder. The process that watches the array therefore needs neither Slurm's
accounting nor a pickle.
"""

import contextlib
import json
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from course_lib.system.atomic import write_atomically

__all__ = ["BEGAN", "ENDED", "RECORD", "REPORTS", "ArrayTask", "run_task"]

RECORD = "tasks.json"
REPORTS = "reports"
BEGAN, ENDED = "began", "ended"


@dataclass(frozen=True)
class ArrayTask:
    """The task that runs in this process; `folder` is the array's, which the submitting process can read."""

    folder: Path
    index: int

    def report(self, what: str, name: str = "", **data: Any) -> None:
        """Write a report, which the watching process reads once; `name` distinguishes several of one kind."""
        with contextlib.suppress(OSError):  # a full disk; squeue then shows the end
            write_atomically(self._path(what, name), json.dumps({"node": socket.gethostname(), **data}))

    def reported(self, what: str, name: str = "") -> bool:
        """Whether the report exists: Slurm may have started the task again."""
        return self._path(what, name).exists()

    def _path(self, what: str, name: str) -> Path:
        return self.folder / REPORTS / f"{self.index}-{what}-{name}"


def run_task(folder: Path, index: int, function: Callable[..., int | None], arguments: Sequence[Any]) -> NoReturn:
    """Call ``function(ArrayTask, *arguments)`` and exit with the code that it returns (None: 0).

    Without the array's record no process waits for the task, and it does nothing. Jobs that could not be cancelled end
    that way, and jobs that Slurm took although sbatch reported an error.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # submitit's signal to requeue the job; Slurm does that itself
    if not (folder / RECORD).exists():
        print(f"{folder.name}: no process waits for this job any more")
        sys.exit(0)
    task = ArrayTask(folder, index)
    task.report(BEGAN)
    try:
        code = function(task, *arguments) or 0
    except Exception as error:
        task.report(ENDED, code=1, problem=" ".join(f"{type(error).__name__}: {error}".split())[:200])
        raise
    task.report(ENDED, code=code)
    sys.exit(code)
