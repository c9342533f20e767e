"""Run a function on several ranks from a notebook cell.

`launch` stands on PyTorch's elastic agent: it keeps the ranks' rendezvous, environment, output and
process group store. The ranks come from Python's fork server, which has PyTorch imported and holds no
threads and no CUDA context, so that a second launch costs a fraction of a second. What is added is what
a notebook needs: functions that live in a cell, results by value, one error that names the rank, and a
hang that ends with where each rank stood.
"""

from __future__ import annotations

import importlib
import io
import linecache
import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

from course_lib.distributed.agent import MONITOR_INTERVAL, OneNodeRendezvous, WatchingAgent
from course_lib.distributed.one_interrupt import OneInterrupt
from course_lib.distributed.process_state import changing_the_process, environment, quiet_elastic_logs
from course_lib.distributed.rank_process import PROGRESS, Payload, run_rank
from course_lib.hardware import available_cores
from course_lib.interactive import is_interactive

__all__ = ["default_backend", "launch", "threads_per_rank", "warm_up"]

# Imported by the fork server, so that no rank has to. DistributedDataParallel pulls in torch._dynamo, a second's work.
PRELOAD = [
    "course_lib.ignore_interrupts",
    "torch.distributed.elastic.multiprocessing.api",
    "torch._dynamo",
    "course_lib.distributed.rank_process",
    "course_lib.training",
    "course_lib.models",
]


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
    # One thread: a library that starts a pool when it is imported would make the fork server unfit to fork.
    with changing_the_process, environment(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1"):
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
    threads: int | None = None,
    stop: threading.Event | None = None,
) -> list[Any]:
    """Run ``worker(*args, **kwargs)`` on `world_size` ranks of this machine, with the process group up.

    The worker may be defined in a notebook cell. It asks ``torch.distributed`` for its rank. What the
    ranks print appears here, each line with its rank; where a notebook's page sent the cell, rank by rank,
    and a training by `course_lib.training.fit` as a bar and curves. Interrupting (■) ends all ranks.

    Parameters
    ----------
    worker : callable
    world_size : int
        Number of ranks, at least 1. The cores are divided between them; more ranks than cores are allowed, and a note says so
        unless `threads` is given.
    args, kwargs
        The worker's arguments, the same for each rank; whatever cloudpickle takes.
    timeout : float, optional
        Seconds after which unfinished ranks are ended; None waits for ever.
    backend : str, optional
        ``nccl``, ``gloo``…; by default NCCL where each rank has its own GPU, Gloo otherwise.
    process_group : bool
        False leaves ``init_process_group`` to the worker; the environment (RANK, WORLD_SIZE,
        MASTER_ADDR, MASTER_PORT) is set either way.
    threads : int, optional
        CPU threads a rank; by default the cores divided between the ranks. Give it where several launches run at a
        time: ranks × threads, over all of them, should equal the cores.
    stop : threading.Event, optional
        Set from another thread, it ends the ranks: the interrupt (■) reaches a launch in the main thread only.

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
    LaunchStoppedError
        `stop` was set.
    ValueError
        `world_size` or `threads` below 1.
    TypeError
        Something in the worker or its arguments cannot be sent to another process.
    """
    if not isinstance(world_size, int) or world_size < 1:
        raise ValueError(f"world_size must be a whole number of at least 1, got {world_size!r}")
    if threads is not None and (not isinstance(threads, int) or threads < 1):
        raise ValueError(f"threads must be a whole number of at least 1, got {threads!r}")
    cores = available_cores()
    if threads is None and not torch.cuda.is_available() and world_size > cores:
        print(f"note: {world_size} ranks share {cores} cores; expect no speed-up from the extra ranks")

    live = is_interactive()
    ended = "the rank has been ended" if world_size == 1 else f"all {world_size} ranks have been ended"
    with OneInterrupt(ended, signal.SIGINT, signal.SIGTERM) as signals:
        return _launch(
            worker, world_size, args, kwargs or {}, timeout, backend, process_group, threads, stop, live, signals
        )


def _launch(
    worker: Callable[..., Any], world_size: int, args: Sequence[Any], kwargs: Mapping[str, Any], timeout: float | None,
    backend: str | None, process_group: bool, threads: int | None, stop: threading.Event | None, live: bool,
    signals: OneInterrupt,
) -> list[Any]:  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="launch-"))
    try:
        payload = Payload(
            call=_pack(worker, args, kwargs),
            threads=threads or threads_per_rank(world_size),
            backend=(backend or default_backend(world_size)) if process_group else None,
            gpus=torch.cuda.device_count(),
            environment=_rank_environment(),
            folder=os.getcwd(),
            sources=_notebook_sources(),
            live=live,
        )
        (folder / "payload.pickle").write_bytes(pickle.dumps(payload))
        sys.stdout.flush()
        with signals.hold():  # a server that is half started would be left behind
            warm_up()
        results = _run_agent(folder, world_size, timeout, stop, live, signals)
        return [pickle.loads(results[rank]) for rank in range(world_size)]
    finally:
        with signals.hold():
            shutil.rmtree(folder, ignore_errors=True)


def _run_agent(
    folder: Path,
    world_size: int,
    timeout: float | None,
    stop: threading.Event | None,
    live: bool,
    signals: OneInterrupt,
) -> dict[int, bytes]:
    agent = view = None
    with quiet_elastic_logs():
        rendezvous = OneNodeRendezvous()
        try:
            agent = WatchingAgent(
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
                logs_specs=DefaultLogsSpecs(
                    log_dir=str(folder / "logs"), redirects=Std.OUT, tee=Std.NONE if live else Std.OUT
                ),
                start_method="forkserver",
                log_line_prefix_template="[rank ${rank}] ",
                shutdown_timeout=2,
                folder=folder,
                world_size=world_size,
                timeout=timeout,
                stop=stop,
                signals=signals,
            )
            if live:
                from course_lib.live_view.launch_view import LaunchView

                view = LaunchView(folder / PROGRESS, lambda: agent.logs)
                agent.look = view.look
            result = agent.run()
        finally:
            with signals.hold():
                if agent is not None:
                    agent.end_ranks()
                if view is not None:
                    view.close()
                if agent is not None:
                    agent.let_go()
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
