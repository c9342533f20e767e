"""The code inside a rank: set up, call the worker or run the program, report into the launch's folder (`launch_folder`).

The fork server forks a rank of `launch`, which begins in `forked_rank`. mpirun starts
``python -P rank_process.py FOLDER [PROGRAM ARGUMENT…]``, which runs the program, or has the fork server fork the rank
(`forked_mpi_rank`). So this file imports no module of ours: that would import PyTorch, which a program may not need.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import linecache
import multiprocessing
import multiprocessing.connection
import multiprocessing.util
import os
import pickle
import runpy
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

__all__ = ["forked_mpi_rank", "forked_rank", "quiet_stdout"]


def forked_rank(path: str, rank: int) -> None:
    """Run one rank of `launch`."""
    import torch
    import torch.distributed as dist

    folder = Path(path)
    settings = _forked(folder)

    def work() -> bytes:
        # The launching process's environment of now, not of the time when the fork server started.
        _move_to(settings, RANK=str(rank), LOCAL_RANK=str(rank))
        if rank == 0:
            os.environ.update(settings["environment_of_rank_0"])
        if settings["gpus"]:
            torch.cuda.set_device(rank % settings["gpus"])
        if settings["backend"] is not None:
            # Gloo's ranks connect pair by pair: a rank that ends at once would close its connections while others still connect.
            os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
            with quiet_stdout():
                dist.init_process_group(settings["backend"], timeout=timedelta(days=1))
            del os.environ["TORCH_DIST_INIT_BARRIER"]
        return _call(folder, settings)

    _report(folder, rank, work, lambda: os._exit(1))
    if dist.is_initialized():
        dist.destroy_process_group()
    while not all((folder / f"done-{peer}").exists() for peer in range(settings["world_size"])):
        time.sleep(0.005)  # others may still need this rank's store or shared memory


def mpi_process(folder: Path, program: list[str]) -> None:
    """The process that mpirun starts: a program's rank, or the stand-in for a rank that the fork server forks."""
    rank = os.environ.get("PMIX_RANK")
    if program or rank is None or "PMI_FD" in os.environ or not hasattr(os, "pidfd_open"):
        # A program expects what a new interpreter does, at its end, too. MPICH's mpirun knows a rank by a file that this
        # process has inherited. Elsewhere than on Linux there is no reliable way to wait for the other process.
        _mpi_rank(folder, _begin(folder), program, lambda comm: comm.Abort(1))
        return
    _begin(folder)
    here = {"environment": dict(os.environ), "folder": os.getcwd(), "cores": sorted(os.sched_getaffinity(0))}
    _write(folder / f"start-{rank}.json", json.dumps(here))
    while not (process := folder / f"pid-{rank}").exists():
        if not folder.exists():  # the launch is over, and this process has been forgotten
            return
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        multiprocessing.connection.wait([os.pidfd_open(int(process.read_text()))])


def forked_mpi_rank(path: str, rank: int) -> None:
    """Run one rank of `mpi_launch` in the place of the process that mpirun started."""
    folder = Path(path)
    settings = _forked(folder)
    here = json.loads((folder / f"start-{rank}.json").read_text())
    _move_to(here)
    os.sched_setaffinity(0, here["cores"])
    atexit._clear()  # what the fork server's imports want done at its own end
    atexit.register(multiprocessing.util._exit_function)  # newer versions of Python end a process of multiprocessing by it
    _mpi_rank(folder, settings, [], lambda comm: os._exit(1))  # the launching process ends the others
    atexit._run_exitfuncs()

    from mpi4py import MPI

    if not MPI.Is_finalized():
        MPI.Finalize()


def _mpi_rank(folder: Path, settings: dict[str, Any], program: list[str], fail: Callable[[Any], Any]) -> None:
    """Run one rank under mpirun; `fail(comm)` ends all ranks."""
    try:
        from mpi4py import MPI  # starts MPI

        comm = MPI.COMM_WORLD
        rank, size = comm.Get_rank(), comm.Get_size()
        if size != settings["world_size"]:
            raise RuntimeError(f"mpirun started {settings['world_size']} ranks, but mpi4py, with "
                               f"{MPI.Get_library_version().split(',')[0]}, sees {size}: they belong to different MPIs")  # fmt: skip
    except (ImportError, RuntimeError) as error:
        _write(folder / "no-mpi", " ".join(str(error).split()))
        os._exit(1)
    os.environ.setdefault("LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", str(rank)))
    work = (lambda: _run(program)) if program else (lambda: _call(folder, settings, comm))
    _report(folder, rank, work, lambda: fail(comm))


