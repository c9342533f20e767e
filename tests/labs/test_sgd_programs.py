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
import pytest
import torch
from safetensors.torch import load_file
from test_homework_programs import SMALL, SMALL_NETWORK, alone, command, curve, run  # noqa: F401 (a fixture)

from course_lib.distributed import launch
from course_lib.homework import ProgramError, on_ranks, train_program

cloudpickle.register_pickle_by_value(sys.modules[__name__])

FOLDER = Path(__file__).parents[2] / "labs" / "07_sync_async_sgd"
PROGRAMS = ["sync_sgd_cifar100", "async_sgd_cifar100"]
SYNTHETIC = [*SMALL, "--dataset=cifar100-synthetic"]


OWN_AVERAGE = """
import torch.distributed as dist

def average_gradients(model, samples):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
"""


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


def test_one_rank_cannot_be_asynchronous(tmp_path, monkeypatch, capsys):
    arguments = [*SYNTHETIC, "--ranks=1", f"--output-dir={tmp_path / 'out'}"]
    assert run(FOLDER / "async_sgd_cifar100.py", *arguments, monkeypatch=monkeypatch) == 1
    told = capsys.readouterr().err
    assert "needs a server and at least one worker; --ranks 3" in told and told.count("\n") == 1


def by_ddp(options, given, network):
    """The same training by PyTorch's DistributedDataParallel, as lab 05's programs do it."""
    namespace = {}
    exec(network, namespace)
    train_program("by_ddp", options, given, lambda data: namespace["HomeworkResNet"](len(data.classes)))


def test_synchronous_sgd_is_ddp_and_takes_the_students_function(hand_in, tmp_path, monkeypatch):
    (hand_in / "homework_network.py").write_text(
        SMALL_NETWORK.replace("nn.Dropout(0.2), ", "").replace("nn.Dropout(0.2),", "")
    )
    (hand_in / "synchronous_sgd.py").write_text(OWN_AVERAGE)
    output = tmp_path / "run"
    arguments = [*SYNTHETIC, "--batch-size=32", f"--output-dir={output}"]
    assert run(hand_in / "sync_sgd_cifar100.py", *arguments, monkeypatch=monkeypatch) == 0
    record = json.loads((output / "run.json").read_text())
    assert (record["lab"], record["program"], record["world_size"]) == ("07_sync_async_sgd", "sync_sgd_cifar100", 2)
    assert (record["network"], record["gradients"]) == ("homework_network.py", "synchronous_sgd.py")
    assert "ranks" not in record["parameters"]

    options = Namespace(output_dir=tmp_path / "ddp", root=None, restart=False)
    launch(by_ddp, 2, (options, record["parameters"], (hand_in / "homework_network.py").read_text()), threads=1)
    ours, theirs = load_file(output / "model.safetensors"), load_file(tmp_path / "ddp" / "model.safetensors")
    assert list(ours) == list(theirs)
    assert all(torch.allclose(ours[name].float(), theirs[name].float(), atol=2e-3) for name in ours)
    assert [row["lr"] for row in curve(output)] == [row["lr"] for row in curve(tmp_path / "ddp")]


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
    assert "mean staleness" in capfd.readouterr().out

    before = (output / "run.json").stat().st_ino
    assert run(hand_in / "async_sgd_cifar100.py", *arguments, monkeypatch=monkeypatch) == 0
    assert "holds this run, finished at" in capfd.readouterr().out
    assert (output / "run.json").stat().st_ino == before


def test_killed_it_goes_on_from_the_servers_checkpoint(hand_in, tmp_path, monkeypatch):
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
    assert run(program, *arguments, monkeypatch=monkeypatch) == 0
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
        command(hand_in / "async_sgd_cifar100.py", *arguments, ranks=3), capture_output=True, text=True, timeout=120,
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
