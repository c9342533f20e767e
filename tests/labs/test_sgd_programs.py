"""Lab 07's hand-in programs: alone and by torchrun, against DistributedDataParallel, killed and gone on."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import cloudpickle
import nbformat
import pytest
import torch
from safetensors.torch import load_file
from test_homework_programs import SMALL, SMALL_NETWORK, alone, command, curve, run  # noqa: F401 (a fixture)

from course_lib.data.batches import load
from course_lib.distributed import launch
from course_lib.training.homework import ProgramError, asynchronous_program, on_ranks, train_program

cloudpickle.register_pickle_by_value(sys.modules[__name__])

FOLDER = Path(__file__).parents[2] / "labs" / "07_sync_async_sgd"
PROGRAMS = ["sync_sgd_cifar100", "async_sgd_cifar100"]
SYNTHETIC = [*SMALL, "--dataset=cifar100-synthetic"]


def notebook_cell(id):
    notebook = nbformat.read(FOLDER / "07_sync_async_sgd.ipynb", as_version=4)
    return next(cell.source for cell in notebook.cells if cell.id == id)


HEAD = "import torch\nimport torch.distributed as dist\n\n"
OWN_AVERAGES = {
    "the notebook's solution": HEAD + notebook_cell("ex-average"),
    "gradients that lie otherwise in memory than their weights": HEAD
    + """
def average_gradients(model, samples):
    for p in model.parameters():
        mean = p.grad.flatten()
        dist.all_reduce(mean)
        p.grad = (mean / dist.get_world_size()).view(p.shape)
""",
}


@pytest.fixture
def hand_in(tmp_path):
    """A hand-in folder as the notebook writes it, with lab 05's (small) network copied there."""
    folder = tmp_path / "hand_in"
    folder.mkdir()
    for name in PROGRAMS:
        shutil.copy(FOLDER / f"{name}.py", folder)
    (folder / "homework_network.py").write_text(SMALL_NETWORK)
    return folder


def rows(folder):
    with (folder / "learning_curve.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_names_every_option_and_its_default(name, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    assert run(FOLDER / f"{name}.py", "--help", monkeypatch=monkeypatch) == 0
    told = capsys.readouterr().out
    described = {entry.split()[0]: " ".join(entry.split()) for entry in told.split("\n  --")[1:]}
    for option in ("epochs", "batch-size", "base-lr", "dataset", "output-dir", "seed", "restart", "ranks"):
        assert "(default: " in described[option]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_can_be_mended_is_one_line(name, tmp_path, monkeypatch, capsys):
    program, output = FOLDER / f"{name}.py", tmp_path / "out"
    assert run(program, f"--root={tmp_path}", f"--output-dir={output}", monkeypatch=monkeypatch) == 1
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and "lab data fetch" in told[0] and told[0].startswith(f"{name}.py: error: ")
    assert not output.exists()
    assert run(program, "--ranks=0", monkeypatch=monkeypatch) == 1
    assert "at least 1, got 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, told",
    [
        ("async_sgd_cifar100", "needs a server and at least one worker; --ranks 3"),
        ("sync_sgd_cifar100", "1 rank: synchronous SGD needs at least two; --ranks 2, torchrun --nproc-per-node=2"),
    ],
)
def test_one_rank_is_too_few(name, told, tmp_path, monkeypatch, capsys):
    arguments = [*SYNTHETIC, "--ranks=1", f"--output-dir={tmp_path / 'out'}"]
    assert run(FOLDER / f"{name}.py", *arguments, monkeypatch=monkeypatch) == 1
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1 and not (tmp_path / "out").exists()


def test_one_worker_is_told_that_it_is_plain_sgd(hand_in, tmp_path, monkeypatch, capfd):
    arguments = [*SYNTHETIC, "--epochs=1", "--ranks=2", f"--output-dir={tmp_path / 'run'}"]
    assert run(hand_in / "async_sgd_cifar100.py", *arguments, monkeypatch=monkeypatch) == 0
    told = capfd.readouterr().out
    assert told.count("1 worker: this is plain SGD") == 1 and "--ranks 3" in told


