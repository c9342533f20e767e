"""What runs inside a rank that `launch` started: set up, call the worker, report.

A rank is forked from the fork server, which has PyTorch imported. It finds its work in the launch
folder and leaves its traces there, so that the launcher can tell what became of it even when it died:

- ``payload.pickle``: the worker and its arguments (cloudpickle, written by the launcher);
- ``pid-R``: rank R has started;
- ``error-R.json``: rank R's exception, with the time at which it was raised;
- ``done-R``: rank R's worker has returned;
- ``stack-R.txt``: where rank R stood when the launcher asked (SIGUSR1);
- ``training.json``: how far rank 0's training is, where a notebook's page follows (`course_lib.live_view.progress_file`).
"""

from __future__ import annotations

import faulthandler
import json
import linecache
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from course_lib.listener import PROGRESS_FILE

__all__ = ["PROGRESS", "Payload", "run_rank"]

PROGRESS = "training.json"


@dataclass(frozen=True)
class Payload:
    """All that a rank needs to know."""

    call: bytes  # cloudpickle of (worker, args, kwargs)
    threads: int
    backend: str | None  # None: no process group
    gpus: int  # 0 on a machine without
    environment: dict[str, str]
    folder: str
    sources: dict[str, list[str]]  # notebook cells by their file name, for tracebacks
    live: bool = False  # whether a notebook's page follows a training of rank 0


def run_rank(launch_folder: str) -> bytes:
    """Run one rank; returns the worker's result, pickled by value."""
    rank = int(os.environ["RANK"])
    folder = Path(launch_folder)
    _end_with_launcher()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the fork server ignores it
    os.dup2(1, 2)  # one stream, so that a rank's warnings and prints keep their order
    sys.stdout.reconfigure(line_buffering=True)
    payload: Payload = pickle.loads((folder / "payload.pickle").read_bytes())
    stack_file = open(folder / f"stack-{rank}.txt", "w")  # noqa: SIM115 (open as long as the rank lives)
    faulthandler.register(signal.SIGUSR1, file=stack_file, all_threads=False)
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    try:
        _set_up(payload)
        os.environ.pop(PROGRESS_FILE, None)  # the launching process may be a rank itself
        if payload.live and rank == 0:
            os.environ[PROGRESS_FILE] = str(folder / PROGRESS)
        worker, args, kwargs = pickle.loads(payload.call)
        result = worker(*args, **kwargs)
        # cloudpickle copies tensors by value (multiprocessing's own pickler would share memory with a
        # process that is about to end) and takes classes that the notebook defined.
        packed = cloudpickle.dumps(result)
    except BaseException as error:
        _report(folder / f"error-{rank}.json", error)
        sys.stdout.flush()
        os._exit(1)
    (folder / f"done-{rank}").touch()
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.stdout.flush()
    return packed


def _set_up(payload: Payload) -> None:
    """Environment, folder, threads, GPU and process group as the launcher decided."""
    elastic = {name: value for name, value in os.environ.items() if name.startswith(_ELASTIC)}
    os.environ.clear()
    os.environ.update(payload.environment)
    os.environ.update(elastic)
    os.environ["OMP_NUM_THREADS"] = str(payload.threads)
    os.chdir(payload.folder)
    for name, lines in payload.sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    torch.set_num_threads(payload.threads)
    if payload.gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % payload.gpus)
    if payload.backend is not None:
        # Gloo's ranks connect pair by pair: one that returns at once would hang up while others still connect.
        os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
        with _quiet_stdout():
            dist.init_process_group(payload.backend, timeout=timedelta(days=1))
        del os.environ["TORCH_DIST_INIT_BARRIER"]


# What the elastic agent sets for a rank; everything else comes from the launching process as it is now,
# not as it was when the fork server started.
_ELASTIC = (
    "RANK", "LOCAL_", "GROUP_", "ROLE_", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_", "TORCH_NCCL_ASYNC",
)  # fmt: skip


class _quiet_stdout:
    """Hold back what C++ prints while the process group comes up (Gloo reports its connections)."""

    def __enter__(self) -> None:
        sys.stdout.flush()
        self.kept = os.dup(1)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)

    def __exit__(self, *exc_info) -> None:
        os.dup2(self.kept, 1)
        os.close(self.kept)


def _end_with_launcher() -> None:
    """Kill this rank when the process that launched it is gone, as a notebook's kernel may be at any moment.

    The fork server does not tell: it lives as long as any of its children.
    """
    launcher = multiprocessing.parent_process()

    def watch() -> None:
        multiprocessing.connection.wait([launcher.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="launcher watch").start()


def _report(path: Path, error: BaseException) -> None:
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next  # the reader wants the worker's frames, not ours
    text = "".join(traceback.format_exception(type(error), error, frames))
    if isinstance(error, SystemExit):
        reason = f"the worker called sys.exit({error.code!r})"
    else:
        reason = "".join(traceback.format_exception_only(error)).strip()
    report: dict[str, Any] = {"time": time.time(), "reason": reason, "traceback": text}
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(report))
    partial.rename(path)
