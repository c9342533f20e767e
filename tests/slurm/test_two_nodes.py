"""`deploy/slurm/train.sbatch` on two nodes: plain torchrun, the group's timeout and the checkpoint suffice when one dies."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from two_nodes import ADDRESSES, NamespacesNotHere, TwoNodes

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "train.sbatch"
TIMEOUT = 15  # seconds that an all-reduce waits; of the test's steps, which take milliseconds
PROGRAM = f"""
import itertools, os, time
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist
from course_lib.training.checkpoint import Checkpoint
from course_lib.runs.records import EpochRecord

first = os.environ["RANK"] == "0"
dist.init_process_group("gloo", timeout=timedelta(minutes=10))  # one rank may start much later than the other
steps = dist.new_group(timeout=timedelta(seconds={TIMEOUT}))
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
sgd = torch.optim.SGD(model.parameters(), lr=1.0)
checkpoint = Checkpoint("state.safetensors")
records, times = checkpoint.restore_on_every_rank(model, sgd, None)
print(f"starts after epoch {{len(records)}}", flush=True)
for epoch in itertools.count(len(records) + 1):
    message = torch.tensor([0.5, float(first and Path("finish").exists())])
    dist.all_reduce(message, group=steps)
    model.weight.grad = -message[:1].view(1, 1)
    sgd.step()
    if first:
        records.append(EpochRecord(epoch, *[0.0] * 7))
        times.append(0.0)
        checkpoint.save(model, sgd, None, records, times)
        print(f"epoch {{epoch}}", flush=True)
    if message[1]:
        break
    time.sleep(0.05)
print(f"ends after epoch {{epoch}} with weight {{model.weight.item():g}}", flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def nodes(tmp_path):
    (tmp_path / "stand-ins").mkdir()
    try:
        with TwoNodes(tmp_path / "stand-ins") as both:
            yield both
    except NamespacesNotHere as error:
        pytest.skip(str(error))


def test_a_node_dies_the_job_ends_with_the_reason_and_the_next_one_goes_on(nodes, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    numbers = iter(range(1000 + 10 * (os.getpid() % 400), 6000))

    def begin(**variables):
        return nodes.start(SCRIPT, "program.py", cwd=tmp_path, number=next(numbers), **variables)

    def said(job):
        return job.said(0) + job.said(1)

    def epochs(job):
        return [int(number) for number in re.findall(r"^epoch (\d+)$", said(job), re.MULTILINE)]

    def starts(job):
        return [int(number) for number in re.findall(r"starts after epoch (\d+)$", said(job), re.MULTILINE)]

    # The cable is pulled: nothing answers, and both ranks wait for the group's timeout.
    job = begin()
    job.wait_until(lambda: len(epochs(job)) > 2, "third epoch", 240)
    nodes.cut(1)
    assert job.end() != 0
    assert "RuntimeError: [/" in job.said(0) and f"Timed out waiting {1000 * TIMEOUT}ms" in job.said(0)
    nodes.mend(1)

    # A rank is killed: torchrun starts both again in the same job, from the checkpoint.
    done, job = epochs(job)[-1], begin(MAX_RESTARTS="1")
    job.wait_until(lambda: len(epochs(job)) > 2, "third epoch after the new start", 240)
    assert starts(job) in ([done] * 2, [done + 1] * 2)  # saved, and not yet printed
    (rank,) = nodes.ranks(1)
    os.kill(rank, 9)
    job.wait_until(lambda: len(starts(job)) == 4, "start of both ranks", 240)
    again = starts(job)[-1]
    job.wait_until(lambda: again + 2 in epochs(job), "epochs after the rank was killed", 240)
    assert again > done + 2

    # All of a node's processes are killed: its kernel closes their connections, and the other node's rank raises.
    nodes.kill(1)
    assert job.end() != 0
    assert re.search(rf"RuntimeError: .*{re.escape(ADDRESSES[1])}", job.said(0).rpartition("starts after")[2])
    done = epochs(job)[-1]
    (tmp_path / "finish").touch()
    job = begin()
    assert job.end() == 0, said(job)
    assert starts(job) in ([done] * 2, [done + 1] * 2)
    last = starts(job)[0] + 1
    assert said(job).count(f"ends after epoch {last} with weight {last}\n") == 2
