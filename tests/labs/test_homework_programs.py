"""The homework's hand-in programs: options, help, one rank and several, kill and resume, weights' origin."""

import csv
import json
import os
import random
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from course_lib.models import HomeworkResNet
from course_lib.models.upsampled_resnet18 import upsampled_resnet18
from course_lib.system.torchvision_import import import_torchvision
from course_lib.training.homework import (
    ProgressiveResize,
    WeightsError,
    find_imagenet_weights,
    load_body,
    one_cycle_sgd,
)
from course_lib.training.homework.train_program import joined_ranks

FOLDER = Path(__file__).parents[2] / "labs" / "05_resnet_hw"
PROGRAMS = ["resnet_cifar100", "resnet_tinyimagenet", "pretrained_cifar100"]

SMALL_NETWORK = """
from torch import nn

class HomeworkResNet(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2),
                         nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, num_classes))
"""
SMALL = [
    "--train-samples=256", "--test-samples=100", "--epochs=3", "--batch-size=64", "--warmup-epochs=1", "--small-epochs=1",
]  # fmt: skip


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv("ASSESSMENT_OUT", raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the same sums in the same order, here and in the processes that are started
    yield
    torch.set_num_threads(threads)
    os.environ.pop("ASSESSMENT_OUT", None)


@pytest.fixture
def hand_in(tmp_path):
    """A hand-in folder as the notebook writes it: the programs, and a (small) network of one's own beside them."""
    folder = tmp_path / "hand_in"
    folder.mkdir()
    for name in PROGRAMS:
        shutil.copy(FOLDER / f"{name}.py", folder)
    (folder / "homework_network.py").write_text(SMALL_NETWORK)
    return folder


def run(program, *arguments, monkeypatch):
    """The program in this process, as `python program …` runs it; returns its exit code."""
    monkeypatch.setattr(sys, "argv", [str(program), *arguments])
    monkeypatch.setattr(sys, "path", [str(Path(program).parent), *sys.path])
    sys.modules.pop("homework_network", None)
    try:
        runpy.run_path(str(program), run_name="__main__")
    except SystemExit as end:
        return end.code or 0
    finally:
        sys.modules.pop("homework_network", None)
    return 0


def curve(folder):
    """The columns that do not depend on the clock."""
    with (folder / "learning_curve.csv").open() as file:
        return [
            {name: value for name, value in row.items() if name not in ("time", "images_per_sec")}
            for row in csv.DictReader(file)
        ]


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_names_every_option_and_its_default(name, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    assert run(FOLDER / f"{name}.py", "--help", monkeypatch=monkeypatch) == 0
    told = capsys.readouterr().out
    described = {entry.split()[0]: " ".join(entry.split()) for entry in told.split("\n  --")[1:]}
    for option in ("epochs", "batch-size", "base-lr", "dataset", "output-dir", "seed", "restart", "root"):
        assert "(default: " in described[option]
    assert f"torchrun --standalone --nproc-per-node=N {name}.py" in told
    assert f"runs/{name}" in told


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--epochs", "0"], "resnet_cifar100.py: error: --epochs = 0: must lie in [1, 10000]\n"),
        (["--batch-size", "-1"], "resnet_cifar100.py: error: --batch-size = -1: must lie in [1, 1000000]\n"),
        (["--base-lr", "nan"], "resnet_cifar100.py: error: --base-lr = nan: a number is needed\n"),
        (["--epochs", "3", "--small-epochs", "4"], "resnet_cifar100.py: error: --small-epochs 4 exceeds --epochs 3\n"),
    ],
)
def test_an_option_that_cannot_work_is_one_line_and_code_2(arguments, line, monkeypatch, capsys):
    assert run(FOLDER / "resnet_cifar100.py", *arguments, monkeypatch=monkeypatch) == 2
    assert capsys.readouterr().err == line


def test_half_of_the_epochs_are_small_unless_said(hand_in, tmp_path, monkeypatch):
    arguments = [*(word for word in SMALL if "small" not in word), "--dataset=cifar100-synthetic"]
    arguments += [f"--output-dir={tmp_path / 'run'}", "--epochs=5"]
    assert run(hand_in / "resnet_cifar100.py", *arguments, monkeypatch=monkeypatch) == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["parameters"]["small_epochs"] == 2


def test_an_option_of_several_words_is_named_as_it_is_typed(monkeypatch, capsys):
    assert run(FOLDER / "pretrained_cifar100.py", "--body-lr-factor=2", monkeypatch=monkeypatch) == 2
    assert "error: --body-lr-factor = 2.0: must lie" in capsys.readouterr().err


