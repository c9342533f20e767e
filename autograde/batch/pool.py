"""Workers on this machine: processes of a fork server, each with a warm interpreter, in a pool of pebble's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass

from pebble import ProcessExpired, ProcessPool

from autograde.batch.worker import GradingJob, grade_one, open_context
from autograde.batch.worker_server import start_worker_server
from autograde.rubric.schema import find_rubric
from autograde.rubric.verdict import Verdict
from autograde.sandbox.bubblewrap import SandboxError
from course_lib.system.main_script import ForkServerWithoutMainScript

__all__ = ["GradingResult", "WarmPool", "run_local"]

ATTEMPTS = 2
POOLS = 4
GLANCE = 2.0  # seconds between two looks at whether the pool still works


@dataclass(frozen=True)
class GradingResult:
    """One student's verdict, or one line about the failure of its worker."""

    student: str
    verdict: Verdict | None
    problem: str = ""


class WarmPool:
    """A pool of workers that stays open between calls of `run_local`, for whatever labs; to be closed.

    It starts with its first job, and again if it broke or if the lab's rubric or source notebook has changed.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPool | None = None
        self._editions: dict[str, tuple[str, bytes]] = {}

    def open(self, job: GradingJob) -> ProcessPool:
        """The pool, ready for a job's submissions."""
        edition = find_rubric(job.lab, job.rubrics).digest, job.source.read_bytes()
        if self._editions.get(job.lab, edition) != edition or (self._pool and not self._pool.active):
            self.close()
        self._editions[job.lab] = edition
        if self._pool is None:
            self._pool = _new_pool(self.workers, job)
        return self._pool

    def close(self) -> None:
        """End the workers, after what they have."""
        self._editions.clear()
        if self._pool is not None:
            self._pool.close()
            self._pool.join()
            self._pool = None


def run_local(
    job: GradingJob, students: list[str], workers: int, timeout: float, warm: WarmPool | None = None
) -> Iterator[GradingResult]:
    """Grade students by a pool of processes, in the order in which they are done.

    If a worker dies, or takes longer than `timeout` seconds, only its current submission is affected. It is tried once
    more. If the fork server dies, for example because memory ran out, all submissions that run at that moment are.

    Parameters
    ----------
    timeout : float
        Seconds.
    warm : WarmPool, optional
        The pool to use; by default one that ends with the last submission.

    Raises `SandboxError`: nothing can be executed here.
    """
    attempts = dict.fromkeys(students, 0)
    queue = list(reversed(students))
    for _ in range(POOLS):
        yield from _run_pool(job, queue, attempts, workers, timeout, warm)
        if not queue:
            return
    yield from (GradingResult(student, None, "could not be kept alive") for student in reversed(queue))


def _run_pool(
    job: GradingJob,
    queue: list[str],
    attempts: dict[str, int],
    workers: int,
    timeout: float,
    warm: WarmPool | None,
) -> Iterator[GradingResult]:
    """Grade from the end of the queue until it is empty, or the pool breaks: its submissions then return to the queue.

    pebble gives a pool up when a worker dies while none has a task; no submission caused that. What was scheduled at that
    moment stays without an answer (5.2), so we look whether the pool works while we wait.
    """
    with nullcontext(warm.open(job)) if warm else _new_pool(workers, job) as pool:
        waiting: dict[Future, str] = {}
        try:
            while queue or waiting:
                # Few at a time, so that an interrupt has few to cancel.
                while queue and len(waiting) < 2 * workers:
                    future = _schedule(pool, job, queue[-1], timeout)
                    waiting[future] = queue.pop()
                finished, _ = wait(waiting, GLANCE, return_when=FIRST_COMPLETED)
                if not finished and not pool.active:
                    raise BrokenProcessPool("no worker is left")
                for future in finished:
                    student = waiting[future]
                    result = _result(student, future)
                    del waiting[future]
                    attempts[student] += 1
                    if result.verdict is None and attempts[student] < ATTEMPTS:
                        queue.append(student)
                    else:
                        yield result
        except BrokenProcessPool:
            queue += waiting.values()
            pool.stop()
        except BaseException:
            pool.stop()
            raise


def _new_pool(workers: int, job: GradingJob) -> ProcessPool:
    start_worker_server()
    # The environment of now; the server may have started long ago.
    initial = {"initializer": open_context, "initargs": (job, dict(os.environ))}
    return ProcessPool(workers, context=ForkServerWithoutMainScript(), **initial)


def _schedule(pool: ProcessPool, job: GradingJob, student: str, timeout: float) -> Future:
    try:
        return pool.schedule(grade_one, args=(job, student), timeout=timeout)
    except RuntimeError as error:  # how pebble says that the pool is broken
        raise BrokenProcessPool(str(error)) from None


def _result(student: str, future: Future) -> GradingResult:
    try:
        return GradingResult(student, future.result())
    except (SandboxError, BrokenProcessPool):
        raise
    except FutureTimeoutError:
        return GradingResult(student, None, "did not answer in time")
    except ProcessExpired as error:
        return GradingResult(student, None, f"died (exit code {error.exitcode})")
    except CancelledError:
        return GradingResult(student, None, "was cancelled")
    except Exception as error:
        return GradingResult(student, None, f"failed ({type(error).__name__})")
