"""Leaving a process group ends its threads, which could abort the process at its end."""

import subprocess
import sys

SCRIPT = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from course_lib.distributed import leave_process_group

def threads():
    return sorted(open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task"))

def train():
    model = DistributedDataParallel(torch.nn.Linear(3, 3))
    model(torch.randn(2, 3)).sum().backward()

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
train()
print("within", *threads(), flush=True)
leave_process_group()
print("after", *threads(), flush=True)
"""


def test_the_group_s_threads_end(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith(("within", "after"))}
    assert "pt_gloo_runloop" in lines["within"], done.stderr
    assert "gloo" not in lines["after"], done.stdout
    assert done.returncode == 0, done.stderr
