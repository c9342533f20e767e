"""A job array and its files.

::

    FOLDER/NAME/tasks.json      a label for each task, from before the submission until all tasks have ended
    FOLDER/NAME/reports/        what the tasks report (`course_lib.runs.slurm.array_task`)
    FOLDER/NAME/*_log.err       what they wrote to stderr; kept where a task was lost

NAME is the jobs' name too: a process whose predecessor was killed finds by it which jobs still run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib.runs.slurm.array_task import RECORD, REPORTS, run_task
from course_lib.runs.slurm.squeue import SlurmError, cancel, tasks_by_name
from course_lib.system.atomic import write_atomically

__all__ = ["JobArray", "RefusedError", "cancel_left"]

KILL_SECONDS = 45.0  # Slurm's KillWait is 30


class RefusedError(SlurmError):
    """sbatch refuses the jobs; its own words, one line."""


@dataclass(frozen=True, eq=False)
class JobArray:
    """A submitted array; `labels` are plain data, by index, by which the submitter identifies each task."""

    folder: Path
    labels: Sequence[Any]
    seen: set[str] = field(default_factory=set, repr=False)  # names of the reports that `reports` has yielded

    @property
    def name(self) -> str:
        return self.folder.name

    @classmethod
    def submit(
        cls,
        parent: Path,
        prefix: str,
        function: Callable[..., int | None],
        tasks: Sequence[tuple[Any, Sequence[Any]]],
        parameters: Mapping[str, Any],
    ) -> JobArray:
        """Submit one task for each pair of label and arguments (see `course_lib.runs.slurm.array_task.run_task`).

        Parameters
        ----------
        parent : path
            Folder for the array's own folder; the nodes see it under the same path.
        prefix : str
            Beginning of the jobs' name.
        parameters : mapping
            For submitit's executor.

        Raises
        ------
        RefusedError
        OSError
            The folder cannot be written.
        """
        # Imported late: it configures logging.
        os.environ.setdefault("SUBMITIT_LOG_LEVEL", "WARNING")
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        parent.mkdir(mode=0o700, exist_ok=True)
        array = cls(parent / f"{prefix}-{secrets.token_hex(5)}", [label for label, _ in tasks])
        # No other user can write there: the jobs unpickle what this process puts in. Nothing is unpickled here.
        array.folder.mkdir(mode=0o700)
        (array.folder / REPORTS).mkdir()
        write_atomically(array.folder / RECORD, json.dumps(array.labels))
        executor = submitit.SlurmExecutor(array.folder, max_num_timeout=0)
        count, arguments = len(tasks), [arguments for _, arguments in tasks]
        try:
            # Without srun: since Slurm 22.05 a step does not inherit the job's --cpus-per-task.
            executor.update_parameters(
                job_name=array.name, array_parallelism=count, use_srun=False, wckey=None, **parameters
            )
            executor.map_array(run_task, [array.folder] * count, range(count), [function] * count, arguments)
        except (FailedJobError, FailedSubmissionError) as error:
            # In time for a job that Slurm took all the same: it does nothing without its record.
            array.clean_up()
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise RefusedError(re.sub(r"^sbatch: (error: )?", "", lines[-1].strip())[:300]) from None
        except BaseException:
            array.cancel()
            raise
        return array

    @classmethod
    def left_in(cls, parent: Path) -> list[JobArray]:
        """Arrays of an interrupted process: not all of their tasks are known to have ended."""
        left = []
        for path in sorted(parent.glob(f"*/{RECORD}")):
            with contextlib.suppress(OSError, ValueError):
                left.append(cls(path.parent, list(json.loads(path.read_text()))))
        return left

    def reports(self) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
        """Reports since the last call: a task's index, what it reports, and the data."""
        for name in sorted(set(os.listdir(self.folder / REPORTS)) - self.seen):
            index, what, _ = (*name.split("-", 2), "", "")[:3]
            if index.isdigit():
                with contextlib.suppress(OSError, ValueError):
                    data = json.loads((self.folder / REPORTS / name).read_text())
                    self.seen.add(name)
                    yield int(index), what, data

    def log(self, index: int) -> Path | None:
        """The file with what a task wrote to stderr; None where it never began."""
        pattern = re.compile(rf"\d+(_{index})?_0_log\.err" if len(self.labels) == 1 else rf"\d+_{index}_0_log\.err")
        return next((path for path in self.folder.iterdir() if pattern.fullmatch(path.name)), None)

    def cancel(self) -> bool:
        """Cancel its jobs and forget them; False where Slurm does not answer: then they can be found again."""
        if not cancel(self.name):
            return False
        self.forget()
        return True

    def forget(self) -> None:
        """Remove the record: tasks that still wait in the queue will do nothing."""
        (self.folder / RECORD).unlink(missing_ok=True)

    def wait_until_over(self, seconds: float = KILL_SECONDS) -> bool:
        """Wait until no task lives; False where one still does, or squeue does not answer."""
        deadline = time.monotonic() + seconds
        while (states := tasks_by_name([self.name])) is not None:
            if not any(state.live for state in states[self.name].values()):
                return True
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
        return False

    def clean_up(self, keep_logs: bool = False) -> None:
        """Remove its files; perhaps not what its tasks printed."""
        if not keep_logs:
            shutil.rmtree(self.folder, ignore_errors=True)
        for path in self.folder.glob("*"):
            if path.suffix not in (".err", ".out"):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.parent.rmdir()  # where it is empty


def cancel_left(parent: Path, log: Callable[[str], None]) -> list[JobArray]:
    """Cancel the arrays that an interrupted process left; returns those that Slurm did not confirm to be over."""
    left = JobArray.left_in(parent)
    states = tasks_by_name([array.name for array in left])
    alive = []
    for array in left:
        if states is None or any(state.live for state in states[array.name].values()):
            log(f"cancelling Slurm jobs {array.name}, which an interrupted batch left")
            if not (array.cancel() and array.wait_until_over()):
                alive.append(array)
                continue
        array.clean_up()
    return alive
