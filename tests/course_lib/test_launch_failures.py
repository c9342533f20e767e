"""Ranks that raise, exit, are killed or hang, and launchers that end, under the fork server and under mpirun alike.

The right rank is named, quickly; no process and no file is left.
"""

import os
import pickle
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rank_processes import GENEROUS, alive, noted_pids, survivors

from course_lib.distributed import LaunchTimeoutError, RankFailedError, launch, mpi_launch, mpi_run
from course_lib.distributed.launching import rank_process
from course_lib.distributed.launching.launch_folder import _short_stack
from course_lib.distributed.launching.monitor import RankPrinter, Ranks, _first_failure

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

# The same program under both; each has a barrier that never ends when a rank does not come.
PROLOGUES = {
    "launch": "import torch.distributed as dist\nrank, barrier = dist.get_rank(), dist.barrier",
    "mpi_run": "from mpi4py import MPI\nrank, barrier = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.Barrier",
}
PROLOGUES["mpi_launch"] = PROLOGUES["mpi_run"]
# After an interrupt it waits for a line, and launches the same again.
LAUNCHER = """
import runpy, signal, sys
from course_lib.distributed import launch, mpi_launch, mpi_run
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background process ignores it
start, path = sys.argv[1:]
while True:
    try:
        if start == "launch":
            launch(runpy.run_path, 2, (path,), timeout=None)
        elif start == "mpi_launch":
            mpi_launch(lambda comm: bool(runpy.run_path(path)), 2, timeout=None)
        else:
            mpi_run(path, 2, timeout=None)
    except KeyboardInterrupt:
        print("interrupted", signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)
        sys.stdin.readline()
"""


def leftovers():
    """Folders of launches by this process or by one that has ended, with Open MPI's segments in them.

    Segments directly in /dev/shm are of processes that no launch started: other tests may leave some at any moment.
    """
    paths = [path for place in {"/dev/shm", "/tmp", tempfile.gettempdir()} for path in Path(place).glob("launch-*-*")]
    return {path for path in paths if (pid := int(path.name.split("-")[1])) == os.getpid() or not alive(pid)}


@pytest.fixture(autouse=True)
def nothing_left(tmp_path):
    before = leftovers()
    yield
    end = time.monotonic() + GENEROUS
    while (left := leftovers() - before) and time.monotonic() < end:
        time.sleep(0.05)
    assert left == set()
    assert survivors([int(path.read_text()) for path in tmp_path.glob("*.pid")]) == []


@pytest.fixture(params=PROLOGUES)
def start(request):
    return request.param


@pytest.fixture
def program(start, tmp_path):
    """Writes a program whose ranks note their process, meet, and run `body`, which begins in line 8."""

    def write(body):
        path = tmp_path / "program.py"
        note = f"Path({str(tmp_path)!r}, f'{{rank}}.pid').write_text(str(os.getpid()))"
        path.write_text(
            f"import os, signal, sys, time\nfrom pathlib import Path\n\n{PROLOGUES[start]}\n{note}\nbarrier()\n{body}\n"
        )
        return path

    return write


@pytest.fixture
def run(start, program):
    def run(body, ranks=2, timeout=300):
        path = str(program(body))
        if start == "launch":
            launch(lambda: bool(runpy.run_path(path)), ranks, timeout=timeout, threads=1)
        elif start == "mpi_launch":
            mpi_launch(lambda comm: bool(runpy.run_path(path)), ranks, timeout=timeout, threads=1)
        else:
            mpi_run(path, ranks, timeout=timeout, threads=1)

    return run


