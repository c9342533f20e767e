"""`HomeworkRun`: a program's run folder, resuming, ranks, and the errors that have one line."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from course_lib.data.batches import load
from course_lib.training.homework import split_for_homework

PROGRAM = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from course_lib.training.homework import HomeworkRun

def train(run):
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(3 * 32 * 32, len(run.data.classes)))
    optimizer = torch.optim.SGD(model.parameters(), lr=run.options.base_lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    {restore}
    for epoch in run.epochs():
        model.train()
        images = run.data.train.images[run.rank :: run.world_size].float() / 255
        loss = F.cross_entropy(model(images), run.data.train.labels[run.rank :: run.world_size])
        optimizer.zero_grad()
        loss.backward()
        if run.world_size > 1:
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= run.world_size
        optimizer.step()
        scheduler.step()
        if epoch == int(os.environ.get("DIES_IN", -1)):
            os.kill(os.getpid(), 9)
        {end}
    {finish}

if __name__ == "__main__":
    HomeworkRun.main("toy", train, "A toy.", dataset="cifar100-synthetic", epochs=3, batch_size=8, base_lr=0.1{more})
"""
RESTORE = "run.restore(model, optimizer, scheduler)"
END = "run.end_epoch(model, optimizer, scheduler, train_loss=loss.item(), train_accuracy=0.5, validation_loss=1.0, validation_accuracy=0.25)"
FILES = {"learning_curve.csv", "learning_curve.png", "model.safetensors", "assessment.out", "run.json"}


@pytest.fixture
def toy(tmp_path):
    def run(*arguments, env=None, code=0, restore=RESTORE, end=END, finish="run.finish(model, 0.25)", more=""):
        path = tmp_path / "toy.py"
        path.write_text(PROGRAM.format(restore=restore, end=end, finish=finish, more=more))
        command = [sys.executable, str(path), "--train-samples=60", "--test-samples=20", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600,
                              env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})})  # fmt: skip
        assert done.returncode == code, done.stderr
        return done

    return run


def test_killed_it_continues_to_the_same_weights(toy, tmp_path):
    toy("--output-dir=straight")
    assert {file.name for file in (tmp_path / "straight").iterdir()} == FILES
    record = json.loads((tmp_path / "straight/run.json").read_text())
    assert record["lab"] == "05_resnet_hw" and record["program"] == "toy" and record["parameters"]["epochs"] == 3

    toy("--output-dir=killed", env={"DIES_IN": "1"}, code=-9)
    assert "continuing after epoch 1" in toy("--output-dir=killed").stdout
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("straight", "killed")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    rates = [line.split(",")[-1] for line in (tmp_path / "killed/learning_curve.csv").read_text().splitlines()]
    assert rates[2:] == ["0.1", "0.05", "0.025"]
    assert "holds this run, finished" in toy("--output-dir=killed").stdout


def test_ranks_started_by_the_program_leave_one_run(toy, tmp_path):
    done = toy("--output-dir=two", more=", ranks=2")
    assert json.loads((tmp_path / "two/run.json").read_text())["world_size"] == 2
    assert done.stdout.count("done: validation accuracy 25.00%, test accuracy 25.00%") == 1


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"restore": ""}, "call run.restore(model, optimizer, scheduler) before run.epochs()"),
        ({"end": "pass"}, "epoch 1 was left without one call of run.end_epoch(…)"),
        ({"finish": ""}, "train(run) returned without run.finish(model): the run folder is not complete"),
        ({"end": END.replace("0.25", "25")}, "validation_accuracy = 25: a share of images is needed, in 0…1"),
    ],
    ids=("restore", "end_epoch", "finish", "a percentage"),
)
def test_a_call_that_is_missing_is_named_in_one_line(toy, change, line):
    assert toy("--epochs=1", code=1, **change).stderr.splitlines()[-1] == f"toy.py: error: {line}"


def test_the_validation_images_are_training_images_that_are_not_trained_on():
    data = load("cifar100-synthetic", train_samples=200)
    splits = split_for_homework(data)
    assert (len(splits.train), len(splits.validation)) == (180, 20) and splits.test is data.test
    together = torch.cat([splits.train.images, splits.validation.images]).flatten(1).float().sum(1)
    assert torch.equal(together.sort().values, data.train.images.flatten(1).float().sum(1).sort().values)
    with pytest.raises(ValueError, match="at least 10"):
        split_for_homework(load("cifar100-synthetic", train_samples=9))
