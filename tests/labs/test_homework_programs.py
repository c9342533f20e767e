"""The homework's hand-in programs: options, help, one rank and several, kill and resume."""

import contextlib
import io
import json
import random
import sys
from urllib.error import URLError

import pytest
import torch
import torch.distributed as dist
from hand_in_programs import (
    FILES,
    OWN_SMALL,
    PROGRAMS,
    SOLUTIONS,
    alone,  # noqa: F401 (a fixture)
    by_torchrun,
    curve,
    hand_in_folder,
    kill_after_a_checkpoint,
    program,
    run,
)
from safetensors.torch import load_file

from course_lib.distributed import launch
from course_lib.runs.records import RunFolder
from course_lib.training.homework import joined_ranks
from course_lib.training.homework.program_ranks import exit_in_one_line


@pytest.fixture
def hand_in(tmp_path):
    return hand_in_folder(tmp_path)


def help_of(name, monkeypatch, capsys):
    """What ``--help`` prints, and each option's part of it."""
    monkeypatch.setenv("COLUMNS", "300")
    assert run(program(name), "--help") == 0
    text = capsys.readouterr().out
    return text, {entry.split()[0]: " ".join(entry.split()) for entry in text.split("\n  --")[1:]}


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_names_every_option_and_its_default(name, monkeypatch, capsys):
    text, options = help_of(name, monkeypatch, capsys)
    for option in ("epochs", "batch-size", "base-lr", "dataset", "output-dir", "seed", "restart", "root"):
        assert "(default: " in options[option]
    assert f"torchrun --standalone --nproc-per-node=N {name}.py" in text and f"runs/{name}" in text
    assert ("(default: " in options.get("ranks", "")) == ("sgd" in name)


def test_the_asynchronous_learning_rate_does_not_grow_with_the_ranks(monkeypatch, capsys):
    rates = [help_of(f"{kind}_sgd_cifar100", monkeypatch, capsys)[1]["base-lr"] for kind in ("sync", "async")]
    assert ["batch size × ranks" in rate for rate in rates] == [True, False] and "one worker's" in rates[1]


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        ("resnet_cifar100", ["--epochs", "0"], "--epochs = 0: must be in [1, 10000]"),
        ("resnet_cifar100", ["--batch-size", "-1"], "--batch-size = -1: must be in [1, 1000000]"),
        ("resnet_cifar100", ["--base-lr", "nan"], "--base-lr = nan: a number is needed"),
        ("pretrained_cifar100", ["--body-lr-factor=2"], "--body-lr-factor = 2.0: must be in [0.0, 1.0]"),
    ],
)
def test_an_option_that_cannot_work_is_one_line_and_code_2(name, arguments, line, capsys):
    assert run(program(name), *arguments) == 2
    assert capsys.readouterr().err == f"{name}.py: error: {line}\n"


def test_a_download_without_a_network_is_one_line_with_a_remedy(capsys):
    with pytest.raises(SystemExit) as ended, exit_in_one_line("pretrained_cifar100"):
        raise URLError(OSError("Name or service not known"))
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1 and "Name or service not known" in line and "login node" in line


