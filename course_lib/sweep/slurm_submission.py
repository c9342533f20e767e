"""Points that went to Slurm together: an array of jobs, and what is known of it on disk.

::

    DIR/slurm_logs/NAME/points.json      the points, from before the jobs are submitted until all have ended
    DIR/slurm_logs/NAME/told/            what the jobs tell (`course_lib.sweep.slurm_job`)
    DIR/slurm_logs/NAME/*_log.err        what they wrote; those of points that left no outcome stay

NAME is the jobs' name too, so that a call whose predecessor was killed finds what runs, whenever that was.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib.atomic import write_atomically
from course_lib.slurm.squeue import cancel, tasks_of
from course_lib.sweep.run_point import Task
from course_lib.sweep.slurm_job import RECORD, TOLD, run_job

__all__ = ["LOGS", "RefusedError", "Submission"]

LOGS = "slurm_logs"
KILL_SECONDS = 45.0  # Slurm's KillWait is 30


class RefusedError(RuntimeError):
    """sbatch takes the jobs not; its own words, one line."""


@dataclass(frozen=True, eq=False)
class Submission:
    """An array of jobs.

    Parameters
    ----------
    folder : path
    points : sequence
        By index in the array: a point's folder below the sweep's, and which attempt at it this is.
    heard : set of str
        What the jobs told, and `told` gave out.
    """

    folder: Path
    points: Sequence[tuple[str, int]]
    heard: set[str] = field(default_factory=set, repr=False)

    @property
    def name(self) -> str:
        return self.folder.name

    @classmethod
    def send(cls, sweep: Path, tasks: Mapping[str, Task], parameters: Mapping[str, Any], gpus: bool) -> Submission:
        """Submit a job for each task, by its point's folder.

        Raises
        ------
        RefusedError
        OSError
            The sweep's folder cannot be written.
        """
        # Imported late: it configures logging.
        os.environ.setdefault("SUBMITIT_LOG_LEVEL", "WARNING")
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        logs = sweep / LOGS
        logs.mkdir(exist_ok=True)
        sent = cls(logs / f"lab-sweep-{secrets.token_hex(5)}", [(name, task.attempts) for name, task in tasks.items()])
        # Nobody else can write there: the jobs unpickle what this process puts in. Nothing is unpickled here.
        sent.folder.mkdir(mode=0o700)
        (sent.folder / TOLD).mkdir()
        write_atomically(sent.folder / RECORD, json.dumps(sent.points))
        executor = submitit.SlurmExecutor(sent.folder, max_num_timeout=0)
        count = len(tasks)
        try:
            # Without srun: since Slurm 22.05 a step does not inherit the job's --cpus-per-task.
            executor.update_parameters(
                job_name=sent.name, array_parallelism=count, use_srun=False, wckey=None, **parameters
            )
            executor.map_array(run_job, tasks.values(), [sent.folder] * count, range(count), [gpus] * count)
        except (FailedJobError, FailedSubmissionError) as error:
            # In time for a job that Slurm took all the same: it does nothing without its record.
            shutil.rmtree(sent.folder, ignore_errors=True)
            said = str(error).strip().splitlines() or [type(error).__name__]
            raise RefusedError(re.sub(r"^sbatch: (error: )?", "", said[-1].strip())[:300]) from None
        except BaseException:
            sent.cancel()
            raise
        return sent

    @classmethod
    def left_in(cls, sweep: Path) -> list[Submission]:
        """Those that an interrupted call left: not all of their points are known to have ended."""
        left = []
        for path in sorted((sweep / LOGS).glob(f"*/{RECORD}")):
            with contextlib.suppress(OSError, ValueError):
                left.append(
                    cls(path.parent, [(str(name), int(attempt)) for name, attempt in json.loads(path.read_text())])
                )
        return left

    def told(self) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
        """What the jobs have told since the last call: that one began or ended, its index, and more."""
        for name in sorted(set(os.listdir(self.folder / TOLD)) - self.heard):
            what, _, index = name.partition("-")
            if index.isdigit():
                with contextlib.suppress(OSError, ValueError):
                    more = json.loads((self.folder / TOLD / name).read_text())
                    self.heard.add(name)
                    yield what, int(index), more

    def log(self, index: int) -> Path | None:
        """What a job wrote to stderr; None where it never began."""
        pattern = re.compile(rf"\d+(_{index})?_0_log\.err" if len(self.points) == 1 else rf"\d+_{index}_0_log\.err")
        return next((path for path in self.folder.iterdir() if pattern.fullmatch(path.name)), None)

    def cancel(self) -> bool:
        """Cancel its jobs and forget them; False where Slurm does not answer, and they are to be found again."""
        if not cancel(self.name):
            return False
        self.forget()
        return True

    def forget(self) -> None:
        """Nobody waits for its jobs any more; those that still wait in the queue will do nothing."""
        (self.folder / RECORD).unlink(missing_ok=True)

    def wait_until_over(self, seconds: float = KILL_SECONDS) -> None:
        """Wait until no job lives, or squeue does not answer, or so many seconds are over."""
        deadline = time.monotonic() + seconds
        while any(state.live for state in (tasks_of(self.name) or {}).values()) and time.monotonic() < deadline:
            time.sleep(0.5)

    def clean_up(self, lost: Collection[int] = ()) -> None:
        """Remove its files, but for the logs of these indices."""
        keep = {path.with_suffix(suffix) for index in lost if (path := self.log(index)) for suffix in (".err", ".out")}
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            shutil.rmtree(self.folder / TOLD, ignore_errors=True)
            for path in self.folder.iterdir():
                if path.is_file() and path not in keep:
                    path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.parent.rmdir()  # where it is empty