FAULTS = {
    "raises": ("if rank == 1:\n    raise ValueError('the loss is nan')\nbarrier()", 1, "ValueError: the loss is nan"),
    "raises first": ("time.sleep([1.0, 0.0][rank])\nraise ValueError(f'from {rank}')", 1, "from 1"),
    "exits": ("if rank == 1:\n    sys.exit(3)\nbarrier()", 1, "it called sys.exit(3)"),
    "leaves with a code": ("if rank == 1:\n    os._exit(5)\nbarrier()", 1, "exited with code 5 before it was done"),
    "leaves without a word": ("if rank == 1:\n    os._exit(0)\nbarrier()", 1, "exited with code 0 before it was done"),
    "is killed": ("if rank == 0:\n    os.kill(os.getpid(), signal.SIGKILL)\nbarrier()", 0,
                  "ended by SIGKILL; the system does this"),
    "is killed beside a sleeper": ("if rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(600)", 1, "SIGKILL"),
    "crashes": ("if rank == 1:\n    os.kill(os.getpid(), signal.SIGSEGV)\nbarrier()", 1, "ended by SIGSEGV"),
    "raises beside one that ignores SIGTERM": (
        "if rank == 0:\n    time.sleep(0.2)\n    raise ValueError('on purpose')\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)", 0, "on purpose"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_rank_that_fails_is_named_and_ends_the_others(run, fault):
    body, rank, reason = FAULTS[fault]
    with pytest.raises(RankFailedError) as raised:
        run(body)
    error = raised.value
    assert (error.rank, error.world_size) == (rank, 2) and reason in error.reason and "\n" not in error.reason
    assert f"rank {rank} of 2" in str(error) and error.rank_traceback.rstrip() in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (again.rank, str(again)) == (error.rank, str(error))
    if fault == "raises":
        assert "raise ValueError('the loss is nan')" in error.rank_traceback
        assert "rank_process" not in error.rank_traceback


def test_a_hang_ends_at_the_time_limit_and_says_where_each_rank_was(start, run, tmp_path):
    began = time.monotonic()
    run("time.sleep(rank / 2)", ranks=3)  # rank 0 is done a second before rank 2, which is no failure
    limit = max(6.0, 6 * (time.monotonic() - began))
    for _ in range(4):  # until every rank had begun within it and answered, however busy the machine is
        with pytest.raises(LaunchTimeoutError) as raised:
            run("def waits():\n    time.sleep(600)\n\nif rank == 0:\n    waits()\n"
                "if rank == 2:\n    os.kill(os.getpid(), signal.SIGSTOP)", ranks=3, timeout=limit)  # fmt: skip
        positions = raised.value.positions
        if "  setting up" not in positions.values() and "did not answer" not in positions[0] + positions[1]:
            break
        limit *= 2
    error = raised.value
    path = tmp_path / "program.py"
    assert error.timeout == limit
    assert error.positions[0].splitlines()[:2] == [f"  waits ({path}:9)", f"  <module> ({path}:12)"]
    assert "rank_process" not in error.positions[0]
    assert error.positions[1] == "  it has finished and waits for the others"
    if start != "mpi_run":  # mpirun has a rank that stopped itself go on
        assert error.positions[2] == "  it did not answer (stopped, or deep in the kernel)"
    assert all(f"rank {rank}:\n{error.positions[rank]}" in str(error) for rank in range(3))
    assert pickle.loads(pickle.dumps(error)).positions == error.positions


@pytest.mark.parametrize("interrupts, end", [(1, signal.SIGTERM), (2, signal.SIGKILL)])
def test_no_rank_outlives_its_launcher(start, program, tmp_path, interrupts, end):
    path = program("signal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(600)")
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, start, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, bufsize=1, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            interrupted = noted_pids(tmp_path, 2)
            for _ in range(interrupts):
                os.killpg(process.pid, signal.SIGINT)  # the whole group, as Jupyter does
            # A rank that is interrupted before it ignores the signal says so first.
            said = next(line for line in process.stdout if not line.startswith("[rank"))
            assert said == "interrupted True\n"
            assert survivors(interrupted, GENEROUS) == []
            for note in tmp_path.glob("*.pid"):
                note.unlink()
            process.stdin.write("again\n")
            ranks = noted_pids(tmp_path, 2)  # of the next launch
            process.send_signal(end)
            assert process.wait(GENEROUS) == (128 + end if end == signal.SIGTERM else -end)
            assert survivors(ranks, GENEROUS) == []
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("ranks", [0, -1, "2", 2.0, None])
@pytest.mark.parametrize("call", [launch, mpi_launch])
def test_a_bad_world_size_is_one_line(call, ranks):
    with pytest.raises(ValueError, match=rf"world_size must be a whole number of at least 1, got {ranks!r}$"):
        call(print, ranks)


@pytest.mark.parametrize(
    "exits, reports, rank",
    [
        ({0: -15, 1: -9}, {}, 0),
        ({1: 1}, {1: 5.0}, 1),
        ({0: -9, 1: 1}, {1: 5.0}, 0),  # rank 1 reports that it has lost the connection
        ({0: 1, 1: 1}, {0: 6.0, 1: 5.0}, 1),
        ({0: None}, {1: 5.0}, 1),  # mpirun ends the others
        ({1: None}, {}, 1),
        ({}, {}, None),
    ],
)
def test_the_rank_that_failed_first(exits, reports, rank):
    errors = {r: {"time": at, "reason": "raised", "traceback": ""} for r, at in reports.items()}
    folder = SimpleNamespace(world_size=2, errors=lambda: errors, done=lambda: [])
    error = _first_failure(SimpleNamespace(exits=lambda: exits), folder)
    assert (error and error.rank) == rank


@pytest.mark.parametrize("interrupted, signals", [(False, [signal.SIGKILL]), (True, [signal.SIGINT, signal.SIGKILL])])
def test_ranks_get_sigint_only_after_an_interrupt(monkeypatch, interrupted, signals):
    sent = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))
    signals_and_seconds = ((signal.SIGINT, 0.0), (signal.SIGKILL, 0.0))
    Ranks.end(SimpleNamespace(last_signals=signals_and_seconds, running=lambda: [1]), interrupted)
    assert sent == signals


def test_a_stack_is_innermost_first_and_ends_at_the_worker():
    dump = 'Current thread 0x1:\n  File "/x/site-packages/torch/a.py", line 3 in step\n  File "/y/ipykernel_1/2.py", line 4 in train\n'
    dump += f'  File "{rank_process.__file__}", line 9 in main\n  File "/z/spawn.py", line 10 in <module>\n'
    assert _short_stack(dump) == "  step (torch/a.py:3)\n  train (line 4 of its cell)"


def test_lines_are_printed_whole_with_their_rank(tmp_path, capsys):
    logs = {rank: tmp_path / str(rank) for rank in range(3)}  # rank 2 prints nothing
    printer = RankPrinter(logs)
    for rank, text in [(0, b"a "), (1, "ä".encode()[:1]), (0, b"line\nhalf"), (1, "ä".encode()[1:] + b"\r\xff\r\n")]:
        with logs[rank].open("ab") as log:
            log.write(text)
        printer.look()
    assert printer.printed == ["[rank 0] a line\n", "[rank 1] ä\n", "[rank 1] \ufffd\n"]
    printer.close()
    assert capsys.readouterr().out == "".join(printer.printed) and printer.printed[-1] == "[rank 0] half\n"
