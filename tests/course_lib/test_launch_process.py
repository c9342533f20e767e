"""`launch` seen from outside its process: several at once, and a script on standard input."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

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
