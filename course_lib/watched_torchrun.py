"""torchrun on every node of a job, with nodes that watch each other and a last line that says what ended the job.

``srun python -m course_lib.watched_torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-id=ID
--rdzv-endpoint=HOST:PORT program.py …`` takes torchrun's options and hands them to it. Three things are added:

- which node is HOST is found by asking the kernel whether the address is its own. torchrun compares names, and finds no
  host where a node calls itself otherwise than the scheduler does;
- the nodes' launchers hold a connection to HOST, at PORT + 1 (`course_lib.distributed.node_watch`). When a node is lost,
  the others end within seconds, also where its kernel does not answer any more;
- whatever ends the job is one line on stderr, the last.

Exit codes: the job's 0; 1 after a failure; 128 + N when signal N ended it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from argparse import Namespace
from typing import NoReturn

import psutil
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousError, RendezvousTimeoutError
from torch.distributed.run import get_args_parser, run

from course_lib.distributed.addresses import is_here, source_address
from course_lib.distributed.node_watch import Member, NodeHub

__all__ = ["main"]

ENDING = 3.0  # seconds that torchrun gets to end its ranks, before they are killed
STRANGER = 3.0  # seconds in which the first launcher on this machine answers; another program does not
LOOK = 0.5  # seconds between two looks for the ranks that torchrun has started


def main(argv: list[str] | None = None) -> NoReturn:
    """Run torchrun with these options (list of str; None takes the command line's), and end the process."""
    args = get_args_parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _raise_signal)  # torchrun catches it only once its ranks run
    job = _Job(args)
    try:
        code, told = _run(job)
    except SignalException:  # it came while another end was being told
        code, told = 1, job.report("the launcher was ended by SIGTERM", True)
    job.end(code, told)


def _run(job: _Job) -> tuple[int, str]:
    """Exit code, and what ended the job, if it did not end well."""
    try:
        job.watch()
        run(job.args)
        return 0, ""
    except ChildFailedError as error:
        return 1, job.report(*_describe(error))
    except (SignalException, KeyboardInterrupt) as error:
        number = getattr(error, "sigval", signal.SIGINT)
        code = 1 if job.verdict else 128 + number
        return code, job.report(f"the launcher was ended by {signal.Signals(number).name}", True)
    except RendezvousTimeoutError:
        return 1, job.report(f"not all of {job.args.nnodes} nodes came in time{job.present()}")
    except (RendezvousError, RuntimeError, OSError, ValueError) as error:
        return 1, job.report(f"torchrun: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


class _Job:
    """This node's part in a job."""

    def __init__(self, args: Namespace) -> None:
        self.args = args
        self.name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        self.hub: NodeHub | None = None
        self.member: Member | None = None
        self._lock = threading.Lock()

    @property
    def verdict(self) -> str | None:
        return None if self.member is None else self.member.verdict

    def watch(self) -> None:
        """Find out who is the host, and begin to watch; nothing where there is one node."""
        args = self.args
        nodes = args.nnodes.split(":")
        host, _, port = args.rdzv_endpoint.rpartition(":")
        if nodes[-1] == "1" or nodes[0] != nodes[-1] or args.rdzv_backend != "c10d" or not port.isdigit():
            return
        host, port = host.strip("[]"), int(port)
        here, local = False, is_here(host)
        if local:
            try:
                self.hub = NodeHub(port + 1, int(nodes[-1]), self.name, args.rdzv_id)
                here = True
            except OSError:  # another launcher on this machine is first, or a stranger has the port
                pass
        self.member = Member("localhost" if here else host, port + 1, self.name, args.rdzv_id, self._lost)
        # Where a stranger has the port nobody knows who is first, and torchrun may guess.
        known = here or not local or self.member.welcomed(STRANGER)
        if "is_host" not in args.rdzv_conf and known:
            args.rdzv_conf = ",".join(filter(None, [args.rdzv_conf, f"is_host={str(here).lower()}"]))
        if args.local_addr is None:  # what the other nodes are told to connect to
            args.local_addr = host if local else source_address(host)
        threading.Thread(target=self._tell_ranks, daemon=True).start()

    def report(self, what: str, killed: bool = False) -> str:
        """What ended the job: this, or what has happened before on another node."""
        return f"{what} on {self.name}" if self.member is None else self.member.failed(what, killed)

    def present(self) -> str:
        return "" if self.hub is None else f"; those that came: {', '.join(self.hub.present())}"

    def end(self, code: int, told: str) -> NoReturn:
        """Leave the others, say the last line, and end."""
        self._lock.acquire()  # the first who ends says it, and nobody after
        for process in _descendants():
            with contextlib.suppress(psutil.Error):
                process.kill()
        if told:
            print(f"{self.name}: the job ends: {told}", file=sys.stderr)
        if self.member is not None:
            self.member.leave()
        if self.hub is not None:
            self.hub.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # nothing of torchrun's threads or C++ comes after the last line

    def _lost(self, verdict: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)  # torchrun ends its ranks, unless it waits for a store that is gone
        threading.Event().wait(ENDING)
        self.end(1, verdict)

    def _tell_ranks(self) -> None:
        while True:
            ranks = _local_ranks()
            if len(ranks) == _count(self.args.nproc_per_node, ranks) and self.member.tell_ranks(sorted(ranks)):
                return
            threading.Event().wait(LOOK)


def _raise_signal(number: int, _: object) -> NoReturn:
    raise SignalException("the launcher was told to end", signal.Signals(number))


def _count(asked: str, ranks: set[int]) -> int:
    return int(asked) if asked.isdigit() else max(1, len(ranks))  # torchrun takes words, too: gpu, auto


def _descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _local_ranks() -> set[int]:
    """Ranks of the processes below this one."""
    ranks = set()
    for process in _descendants():
        try:
            ranks.add(int(process.environ()["RANK"]))
        except (psutil.Error, KeyError, ValueError, OSError):
            continue
    return ranks


def _describe(error: ChildFailedError) -> tuple[str, bool]:
    """The first failure in words, and whether a signal was its end."""
    rank, failure = error.get_first_failure()
    if failure.exitcode >= 0:
        return f"rank {rank} failed (exit code {failure.exitcode}, see its traceback above)", False
    name = failure.signal_name()
    hint = " (the system kills so when memory runs out)" if name == "SIGKILL" else ""
    return f"rank {rank} was ended by {name}{hint}", True


if __name__ == "__main__":
    main()
