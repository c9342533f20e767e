"""The homework's hand-in programs: options, help, one rank and several, kill and resume, weights' origin."""

import argparse
import contextlib
import io
import json
import random
import sys
from pathlib import Path

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
from safetensors.torch import load_file, save_file

from course_lib.data.batches import load
from course_lib.distributed import launch
from course_lib.models.upsampled_resnet18 import upsampled_resnet18
from course_lib.runs.records import RunFolder
from course_lib.system.torchvision_import import import_torchvision
from course_lib.training.homework import (
    ProgressiveResize,
    WeightsError,
    check_options,
    find_imagenet_weights,
    load_body,
    one_cycle_sgd,
)
from course_lib.training.homework.train_program import joined_ranks, training_batches


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


def test_half_of_the_epochs_are_small_by_default():
    for given, small in ((None, 2), (4, 4)):
        options = argparse.Namespace(epochs=5, small_epochs=given)
        assert check_options(argparse.ArgumentParser(), options) == {"epochs": 5, "small_epochs": small}


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

    assert run(path, *arguments, "--seed=1") == 0
    assert json.loads((output / "run.json").read_text())["parameters"]["seed"] == 1  # another run, trained


OURS = [name for name, lab in PROGRAMS.items() if lab == "05_resnet_hw"]


@pytest.mark.parametrize("name", OURS)
def test_what_is_handed_out_runs_and_has_holes(name, tmp_path, capsys):
    output, data = tmp_path / "run", "tiny-imagenet" if "tiny" in name else "cifar100"
    assert run(program(name), *OWN_SMALL, f"--dataset={data}-synthetic", f"--output-dir={output}") == 0
    assert {file.name for file in output.iterdir()} == {*FILES, FIGURE}
    assert {row["val_accuracy"] for row in curve(output)} <= {"0.0", "0"}
    assert "done: validation accuracy 0.00% after 3 epochs" in capsys.readouterr().out
    text = program(name).read_text()
    assert text.count("# YOUR CODE") >= 5 and "YOUR CODE" not in (SOLUTIONS / f"{name}.py").read_text()


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


def test_the_ranks_share_the_training_images():
    data = load("cifar100-synthetic", train_samples=256)
    values = {"batch_size": 32, "seed": 0, "padding": 4}
    labels = [labels for rank in range(2) for _, labels in training_batches(data, values, rank, 2)]
    assert torch.equal(torch.cat(labels).sort().values, data.train.labels.sort().values)


# Fine-tuning


def test_resnet18_is_torchvisions_with_another_head():
    import_torchvision()
    from torchvision.models import resnet18

    torch.manual_seed(0)
    ours, theirs = upsampled_resnet18(1000, 64).eval(), resnet18().eval()
    theirs.load_state_dict(ours.state_dict())
    small = torch.randn(2, 3, 32, 32)
    large = torch.nn.functional.interpolate(small, size=(64, 64), mode="bilinear")
    assert torch.equal(ours(small), theirs(large))
    assert sum(p.numel() for p in upsampled_resnet18(1000).parameters()) == 11_689_512  # torchvision's table


def test_imagenet_weights_are_looked_for_in_the_cache_and_beside_the_data(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    assert find_imagenet_weights(str(tmp_path)) is None
    for folder in (tmp_path / "weights", tmp_path / "torch" / "hub" / "checkpoints"):
        folder.mkdir(parents=True)
        (folder / "resnet18-f37072fd.pth").write_bytes(b"truncated")
        with pytest.raises(WeightsError, match=rf"{folder}.* is damaged"):
            find_imagenet_weights(str(tmp_path))
    content = (tmp_path / "weights" / "resnet18-f37072fd.pth").read_bytes()
    assert content == b"truncated"  # nothing is removed


def test_weights_that_do_not_fit_are_one_line(tmp_path):
    model = upsampled_resnet18(10, 32)
    torch.save({"conv1.weight": torch.zeros(64, 3, 7, 7)}, tmp_path / "few.pth")
    with pytest.raises(WeightsError, match=r"does not fit ResNet-18: it lacks bn1\.weight"):
        load_body(model, tmp_path / "few.pth")
    save_file({**upsampled_resnet18(10, 32).state_dict(), "more": torch.zeros(1)}, tmp_path / "more.safetensors")
    with pytest.raises(WeightsError, match="it has more, which"):
        load_body(model, tmp_path / "more.safetensors")
    save_file({"conv1.weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(WeightsError, match=r"does not fit ResNet-18 .*size mismatch"):
        load_body(model, tmp_path / "other.safetensors")
    (tmp_path / "not.pth").write_bytes(b"nothing of the kind")
    with pytest.raises(WeightsError, match="holds no weights"):
        load_body(model, tmp_path / "not.pth")


def test_a_pickle_that_would_run_code_is_not_unpickled(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"conv1.weight": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(WeightsError, match="holds no weights"):
        load_body(upsampled_resnet18(10, 32), tmp_path / "evil.pth")
    assert not (tmp_path / "ran").exists()


# The recipe


def test_one_cycle_rises_and_falls_as_it_says():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    recipe = one_cycle_sgd(model, steps_per_epoch=10, epochs=5, images_per_step=256, base_lr=0.1, warmup_epochs=2)
    rates = []
    for _ in range(50):
        rates.append(recipe.optimizer.param_groups[0]["lr"])
        recipe.optimizer.step()
        recipe.scheduler.step()
    assert rates[0] == pytest.approx(0.2 / 25)
    assert max(rates) == pytest.approx(0.2, rel=1e-2) and abs(rates.index(max(rates)) - 20) <= 1
    assert rates[-1] < 0.2 / 100
    decays = [group["weight_decay"] for group in recipe.optimizer.param_groups]
    assert decays == [5e-4, 0.0]
    assert [len(group["params"]) for group in recipe.optimizer.param_groups] == [1, 3]
    assert all(group["nesterov"] and group["momentum"] == 0.9 for group in recipe.optimizer.param_groups)


@pytest.mark.parametrize(("warmup", "epochs"), [(0.0, 1), (5.0, 1), (0.5, 1)])
def test_any_warmup_leaves_a_schedule(warmup, epochs):
    recipe = one_cycle_sgd(
        torch.nn.Linear(2, 2), steps_per_epoch=3, epochs=epochs, images_per_step=128, base_lr=0.1, warmup_epochs=warmup
    )
    for _ in range(3 * epochs):
        recipe.optimizer.step()
        recipe.scheduler.step()


def test_small_images_first():
    class Counted(list):
        def set_epoch(self, epoch):
            self.epoch = epoch

    image = torch.arange(16.0).view(1, 1, 4, 4)
    batches = Counted([(image, torch.tensor([3]))])
    resized = ProgressiveResize(batches, small_epochs=2, small_size=2)
    assert len(resized) == 1
    for epoch, side in ((0, 2), (1, 2), (2, 4), (5, 4)):
        resized.set_epoch(epoch)
        ((images, labels),) = resized
        assert images.shape == (1, 1, side, side) and batches.epoch == epoch and labels.item() == 3
    resized.set_epoch(0)
    ((images, _),) = resized
    assert images.mean() == pytest.approx(image.mean().item(), abs=1e-4)  # averaged, not picked