def test_the_asynchronous_rate_is_not_said_to_grow_with_the_ranks(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    told = {}
    for name in PROGRAMS:
        assert run(FOLDER / f"{name}.py", "--help", monkeypatch=monkeypatch) == 0
        told[name] = next(line for line in capsys.readouterr().out.splitlines() if "highest learning rate" in line)
    assert "batch size × ranks" in told["sync_sgd_cifar100"]
    assert "batch size × ranks" not in told["async_sgd_cifar100"] and "one worker's" in told["async_sgd_cifar100"]


class EndlessServer:
    """A worker's library whose server is always at the same version, until so many gradients have come."""

    versions = (0,)

    def __init__(self, model, gradients=4):
        self.left = gradients

    @property
    def active(self):
        return self.left > 0

    def exchange(self, **told):
        self.left -= 1

    def finish(self):
        pass


def test_a_share_used_twice_in_an_epoch_comes_in_another_order(monkeypatch):
    """A worker much faster than the rest runs out of images before the epoch ends."""
    seen = []

    class Seeing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(100))

        def forward(self, images):
            seen.append(images.clone())
            return images.mean((1, 2, 3))[:, None] * self.weight

    monkeypatch.setattr(asynchronous_program, "ParameterServerWorker", EndlessServer)
    monkeypatch.setattr(asynchronous_program, "dist", Namespace(get_rank=lambda: 1, get_world_size=lambda: 3))
    data = load("cifar100-synthetic", train_samples=256)
    given = dict(batch_size=64, seed=0, padding=4, small_epochs=1, small_size=24, epochs=3)
    asynchronous_program._work(data, Seeing(), torch.nn.functional.cross_entropy, given, updates_per_epoch=4)
    first, second, third, fourth = seen  # its share is two batches
    assert all(images.shape[-1] == 24 for images in seen)  # the epoch is the same
    assert not torch.equal(first, third) and not torch.equal(second, fourth)
    orders = {tuple(images.mean((1, 2, 3)).tolist()) for images in seen}
    assert len(orders) == 4


def by_ddp(options, given, network):
    """The same training by PyTorch's DistributedDataParallel, as lab 05's programs do it."""
    namespace = {}
    exec(network, namespace)
    train_program("by_ddp", options, given, lambda data: namespace["HomeworkResNet"](len(data.classes)))


@pytest.fixture(scope="module")
def without_dropout():
    # Weights of more than one channel and more than one place lie channels-last in memory: first and second convolution.
    network = SMALL_NETWORK.replace("nn.Dropout(0.2),", "nn.Conv2d(8, 8, 3, padding=1),")
    assert "Dropout" not in network and network.count("Conv2d") == 2
    return network


@pytest.fixture(scope="module")
def weights_by_ddp(without_dropout, tmp_path_factory):
    """Function of a program's options: the run folder of DDP with the same; trained once."""
    made = {}

    def train(parameters):
        key = json.dumps(parameters, sort_keys=True)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("ddp")
            options = Namespace(output_dir=made[key], root=None, restart=False)
            launch(by_ddp, 2, (options, parameters, without_dropout), threads=1)
        return made[key]

    return train


@pytest.mark.parametrize("own", OWN_AVERAGES)
def test_synchronous_sgd_is_ddp_and_takes_the_students_function(
    own, hand_in, without_dropout, weights_by_ddp, tmp_path, monkeypatch
):
    (hand_in / "homework_network.py").write_text(without_dropout)
    (hand_in / "synchronous_sgd.py").write_text(OWN_AVERAGES[own])
    monkeypatch.delitem(sys.modules, "synchronous_sgd", raising=False)
    output = tmp_path / "run"
    arguments = [*SYNTHETIC, "--batch-size=32", f"--output-dir={output}"]
    assert run(hand_in / "sync_sgd_cifar100.py", *arguments, monkeypatch=monkeypatch) == 0
    record = json.loads((output / "run.json").read_text())
    assert (record["lab"], record["program"], record["world_size"]) == ("07_sync_async_sgd", "sync_sgd_cifar100", 2)
    assert (record["network"], record["gradients"]) == ("homework_network.py", "synchronous_sgd.py")
    assert "ranks" not in record["parameters"]

    by_ddp = weights_by_ddp(record["parameters"])
    ours, theirs = load_file(output / "model.safetensors"), load_file(by_ddp / "model.safetensors")
    assert list(ours) == list(theirs)
    for name in ours:
        assert torch.allclose(ours[name].float(), theirs[name].float(), atol=2e-3), name
    assert [row["lr"] for row in curve(output)] == [row["lr"] for row in curve(by_ddp)]


