"""`launch` seen from outside its process: interrupted, killed, several at once."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rank_processes import alive, noted_pids, survivors

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

SLEEPING = """
import os, signal, sys, time
from pathlib import Path

import torch
import torch.distributed as dist

from course_lib.distributed import launch

def sleeps(folder):
    Path(folder, os.environ["RANK"] + ".pid").write_text(str(os.getpid()))
    if dist.get_rank() == 0:
        dist.barrier()
    time.sleep(600)

def adds():
    total = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(total)
    return total.item()

if __name__ == "__main__":
    before = signal.getsignal(signal.SIGINT)
    try:
        launch(sleeps, 2, (sys.argv[1],), timeout=None)
    except KeyboardInterrupt:
        print("interrupted", signal.getsignal(signal.SIGINT) is before, launch(adds, 2, timeout=60), flush=True)
"""


@pytest.fixture
def sleeping(tmp_path):
    """A process that is inside a launch of two sleeping ranks; its ranks' ids."""
    script = tmp_path / "sleeping.py"
    script.write_text(SLEEPING)
    (tmp_path / "pids").mkdir()
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "pids")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield process, noted_pids(tmp_path / "pids", 2)
    finally:
        if alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["process", "whole group, as Jupyter does"])
def test_interrupting_ends_the_ranks_and_leaves_the_process_usable(sleeping, send):
    process, ranks = sleeping
    send(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert "interrupted True [3, 3]" in output, output
    assert process.returncode == 0
    assert survivors(ranks) == []


def test_no_rank_outlives_a_killed_launcher(sleeping):
    process, ranks = sleeping
    os.kill(process.pid, signal.SIGKILL)
    assert survivors(ranks, timeout=60.0) == []


SEVERAL = """
import json, os, sys

import torch
import torch.distributed as dist

from course_lib.distributed import launch

def adds(number):
    total = torch.tensor(number * (dist.get_rank() + 1))
    dist.all_reduce(total)
    return total.item(), os.environ["MASTER_PORT"]

if __name__ == "__main__":
    children = []
    for number in range(int(sys.argv[2])):
        child = os.fork()
        if child == 0:
            results = launch(adds, 2, (number,), timeout=120)
            with open(os.path.join(sys.argv[1], f"{number}.json"), "w") as file:
                json.dump(results, file)
            os._exit(0)
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


@pytest.mark.parametrize("processes", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_processes_launch_at_once_and_do_not_collide(processes, tmp_path):
    script = tmp_path / "several.py"
    script.write_text(SEVERAL)
    command = [sys.executable, str(script), str(tmp_path), str(processes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    for number in range(processes):
        (first, port), (second, also) = json.loads(Path(tmp_path, f"{number}.json").read_text())
        assert first == second == 3 * number and port == also


def test_a_script_needs_no_guard_and_may_come_by_standard_input(tmp_path):
    script = """
import torch.distributed as dist
from course_lib.distributed import launch

def who():
    return dist.get_rank()

print("ranks", launch(who, 2, timeout=60))
"""
    done = subprocess.run(
        [sys.executable, "-"], input=script, capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines().count("ranks [0, 1]") == 1, done.stdout
