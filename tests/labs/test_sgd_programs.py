"""Lab 07's hand-in programs: alone and by torchrun, against DistributedDataParallel, killed and gone on."""

import json
import os
import signal
import sys
import time
from argparse import Namespace

import cloudpickle
import nbformat
import pytest
import torch
from hand_in_programs import (
    FILES,
    LABS,
    SMALL,
    SMALL_NETWORK,
    alone,  # noqa: F401 (a fixture)
    curve,
    hand_in_folder,
    kill_after_a_checkpoint,
    program,
    rows,
    run,
)
from safetensors.torch import load_file

from course_lib.data.batches import load
from course_lib.distributed import launch
from course_lib.training.homework import ProgramError, asynchronous_program, on_ranks, train_program

cloudpickle.register_pickle_by_value(sys.modules[__name__])

LAB = "07_sync_async_sgd"


@pytest.fixture
def hand_in(tmp_path):
    return hand_in_folder(tmp_path)


def notebook_cell(id):
    notebook = nbformat.read(LABS / LAB / f"{LAB}.ipynb", as_version=4)
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


def test_no_ranks_are_one_line(capsys):
    assert run(program("sync_sgd_cifar100"), "--ranks=0") == 1
    assert "at least 1, got 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, words",
    [
        ("async_sgd_cifar100", "needs a server and at least one worker; --ranks 3"),
        ("sync_sgd_cifar100", "1 rank: synchronous SGD needs at least two; --ranks 2, torchrun --nproc-per-node=2"),
    ],
)
def test_one_rank_is_too_few(name, words, tmp_path, capsys):
    arguments = [*SMALL, "--ranks=1", f"--output-dir={tmp_path / 'out'}"]
    assert run(program(name), *arguments) == 1
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1 and not (tmp_path / "out").exists()


def test_one_worker_is_warned_that_it_is_plain_sgd(hand_in, tmp_path, capfd):
    arguments = [*SMALL, "--epochs=1", "--ranks=2", f"--output-dir={tmp_path / 'run'}"]
    assert run(hand_in / "async_sgd_cifar100.py", *arguments) == 0
    output_text = capfd.readouterr().out
    assert output_text.count("1 worker: this is plain SGD") == 1 and "--ranks 3" in output_text


class EndlessServer:
    """A worker's library whose server is always at the same version, until so many gradients have come."""

    versions = (0,)

    def __init__(self, model, gradients=4):
        self.left = gradients

    @property
    def active(self):
        return self.left > 0

    def exchange(self, **report):
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
    own, hand_in, without_dropout, weights_by_ddp, tmp_path
):
    (hand_in / "homework_network.py").write_text(without_dropout)
    (hand_in / "synchronous_sgd.py").write_text(OWN_AVERAGES[own])
    output = tmp_path / "run"
    arguments = [*SMALL, "--batch-size=32", f"--output-dir={output}"]
    assert run(hand_in / "sync_sgd_cifar100.py", *arguments) == 0
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


def test_an_asynchronous_run_leaves_the_run_folder_of_a_lab(hand_in, tmp_path, capfd):
    output = tmp_path / "run"
    arguments = [*SMALL, f"--output-dir={output}"]
    assert run(hand_in / "async_sgd_cifar100.py", *arguments) == 0
    assert {path.name for path in output.iterdir()} == FILES
    record = json.loads((output / "run.json").read_text())
    assert (record["lab"], record["program"], record["world_size"]) == ("07_sync_async_sgd", "async_sgd_cifar100", 3)
    table = rows(output)
    assert [row["epoch"] for row in table] == ["0", "1", "2", "3"]
    assert [float(row["time"]) for row in table] == sorted(float(row["time"]) for row in table)
    # Four updates an epoch, the schedule by updates: base_lr·64/128 is reached after one epoch of warm-up.
    assert float(table[1]["lr"]) == pytest.approx(0.1 * 64 / 128 / 25) and float(table[2]["lr"]) == pytest.approx(0.05)
    assert 0 < float(table[3]["train_accuracy"]) < 1 and 0 < float(table[3]["train_loss"]) < 6
    weights = load_file(output / "model.safetensors")
    assert weights["1.running_mean"].abs().sum() > 0  # the workers' statistics, not the untouched ones of the server
    output_text = capfd.readouterr().out
    assert "mean staleness" in output_text and "since the restart" not in output_text

    before = (output / "run.json").stat().st_ino
    assert run(hand_in / "async_sgd_cifar100.py", *arguments) == 0
    assert "holds this run, finished at" in capfd.readouterr().out
    assert (output / "run.json").stat().st_ino == before


def test_killed_it_goes_on_from_the_servers_checkpoint(hand_in, tmp_path, capfd):
    path, output = hand_in / "async_sgd_cifar100.py", tmp_path / "run"
    arguments = [*SMALL, "--train-samples=512", "--epochs=12"]
    kill_after_a_checkpoint(path, *arguments, output=output)
    assert not (output / "run.json").exists()
    interrupted = rows(output / "unfinished")
    assert 1 < len(interrupted) < 13
    capfd.readouterr()
    assert run(path, *arguments, f"--output-dir={output}") == 0
    assert "since the restart" in capfd.readouterr().out
    table = rows(output)
    assert len(table) == 13 and len(json.loads((output / "run.json").read_text())["resumed"]) == 1
    # What was checkpointed stays as it was; the last epoch of the interrupted run may have come after it.
    for before, after in list(zip(interrupted, table, strict=False))[:-1]:
        assert before == after
    assert [float(row["time"]) for row in table] == sorted(float(row["time"]) for row in table)
    assert float(table[-1]["lr"]) < 0.01  # the schedule went on too: it ends where it should
    assert not (output / "checkpoint.safetensors").exists()


def test_a_lost_rank_is_one_line():
    def train():
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(ProgramError, match=r"rank 1 of 2: the process was ended by SIGKILL.*same command again"):
        on_ranks(2, train)