@pytest.mark.parametrize("name", PROGRAMS)
def test_data_that_is_not_staged_is_one_line_and_code_1(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    output = tmp_path / "out"
    assert run(program(name), f"--root={tmp_path}", f"--output-dir={output}") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "lab data fetch" in line and line.startswith(f"{name}.py: error: ") and not output.exists()


FIGURE = "learning_curve.png"


def test_a_run_leaves_the_run_folder_of_a_lab_and_is_not_trained_again(hand_in, tmp_path, capsys):
    path, output = hand_in / "resnet_cifar100.py", tmp_path / "run"
    arguments = [*OWN_SMALL, f"--output-dir={output}"]
    assert run(path, *arguments) == 0
    assert {file.name for file in output.iterdir()} == {*FILES, FIGURE}
    record = json.loads((output / "run.json").read_text())
    assert record["lab"] == "05_resnet_hw" and record["program"] == "resnet_cifar100"
    assert record["data"]["provenance"] == "synthetic" and record["parameters"]["epochs"] == 3
    assert len(curve(output)) == 4
    assert load_file(output / "model.safetensors")["network.fc.weight"].shape == (100, 32)
    rates = [float(row["lr"]) for row in curve(output)[1:]]
    assert rates[0] == pytest.approx(0.2 * 64 / 128 / 25) and rates[1] == pytest.approx(0.1)

    before = (output / "run.json").stat().st_ino
    capsys.readouterr()
    assert run(path, *arguments) == 0
    assert "holds this run, finished at" in capsys.readouterr().out
    assert (output / "run.json").stat().st_ino == before

    # Killed while its files were moved: the move is completed, and nothing is trained.
    contents = {file.name: file.read_bytes() for file in output.iterdir()}
    (output / "unfinished").mkdir()
    for name in ("run.json", "assessment.out", "model.safetensors"):
        (output / name).rename(output / "unfinished" / name)
    (output / "checkpoint.safetensors").write_bytes(b"of the last epoch")
    assert run(path, *arguments) == 0
    assert "holds this run, finished at" in capsys.readouterr().out
    assert {file.name: file.read_bytes() for file in output.iterdir()} == contents

    assert run(path, *arguments, "--restart") == 0
    assert (output / "run.json").stat().st_ino != before

    before = (output / "model.safetensors").read_bytes()
    assert run(path, *arguments, "--seed=1") == 1  # an hour's training is not lost to a forgotten option
    assert "holds a finished run with seed 0, not 1; another --output-dir keeps it" in capsys.readouterr().err
    assert (output / "model.safetensors").read_bytes() == before
    assert run(path, *arguments, "--seed=1", "--restart") == 0
    assert json.loads((output / "run.json").read_text())["parameters"]["seed"] == 1  # another run, trained


OURS = [name for name, lab in PROGRAMS.items() if lab == "05_resnet_hw"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_handed_out_runs_and_has_holes(name, tmp_path, capfd):
    output, data = tmp_path / "run", "tiny-imagenet" if "tiny" in name else "cifar100"
    assert run(program(name), *OWN_SMALL, f"--dataset={data}-synthetic", f"--output-dir={output}") == 0
    assert {file.name for file in output.iterdir()} == {*FILES, FIGURE}
    assert {row["val_accuracy"] for row in curve(output)} <= {"0.0", "0"}
    assert "done: validation accuracy 0.00% after 3 epochs" in capfd.readouterr().out
    text = program(name).read_text()
    assert (
        text.count("# YOUR CODE") >= (5 if name in OURS else 3)
        and "YOUR CODE" not in (SOLUTIONS / f"{name}.py").read_text()
    )


@pytest.mark.parametrize("name", OURS[1:])
def test_the_other_solutions_train(name, hand_in, tmp_path):
    output, classes = tmp_path / "run", 200 if "tiny" in name else 100
    arguments = [*OWN_SMALL, "--epochs=1"]
    if classes == 200:
        arguments.append("--dataset=tiny-imagenet-synthetic")
    assert run(hand_in / f"{name}.py", *arguments, f"--output-dir={output}") == 0
    assert json.loads((output / "run.json").read_text())["program"] == name
    assert load_file(output / "model.safetensors")["network.fc.weight"].shape == (classes, 32)


def test_killed_at_a_random_moment_it_goes_on_to_the_same_curve(hand_in, tmp_path):
    path, arguments = hand_in / "resnet_cifar100.py", [*OWN_SMALL, "--epochs=12"]
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert run(path, *arguments, f"--output-dir={straight}") == 0
    kill_after_a_checkpoint(path, *arguments, output=killed, delay=random.uniform(0, 0.3))

    if not (killed / "run.json").exists():  # it may have finished, and been killed while Python ended
        other = run(path, *arguments, "--seed=3", f"--output-dir={killed}")
        assert other == 1  # those are not the interrupted run's options, and it is not thrown away
    assert run(path, *arguments, f"--output-dir={killed}") == 0
    assert curve(killed) == curve(straight)
    assert (killed / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()
    assert not (killed / "checkpoint.safetensors").exists()


def test_other_options_do_not_take_an_interrupted_run(hand_in, tmp_path, monkeypatch, capsys):
    path, output = hand_in / "resnet_cifar100.py", tmp_path / "run"
    arguments = [*OWN_SMALL, f"--output-dir={output}"]

    finish = RunFolder.finish
    monkeypatch.setattr(RunFolder, "finish", lambda *_, **options: sys.exit(9))  # the job ends here
    assert run(path, *arguments) == 9
    monkeypatch.setattr(RunFolder, "finish", finish)
    kept = (output / "checkpoint.safetensors").read_bytes()
    capsys.readouterr()
    assert run(path, *arguments, "--base-lr=0.1") == 1
    assert "holds an interrupted run with base_lr 0.2, not 0.1; give its options" in capsys.readouterr().err
    assert (output / "checkpoint.safetensors").read_bytes() == kept
    assert run(path, *arguments, "--base-lr=0.1", "--restart") == 0
    assert "continuing from" not in capsys.readouterr().out
    assert json.loads((output / "run.json").read_text())["parameters"]["base_lr"] == 0.1


def test_a_rank_waits_ten_minutes_for_one_whose_node_has_died(monkeypatch):
    given, threads, join = {}, torch.get_num_threads(), dist.init_process_group

    def joining(backend, **options):
        given.update(options)
        join("gloo", store=dist.HashStore(), rank=0, world_size=1)

    monkeypatch.setattr(dist, "is_torchelastic_launched", lambda: True)
    monkeypatch.setattr(dist, "init_process_group", joining)
    try:
        with joined_ranks() as joined:
            assert joined == (0, 1) and given["timeout"].total_seconds() == 600
    finally:
        torch.set_num_threads(threads)


def as_torchrun_does(path, *arguments, ranks):
    """What the program prints on ranks that find torchrun's environment."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        launch(run, ranks, (path, *arguments), process_group=False, threads=1)
    return printed.getvalue()


@pytest.mark.parametrize(
    "start, name, ranks",
    [
        (as_torchrun_does, "resnet_cifar100", 2),
        pytest.param(by_torchrun, "resnet_cifar100", 2, marks=pytest.mark.slow),
        pytest.param(by_torchrun, "async_sgd_cifar100", 3, marks=pytest.mark.slow),
    ],
)
def test_several_ranks_leave_one_run(start, name, ranks, hand_in, tmp_path):
    output = tmp_path / "run"
    printed = start(hand_in / f"{name}.py", *OWN_SMALL, "--batch-size=32", f"--output-dir={output}", ranks=ranks)
    record = json.loads((output / "run.json").read_text())
    assert record["world_size"] == ranks and record["backend"] == "gloo"
    assert printed.count("Epoch =  1:") == 1 and len(curve(output)) == 4
