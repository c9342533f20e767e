"""`lab sweep --executor slurm` on a real one-machine cluster; the oracle is the local executor's table."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pandas as pd
import pytest
from one_machine_slurm import finish, start_lab, wait_for

from course_lib.runs.sweep.folder import read_outcome
from tests.course_lib.toy_sweep import make_toy_course

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

# A lab that trains a linear model on several ranks, with averaged gradients. Some of its trials fail.
PARAMETERS = """
num_gpus = 1
batch_size = 8
base_lr = 0.1
momentum = 0.0
warmup_epochs = 0.0
epochs = 3
seed = 0
rule = "linear"
output_dir = "run"
"""
TRAIN = """
import os, time, torch
from course_lib.distributed import launch
from course_lib.runs.records import EpochRecord, RunFolder
with open("executed", "a") as book:
    book.write(f"{output_dir}\\n")
if rule == "raises" and not os.path.exists("mended"):
    raise ValueError("the optimiser ran away")
while rule == "hangs" and not os.path.exists("mended"):
    time.sleep(0.2)

def train(batch_size, base_lr, epochs, seed):
    import torch
    import torch.distributed as dist
    generator = torch.Generator().manual_seed(seed)
    images, teacher = torch.randn(256, 16, generator=generator), torch.randn(16, generator=generator)
    labels = (images @ teacher > 0).float()
    weights = torch.zeros(16, requires_grad=True)
    curve = []
    for epoch in range(epochs):
        order = torch.randperm(256, generator=generator)[dist.get_rank() :: dist.get_world_size()]
        for batch in order.split(batch_size):
            loss = torch.nn.functional.binary_cross_entropy_with_logits(images[batch] @ weights, labels[batch])
            (gradient,) = torch.autograd.grad(loss, weights)
            dist.all_reduce(gradient)
            with torch.no_grad():
                weights -= base_lr * gradient / dist.get_world_size()
        curve.append((loss.item(), ((images @ weights > 0) == labels.bool()).float().mean().item()))
    return curve, torch.get_num_threads()

ranks = launch(train, num_gpus, (batch_size, base_lr, epochs, seed))
parameters = {"threads": ranks[0][1], "devices": os.environ.get("CUDA_VISIBLE_DEVICES"), "cpus": os.environ.get("SLURM_CPUS_ON_NODE")}
run = RunFolder(output_dir, "01_toy", parameters, {"name": "none", "provenance": "synthetic"}).start(num_gpus, None, "cpu")
for epoch, (loss, accuracy) in enumerate(ranks[0][0], 1):
    run.append(EpochRecord(epoch, 1.0 * epoch, 256.0, loss, accuracy, loss, accuracy, base_lr), 1.0)
