"""One trial of a sweep, in a process of its own: execute the notebook, publish the results, write the outcome."""

import hashlib
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from course_lib.runs.execute_notebook import NotebookFailedError, execute_notebook, is_disk_full
from course_lib.runs.sweep.folder import Outcome, write_outcome
from course_lib.system.hardware import available_cores, machine_line

__all__ = ["DISK_FULL", "LESSON", "TrialTask", "main", "run_to_exit_code", "run_trial"]

LESSON = "lesson"  # cells with this tag teach; the run does without them
DISK_FULL = 28  # exit code
LOG = "output.log"


@dataclass(frozen=True)
class TrialTask:
    """What a process needs to run a trial; plain data, so that it can be sent anywhere.

    Parameters
    ----------
    skip : str
        Tag of the cells that are not executed; empty: none.
    warm_server : str
        Socket of the warm process; empty: kernels start as usual.
    cpus : sequence of int
        Cores for a warm kernel.
    """

    notebook: str
    folder: str
    lab: str
    profile: str
    parameters: Mapping[str, Any]
    attempts: int = 1
    skip: str = LESSON
    executor: str = "local"
    warm_server: str = ""
    cpus: Sequence[int] = ()


def run_trial(task: TrialTask) -> Outcome:
    """Execute the notebook into the trial's folder.

    A failure is an outcome; what was executed, with the traceback, stays in ``unfinished.ipynb``.

    Raises
    ------
    OSError
        The disk is full: then the trial has no outcome, and will be run again.
    """
    folder, notebook = Path(task.folder), Path(task.notebook)
    folder.mkdir(parents=True, exist_ok=True)
    executed = folder / "unfinished.ipynb"
    engine = {"request_save_on_cell_execute": False, "skip_cells_with_tag": task.skip or "skip-execution"}
    if task.warm_server:
        engine["sockets_in"] = os.path.dirname(task.warm_server)  # removed with the warm process if this one is killed
        engine |= {"engine_name": "lab-warm", "warm_server": task.warm_server, "cpus": list(task.cpus)}
    started, clock = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    executes = digest(notebook)  # before: it may be edited while it runs
    error = text = ""
    with open(folder / LOG, "w") as log:
        try:
            execute_notebook(notebook, executed, {**task.parameters, "output_dir": str(folder)}, log, log, **engine)
            os.replace(executed, folder / notebook.name)
        except NotebookFailedError as failed:
            error, text = str(failed), failed.traceback
            if "No space left on device" in text or "Disk quota exceeded" in text:
                raise OSError(DISK_FULL, "No space left on device", str(folder)) from None
        except Exception as failed:
            if is_disk_full(failed):
                raise
            error, text = f"{type(failed).__name__}: {failed}", traceback.format_exc()
    status, seconds = "failed" if error else "done", round(time.monotonic() - clock, 3)
    outcome = Outcome(
        status, task.lab, task.profile, dict(task.parameters), seconds, started, task.attempts, error, text, task.executor,
        cores=len(task.cpus) or available_cores(), notebook=executes, machine=machine_line(),
    )  # fmt: skip
    write_outcome(folder, outcome)
    return outcome


def digest(notebook: Path) -> str:
    """Digest of a notebook's bytes: runs of different notebooks are not comparable without care."""
    return hashlib.sha256(notebook.read_bytes()).hexdigest()[:16]


def run_to_exit_code(task: TrialTask) -> int:
    """Run a trial; returns 0 where it is done, 1 where it failed, and 28 where the disk is full."""
    try:
        return 0 if run_trial(task).status == "done" else 1
    except OSError as error:
        if not is_disk_full(error):
            raise
        return DISK_FULL


def main() -> int:
    """Run the `TrialTask` that ``sys.argv[1]`` holds as JSON; returns the exit code."""
    return run_to_exit_code(TrialTask(**json.loads(sys.argv[1])))


if __name__ == "__main__":
    sys.exit(main())
