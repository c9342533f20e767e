"""`deploy/slurm/homework.sbatch` on a real one-machine cluster: a job that runs into its wall time goes on by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from one_machine_slurm import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

REPOSITORY = Path(__file__).parents[2]
PROGRAM = REPOSITORY / "course_lib" / "exercises" / "answers" / "programs" / "resnet_cifar100.py"
NETWORK = """
def build_network(num_classes):
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, num_classes))


"""


def test_a_job_near_its_wall_time_is_queued_again_and_goes_on(slurm, tmp_path):
    text = PROGRAM.read_text().replace("def train(run):", NETWORK + "def train(run):")
    (tmp_path / "resnet_cifar100.py").write_text(text)
    job = subprocess.run(
        ["sbatch", "--parsable", "--gpus-per-node=0", "--cpus-per-task=2", f"--chdir={tmp_path}",
         f"--export=ALL,RANKS_PER_NODE=2,PYTHON={sys.executable}", "--output=job.out",
         REPOSITORY / "deploy" / "slurm" / "homework.sbatch", "resnet_cifar100.py", "--dataset=cifar100-synthetic",
         "--epochs=300", "--batch-size=64", "--train-samples=512", "--test-samples=100",
         "--output-dir=run"],
        check=True, capture_output=True, text=True, cwd=tmp_path,
    ).stdout.strip()  # fmt: skip
    run, output = tmp_path / "run", tmp_path / "job.out"
    wait_for((run / "checkpoint.safetensors").exists, "checkpoint")
    slurm.run("scancel", "--batch", "--signal=USR1", job)  # what Slurm sends two minutes before the wall time
    wait_for(lambda: "queueing job" in output.read_text(), "line about the new start")
    assert not (run / "run.json").exists()
    wait_for(lambda: any("PENDING" in task for task in slurm.live_tasks()), "queued job")
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now", check=False)  # a requeued job waits two minutes
    wait_for((run / "run.json").exists, "end of the run")
    record = json.loads((run / "run.json").read_text())
    assert record["world_size"] == 2 and len(record["resumed"]) == 1
    assert "continuing after epoch" in output.read_text()
    epochs = [line.split(",")[0] for line in (run / "learning_curve.csv").read_text().splitlines()[1:]]
    assert epochs == [str(epoch) for epoch in range(301)]
