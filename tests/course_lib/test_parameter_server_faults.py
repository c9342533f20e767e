"""A worker or a server that is killed, silent or of another model: a named error within seconds, and nobody is left."""

import os
import pickle
import signal
import subprocess
import sys
import time

import cloudpickle
import pytest
import rank_processes
import torch
import torch.distributed as dist
from rank_processes import note_pid, noted_pids, survivors
from torch import nn

from course_lib.distributed import RankFailedError, launch
from course_lib.distributed.parameter_server import (
    ModelMismatchError,
    ParameterServerWorker,
    ServerLostError,
    WorkerLostError,
    serve,
)

for module in (sys.modules[__name__], rank_processes):
    cloudpickle.register_pickle_by_value(module)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def train(folder, killed, servers=(0,)):
    """Three ranks train for ever, until one of them meets its end."""
    note_pid(folder)
    rank, model = dist.get_rank(), nn.Linear(4, 2)
    updates = 0

    def count(update):
        nonlocal updates
        updates += 1
        if rank == killed and updates == 5:
            os.kill(os.getpid(), signal.SIGKILL)

    if rank in servers:
        serve(model, torch.optim.SGD(model.parameters(), lr=0.01), servers=servers, on_update=count, timeout=60)
        return
    worker = ParameterServerWorker(model, servers, timeout=60)
    for step in range(10**9):
        model(torch.ones(3, 4)).sum().backward()
        worker.exchange()
        if rank == killed and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    "killed, servers", [(0, (0,)), (2, (0,)), (1, (0, 1))], ids=["server", "worker", "second server"]
)
def test_a_killed_rank_is_named_by_launch(killed, servers, tmp_path):
    launch(os.getpid, 1, timeout=60)
    start = time.monotonic()
    with pytest.raises(RankFailedError) as raised:
        launch(train, 3, (str(tmp_path), killed), {"servers": servers}, timeout=60, backend="gloo", threads=1)
    assert time.monotonic() - start <= 10
    assert raised.value.rank == killed and "SIGKILL" in raised.value.reason
    assert survivors(noted_pids(tmp_path, 3)) == []


SCRIPT = """
import sys
sys.path[:0] = {paths!r}
import torch.distributed as dist
from course_lib.distributed import leave_process_group
from test_parameter_server_faults import train

dist.init_process_group("gloo")
train(sys.argv[1], killed=int(sys.argv[2]))
leave_process_group()
"""


@pytest.mark.parametrize(
    "killed, words",
    [
        pytest.param(0, "ServerLostError: parameter server rank 0 is gone", marks=pytest.mark.slow),
        (2, "WorkerLostError: worker rank 2 is gone"),
    ],
    ids=["server", "worker"],
)
def test_a_killed_rank_is_named_under_torchrun(killed, words, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(paths=[os.path.dirname(__file__)]))
    # torchrun looks after its ranks ten times a second, and may end the others before they can say what they have seen; on
    # another node it would not.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    command += ["--monitor-interval=4", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with subprocess.Popen(
        [*command, str(tmp_path), str(killed)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as done:
        pids = noted_pids(tmp_path, 3, timeout=60)
        start = time.monotonic()
        told = done.communicate(timeout=60)[0]
    took = time.monotonic() - start
    assert done.returncode != 0 and words in told, told[-3000:]
    assert took <= 10, took
    assert survivors(pids) == []


@pytest.mark.parametrize("silent, words", [(1, "worker rank 1"), (0, "parameter server rank 0")])
def test_a_silent_rank_is_named_when_patience_ends(silent, words):
    """It is there, and says nothing."""

    def worker():
        model = nn.Linear(4, 2)
        if dist.get_rank() == silent:
            time.sleep(600)
        elif dist.get_rank() == 0:
            serve(model, torch.optim.SGD(model.parameters(), lr=0.01), timeout=0.5)
        else:
            ParameterServerWorker(model, timeout=0.5)

    with pytest.raises(RankFailedError, match=f"{words} has not been heard of for 0.5 s"):
        launch(worker, 2, timeout=30, backend="gloo", threads=1)


def test_another_model_is_named_on_both_sides():
    def worker():
        model = nn.Linear(4, 2 + dist.get_rank())
        try:
            if dist.get_rank() == 0:
                serve(model, torch.optim.SGD(model.parameters(), lr=0.01), timeout=20)
            else:
                ParameterServerWorker(model, timeout=20)
        except ModelMismatchError as error:
            return str(error)
        return None

    for told in launch(worker, 2, timeout=60, backend="gloo", threads=1):
        assert "worker rank 1 has another model than server rank 0" in told


def test_a_worker_that_leaves_without_goodbye_is_lost():
    def worker():
        model = nn.Linear(4, 2)
        if dist.get_rank() == 0:
            try:
                serve(model, torch.optim.SGD(model.parameters(), lr=0.01), timeout=20)
            except WorkerLostError as error:
                return str(error)
        else:
            ParameterServerWorker(model, timeout=20)
            dist.destroy_process_group()
        return None

    assert "without finish()" in launch(worker, 2, timeout=60, backend="gloo", threads=1)[0]


def test_what_cannot_work_is_said_at_once():
    def alone():
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        told = []
        for call in (
            lambda: serve(model, optimizer),
            lambda: serve(model, optimizer, servers=(1,)),
            lambda: serve(model, optimizer, buffers="sum"),
            lambda: serve(model, optimizer, staleness_bound=-1),
            lambda: ParameterServerWorker(model),
        ):
            try:
                call()
            except ValueError as error:
                told.append(str(error))
        return told

    expected = [
        "at least one worker",
        "rank 0 serves, but servers are [1]",
        '"mean" or "own"',
        "at least 0",
        "rank 0 is a server",
    ]
    told = launch(alone, 1, timeout=60, backend="gloo", threads=1)[0]
    assert all(part in line for part, line in zip(expected, told, strict=True)), told


@pytest.mark.parametrize("error", [WorkerLostError(3, "is gone"), ServerLostError(1, "is gone")])
def test_errors_travel_between_processes(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.rank) == (type(error), str(error), error.rank)
