"""One line for a torchrun that failed, from the report of torchrun itself, which has no fixed form."""

import os
import subprocess

import pytest

from course_lib.checks.torchrun_failure import torchrun_failure

RANK_1 = """
import os, sys
if os.environ["RANK"] == "1":
    print("rank 1 was here", flush=True)
    exec(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("ending", "reason"),
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
def test_the_rank_s_own_reason(ending, reason, tmp_path, warm_server):
    script, output = tmp_path / "script.py", tmp_path / "output"
    script.write_text(RANK_1)
    arguments = ["--standalone", "--nproc-per-node=2", str(script), ending]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    with output.open("wb") as file:  # a fork has imported PyTorch
        process = warm_server.fork("torch.distributed.run", "main", arguments, environment=environment,
                                   folder=tmp_path, stdout=file.fileno(), stderr=file.fileno())  # fmt: skip
        done = subprocess.CompletedProcess(arguments, process.wait(), output.read_text())
    assert torchrun_failure(done) == f"torchrun ended with exit code 1: {reason}", done.stdout


def test_nothing_but_a_traceback_of_torchrun_s():
    done = subprocess.CompletedProcess([], 1, stdout="Traceback\n    raise ChildFailedError(\nx.ChildFailedError: \n")
    assert torchrun_failure(done) == "torchrun ended with exit code 1: see above"
