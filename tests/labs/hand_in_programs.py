"""Run the hand-in programs of labs 05 and 07 in a test: a folder with them and a small network, and their results."""

import csv
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest
import torch

from course_lib.distributed.launching.forked_ranks import warm_up

LABS = Path(__file__).parents[2] / "labs"
PROGRAMS = {
    "resnet_cifar100": "05_resnet_hw",
    "resnet_tinyimagenet": "05_resnet_hw",
    "pretrained_cifar100": "05_resnet_hw",
    "sync_sgd_cifar100": "07_sync_async_sgd",
    "async_sgd_cifar100": "07_sync_async_sgd",
}
OWN_SMALL = [
    "--train-samples=256", "--test-samples=100", "--epochs=3", "--batch-size=64", "--warmup-epochs=1",
    "--dataset=cifar100-synthetic",
]  # fmt: skip
FILES = {"learning_curve.csv", "model.safetensors", "assessment.out", "run.json"}
SOLUTIONS = LABS.parent / "course_lib" / "exercises" / "answers" / "programs"
# Put before `train` of our solutions: another network, in the place of one that takes minutes.
ANOTHER_NETWORK = """
from torch import nn

class Small(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.network = nn.Sequential()
        for name, layer in {"first": nn.Conv2d(3, 8, 3, stride=4), "norm": nn.BatchNorm2d(8), "relu": nn.ReLU(),
                            "drop": nn.Dropout(0.2), "pool": nn.AdaptiveAvgPool2d(2), "flat": nn.Flatten(),
                            "fc": nn.Linear(32, classes)}.items():
            self.network.add_module(name, layer)

    def forward(self, x):
        return self.network((x - 0.5) / 0.25)


def build_network(num_classes, image_size=32):
    return Small(num_classes)


def load_imagenet(network):
    pass


"""


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv("ASSESSMENT_OUT", raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the same sums in the same order, here and in the processes that are started
    yield
    torch.set_num_threads(threads)
    os.environ.pop("ASSESSMENT_OUT", None)


def hand_in_folder(tmp_path):
    """A hand-in folder: the solved programs, with a small network in the place of the homework's."""
    folder = tmp_path / "hand_in"
    folder.mkdir()
    for name in PROGRAMS:
        text = (SOLUTIONS / f"{name}.py").read_text()
        (folder / f"{name}.py").write_text(text.replace("def train(run):", ANOTHER_NETWORK + "def train(run):"))
    return folder


def program(name):
    """The program in its lab's folder."""
    return LABS / PROGRAMS[name] / f"{name}.py"


def run(program, *arguments):
    """The program in this process, as `python program …` runs it; returns its exit code."""
    path = [str(Path(program).parent), *sys.path]
    with patch.object(sys, "argv", [str(program), *arguments]), patch.object(sys, "path", path):
        try:
            runpy.run_path(str(program), run_name="__main__")
        except SystemExit as end:
            return end.code or 0
    return 0


def kill_after_a_checkpoint(program, *arguments, output, delay=0.0):
    """Run the program in a process; kill that `delay` seconds after the first checkpoint, and wait for its ranks' end."""
    warm_up()  # the process is a fork of one that has imported PyTorch
    arguments = (program, *arguments, f"--output-dir={output}")
    process = multiprocessing.get_context("forkserver").Process(target=run, args=arguments)
    process.start()
    while not (output / "checkpoint.safetensors").exists() and process.is_alive():
        time.sleep(0.01)
    time.sleep(delay)
    ranks = psutil.Process(process.pid).children(recursive=True) if process.is_alive() else []
    process.kill()
    process.join()
    assert process.exitcode in (-signal.SIGKILL, 0)  # it may have been faster
    while not all(_has_ended(rank) for rank in ranks):
        time.sleep(0.01)


def _has_ended(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def by_torchrun(program, *arguments, ranks):
    """What the program prints under torchrun."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [sys.executable, *launcher, str(program), *arguments], capture_output=True, text=True, timeout=1200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(folder):
    """The learning curve."""
    with (folder / "learning_curve.csv").open() as file:
        return list(csv.DictReader(file))


def curve(folder):
    """The columns of the learning curve that do not depend on the clock."""
    return [
        {name: value for name, value in row.items() if name not in ("time", "images_per_sec")} for row in rows(folder)
    ]
