"""How long `launch` takes for ranks that do next to nothing: the first time, later, and torchrun beside it.

python benchmarks/launch_latency.py [--ranks 2] [--repeats 15]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from conditions import conditions, spread

from course_lib.distributed import launch, threads_per_rank

SCRIPT = "import torch, torch.distributed as d; d.init_process_group('gloo'); t = torch.ones(1); d.all_reduce(t); d.destroy_process_group()"


def one_sum() -> float:
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


def timed_launch(ranks: int) -> float:
    start = time.perf_counter()
    assert launch(one_sum, ranks) == [ranks] * ranks
    return time.perf_counter() - start


def timed_torchrun(ranks: int, script: Path) -> float:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(script)]
    start = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads_per_rank(ranks))}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    print(conditions(ranks=options.ranks, repeats=options.repeats))
    print(f"first launch (the fork server imports PyTorch): {timed_launch(options.ranks):.2f} s")
    print(f"later launches: {spread([timed_launch(options.ranks) for _ in range(options.repeats)])} s")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "one_sum.py"
        script.write_text(SCRIPT)
        print(f"torchrun: {spread([timed_torchrun(options.ranks, script) for _ in range(3)])} s")


if __name__ == "__main__":
    main()
