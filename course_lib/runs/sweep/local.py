"""Trials on this machine: as many at a time as its cores (or GPUs) allow, in forks of a warm process."""

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
from course_lib.runs.sweep.run_trial import TrialTask
from course_lib.runs.sweep.trials import Trial
from course_lib.runs.warm_kernels import WarmProcess, WarmServer
from course_lib.system.hardware import available_cores

__all__ = ["EndedTrial", "Machine", "core_budget", "run_local"]


@dataclass(frozen=True)
class Machine:
    """What a machine has to divide: the cores and the GPUs that a process may use."""

    cores: Sequence[int]
    gpus: Sequence[str] = ()

    @classmethod
    def here(cls) -> Machine:
        """This machine, as this process may use it."""
        cores = range(available_cores())
        if hasattr(os, "sched_getaffinity"):
            cores = sorted(os.sched_getaffinity(0))[: len(cores)]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        present = torch.cuda.device_count()
        names = visible.split(",")[:present] if visible else [str(index) for index in range(present)]
        return cls(tuple(cores), tuple(names))


@dataclass(frozen=True)
class EndedTrial:
    """A trial whose process has ended: its exit code, negative for a signal.

    ``reason`` is a one-line cause where the process may have left no outcome and more than the code is known; ``tail`` is
    the end of its log.
    """

    trial: Trial
    code: int
    reason: str = ""
    tail: str = ""


def core_budget(trials: Sequence[Trial], machine: Machine, jobs: int) -> dict[str, int]:
    """Cores of each trial, by its folder: the same number per rank for all, so that their times can be compared.

    Ranks × cores per rank of the trials that run at a time, at most `jobs`, never exceed the machine's cores.

    Raises
    ------
    ParameterError
        A trial has more ranks than the machine has cores (GPUs, where there are GPUs).
    """
    room = len(machine.gpus) or len(machine.cores)
    most, least = max(trial.ranks for trial in trials), min(trial.ranks for trial in trials)
    if most > room:
        what = "GPUs" if machine.gpus else "cores"
        raise ParameterError(
            f"num_gpus = {most}: this machine has {room} {what}; leave it out, or run it elsewhere by --executor slurm"
        )
    per_rank = max(1, len(machine.cores) // (room if machine.gpus else max(most, jobs * least)))
    # A machine may have fewer cores than GPUs.
    return {trial.folder: min(per_rank * trial.ranks, len(machine.cores)) for trial in trials}


def run_local(
    trials: Sequence[Trial],
    budget: Mapping[str, int],
    task: Callable[[Trial], TrialTask],
    machine: Machine,
    jobs: int,
    on_start: Callable[[Trial], None],
) -> Iterator[EndedTrial]:
    """Run trials, the largest first, at most `jobs` at a time.

    Each is a fork of a warm process, and so is its kernel. Leaving the iterator early ends what runs.

    Parameters
    ----------
    budget : mapping
        From `core_budget`, of all of the sweep's trials: an interruption does not change the cores of those left.
    task : callable
        What a trial's process needs.

    Yields
    ------
    EndedTrial
        In the order in which they end. A full disk is exit code 28, `run_trial.DISK_FULL`.

    Raises
    ------
    WarmServerError
        The warm process cannot be started.
    """
    waiting = sorted(trials, key=lambda trial: -trial.ranks)
    free_cores, free_gpus = list(machine.cores), list(machine.gpus)
    running: dict[WarmProcess, tuple[Trial, list[int], list[str]]] = {}
    with WarmServer.private() as server, selectors.DefaultSelector() as selector:
        try:
            while waiting or running:
                for trial in list(waiting):
                    if len(running) == jobs:
                        break
                    needed, gpus = budget[trial.folder], trial.ranks if machine.gpus else 0
                    if needed > len(free_cores) or gpus > len(free_gpus):
                        continue
                    cores, devices = free_cores[:needed], free_gpus[:gpus]
                    del free_cores[:needed], free_gpus[:gpus]
                    process = _start(server, replace(task(trial), cpus=cores, warm_server=server.path), devices)
                    running[process] = (trial, cores, devices)
                    selector.register(process, selectors.EVENT_READ)
                    waiting.remove(trial)
                    on_start(trial)
                for key, _ in selector.select():
                    process = key.fileobj
                    selector.unregister(process)
                    code = process.wait()
                    trial, cores, devices = running.pop(process)
                    free_cores += cores
                    free_gpus += devices
                    yield EndedTrial(trial, code)
        finally:
            for process in running:
                process.close()


def _start(server: WarmServer, task: TrialTask, gpus: Sequence[str]) -> WarmProcess:
    environment = dict(os.environ)
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    folder = Path(task.folder)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "process.log", "w") as log:
        return server.fork(
            "course_lib.runs.sweep.run_trial", "main", [json.dumps(asdict(task))],
            environment=environment, stdout=log.fileno(), stderr=log.fileno(),
        )  # fmt: skip


def describe_end(code: int) -> str:
    """Why a process left no outcome."""
    if code == -signal.SIGKILL:
        return "the process was killed, as the system does when memory runs out"
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with code {code}"