run.finish(False)
"""
ON_SLURM = ["--executor", "slurm", "--slurm", "cpus-per-gpu=1", "--slurm", "time=10"]
CURVES = ["num_gpus", "batch_size", "seed", "status", "epochs", "best_accuracy", "final_accuracy", "final_loss", "ranks",
          "effective_batch", "dataset", "device", "folder", "error"]  # fmt: skip


@pytest.fixture
def course(tmp_path):
    """A course of that lab."""
    return make_toy_course(tmp_path, [("parameters", PARAMETERS), (None, TRAIN)])


def start(course: Path, *words: object):
    return start_lab(course, "sweep", "1", *words)


def sweep(course: Path, *words: object, code: int = 0) -> str:
    """What `lab sweep 1` prints."""
    return finish(start(course, *words), code)


def table(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "results.csv", keep_default_na=False, na_values=[""])


def executed(course: Path) -> list[str]:
    """Run folders, a line each time that the notebook was begun for one."""
    book = course / "executed"
    return book.read_text().split() if book.exists() else []


def test_a_grid_gives_the_local_executor_s_table_and_a_job_asks_for_its_ranks(slurm, course):
    grid = ["-g", "num_gpus=1,2", "-g", "batch_size=8,16"]
    sweep(course, *grid, "-o", "local")
    process = start(course, *grid, "-o", "slurm", *ON_SLURM)
    asked = set()
    while process.poll() is None:
        asked |= set(slurm.run("squeue", "-h", "-r", "-t", "all", "-o", "%b %C %l %D", check=False).splitlines())
        time.sleep(0.3)
    output = finish(process)
    ours, theirs = table(course / "local"), table(course / "slurm")
    assert theirs["status"].tolist() == ["done"] * 4 and theirs["final_accuracy"].min() > 0.8
    assert theirs["final_loss"].nunique() == 4  # so that equality means something
    pd.testing.assert_frame_equal(ours[CURVES], theirs[CURVES])
    for ranks in (1, 2):
        assert f"gres:gpu:{ranks} {ranks} 10:00 1" in asked, asked
    for _, row in theirs.iterrows():
        record = json.loads((course / "slurm" / row["folder"] / "run.json").read_text())["parameters"]
        assert (record["threads"], record["cpus"]) == (1, str(row["ranks"]))  # ranks × threads are the job's cores
        assert read_outcome(course / "slurm" / row["folder"]).executor == "slurm"
    assert "PyTorch sees 0" in output  # the fake GPUs
    assert not (course / "slurm" / "slurm_logs").exists()
    assert "4 of 4 trials have ended before" in sweep(course, *grid, "-o", "slurm", *ON_SLURM)
    assert len(executed(course)) == 8


def test_trials_fail_alone_and_retry_completes_them(slurm, course):
    words = ["-g", "rule=raises,linear,hangs", "-o", "out", *ON_SLURM]
    process = start(course, *words)
    wait_for(lambda: len(executed(course)) == 3, "third trial")
    hanging = wait_for(lambda: [task for task in slurm.live_tasks() if "_2 " in task], "hanging task")[0].split()[0]
    slurm.run("scancel", hanging)
    finish(process, code=1)
    rows = {row["rule"]: row for _, row in table(course / "out").iterrows()}
    assert [rows[rule]["status"] for rule in ("raises", "linear", "hangs")] == ["failed", "done", "failed"]
    assert "the optimiser ran away" in rows["raises"]["error"]
    assert "Traceback" in read_outcome(course / "out" / rows["raises"]["folder"]).traceback
    assert f"its Slurm job {hanging} was cancelled (CANCELLED); log: " in rows["hangs"]["error"]
    assert Path(rows["hangs"]["error"].rpartition("log: ")[2]).stat().st_size > 0
    (course / "mended").touch()
    before = len(executed(course))
    assert "3 of 3 trials done" in sweep(course, *words, "--retry") and len(executed(course)) == before + 2
    assert {read_outcome(course / "out" / row["folder"]).attempts for row in rows.values()} == {1, 2}


def test_after_a_kill_the_jobs_go_on_and_the_same_command_completes(slurm, course):
    words = ["-g", "rule=linear,hangs", "-p", "num_gpus", "2", "-g", "batch_size=8,16", "-o", "out", *ON_SLURM]
    process = start(course, *words)
    wait_for(lambda: any("hangs" in folder for folder in executed(course)), "hanging trial")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    orphans = {task.split()[0] for task in slurm.live_tasks()}
    assert orphans
    second = start(course, *words)
    assert any("from an interrupted call" in line for line in second.stdout)  # it has decided what to submit
    (course / "mended").touch()
    assert "4 of 4 trials done" in finish(second)
    assert sorted(executed(course)) == sorted({*executed(course)}) and len(executed(course)) == 4, "a trial ran twice"


def test_an_interrupt_cancels_the_jobs_and_no_more_than_jobs_run(slurm, course):
    words = ["-g", "rule=hangs", "-g", "batch_size=8,16,32", "-o", "out", *ON_SLURM, "--jobs", "2"]
    process = start(course, *words)
    wait_for(lambda: len(executed(course)) == 2, "second trial")
    assert len(slurm.live_tasks()) == 2
    process.send_signal(signal.SIGINT)
    output = finish(process, code=130)
    assert "cancelling 2 trials" in output and "the same command continues" in output.splitlines()[-1]
    assert not slurm.live_tasks() and not (course / "out" / "slurm_logs").exists()
    (course / "mended").touch()
    assert "3 of 3 trials done" in sweep(course, *words)


def test_what_slurm_refuses_is_one_line(slurm, course):
    words = ["-g", "num_gpus=1,3", "-o", "out", "--executor", "slurm", "--slurm", "cpus-per-gpu=1"]
    for more, named in (([], "num_gpus = 3"), (["--slurm", "partition=nosuch"], "partition")):
        output = sweep(course, *words, *more, code=1)
        last = output.splitlines()[-1]
        assert last.startswith("Error: sbatch refuses") and named in last and "Traceback" not in output, output
    assert not slurm.live_tasks() and executed(course) == []


def test_jobs_that_can_never_run_are_reported(slurm, course):
    words = ["-g", "num_gpus=1", "-o", "out", "--executor", "slurm", "--slurm", "cpus-per-gpu=64"]
    process = start(course, *words)
    line = next(line for line in process.stdout if "for ever" in line)
    process.send_signal(signal.SIGINT)
    finish(process, code=130)
    assert "1 trial will wait for ever: PartitionConfig" in line and not slurm.live_tasks()
