"""■ in a kernel: the cell ends in one line, no process stays, the kernel and its variables live on."""

import os
import re
import sys
import time
from pathlib import Path

import psutil
import pytest
from notebook_kernel import Kernel
from rank_processes import command_line, noted_pids, survivors

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

SETUP = """
import os, signal, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn
from course_lib.distributed import launch, mpi_launch
from course_lib.runs.records import RunFolder
from course_lib.training.loop import fit, train_step

kept = [1, 2, 3]

def note(folder, rank):
    Path(folder).mkdir(exist_ok=True)
    Path(folder, f"{rank}.pid").write_text(str(os.getpid()))

def train(folder="", seconds=0.02, run=None, epochs=1000):
    rank = dist.get_rank() if dist.is_initialized() else 0
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    batches = [(torch.randn(8, 1, 3, 4), torch.randint(4, (8,))) for _ in range(4)]
    def step(*arguments):
        if folder and not Path(folder, f"{rank}.pid").exists():
            note(folder, rank)
        time.sleep(seconds)
        return train_step(*arguments)
    return fit(model, batches, batches, torch.optim.SGD(model.parameters(), lr=0.1), epochs=epochs, step=step, run=run)

def stuck(folder):
    shared = torch.ones(1000).share_memory_()
    note(folder, dist.get_rank())
    if dist.get_rank() != 3:
        dist.barrier()  # the last one never comes
    time.sleep(600)

def deaf(folder):
    note(folder, dist.get_rank())
    while True:
        try:
            time.sleep(600)
        except KeyboardInterrupt:
            pass

def mpi_sleep(comm, folder):
    note(folder, comm.rank)
    if comm.rank == 0:
        comm.recv(source=1)
    time.sleep(600)

def who():
    return dist.get_rank()
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    with Kernel(tmp_path_factory.mktemp("interrupts")) as kernel:
        assert kernel.run(SETUP).error is None
        assert kernel.run("launch(who, 2, timeout=60)").error is None  # the fork server is there
        kernel.own = holds(psutil.Process(kernel.manager.provisioner.pid))[1]  # its debugger's
        yield kernel


def holds(process):
    """What an interrupted launch might leave: processes below the kernel, and sockets that listen."""
    below = {
        child.pid
        for child in process.children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE
        and not any("from multiprocessing." in word for word in command_line(child)[-1:])
    }
    listening = {socket.laddr for socket in process.net_connections("inet") if socket.status == psutil.CONN_LISTEN}
    return below - {process.pid}, listening


def ends_in_one_line(kernel, request, cell, line, within=300.0):
    """The interrupted cell, checked; and that the kernel is as it was."""
    started = time.monotonic()
    kernel.follow(cell, request)
    assert time.monotonic() - started < within
    assert cell.error["ename"] == "KeyboardInterrupt" and cell.traceback == [f"KeyboardInterrupt: {line}"]
    assert cell.streams["stderr"] == ""
    process = psutil.Process(kernel.manager.provisioner.pid)
    assert survivors(holds(process)[0], timeout=60.0) == []
    assert holds(process)[1] <= kernel.own
    after = kernel.run("print(kept, launch(who, 2, timeout=60))", looked_at=False)
    assert after.streams["stdout"] == "[1, 2, 3] [0, 1]\n" and after.error is None, after.error


@pytest.mark.parametrize(
    "start, worker, presses, looked_at",
    [("launch", "train", 1, True), ("launch", "stuck", 2, False), ("launch", "deaf", 3, True),
     ("mpi_launch", "mpi_sleep", 2, False)],
)  # fmt: skip
def test_four_ranks_are_ended(kernel, start, worker, presses, looked_at):
    folder = Path(kernel.folder) / worker
    folder.mkdir()
    request = kernel.send(f"{start}({worker}, 4, ({str(folder)!r},), threads=1)", looked_at)
    ranks = noted_pids(folder, 4)
    cell = kernel.collect(request, until=lambda cell: True)
    for press in range(presses):
        kernel.interrupt()
        time.sleep(0.05 + 0.3 * press)
    ends_in_one_line(kernel, request, cell, "all 4 ranks have been ended")
    assert survivors(ranks) == []
    segments = [
        name for name in os.listdir("/dev/shm") if name.startswith("torch_") and int(name.split("_")[1]) in ranks
    ]
    assert segments == []


def test_an_interrupt_while_the_ranks_start_leaves_none(kernel):
    for wait in (0.0, 0.03, 0.08, 0.2):
        request = kernel.send("print('here', flush=True)\nlaunch(stuck, 4, ('starting',), threads=1)", looked_at=False)
        cell = kernel.collect(request, until=lambda cell: cell.streams["stdout"])
        time.sleep(wait)
        kernel.interrupt()
        kernel.interrupt()
        kernel.follow(cell, request)
        assert cell.error["ename"] == "KeyboardInterrupt", (wait, cell.traceback)
        below, listening = holds(psutil.Process(kernel.manager.provisioner.pid))
        assert survivors(below, timeout=60.0) == [] and listening <= kernel.own, wait


def test_a_training_that_is_interrupted_leaves_its_curve_so_far(kernel):
    request = kernel.send(
        "run = RunFolder('run', 'x', {}, {}).start(1, None, 'cpu')\ntrain(seconds=0.03, run=run)", looked_at=True
    )
    curve = Path(kernel.folder) / "run" / "unfinished" / "learning_curve.csv"
    cell = kernel.collect(request, until=lambda cell: cell.displays)
    while not curve.exists() or len(curve.read_text().splitlines()) < 6:
        time.sleep(0.05)
    kernel.interrupt()
    kernel.follow(cell, request)
    rows = curve.read_text().splitlines()
    done = len(rows) - 2  # a header and the zeroth epoch
    (line,) = cell.traceback
    epoch = int(re.fullmatch(r"KeyboardInterrupt: the training was stopped in epoch (\d+) of 1000", line)[1])
    assert epoch in (done, done + 1)  # at the very end of an epoch its row may have been written
    assert [row.split(",")[0] for row in rows[1:]] == [str(number) for number in range(done + 1)]
    transcript = (curve.parent / "assessment.out").read_text().splitlines()
    assert len(transcript) in (done - 1, done)
    assert [name for name in os.listdir(curve.parent) if name.startswith(".")] == []  # no file that is half written
    final = cell.last()
    shown = final["text/plain"].splitlines()  # an epoch's line is shown first, then written
    assert shown[: len(transcript)] == transcript and len(shown) - len(transcript) in (0, 1)
    assert f"interrupted in epoch {epoch} of 1000" in final["text/html"]
    assert kernel.run("print(kept)").streams["stdout"] == "[1, 2, 3]\n"


@pytest.mark.slow
def test_the_first_launch_may_be_interrupted_while_pytorch_is_imported_for_the_ranks(tmp_path):
    with Kernel(tmp_path) as kernel:
        assert kernel.run(SETUP).error is None
        kernel.own = holds(psutil.Process(kernel.manager.provisioner.pid))[1]
        request = kernel.send("print('here', flush=True)\nlaunch(deaf, 2, ('starting',), threads=1)", looked_at=False)
        cell = kernel.collect(request, until=lambda cell: cell.streams["stdout"])
        time.sleep(0.5)
        kernel.interrupt()
        ends_in_one_line(kernel, request, cell, "all 2 ranks have been ended")
