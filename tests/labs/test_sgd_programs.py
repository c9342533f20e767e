"""Lab 07's programs, handed out and solved: alone and by torchrun, against DistributedDataParallel, killed and continued."""

import csv
import json
import os
import signal
import time

import pytest
import torch
from hand_in_programs import (
    FILES,
    OWN_SMALL,
    alone,  # noqa: F401 (a fixture)
    hand_in_folder,
    kill_after_a_checkpoint,
    program,
    rows,
    run,
)
from safetensors.torch import load_file

from course_lib.training.homework import ProgramError, on_ranks

LAB = "07_sync_async_sgd"
NAMES = ["sync_sgd_cifar100", "async_sgd_cifar100"]
FIGURE = "learning_curve.png"
NO_DROPOUT = ("nn.Dropout(0.2)", "nn.Conv2d(8, 8, 3, padding=1)")  # its weight is channels-last in memory


@pytest.fixture
def hand_in(tmp_path):
    return hand_in_folder(tmp_path)


def test_no_ranks_are_one_line(capsys):
    assert run(program("sync_sgd_cifar100"), "--ranks=0") == 1
    assert "at least 1, got 0" in capsys.readouterr().err


def test_a_server_without_a_worker_is_one_line(tmp_path, capsys):
    assert run(program("async_sgd_cifar100"), *OWN_SMALL, "--ranks=1", f"--output-dir={tmp_path / 'out'}") == 1
    error = capsys.readouterr().err
    assert "needs a server and at least one worker; --ranks 3" in error and error.count("\n") == 1


def without_dropout(path):
    text = path.read_text()
    assert text.count(NO_DROPOUT[0]) == 1
    path.write_text(text.replace(*NO_DROPOUT))
    return path


def test_synchronous_sgd_is_ddp(hand_in, tmp_path):
    """The same training by lab 05's program, which wraps its model."""
    folders = []
    for name, options in (("sync_sgd_cifar100", []), ("resnet_cifar100", ["--batch-size=32"])):
        path = without_dropout(hand_in / f"{name}.py")
        if name == "resnet_cifar100":
            path.write_text(path.read_text().replace("dataset=", "ranks=2, dataset="))
        folders.append(tmp_path / name)
        assert run(path, *OWN_SMALL, "--batch-size=32", *options, f"--output-dir={folders[-1]}") == 0
    ours, theirs = (load_file(folder / "model.safetensors") for folder in folders)
    assert list(ours) == list(theirs)
    for name in ours:
        if "running" not in name:  # one takes the ranks' mean, the other rank 0's
            assert torch.allclose(ours[name].float(), theirs[name].float(), atol=2e-3), name
    record = json.loads((folders[0] / "run.json").read_text())
    assert (record["lab"], record["program"], record["world_size"]) == (LAB, "sync_sgd_cifar100", 2)


def staleness_of(folder):
    with (folder / "staleness.csv").open() as file:
        return [(int(epoch), int(staleness)) for epoch, staleness in csv.reader(file)]


def test_an_asynchronous_run_leaves_the_run_folder_of_a_lab(hand_in, tmp_path, capfd):
    output = tmp_path / "run"
    arguments = [*OWN_SMALL, f"--output-dir={output}"]
    assert run(hand_in / "async_sgd_cifar100.py", *arguments) == 0
    assert {path.name for path in output.iterdir()} == {*FILES, FIGURE, "staleness.csv"}
    record = json.loads((output / "run.json").read_text())
    assert (record["lab"], record["program"], record["world_size"]) == (LAB, "async_sgd_cifar100", 3)
    table = rows(output)
    assert [row["epoch"] for row in table] == ["0", "1", "2", "3"]
    # Three updates per epoch, the schedule by updates: base_lr·64/128 is reached after one epoch of warm-up.
    assert float(table[1]["lr"]) == pytest.approx(0.1 * 64 / 128 / 25) and float(table[2]["lr"]) == pytest.approx(0.05)
    assert 0 < float(table[3]["train_loss"]) < 10
    found = staleness_of(output)
    assert [epoch for epoch, _ in found] == [1] * 3 + [2] * 3 + [3] * 3 and max(stale for _, stale in found) >= 1
    weights = load_file(output / "model.safetensors")
    assert (
        weights["network.norm.running_mean"].abs().sum() > 0
    )  # computed anew: the server's forward pass has seen images

    before = (output / "run.json").stat().st_ino
    capfd.readouterr()
    assert run(hand_in / "async_sgd_cifar100.py", *arguments) == 0
    assert "holds this run, finished at" in capfd.readouterr().out
    assert (output / "run.json").stat().st_ino == before


@pytest.mark.parametrize("name", NAMES)
def test_killed_it_continues_from_the_last_epoch(name, hand_in, tmp_path, capfd):
    path, output = hand_in / f"{name}.py", tmp_path / "run"
    arguments = [*OWN_SMALL, "--train-samples=512", "--epochs=12"]
    kill_after_a_checkpoint(path, *arguments, output=output)
    assert not (output / "run.json").exists()
    interrupted = rows(output / "unfinished")
    assert 1 < len(interrupted) < 13
    capfd.readouterr()
    assert run(path, *arguments, f"--output-dir={output}") == 0
    assert "continuing after epoch" in capfd.readouterr().out
    table = rows(output)
    assert len(table) == 13 and len(json.loads((output / "run.json").read_text())["resumed"]) == 1
    # What was checkpointed stays as it was; the last epoch of the interrupted run may have come after it.
    for before, after in list(zip(interrupted, table, strict=False))[:-1]:
        assert before == after
    assert [float(row["time"]) for row in table] == sorted(float(row["time"]) for row in table)
    assert float(table[-1]["lr"]) < 0.01  # the schedule continued, too: it ends where it should
    assert not (output / "checkpoint.safetensors").exists()
    if name == "async_sgd_cifar100":  # seven updates of each epoch, none twice, none lost
        assert [epoch for epoch, _ in staleness_of(output)] == [epoch for epoch in range(1, 13) for _ in range(7)]


def test_a_lost_rank_is_one_line():
    def train():
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(ProgramError, match=r"rank 1 of 2: the process was ended by SIGKILL.*same command again"):
        on_ranks(2, train)
