"""Points on this machine: as many at a time as its cores (or GPUs) carry, in forks of a warm process."""

from __future__ import annotations

import json
import os
import selectors
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from course_lib.runs.parameters import ParameterError
from course_lib.runs.sweep.points import Point
from course_lib.runs.sweep.run_point import Task
from course_lib.runs.warm_kernels import WarmProcess, WarmServer
from course_lib.system.hardware import available_cores

__all__ = ["Ended", "Machine", "run_local", "shares"]


@dataclass(frozen=True)
class Machine:
    """What a machine has to divide: numbers of cores and of GPUs that a process may use."""

    cores: Sequence[int]
    gpus: Sequence[str] = ()

    @classmethod
    def here(cls) -> Machine:
        """This machine, as this process may use it."""
        cores = (
            sorted(os.sched_getaffinity(0))[: available_cores()]
            if hasattr(os, "sched_getaffinity")
            else range(available_cores())
        )
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        present = torch.cuda.device_count()
        names = visible.split(",")[:present] if visible else [str(index) for index in range(present)]
        return cls(tuple(cores), tuple(names))


@dataclass(frozen=True)
class Ended:
    """A point's process has ended: its exit code, negative for a signal.

    Where it may have left no outcome and more than the code is known: why, in one line, and what it wrote last.
    """

    point: Point
    code: int
    reason: str = ""
    said: str = ""


def shares(points: Sequence[Point], machine: Machine, jobs: int) -> dict[str, int]:
    """Cores that each point gets, by its folder: the same number a rank for all, so that their times can be compared.

    Ranks × cores a rank of the points that run at a time, at most `jobs`, never exceed the machine's cores.

    Raises
    ------
    ParameterError
        A point has more ranks than the machine has cores (GPUs, where there are GPUs).
    """
    room = len(machine.gpus) or len(machine.cores)
    most, least = max(point.ranks for point in points), min(point.ranks for point in points)
    if most > room:
        what = "GPUs" if machine.gpus else "cores"
        raise ParameterError(
            f"num_gpus = {most}: this machine has {room} {what}; leave it out, or run it elsewhere by --executor slurm"
        )
    a_rank = max(1, len(machine.cores) // (room if machine.gpus else max(most, jobs * least)))
    # A machine may have fewer cores than GPUs.
    return {point.folder: min(a_rank * point.ranks, len(machine.cores)) for point in points}


def run_local(
    points: Sequence[Point],
    share: Mapping[str, int],
    task: Callable[[Point], Task],
    machine: Machine,
    jobs: int,
    began: Callable[[Point], None] = lambda point: None,
) -> Iterator[Ended]:
    """Run points, the largest first, at most `jobs` at a time.

    Each is a fork of a warm process, and so is its kernel. Leaving the iterator early ends what runs.

    Parameters
    ----------
    share : mapping
        From `shares`, of all of the sweep's points: what is left after an interruption gets no other cores for that.
    task : callable
        What a point's process is told.

    Yields
    ------
    Ended
        In the order in which they end. A full disk is exit code 28, `run_point.DISK_FULL`.

    Raises
    ------
    WarmServerError
        The warm process cannot be started.
    """
    waiting = sorted(points, key=lambda point: -point.ranks)
    free_cores, free_gpus = list(machine.cores), list(machine.gpus)
    running: dict[WarmProcess, tuple[Point, list[int], list[str]]] = {}
    with WarmServer.private() as server, selectors.DefaultSelector() as selector:
        try:
            while waiting or running:
                for point in list(waiting):
                    if len(running) == jobs:
                        break
                    gpus = point.ranks if machine.gpus else 0
                    if share[point.folder] > len(free_cores) or gpus > len(free_gpus):
                        continue
                    cores, devices = free_cores[: share[point.folder]], free_gpus[:gpus]
                    del free_cores[: share[point.folder]], free_gpus[:gpus]
                    process = _start(server, replace(task(point), cpus=cores, warm_server=server.path), devices)
                    running[process] = (point, cores, devices)
                    selector.register(process, selectors.EVENT_READ, process)
                    waiting.remove(point)
                    began(point)
                for key, _ in selector.select():
                    process = key.data
                    selector.unregister(process)
                    code = process.wait()
                    point, cores, devices = running.pop(process)
                    free_cores += cores
                    free_gpus += devices
                    yield Ended(point, code)
        finally:
            for process in running:
                process.close()


def _start(server: WarmServer, task: Task, gpus: Sequence[str]) -> WarmProcess:
    environment = dict(os.environ)
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    folder = Path(task.folder)
    folder.mkdir(parents=True, exist_ok=True)
    log = os.open(folder / "process.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        return server.fork(
            "course_lib.runs.sweep.run_point", "main", [json.dumps(asdict(task))],
            environment=environment, stdout=log, stderr=log,
        )  # fmt: skip
    finally:
        os.close(log)


def describe_end(code: int) -> str:
    """Why a process left no outcome."""
    if code == -signal.SIGKILL:
        return "the process was killed, as the system does when memory runs out"
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with code {code}"
