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
from gloo_ranks import error_of, on_ranks
from rank_processes import note_pid, noted_pids, survivors
from torch import nn

from course_lib.distributed import RankFailedError
from course_lib.distributed.parameter_server import (
    ModelMismatchError,
    ParameterServerWorker,
    ServerLostError,
    WorkerLostError,
    serve,
)

cloudpickle.register_pickle_by_value(rank_processes)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def train(folder, killed):
    """Three ranks train for ever, until one of them meets its end."""
    note_pid(folder)
    rank, model = dist.get_rank(), nn.Linear(4, 2)
    updates = 0

    def count(update):
        nonlocal updates
        updates += 1
        if rank == killed and updates == 5:
            os.kill(os.getpid(), signal.SIGKILL)

    if rank == 0:
        serve(model, sgd(model), on_update=count)
        return
    worker = ParameterServerWorker(model)
    for step in range(10**9):
        model(torch.ones(3, 4)).sum().backward()
        worker.exchange()
        if rank == killed and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("killed", [0, 2], ids=["server", "worker"])
def test_a_killed_rank_is_named_by_launch(killed, tmp_path):
    with pytest.raises(RankFailedError) as raised:
        on_ranks(train, 3, str(tmp_path), killed)
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
    output = tmp_path / "output"
    with output.open("w") as stream:
        done = subprocess.run(
            [*command, str(tmp_path), str(killed)], env=environment, stdout=stream, stderr=stream, timeout=600
        )
    assert done.returncode != 0 and words in output.read_text(), output.read_text()[-3000:]
    assert survivors(noted_pids(tmp_path, 3), 30.0) == []


@pytest.mark.parametrize("silent, words", [(1, "worker rank 1"), (0, "parameter server rank 0")])
def test_a_silent_rank_is_named_at_the_time_limit(silent, words):
    def worker():
        model = nn.Linear(4, 2)
        if dist.get_rank() == silent:
            time.sleep(600)
        elif dist.get_rank() == 0:
            serve(model, sgd(model), timeout=0.5)
        else:
            ParameterServerWorker(model, timeout=0.5)

    with pytest.raises(RankFailedError, match=f"{words} has sent nothing for 0.5 s"):
        on_ranks(worker, 2)


def mistakes():
    """Errors of two ranks: another model on rank 1, then a worker that leaves without a word."""
    rank = dist.get_rank()
    model = nn.Linear(4, 2 + rank)
    start = (lambda: serve(model, sgd(model))) if rank == 0 else (lambda: ParameterServerWorker(model))
    other = error_of(start, kind=ModelMismatchError)
    model = nn.Linear(4, 2)
    if rank == 0:
        return other, error_of(lambda: serve(model, sgd(model)), kind=WorkerLostError)
    ParameterServerWorker(model)
    dist.destroy_process_group()
    return other, None


def test_another_model_is_named_on_both_sides_and_a_worker_that_leaves_on_the_server():
    (first, lost), (second, _) = on_ranks(mistakes, 2)
    for error in (first, second):
        assert "worker rank 1 has another model than the server, rank 0" in error
    assert "without finish()" in lost


def wrong_side():
    model = nn.Linear(4, 2)
    return error_of(lambda: serve(model, sgd(model)) if dist.get_rank() else ParameterServerWorker(model))


def test_calls_of_the_wrong_rank_are_refused_at_once():
    assert on_ranks(wrong_side, 2) == [
        "rank 0 is the server: it calls serve()",
        "rank 1 is a worker: rank 0 calls serve()",
    ]
    assert "at least one worker" in on_ranks(lambda: error_of(serve, nn.Linear(1, 1), None), 1)[0]


@pytest.mark.parametrize("error", [WorkerLostError(3, "is gone"), ServerLostError(1, "is gone")])
def test_errors_travel_between_processes(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.rank) == (type(error), str(error), error.rank)
