"""Run a function on several ranks from a notebook cell.

`launch` stands on PyTorch's elastic agent: it keeps the ranks' rendezvous, environment, output and
process group store. The ranks come from Python's fork server, which has PyTorch imported and holds no
threads and no CUDA context, so that a second launch costs a fraction of a second. What is added is what
a notebook needs: functions that live in a cell, results by value, one error that names the rank, and a
hang that ends with where each rank stood.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import linecache
import logging
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import types
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from torch.distributed import TCPStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from course_lib.distributed import rank_process
from course_lib.distributed.errors import LaunchTimeoutError, RankFailedError
from course_lib.distributed.rank_process import Payload, run_rank
from course_lib.hardware import available_cores

__all__ = ["default_backend", "launch", "threads_per_rank", "warm_up"]

MONITOR_INTERVAL = 0.02  # seconds between two looks at the ranks
EXIT_GRACE = 0.2  # seconds for a rank that has reported an error to be gone
STACK_GRACE = 1.0  # seconds that hanging ranks get to write down where they stand

# Imported by the fork server, so that no rank has to. DistributedDataParallel pulls in torch._dynamo, a second's work.
PRELOAD = [
    "torch.distributed.elastic.multiprocessing.api",
    "torch._dynamo",
    "course_lib.distributed.rank_process",
    "course_lib.training",
    "course_lib.models",
]


# Launches may run in threads of one process; what they change of it for a moment, they change one at a time.
_changing_the_process = threading.RLock()


def default_backend(world_size: int) -> str:
    """NCCL where each rank has a GPU of its own, Gloo otherwise (NCCL refuses two ranks on one GPU)."""
    return "nccl" if torch.cuda.device_count() >= world_size else "gloo"


def threads_per_rank(world_size: int) -> int:
    """Cores divided between the ranks, at least one each: more threads than cores make all of them crawl."""
    return max(1, available_cores() // world_size)


def warm_up() -> None:
    """Start the fork server in the background, so that the first launch does not wait for PyTorch's import."""
    from multiprocessing import forkserver

    multiprocessing.set_forkserver_preload(PRELOAD)
    with (
        _changing_the_process,
        _environment(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1"),
    ):  # NumPy's import would start threads
        forkserver.ensure_running()


def launch(
    worker: Callable[..., Any],
    world_size: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = 1800.0,
    *,
    backend: str | None = None,
    process_group: bool = True,
) -> list[Any]:
    """Run ``worker(*args, **kwargs)`` on `world_size` ranks of this machine, with the process group up.

    The worker may be defined in a notebook cell. It asks ``torch.distributed`` for its rank. What the
    ranks print appears here, each line with its rank. Interrupting (■) ends all ranks.

    Parameters
    ----------
    worker : callable
    world_size : int
        Number of ranks, at least 1. The cores are divided between them; more ranks than cores is allowed and said.
    args, kwargs
        The worker's arguments, the same for each rank; whatever cloudpickle takes.
    timeout : float, optional
        Seconds after which unfinished ranks are ended; None waits for ever.
    backend : str, optional
        ``nccl``, ``gloo``…; by default NCCL where each rank has its own GPU, Gloo otherwise.
    process_group : bool
        False leaves ``init_process_group`` to the worker; the environment (RANK, WORLD_SIZE,
        MASTER_ADDR, MASTER_PORT) is set either way.

    Returns
    -------
    list
        What each rank returned, in order of rank. Tensors are copies.

    Raises
    ------
    RankFailedError
        A rank raised, exited or was killed. The others are ended at once.
    LaunchTimeoutError
        The ranks did not finish within `timeout`; says where each stood.
    ValueError
        `world_size` below 1.
    TypeError
        Something in the worker or its arguments cannot be sent to another process.
    """
    if not isinstance(world_size, int) or world_size < 1:
        raise ValueError(f"world_size must be a whole number of at least 1, got {world_size!r}")
    cores = available_cores()
    if not torch.cuda.is_available() and world_size > cores:
        print(f"note: {world_size} ranks share {cores} cores; expect no speed-up from the extra ranks")

    folder = Path(tempfile.mkdtemp(prefix="launch-"))
    try:
        payload = Payload(
            call=_pack(worker, args, kwargs or {}),
            threads=threads_per_rank(world_size),
            backend=(backend or default_backend(world_size)) if process_group else None,
            gpus=torch.cuda.device_count(),
            environment=_rank_environment(),
            folder=os.getcwd(),
            sources=_notebook_sources(),
        )
        (folder / "payload.pickle").write_bytes(pickle.dumps(payload))
        sys.stdout.flush()
        warm_up()
        results = _run_agent(folder, world_size, timeout)
        return [pickle.loads(results[rank]) for rank in range(world_size)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _OneNodeRendezvous(StaticTCPRendezvous):
    """The agent meets nobody but its own ranks, at a store on a port that the system picked and the store holds.

    PyTorch's dynamic rendezvous finds a free port too, but waits up to 0.3 s for other nodes.
    """

    def __init__(self) -> None:
        super().__init__("localhost", 0, rank=0, world_size=1, run_id=uuid.uuid4().hex, timeout=600)
        self._store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.master_port = self._store.port


class _WatchingAgent(LocalElasticAgent):
    """The elastic agent, with a deadline, and quick to end the ranks that a failure leaves behind.

    The stock agent waits 30 s for survivors, for ever for a rank that left without a word, and never
    looks at the clock.
    """

    def __init__(self, *args: Any, folder: Path, world_size: int, timeout: float | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.folder = folder
        self.world_size = world_size
        self.timeout = timeout
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.error: Exception | None = None

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        # multiprocessing would run the main script again in each rank, to find functions there. Ours travel by
        # value, so that a script needs no `if __name__ == "__main__"` and standard input may be the script.
        with _changing_the_process, _environment(TORCHELASTIC_SIGNALS_TO_HANDLE="SIGTERM,SIGINT"):
            main = sys.modules["__main__"]
            sys.modules["__main__"] = types.ModuleType("__main__")
            try:
                return super()._start_workers(worker_group)
            finally:
                sys.modules["__main__"] = main

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        processes = self._pcontext._pc.processes  # public pids() cannot tell a dead process from a live one
        self.error = self._first_failure(processes)
        if self.error is None and self.deadline is not None and time.monotonic() > self.deadline:
            self.error = LaunchTimeoutError(self.timeout, self._positions(processes))
        if self.error is None:
            result = super()._monitor_workers(worker_group)
            if result.state is not WorkerState.FAILED:
                return result
            self.error = self._first_failure(processes) or RuntimeError(str(result.failures))
        for process in processes:
            process.kill()
        for process in processes:
            process.join(5)
        return RunResult(state=WorkerState.FAILED)

    def _first_failure(self, processes: Sequence[multiprocessing.Process]) -> RankFailedError | None:
        """The rank that went first: one that is gone without a report, else the one with the earliest report.

        When a rank is killed, its peers report broken connections, perhaps before its exit is seen; hence the wait.
        """
        reports = self._reports()
        if reports:
            end = time.monotonic() + EXIT_GRACE
            while time.monotonic() < end and all(processes[rank].exitcode is None for rank in reports):
                time.sleep(MONITOR_INTERVAL)
            time.sleep(MONITOR_INTERVAL)
        # A rank that has delivered its result waits for the others' before it exits, so an early exit is a loss.
        exits = {rank: process.exitcode for rank, process in enumerate(processes) if process.exitcode is not None}
        reports = self._reports()
        for rank, code in exits.items():
            if rank not in reports:
                return RankFailedError(rank, self.world_size, _describe_exit(code))
        if not reports:
            return None
        rank = min(reports, key=lambda rank: reports[rank]["time"])
        reason, text = reports[rank]["reason"], reports[rank]["traceback"]
        finished = [str(peer) for peer in range(self.world_size) if (self.folder / f"done-{peer}").exists()]
        if finished:
            text += (
                f"\nRank {', '.join(finished)} had already returned: if rank {rank} was in a collective, "
                "not every rank made the same calls.\n"
            )
        return RankFailedError(rank, self.world_size, reason, text)

    def _reports(self) -> dict[int, dict[str, Any]]:
        return {
            int(path.stem.removeprefix("error-")): json.loads(path.read_text())
            for path in self.folder.glob("error-*.json")
        }

    def _positions(self, processes: Sequence[multiprocessing.Process]) -> dict[int, str]:
        """Ask each rank for its stack; a rank that has not started has none."""
        pending = {}
        for rank, process in enumerate(processes):
            if (self.folder / f"pid-{rank}").exists():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGUSR1)
                    pending[rank] = self.folder / f"stack-{rank}.txt"
        end = time.monotonic() + STACK_GRACE
        positions = {rank: "  not started yet" for rank in range(len(processes))}
        while pending and time.monotonic() < end:
            time.sleep(0.05)
            for rank, path in list(pending.items()):
                text = path.read_text()
                if text.endswith("\n"):
                    positions[rank] = _trim_stack(text)
                    del pending[rank]
        for rank in pending:
            positions[rank] = "  it did not answer (stopped, or deep in the kernel)"
        return positions


def _run_agent(folder: Path, world_size: int, timeout: float | None) -> dict[int, bytes]:
    with _notebook_safe_signals(), _quiet_elastic_logs():
        rendezvous = _OneNodeRendezvous()
        try:
            agent = _WatchingAgent(
                spec=WorkerSpec(
                    role="rank",
                    local_world_size=world_size,
                    entrypoint=run_rank,
                    args=(str(folder),),
                    rdzv_handler=rendezvous,
                    max_restarts=0,
                    monitor_interval=MONITOR_INTERVAL,
                    local_addr="localhost",
                ),
                logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs"), tee=Std.OUT),
                start_method="forkserver",
                log_line_prefix_template="[rank ${rank}] ",
                shutdown_timeout=2,
                folder=folder,
                world_size=world_size,
                timeout=timeout,
            )
            result = agent.run()
        except SignalException as stopped:
            if stopped.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise SystemExit(128 + stopped.sigval) from None
        finally:
            rendezvous.shutdown()
    if agent.error is not None:
        raise agent.error
    return result.return_values


def _pack(worker: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    packed = io.BytesIO()
    try:
        _Pickler(packed).dump((worker, tuple(args), dict(kwargs)))
        return packed.getvalue()
    except Exception as error:
        name = getattr(worker, "__name__", repr(worker))
        raise TypeError(
            f"{name} or its arguments cannot be sent to another process ({error}); "
            "open files, locks, generators and running processes belong inside the worker"
        ) from error


class _Pickler(cloudpickle.Pickler):
    """cloudpickle, which also sends modules of a type of their own by name.

    A worker that mentions ``torch`` and, say, ``data.classes`` makes cloudpickle send the submodule
    ``torch.classes`` along, which is such a module, and fail.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.ModuleType) and sys.modules.get(obj.__name__) is obj:
            return importlib.import_module, (obj.__name__,)
        return super().reducer_override(obj)


def _rank_environment() -> dict[str, str]:
    environment = dict(os.environ)
    if sys.platform == "linux" and any(name == "lo" for _, name in socket.if_nameindex()):
        # One machine: Gloo need not listen on anything that others can reach, nor look up the host's name.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return environment


def _notebook_sources() -> dict[str, list[str]]:
    """Source lines of what was typed rather than imported, which a rank's traceback could not find on disk."""
    return {name: entry[2] for name, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None}


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"the process exited with code {code} before the worker returned"
    name = signal.Signals(-code).name
    hint = "; the system kills so when memory runs out" if -code == signal.SIGKILL else ""
    return f"the process was ended by {name}{hint}"


def _trim_stack(dump: str) -> str:
    """Faulthandler's frames, innermost first, a short line each, without those that started the rank."""
    frames = []
    for path, line, function in re.findall(r'File "(.*)", line (\d+) in (.*)', dump):
        if path == rank_process.__file__:
            break
        place = path.rpartition("site-packages/")[2]
        place = f"{place}:{line}" if "/ipykernel_" not in place else f"line {line} of its cell"
        frames.append(f"  {function} ({place})")
    return "\n".join(frames) if frames else "  setting up"


@contextlib.contextmanager
def _environment(**values: str):
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _notebook_safe_signals():
    """Give back the handlers that the agent takes over: the kernel's own interrupt must go on working."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    taken = (signal.SIGTERM, signal.SIGINT) if in_main_thread else ()
    handlers = {number: signal.getsignal(number) for number in taken}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _quiet_elastic_logs():
    """The agent reports failures by log lines on stderr; ours are raised, once."""
    logger = logging.getLogger("torch.distributed.elastic")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
