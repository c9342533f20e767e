"""PyTorch's elastic agent with a clock and an eye on every rank."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from course_lib.distributed import rank_process
from course_lib.distributed.errors import LaunchStoppedError, LaunchTimeoutError, RankFailedError
from course_lib.distributed.one_interrupt import OneInterrupt
from course_lib.distributed.process_state import changing_the_process, environment

__all__ = ["MONITOR_INTERVAL", "OneNodeRendezvous", "WatchingAgent"]

MONITOR_INTERVAL = 0.02  # seconds between two looks at the ranks
EXIT_GRACE = 0.2  # seconds for a rank that has reported an error to be gone
STACK_GRACE = 1.0  # seconds that hanging ranks get to write down where they stand


class OneNodeRendezvous(StaticTCPRendezvous):
    """The agent meets nobody but its own ranks, at a store on a port that the system picked and the store holds.

    PyTorch's dynamic rendezvous finds a free port too, but waits up to 0.3 s for other nodes.
    """

    def __init__(self) -> None:
        super().__init__("localhost", 0, rank=0, world_size=1, run_id=uuid.uuid4().hex, timeout=600)
        self._store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.master_port = self._store.port


class WatchingAgent(LocalElasticAgent):
    """The elastic agent, with a deadline, and quick to end the ranks that a failure leaves behind.

    The stock agent waits 30 s for survivors, for ever for a rank that left without a word, and never
    looks at the clock.
    """

    def __init__(
        self,
        *args: Any,
        folder: Path,
        world_size: int,
        timeout: float | None,
        stop: threading.Event | None,
        signals: OneInterrupt,
        look: Callable[[], None] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.folder = folder
        self.world_size = world_size
        self.timeout = timeout
        self.stop = stop
        self.signals = signals
        self.look = look  # called at every look at the ranks
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.error: Exception | None = None

    @property
    def logs(self) -> dict[int, str]:
        """Each rank's log, once the ranks have been started."""
        return self._pcontext.stdouts if self._pcontext else {}

    def end_ranks(self) -> None:
        """Kill whichever ranks are left, and wait until they have gone."""
        started = getattr(self._pcontext, "_pc", None)
        for process in started.processes if started else ():
            process.kill()
        for process in started.processes if started else ():
            process.join(5)

    def let_go(self) -> None:
        """Give up the store, whose port is open as long as anything refers to it: a traceback would, for long."""
        self._store = self._worker_group.store = self.look = None
        self._worker_group.spec.rdzv_handler._store = None

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        # A rank that hears of the interrupt can close what it was writing.
        super()._shutdown(signal.SIGINT if self.signals.raised else death_sig, timeout)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        # multiprocessing would run the main script again in each rank, to find functions there. Ours travel by
        # value, so that a script needs no `if __name__ == "__main__"` and standard input may be the script.
        # The handlers are ours, too: PyTorch's would raise between two ranks' starts, and again while they are ended.
        with self.signals.hold(), changing_the_process, environment(TORCHELASTIC_SIGNALS_TO_HANDLE=""):
            main = sys.modules["__main__"]
            sys.modules["__main__"] = types.ModuleType("__main__")
            try:
                return super()._start_workers(worker_group)
            finally:
                sys.modules["__main__"] = main

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self.look is not None:
            self.look()
        processes = self._pcontext._pc.processes  # public pids() cannot tell a dead process from a live one
        self.error = self._first_failure(processes)
        if self.error is None and self.stop is not None and self.stop.is_set():
            self.error = LaunchStoppedError()
        if self.error is None and self.deadline is not None and time.monotonic() > self.deadline:
            self.error = LaunchTimeoutError(self.timeout, self._positions(processes))
        if self.error is None:
            result = super()._monitor_workers(worker_group)
            if result.state is not WorkerState.FAILED:
                return result
            # By now the stock agent has seen the failure itself and sent the others SIGTERM.
            self.error = (
                self._first_failure(processes, terminated=True)
                or self._first_failure(processes)
                or RuntimeError(str(result.failures))
            )
        self.end_ranks()
        return RunResult(state=WorkerState.FAILED)

    def _first_failure(
        self, processes: Sequence[multiprocessing.Process], terminated: bool = False
    ) -> RankFailedError | None:
        """The rank that went first: one that is gone without a report, else the one with the earliest report.

        `terminated`: a rank that SIGTERM ended is a consequence, not the cause. When a rank is killed, its peers report
        broken connections, perhaps before its exit is seen; hence the wait.
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
            if rank not in reports and not (terminated and code == -signal.SIGTERM):
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
