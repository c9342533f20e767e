"""What runs inside a rank that `mpi_launch` or `mpi_run` started: set up, call the worker or the program, report.

``python -P mpi_rank.py FOLDER [PROGRAM ARGUMENT…]``. The folder is the launch's; besides the payload it holds what the ranks
leave there, as in `rank_process`: ``pid-R``, ``error-R.json``, ``stack-R.txt``, and ``done-R``, which holds the result.

It is run as a file and imports nothing of ours: the package would bring PyTorch along, for which a program may have no use.
"""

from __future__ import annotations

import faulthandler
import json
import linecache
import os
import pickle
import runpy
import shutil
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

__all__ = ["main"]


def main(folder: Path, program: list[str]) -> None:
    """Run one rank; a failure ends all of them, by MPI_Abort."""
    settings = json.loads((folder / "settings.json").read_text())
    _end_with(settings["launcher"], [folder, *map(Path, settings["scratch"])])
    os.dup2(1, 2)  # one stream, so that warnings and prints keep their order
    try:
        from mpi4py import MPI  # starts MPI
    except (ImportError, RuntimeError) as error:
        _write(folder / "no-mpi", " ".join(str(error).split()))
        os._exit(1)
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    if size != settings["world_size"]:
        _write(folder / "no-mpi", f"mpirun started {settings['world_size']} ranks, but mpi4py, with "
               f"{MPI.Get_library_version().split(',')[0]}, sees {size}: they belong to different MPIs")  # fmt: skip
        os._exit(1)
    sys.stdout = sys.stderr = _Prefixed(sys.stdout, f"[rank {rank}] ")
    stacks = open(folder / f"stack-{rank}.txt", "w")  # noqa: SIM115 (open as long as the rank lives)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False)
    os.environ.setdefault("LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", str(rank)))
    _write(folder / f"pid-{rank}", str(os.getpid()))
    try:
        result = _run(folder, program, comm)
    except BaseException as error:
        _report(folder / f"error-{rank}.json", error)
        sys.stdout.flush()
        comm.Abort(1)
    sys.stdout.flush()
    _write(folder / f"done-{rank}", result)


def _run(folder: Path, program: list[str], comm: Any) -> bytes:
    if program:
        sys.argv = program
        sys.path.insert(0, str(Path(program[0]).resolve().parent))
        try:
            runpy.run_path(program[0], run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        return b""
    payload = pickle.loads((folder / "payload.pickle").read_bytes())
    sys.path[:] = payload["path"]  # modules beside the notebook
    import cloudpickle
    import torch

    torch.set_num_threads(payload["threads"])
    for name, lines in payload["sources"].items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    worker, args, kwargs = pickle.loads(payload["call"])
    return cloudpickle.dumps(worker(comm, *args, **kwargs))


class _Prefixed:
    """Standard output whose every line begins with the rank; whole lines are written at once."""

    def __init__(self, stream: Any, prefix: str) -> None:
        self.stream, self.prefix, self.line = stream, prefix, ""

    def write(self, text: str) -> int:
        *lines, self.line = (self.line + text).split("\n")
        if lines:
            self.stream.write("".join(f"{self.prefix}{line}\n" for line in lines))
            self.stream.flush()
        return len(text)

    def flush(self) -> None:
        if self.line:
            self.write("\n")
        self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _end_with(launcher: int, scratch: list[Path]) -> None:
    """Kill this rank when the process that launched it is gone, as a notebook's kernel may be at any moment."""

    def watch() -> None:
        try:
            descriptor = os.pidfd_open(launcher)
            import select

            select.select([descriptor], [], [])
        except (OSError, AttributeError):  # gone already; not Linux
            if sys.platform != "linux":
                return
        for folder in scratch:  # nobody else will
            shutil.rmtree(folder, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="launcher watch").start()


def _report(path: Path, error: BaseException) -> None:
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        frames = frames.tb_next  # the reader wants the worker's frames, not ours
    text = "".join(traceback.format_exception(type(error), error, frames))
    if isinstance(error, SystemExit):
        reason = f"it called sys.exit({error.code!r})"
    else:
        reason = "".join(traceback.format_exception_only(error)).strip()
    _write(path, json.dumps({"time": time.time(), "reason": reason, "traceback": text}))


def _write(path: Path, content: str | bytes) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")  # ranks may write the same file
    partial.write_bytes(content.encode() if isinstance(content, str) else content)
    partial.rename(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