def _forked(folder: Path) -> dict[str, Any]:
    """The settings of a rank that the fork server has just forked."""
    import numpy
    import torch

    settings = _begin(folder)
    numpy.random.seed()  # the fork server's random numbers would be the same on all ranks, in all launches
    torch.multiprocessing._prctl_pr_set_pdeathsig(signal.SIGKILL)  # no rank outlives the fork server
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the fork server ignores it
    return settings


def _move_to(place: dict[str, Any], **more: str) -> None:
    os.environ.clear()
    os.environ.update(place["environment"], **more)
    os.chdir(place["folder"])


def _begin(folder: Path) -> dict[str, Any]:
    """The launch's settings. From now on this rank ends with the launching process, for example a notebook's kernel.

    The fork server does not see to that: it lives as long as any of its children.
    """
    settings = json.loads((folder / "settings.json").read_text())
    parent = multiprocessing.parent_process()  # None in what mpirun starts

    def watch() -> None:
        with contextlib.suppress(ProcessLookupError):  # gone already
            launcher = parent.sentinel if parent else os.pidfd_open(settings["launcher"])
            multiprocessing.connection.wait([launcher])
        for scratch in settings["scratch"]:  # nobody else will
            shutil.rmtree(scratch, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGKILL)

    if parent or hasattr(os, "pidfd_open"):  # Linux has it
        threading.Thread(target=watch, daemon=True, name="launcher watch").start()
    return settings


def _report(folder: Path, rank: int, work: Callable[[], bytes], end: Callable[[], None]) -> None:
    """Do the work and report its result, or report its error and call `end`."""
    os.dup2(os.open(folder / f"log-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)  # one stream keeps a rank's warnings and prints in order
    sys.stdout.reconfigure(line_buffering=True)
    stacks = open(folder / f"stack-{rank}", "w")  # noqa: SIM115 (open as long as the rank lives)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False)
    _write(folder / f"pid-{rank}", str(os.getpid()))
    try:
        result = work()
    except BaseException as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            frames = frames.tb_next  # begin with the worker's frames
        if isinstance(error, SystemExit):
            reason = f"it called sys.exit({error.code!r})"
        else:
            reason = "".join(traceback.format_exception_only(error)).strip()
        text = "".join(traceback.format_exception(type(error), error, frames))
        _write(folder / f"error-{rank}.json", json.dumps({"time": time.time(), "reason": reason, "traceback": text}))
        sys.stdout.flush()
        end()
    sys.stdout.flush()
    _write(folder / f"done-{rank}", result)


def _call(folder: Path, settings: dict[str, Any], *first: Any) -> bytes:
    sys.path[:] = settings["path"]  # modules beside the notebook
    import cloudpickle
    import torch

    torch.set_num_threads(settings["threads"])
    for name, lines in settings["sources"].items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    worker, args, kwargs = pickle.loads((folder / "call.pickle").read_bytes())
    # cloudpickle copies tensors (multiprocessing's pickler would share memory with a process that is about to end), and
    # it can send classes of a notebook.
    return cloudpickle.dumps(worker(*first, *args, **kwargs))


def _run(program: list[str]) -> bytes:
    sys.argv = program
    sys.path.insert(0, str(Path(program[0]).resolve().parent))
    try:
        runpy.run_path(program[0], run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    return b""


@contextlib.contextmanager
def quiet_stdout() -> Iterator[None]:
    """Suppress what C++ prints in the block, such as Gloo's connections while a process group starts."""
    sys.stdout.flush()
    kept = os.dup(1)
    with open(os.devnull, "w") as null:
        os.dup2(null.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _write(path: Path, content: str | bytes) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")  # ranks may write the same file
    partial.write_bytes(content.encode() if isinstance(content, str) else content)
    partial.rename(path)


if __name__ == "__main__":
    mpi_process(Path(sys.argv[1]), sys.argv[2:])
