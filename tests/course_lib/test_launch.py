"""What `launch` returns, what it leaves alone, and what it refuses."""

import json
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from course_lib.distributed import RankFailedError, default_backend, launch, threads_per_rank, warm_up, world_size

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as a notebook's functions travel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def rank_and_sum(scale=1, offset=0):
    total = torch.tensor(float(dist.get_rank() + 1))
    dist.all_reduce(total)
    return dist.get_rank(), dist.get_world_size(), scale * total.item() + offset


def rank_settings(names=()):
    return {
        "threads": torch.get_num_threads(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "folder": os.getcwd(),
        "group": dist.is_initialized(),
        **{name: os.environ.get(name) for name in names},
    }


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_results_come_in_order_of_rank_and_the_group_is_up(ranks):
    assert launch(rank_and_sum, ranks, (10,), {"offset": 0.5}) == [
        (rank, ranks, 10 * sum(range(1, ranks + 1)) + 0.5) for rank in range(ranks)
    ]


def test_tensors_come_back_by_value_and_outlive_their_rank():
    def worker():
        rank = dist.get_rank()
        big = torch.arange(300_000, dtype=torch.float64) * (rank + 1)
        return {"big": big, "view": big[::3], "nested": [torch.full((2, 2), rank), (rank, "text")]}

    for rank, result in enumerate(launch(worker, 2)):
        expected = torch.arange(300_000, dtype=torch.float64) * (rank + 1)
        assert torch.equal(result["big"], expected) and torch.equal(result["view"], expected[::3])
        assert torch.equal(result["nested"][0], torch.full((2, 2), rank)) and result["nested"][1] == (rank, "text")
        result["big"].zero_()  # ours to write to
        assert not result["big"].is_shared()


def test_a_worker_with_torch_and_an_attribute_called_classes_can_be_sent():
    class Data:
        classes = ("shirt", "boot")

    data = Data()

    def worker(also):
        return torch.ones(3).sum().item() + len(data.classes) + len(also.classes)

    assert launch(worker, 1, (data,)) == [7.0]


def test_without_process_group_the_environment_is_there_and_no_group():
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    results = launch(rank_settings, 2, (names,), process_group=False)
    assert [result["group"] for result in results] == [False, False]
    assert [(r["RANK"], r["LOCAL_RANK"], r["WORLD_SIZE"]) for r in results] == [("0", "0", "2"), ("1", "1", "2")]
    assert results[0]["MASTER_PORT"] == results[1]["MASTER_PORT"] and int(results[0]["MASTER_PORT"]) > 0
    assert results[0]["MASTER_ADDR"]


@pytest.mark.parametrize("cores, ranks, expected", [(8, 2, 4), (7, 3, 2), (1, 2, 1)])
def test_cores_are_divided_between_ranks(monkeypatch, capfd, cores, ranks, expected):
    launching = sys.modules["course_lib.distributed.launching.launch"]
    monkeypatch.setattr(launching, "available_cores", lambda: cores)
    launching._note_few_cores.cache_clear()
    assert threads_per_rank(ranks) == expected
    if cores != 7:
        for result in [*launch(rank_settings, ranks, process_group=False), *launch(rank_settings, ranks)]:
            assert (result["threads"], result["OMP_NUM_THREADS"]) == (expected, str(expected))
        if not torch.cuda.is_available():
            assert capfd.readouterr().out.count("2 ranks share 1 cores") == (cores == 1)  # once for both launches


def test_ranks_see_the_environment_and_folder_of_now_not_of_the_fork_server(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_GOES", "away")
    launch(rank_settings, 1)  # the fork server runs from here on at the latest
    monkeypatch.setenv("COURSE_NEW", "yes")
    monkeypatch.delenv("COURSE_GOES")
    monkeypatch.chdir(tmp_path)
    for result in launch(rank_settings, 2, (("COURSE_NEW", "COURSE_GOES"),)):
        assert result["COURSE_NEW"] == "yes" and result["COURSE_GOES"] is None
        assert Path(result["folder"]) == tmp_path


@pytest.mark.parametrize("value", [1, "a text"])  # the second one raises
def test_the_launching_process_is_left_as_it_was(monkeypatch, value):
    def handler(number, frame):
        raise AssertionError("not called")

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    environment, folder = dict(os.environ), os.getcwd()
    try:
        launch(rank_and_sum, 2, (value,))
    except RankFailedError as error:
        assert "TypeError" in error.reason
    finally:
        handlers = [signal.signal(number, original) for number, original in before.items()]
    assert handlers == [handler, handler] and not dist.is_initialized()
    assert dict(os.environ) == environment and os.getcwd() == folder


def test_what_a_rank_prints_appears_with_its_rank(capfd):
    def worker():
        print("hello from", dist.get_rank())
        print("a warning", file=sys.stderr)

    launch(worker, 2)
    lines = capfd.readouterr().out.splitlines()
    for rank in range(2):
        assert f"[rank {rank}] hello from {rank}" in lines and f"[rank {rank}] a warning" in lines
    assert not [line for line in lines if "Gloo" in line]


def test_the_fork_server_has_one_thread_and_pytorch(tmp_path):
    launch(rank_and_sum, 2)
    server = multiprocessing.forkserver._forkserver._forkserver_pid
    assert len(os.listdir(f"/proc/{server}/task")) == 1
    assert "libtorch" in Path(f"/proc/{server}/maps").read_text()

    def parent():
        return os.getppid()

    assert launch(parent, 2) == [server, server]


def test_the_fork_servers_first_import_keeps_it_fit_to_be_forked():
    code = "import os, signal, course_lib.system.fork_server.setup, numpy; print(len(os.listdir('/proc/self/task')), signal.getsignal(signal.SIGINT))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    # OpenBLAS has started no threads, and an interrupt is ignored.
    assert done.stdout == f"1 {signal.SIG_IGN}\n", done.stderr


def test_nothing_is_left_in_the_temporary_folder(monkeypatch, tmp_path):
    def raises():
        raise ValueError("on purpose")

    warm_up()  # the server's socket stays
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    launch(rank_and_sum, 2)
    with pytest.raises(RankFailedError):
        launch(raises, 2)
    assert list(tmp_path.iterdir()) == []


def test_threads_launch_at_once_and_do_not_mix():
    environment, results, main = dict(os.environ), {}, sys.modules["__main__"]

    def one(number):
        results[number] = launch(rank_and_sum, 2, (number,))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [(0, 2, 3.0 * number), (1, 2, 3.0 * number)] for number in range(4)}
    assert dict(os.environ) == environment and sys.modules["__main__"] is main


@pytest.mark.parametrize("argument", [threading.Lock(), (i for i in range(3)), threading.Thread()])
def test_what_cannot_be_sent_is_one_line(argument):
    with pytest.raises(TypeError) as raised:
        launch(rank_and_sum, 2, (argument,))
    assert "rank_and_sum" in str(raised.value) and "cannot be sent" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_cannot_be_returned_names_the_rank():
    def worker():
        return threading.Lock() if dist.get_rank() == 1 else None

    with pytest.raises(RankFailedError) as raised:
        launch(worker, 2)
    assert raised.value.rank == 1 and "lock" in raised.value.reason


def test_gloo_unless_every_rank_has_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [default_backend(ranks) for ranks in (1, 2, 3)] == ["nccl", "nccl", "gloo"]


def test_world_size_is_one_without_a_group():
    assert world_size() == 1
    assert launch(lambda: world_size(), 2) == [2, 2]


@pytest.mark.slow
def test_ranks_that_return_at_once_do_not_hang_up_on_those_that_still_connect():
    """Without the barrier about one launch in sixty failed so on two cores."""
    for _ in range(100):
        assert launch(world_size, 4) == [4] * 4


def test_an_interrupt_while_the_fork_server_starts_is_not_lost(monkeypatch):
    """It once was: the launching process ignored SIGINT for that moment, and the launch ran to its time limit."""
    monkeypatch.setattr(multiprocessing.forkserver, "ensure_running", lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        launch(rank_and_sum, 1)


SEVERAL = """
import json, os, sys

import torch
import torch.distributed as dist

from course_lib.distributed import launch

def adds(number):
    total = torch.tensor(number * (dist.get_rank() + 1))
    dist.all_reduce(total)
    return total.item(), os.environ["MASTER_PORT"]

children = []
for number in range(int(sys.argv[1])):
    child = os.fork()
    if child == 0:
        results = launch(adds, 2, (number,))
        with open(f"{number}.json", "w") as file:
            json.dump(results, file)
        os._exit(0)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


@pytest.mark.parametrize(
    "processes, file", [(1, "-"), (2, "several.py"), pytest.param(8, "several.py", marks=pytest.mark.slow)]
)
def test_processes_launch_at_once_from_a_script_without_a_guard_or_standard_input(processes, file, tmp_path):
    (tmp_path / "several.py").write_text(SEVERAL)
    done = subprocess.run(
        [sys.executable, file, str(processes)], input=SEVERAL, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for number in range(processes):
        (first, port), (second, also) = json.loads(Path(tmp_path, f"{number}.json").read_text())
        assert first == second == 3 * number and port == also