@pytest.mark.parametrize("name", PROGRAMS)
def test_data_that_is_not_staged_is_one_line_and_code_1(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    output = tmp_path / "out"
    assert run(FOLDER / f"{name}.py", f"--root={tmp_path}", f"--output-dir={output}", monkeypatch=monkeypatch) == 1
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and "lab data fetch" in told[0] and told[0].startswith(f"{name}.py: error: ")
    assert not output.exists()


def test_a_run_leaves_the_run_folder_of_a_lab(hand_in, tmp_path, monkeypatch, capsys):
    output = tmp_path / "run"
    arguments = [*SMALL, "--dataset=cifar100-synthetic", f"--output-dir={output}"]
    assert run(hand_in / "resnet_cifar100.py", *arguments, monkeypatch=monkeypatch) == 0
    assert {path.name for path in output.iterdir()} == {
        "learning_curve.csv", "model.safetensors", "assessment.out", "run.json",
    }  # fmt: skip
    record = json.loads((output / "run.json").read_text())
    assert record["lab"] == "05_resnet_hw" and record["program"] == "resnet_cifar100"
    assert record["network"] == "homework_network.py"
    assert record["data"]["provenance"] == "synthetic" and record["parameters"]["epochs"] == 3
    assert len(curve(output)) == 4
    assert load_file(output / "model.safetensors")["6.weight"].shape == (100, 32)
    rates = [float(row["lr"]) for row in curve(output)[1:]]
    assert rates[0] == pytest.approx(0.2 * 64 / 128 / 25) and rates[1] == pytest.approx(0.1)

    before = (output / "run.json").stat().st_ino
    capsys.readouterr()
    assert run(hand_in / "resnet_cifar100.py", *arguments, monkeypatch=monkeypatch) == 0
    assert "holds this run, finished at" in capsys.readouterr().out
    assert (output / "run.json").stat().st_ino == before
    assert run(hand_in / "resnet_cifar100.py", *arguments, "--restart", monkeypatch=monkeypatch) == 0
    assert (output / "run.json").stat().st_ino != before

    assert run(hand_in / "resnet_cifar100.py", *arguments, "--seed=1", monkeypatch=monkeypatch) == 0
    assert json.loads((output / "run.json").read_text())["parameters"]["seed"] == 1  # another run, trained


def test_without_a_network_of_ones_own_the_library_s_is_trained(tmp_path, monkeypatch):
    output = tmp_path / "run"
    arguments = ["--train-samples=32", "--test-samples=8", "--epochs=1", "--batch-size=16", "--small-epochs=1",
                 "--small-size=8", "--dataset=cifar100-synthetic", f"--output-dir={output}"]  # fmt: skip
    assert run(FOLDER / "resnet_cifar100.py", *arguments, monkeypatch=monkeypatch) == 0
    assert json.loads((output / "run.json").read_text())["network"] == "course_lib"
    HomeworkResNet(100).load_state_dict(load_file(output / "model.safetensors"))


def test_a_network_that_breaks_is_told_as_its_own_error(hand_in, monkeypatch):
    (hand_in / "homework_network.py").write_text("import no_such_module")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        run(hand_in / "resnet_cifar100.py", monkeypatch=monkeypatch)


def test_tinyimagenet_trains_64_pixels_and_200_classes(hand_in, tmp_path, monkeypatch):
    output = tmp_path / "run"
    arguments = [*SMALL, "--dataset=tiny-imagenet-synthetic", f"--output-dir={output}"]
    assert run(hand_in / "resnet_tinyimagenet.py", *arguments, monkeypatch=monkeypatch) == 0
    record = json.loads((output / "run.json").read_text())
    assert record["program"] == "resnet_tinyimagenet"
    assert load_file(output / "model.safetensors")["6.weight"].shape == (200, 32)


def command(program, *arguments, ranks=1):
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    return [sys.executable, *launcher, str(program), *arguments]


def test_killed_at_a_random_moment_it_goes_on_to_the_same_curve(hand_in, tmp_path, monkeypatch):
    program, arguments = hand_in / "resnet_cifar100.py", [*SMALL, "--epochs=12", "--dataset=cifar100-synthetic"]
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert run(program, *arguments, f"--output-dir={straight}", monkeypatch=monkeypatch) == 0
    begun = subprocess.Popen(
        command(program, *arguments, f"--output-dir={killed}"), env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (killed / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(random.uniform(0, 0.3))
    begun.send_signal(signal.SIGKILL)
    assert begun.wait() in (-signal.SIGKILL, 0)

    if not (killed / "run.json").exists():  # it may have finished, and been killed while Python ended
        other = run(program, *arguments, "--seed=3", f"--output-dir={killed}", monkeypatch=monkeypatch)
        assert other == 1  # those are not the interrupted run's options, and it is not thrown away
    assert run(program, *arguments, f"--output-dir={killed}", monkeypatch=monkeypatch) == 0
    assert curve(killed) == curve(straight)
    assert (killed / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()
    assert not (killed / "checkpoint.safetensors").exists()


def test_killed_while_its_files_are_moved_it_is_not_trained_again(hand_in, tmp_path, monkeypatch, capsys):
    program, output = hand_in / "resnet_cifar100.py", tmp_path / "run"
    arguments = [*SMALL, "--dataset=cifar100-synthetic", f"--output-dir={output}"]
    assert run(program, *arguments, monkeypatch=monkeypatch) == 0
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    (output / "unfinished").mkdir()
    for name in ("run.json", "assessment.out", "model.safetensors"):
        (output / name).rename(output / "unfinished" / name)
    (output / "checkpoint.safetensors").write_bytes(b"of the last epoch")
    capsys.readouterr()
    assert run(program, *arguments, monkeypatch=monkeypatch) == 0
    assert "holds this run, finished at" in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before


def test_other_options_do_not_take_an_interrupted_run(hand_in, tmp_path, monkeypatch, capsys):
    program, output = hand_in / "resnet_cifar100.py", tmp_path / "run"
    arguments = [*SMALL, "--dataset=cifar100-synthetic", f"--output-dir={output}"]

    from course_lib.runs.records import RunFolder

    monkeypatch.setattr(RunFolder, "early_stop", None)
    finish = RunFolder.finish
    monkeypatch.setattr(RunFolder, "finish", lambda *given: sys.exit(9))  # the job ends here
    assert run(program, *arguments, monkeypatch=monkeypatch) == 9
    monkeypatch.setattr(RunFolder, "finish", finish)
    kept = (output / "checkpoint.safetensors").read_bytes()
    capsys.readouterr()
    assert run(program, *arguments, "--base-lr=0.1", monkeypatch=monkeypatch) == 1
    assert "holds an interrupted run with base_lr 0.2, not 0.1; give its options" in capsys.readouterr().err
    assert (output / "checkpoint.safetensors").read_bytes() == kept
    assert run(program, *arguments, "--base-lr=0.1", "--restart", monkeypatch=monkeypatch) == 0
    assert json.loads((output / "run.json").read_text())["parameters"]["base_lr"] == 0.1


def test_a_rank_waits_ten_minutes_for_one_whose_node_has_died(monkeypatch):
    given, threads, join = {}, torch.get_num_threads(), dist.init_process_group

    def joining(backend, **options):
        given.update(options)
        join("gloo", store=dist.HashStore(), rank=0, world_size=1)

    monkeypatch.setattr(dist, "is_torchelastic_launched", lambda: True)
    monkeypatch.setattr(dist, "init_process_group", joining)
    try:
        with joined_ranks() as found:
            assert found == (0, 1) and given["timeout"].total_seconds() == 600
    finally:
        torch.set_num_threads(threads)


def test_two_ranks_by_torchrun_go_on_too(hand_in, tmp_path):
    output = tmp_path / "run"
    arguments = [*SMALL, "--batch-size=32", "--dataset=cifar100-synthetic", f"--output-dir={output}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command(hand_in / "resnet_cifar100.py", *arguments, ranks=2), capture_output=True, text=True, timeout=1200,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads((output / "run.json").read_text())
    assert record["world_size"] == 2 and record["backend"] == "gloo"
    assert done.stdout.count("Epoch =  1:") == 1 and len(curve(output)) == 4


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
    with pytest.raises(ValueError, match="at least 32"):
        upsampled_resnet18(10, 16)


def test_fine_tuning_begins_from_the_weights_found(tmp_path, monkeypatch, capsys):
    import_torchvision()
    from torchvision.models import resnet18

    torch.manual_seed(1)
    source = resnet18()
    save_file(source.state_dict(), tmp_path / "body.safetensors")
    output = tmp_path / "run"
    arguments = ["--train-samples=32", "--test-samples=20", "--epochs=1", "--batch-size=32", "--image-size=32",
                 "--warmup-epochs=0.5", "--dataset=cifar100-synthetic", f"--weights={tmp_path / 'body.safetensors'}",
                 "--base-lr=1e-9", f"--output-dir={output}"]  # fmt: skip
    assert run(FOLDER / "pretrained_cifar100.py", *arguments, monkeypatch=monkeypatch) == 0
    found = load_file(output / "model.safetensors")
    assert torch.allclose(found["layer1.0.conv1.weight"], source.state_dict()["layer1.0.conv1.weight"], atol=1e-6)
    assert found["fc.weight"].shape == (100, 512)
    assert json.loads((output / "run.json").read_text())["weights"] == {"file": "body.safetensors"}


def test_where_there_are_no_weights_it_pretrains_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("LAB_DATA", str(tmp_path / "empty"))
    output = tmp_path / "run"
    arguments = ["--train-samples=32", "--test-samples=20", "--epochs=1", "--batch-size=32", "--image-size=32",
                 "--warmup-epochs=0.5", "--dataset=cifar100-synthetic", "--pretrain-dataset=cifar10-synthetic",
                 "--pretrain-epochs=1", f"--output-dir={output}"]  # fmt: skip
    assert run(FOLDER / "pretrained_cifar100.py", *arguments, monkeypatch=monkeypatch) == 0
    assert "no ImageNet weights here; pre-training on cifar10-synthetic instead" in capsys.readouterr().out
    record = json.loads((output / "run.json").read_text())
    assert record["weights"] == {"pre-trained on": "cifar10-synthetic", "epochs": 1}
    assert json.loads((output / "pretraining" / "run.json").read_text())["data"]["name"] == "cifar10-synthetic"


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


def test_weights_that_do_not_fit_are_told_in_a_line(tmp_path):
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