def test_an_asynchronous_run_leaves_the_run_folder_of_a_lab(hand_in, tmp_path, monkeypatch, capfd):
    output = tmp_path / "run"
    arguments = [*SYNTHETIC, f"--output-dir={output}"]
    assert run(hand_in / "async_sgd_cifar100.py", *arguments, monkeypatch=monkeypatch) == 0
    assert {path.name for path in output.iterdir()} == {
        "learning_curve.csv", "model.safetensors", "assessment.out", "run.json",
    }  # fmt: skip
    record = json.loads((output / "run.json").read_text())
    assert (record["lab"], record["program"], record["world_size"]) == ("07_sync_async_sgd", "async_sgd_cifar100", 3)
    told = rows(output)
    assert [row["epoch"] for row in told] == ["0", "1", "2", "3"]
    assert [float(row["time"]) for row in told] == sorted(float(row["time"]) for row in told)
    # Four updates an epoch, the schedule by updates: base_lr·64/128 is reached after one epoch of warm-up.
    assert float(told[1]["lr"]) == pytest.approx(0.1 * 64 / 128 / 25) and float(told[2]["lr"]) == pytest.approx(0.05)
    assert 0 < float(told[3]["train_accuracy"]) < 1 and 0 < float(told[3]["train_loss"]) < 6
    weights = load_file(output / "model.safetensors")
    assert weights["1.running_mean"].abs().sum() > 0  # the workers' statistics, not the untouched ones of the server
    told = capfd.readouterr().out
    assert "mean staleness" in told and "since the restart" not in told

    before = (output / "run.json").stat().st_ino
    assert run(hand_in / "async_sgd_cifar100.py", *arguments, monkeypatch=monkeypatch) == 0
    assert "holds this run, finished at" in capfd.readouterr().out
    assert (output / "run.json").stat().st_ino == before


def test_killed_it_goes_on_from_the_servers_checkpoint(hand_in, tmp_path, monkeypatch, capfd):
    program, output = hand_in / "async_sgd_cifar100.py", tmp_path / "run"
    arguments = [*SYNTHETIC, "--train-samples=512", "--epochs=12", f"--output-dir={output}"]
    begun = subprocess.Popen(
        command(program, *arguments), env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not (output / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    begun.send_signal(signal.SIGKILL)
    assert begun.wait() == -signal.SIGKILL
    time.sleep(0.5)  # its ranks end when it has
    assert not (output / "run.json").exists()
    interrupted = rows(output / "unfinished")
    assert 1 < len(interrupted) < 13
    capfd.readouterr()
    assert run(program, *arguments, monkeypatch=monkeypatch) == 0
    assert "since the restart" in capfd.readouterr().out
    told = rows(output)
    assert len(told) == 13 and len(json.loads((output / "run.json").read_text())["resumed"]) == 1
    # What was checkpointed stays as it was; the last epoch of the interrupted run may have come after it.
    for before, after in list(zip(interrupted, told, strict=False))[:-1]:
        assert before == after
    assert [float(row["time"]) for row in told] == sorted(float(row["time"]) for row in told)
    assert float(told[-1]["lr"]) < 0.01  # the schedule went on too: it ends where it should
    assert not (output / "checkpoint.safetensors").exists()


@pytest.mark.slow
def test_by_torchrun(hand_in, tmp_path):
    output = tmp_path / "run"
    arguments = [*SYNTHETIC, f"--output-dir={output}"]
    done = subprocess.run(
        command(hand_in / "async_sgd_cifar100.py", *arguments, ranks=3), capture_output=True, text=True, timeout=1200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((output / "run.json").read_text())["world_size"] == 3
    assert done.stdout.count("Epoch =  1:") == 1 and len(rows(output)) == 4


def test_a_lost_rank_is_one_line():
    def train():
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(ProgramError, match=r"rank 1 of 2: the process was ended by SIGKILL.*same command again"):
        on_ranks(2, train)
