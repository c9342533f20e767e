"""One line for a torchrun that failed: against torchrun itself, whose report has no fixed form."""

import os
import subprocess
import sys

import pytest

from course_lib.checks.torchrun_failure import torchrun_failure

RANK_1 = """
import os, sys
if os.environ["RANK"] == "1":
    print("rank 1 was here", flush=True)
    exec(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("ending", "told"),
    [
        ('raise ValueError("two: three")', "ValueError: two: three"),
        (
            'import torch; raise torch.distributed.DistStoreError("nobody came")',
            "torch.distributed.DistStoreError: nobody came",
        ),
        ("os.kill(os.getpid(), 11)", "rank 1 was ended by SIGSEGV, without an exception; the last line before: rank 1 was here"),
        ('sys.exit("no data here")', "rank 1 ended with exit code 1, without an exception; the last line before: no data here"),
    ],
    ids=["raised", "of-torch", "signal", "exit"],
)  # fmt: skip
def test_the_rank_s_own_reason(ending, told, tmp_path):
    (tmp_path / "script.py").write_text(RANK_1)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "script.py", ending],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=600,
        check=False,
    )
    assert torchrun_failure(done) == f"torchrun ended with exit code 1: {told}", done.stdout


def test_nothing_but_a_traceback_of_torchrun_s():
    done = subprocess.CompletedProcess([], 1, stdout="Traceback\n    raise ChildFailedError(\nx.ChildFailedError: \n")
    assert torchrun_failure(done) == "torchrun ended with exit code 1: see above"
