"""How long `launch` takes for ranks that do next to nothing: the first time, later, and torchrun beside it.

python benchmarks/launch_latency.py [--ranks 2] [--repeats 15]
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from harness import conditions, parse_options, seconds, summary

from course_lib.distributed import launch, threads_per_rank

SCRIPT = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""


def one_sum() -> float:
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


def main() -> None:
    options = parse_options(__doc__, ranks=2, repeats=15)
    ranks = options.ranks

    def launched() -> None:
        assert launch(one_sum, ranks) == [ranks] * ranks

    print(conditions(ranks=ranks, repeats=options.repeats))
    print(f"first launch (the fork server imports PyTorch): {seconds(launched):.2f} s")
    print(f"later launches: {summary([seconds(launched) for _ in range(options.repeats)])} s")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "one_sum.py"
        script.write_text(SCRIPT)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", script]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads_per_rank(ranks))}

        def torchrun() -> None:
            subprocess.run(command, check=True, capture_output=True, env=environment)

        print(f"torchrun: {summary([seconds(torchrun) for _ in range(3)])} s")


if __name__ == "__main__":
    main()
