"""Workers on this machine: spawned processes, each with a warm interpreter (pebble keeps the pool)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from pebble import ProcessExpired, ProcessPool

from autograde.batch.worker import Setting, grade_one, open_bench
from autograde.rubric.verdict import Verdict
from autograde.sandbox.bubblewrap import SandboxError
from course_lib.system.main_script import SpawnWithoutMainScript

__all__ = ["Finished", "run_local"]

ATTEMPTS = 2
POOLS = 4


@dataclass(frozen=True)
class Finished:
    """One student's verdict, or in one line what became of the worker that should have reached it."""

    student: str
    verdict: Verdict | None
    problem: str = ""


def run_local(setting: Setting, students: list[str], workers: int, patience: float) -> Iterator[Finished]:
    """Grade students by a pool of processes, in the order in which they get done.

    A worker that dies, or takes longer than `patience` seconds, loses the submission that it had and no other; that
    submission is tried once more.

    Parameters
    ----------
    setting : Setting
    students : list of str
    workers : int
    patience : float
        Seconds.

    Raises
    ------
    SandboxError
        Nothing can be executed here.
    """
    attempts = dict.fromkeys(students, 0)
    queue = list(reversed(students))
    for _ in range(POOLS):
        yield from _run_pool(setting, queue, attempts, workers, patience)
        if not queue:
            return
    yield from (Finished(student, None, "could not be kept alive") for student in reversed(queue))


def _run_pool(
    setting: Setting, queue: list[str], attempts: dict[str, int], workers: int, patience: float
) -> Iterator[Finished]:
    """Grade from the end of the queue until it is empty, or the pool breaks: what it then had is back in the queue.

    pebble gives a pool up when a worker dies while none has a task; no submission is to blame for that.
    """
    with ProcessPool(workers, context=SpawnWithoutMainScript(), initializer=open_bench, initargs=(setting,)) as pool:
        waiting: dict[Future, str] = {}
        try:
            while queue or waiting:
                # Few at a time: nothing is lost by it, and an interrupt has little to take back.
                while queue and len(waiting) < 2 * workers:
                    future = _schedule(pool, setting, queue[-1], patience)
                    waiting[future] = queue.pop()
                finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
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


def _schedule(pool: ProcessPool, setting: Setting, student: str, patience: float) -> Future:
    try:
        return pool.schedule(grade_one, args=(setting, student), timeout=patience)
    except RuntimeError as error:  # how pebble says that the pool is broken
        raise BrokenProcessPool(str(error)) from None


def _result(student: str, future: Future) -> Finished:
    try:
        return Finished(student, future.result())
    except (SandboxError, BrokenProcessPool):
        raise
    except FutureTimeoutError:
        return Finished(student, None, "did not answer in time")
    except ProcessExpired as error:
        return Finished(student, None, f"died (exit code {error.exitcode})")
    except CancelledError:
        return Finished(student, None, "was cancelled")
    except Exception as error:
        return Finished(student, None, f"failed ({type(error).__name__})")
