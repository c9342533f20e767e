"""Ranks that raise, exit, are killed or hang: the right rank is named, quickly, and nobody survives."""

import os
import pickle
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import pytest
import rank_processes
import torch
import torch.distributed as dist
from rank_processes import note_pid, noted_pids, survivors

from course_lib.distributed import LaunchTimeoutError, RankFailedError, launch
from course_lib.distributed.agent import WatchingAgent

for module in (sys.modules[__name__], rank_processes):
    cloudpickle.register_pickle_by_value(module)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def longer_than_a_start():
    """A time limit that ranks on this machine, as busy as it is, reach in the worker: at least 2 s."""
    start = time.monotonic()
    launch(os.getpid, 2, timeout=600)
    return max(2.0, 5 * (time.monotonic() - start))


def failure(worker, folder, ranks=2, within=300.0, **options):
    """The error of a launch whose ranks note their ids in `folder`; none is alive once it has been raised."""
    launch(os.getpid, 1, timeout=60)  # the fork server's start is not what is timed here
    start = time.monotonic()
    with pytest.raises((RankFailedError, LaunchTimeoutError)) as raised:
        launch(worker, ranks, (str(folder),), **{"timeout": 600, **options})
    took = time.monotonic() - start
    assert survivors(noted_pids(folder, ranks)) == []
    assert took <= within, took
    return raised.value


def test_a_raising_rank_is_named_with_its_source_line(tmp_path):
    def worker(folder):
        note_pid(folder)
        dist.barrier()
        if dist.get_rank() == 1:
            losses = {"train": 0.5}
            return losses["validation"]  # the failing line
        time.sleep(600)

    error = failure(worker, tmp_path)
    assert isinstance(error, RankFailedError) and error.rank == 1 and error.world_size == 2
    assert "KeyError" in error.reason and "validation" in error.reason and "\n" not in error.reason
    assert 'return losses["validation"]  # the failing line' in error.rank_traceback
    assert "rank 1 of 2" in str(error) and error.rank_traceback.rstrip() in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (again.rank, str(again)) == (error.rank, str(error))


def test_the_first_of_two_failures_is_named(tmp_path):
    def worker(folder):
        note_pid(folder)
        dist.barrier()
        time.sleep([0.5, 0.0][dist.get_rank()])
        raise RuntimeError(f"from {dist.get_rank()}")

    assert failure(worker, tmp_path).rank == 1


def test_a_raising_rank_is_named_though_its_peers_lose_the_connection(tmp_path):
    def worker(folder):
        note_pid(folder)
        dist.barrier()
        if dist.get_rank() == 1:
            raise ValueError("the cause")
        dist.all_reduce(torch.ones(1))

    for attempt in range(3):
        (tmp_path / str(attempt)).mkdir()
        error = failure(worker, tmp_path / str(attempt))
        assert error.rank == 1 and "the cause" in error.reason


def test_a_rank_that_ignores_sigterm_is_ended_too(tmp_path):
    def worker(folder):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note_pid(folder)
        dist.barrier()
        if dist.get_rank() == 0:
            raise ValueError("on purpose")
        while True:
            time.sleep(1)

    error = failure(worker, tmp_path)
    assert error.rank == 0 and "on purpose" in error.reason


def test_sys_exit_is_a_failure(tmp_path):
    def worker(folder):
        note_pid(folder)
        dist.barrier()
        if dist.get_rank() == 1:
            sys.exit(3)
        time.sleep(600)

    error = failure(worker, tmp_path)
    assert error.rank == 1 and "sys.exit(3)" in error.reason


@pytest.mark.parametrize("peer", ["sleeps", "waits in a collective"])
@pytest.mark.parametrize("how", ["os._exit(0)", "SIGKILL"])
def test_a_rank_that_leaves_without_a_word_is_named(tmp_path, how, peer):
    def worker(folder):
        note_pid(folder)
        dist.barrier()
        if dist.get_rank() == 1:
            time.sleep(0.1)  # the other is where it should be
            if how == "SIGKILL":
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(0)
        if peer == "sleeps":
            time.sleep(600)
        dist.all_reduce(torch.ones(1))  # fails as soon as its peer is gone: an effect, not the cause

    for attempt in range(1 if peer == "sleeps" else 3):
        (tmp_path / str(attempt)).mkdir()
        error = failure(worker, tmp_path / str(attempt))
        assert error.rank == 1, error.reason
        assert ("SIGKILL" if how == "SIGKILL" else "exited with code 0") in error.reason


@pytest.mark.parametrize(
    "codes, reports, terminated, rank",
    [
        ([-15, -9], {}, True, 1),  # the stock agent saw rank 1's end before we did, and terminated rank 0
        ([-15, -9], {}, False, 0),
        ([-15, 1], {1: 5.0}, True, 1),
        ([1, 1], {0: 6.0, 1: 5.0}, True, 1),
        ([None, 1], {1: 5.0}, False, 1),
        ([None, -15], {}, False, 1),
        ([-15, None], {}, True, None),
        ([None, None], {}, False, None),
    ],
)
def test_the_rank_that_went_first(tmp_path, codes, reports, terminated, rank):
    agent = SimpleNamespace(world_size=2, folder=tmp_path)
    agent._reports = lambda: {r: {"time": at, "reason": "raised", "traceback": ""} for r, at in reports.items()}
    processes = [SimpleNamespace(exitcode=code) for code in codes]
    error = WatchingAgent._first_failure(agent, processes, terminated)
    assert (error and error.rank) == rank


def test_a_hang_says_where_each_rank_stood(tmp_path):
    def fetch_more_data():
        time.sleep(600)

    def worker(folder):
        note_pid(folder)
        dist.barrier()
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1))
        fetch_more_data()

    limit = longer_than_a_start()
    error = failure(worker, tmp_path, timeout=limit)
    assert isinstance(error, LaunchTimeoutError) and isinstance(error, TimeoutError) and error.timeout == limit
    assert "all_reduce" in error.positions[0] and "fetch_more_data" not in error.positions[0]
    assert "fetch_more_data" in error.positions[1] and "all_reduce" not in error.positions[1]
    for rank in range(2):
        assert f"rank {rank}:\n{error.positions[rank]}" in str(error)
        innermost, *_, outermost = error.positions[rank].splitlines()
        assert "worker" in outermost and "worker" not in innermost
    again = pickle.loads(pickle.dumps(error))
    assert again.positions == error.positions


def test_a_stopped_rank_does_not_stop_the_timeout(tmp_path):
    def worker(folder):
        note_pid(folder)
        dist.barrier()
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_reduce(torch.ones(1))

    error = failure(worker, tmp_path, timeout=longer_than_a_start())
    assert isinstance(error, LaunchTimeoutError)
    assert "all_reduce" in error.positions[0]
    assert "did not answer" in error.positions[1]


def test_a_launch_works_after_each_kind_of_failure(tmp_path):
    def dies(folder):
        note_pid(folder)
        os.kill(os.getpid(), signal.SIGKILL)

    failure(dies, tmp_path, ranks=1)
    assert launch(lambda: dist.get_world_size(), 2, timeout=60) == [2, 2]


def test_a_worker_that_waits_in_a_finished_rank_is_not_taken_for_a_loss(tmp_path):
    def worker(folder):
        time.sleep(1.0 * dist.get_rank())  # rank 0 is done a second before rank 1
        Path(folder, str(dist.get_rank())).touch()
        return dist.get_rank()

    assert launch(worker, 2, (str(tmp_path),), timeout=60) == [0, 1]
