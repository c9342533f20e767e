"""Labs run headlessly from top to end, and leave what the contracts say; a run that fails leaves the old results."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from safetensors.torch import load_file

BIN = Path(sys.executable).parent
SMOKE = {"12_assessment": "cifar10-synthetic"}  # data sets of the smoke profile, where it is another
FILES = {"learning_curve.csv", "run.json", "model.safetensors", "assessment.out"}


def run(*command, folder, timeout=240):
    environment = {**os.environ, "LAB_DATA": str(folder / "no data here")}  # the shipped set needs no staging
    return subprocess.run(
        [str(BIN / command[0]), *map(str, command[1:])], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=timeout, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def complete(folder, lab, ranks):
    """The run folder's files agree with each other."""
    assert {path.name for path in folder.iterdir() if path.is_file()} >= FILES
    assert not (folder / "unfinished").exists()
    record = json.loads((folder / "run.json").read_text())
    rows = list(csv.DictReader((folder / "learning_curve.csv").read_text().splitlines()))
    lines = (folder / "assessment.out").read_text().splitlines()
    assert (record["lab"], record["world_size"], record["data"]["name"]) == (
        lab,
        ranks,
        SMOKE.get(lab, "fashion-mnist-small"),
    )
    assert record["ended"] and record["data"]["provenance"]
    assert (rows[0]["epoch"], rows[0]["time"], rows[0]["val_accuracy"]) == ("0", "0.0", "0.0")
    epochs = rows[1:]
    assert 1 <= len(epochs) <= record["parameters"]["epochs"]
    assert [int(row["epoch"]) for row in epochs] == list(range(1, len(epochs) + 1))
    times = [float(row["time"]) for row in epochs]
    assert times == sorted(times) and times[0] > 0
    for row, line in zip(epochs, lines, strict=False):
        assert line.startswith(f"Epoch = {int(row['epoch']):2d}: Cumulative Time = ")
        assert line.endswith(f"Validation Accuracy = {float(row['val_accuracy']):5.3f}")
    target, patience = record["parameters"]["target_accuracy"], record["parameters"]["patience"]
    accuracies = [float(row["val_accuracy"]) for row in epochs]
    assert record["stopped_early"] == (len(accuracies) >= patience and min(accuracies[-patience:]) >= target)
    assert lines[len(epochs) :] == ([f"Early stopping after epoch {len(epochs)}"] if record["stopped_early"] else [])
    assert load_file(folder / "model.safetensors")
    return record, epochs


@pytest.mark.parametrize(
    "number, lab, ranks",
    [
        ("1", "01_single_gpu", 1),
        # Their whole notebooks are executed by `nbgrader validate` in make test, their runs by sweeps.
        pytest.param("02", "02_ddp", 2, marks=pytest.mark.slow),
        pytest.param("3", "03_batch_size_scaling", 2, marks=pytest.mark.slow),
        pytest.param("4", "04_momentum_warmup_novograd", 2, marks=pytest.mark.slow),
        pytest.param("5", "05_resnet_hw", 2, marks=pytest.mark.slow),
        pytest.param("6", "06_communication", 2, marks=pytest.mark.slow),
        pytest.param("7", "07_sync_async_sgd", 2, marks=pytest.mark.slow),
        pytest.param("8", "08_parallel_sgd_mpi", 2, marks=pytest.mark.slow),
        pytest.param("9", "09_hogwild", 2, marks=pytest.mark.slow),
        pytest.param("12", "12_assessment", 2, marks=pytest.mark.slow),
    ],
)
def test_smoke(number, lab, ranks, tmp_path):
    done = run("lab", "run", number, "--profile", "smoke", "-o", tmp_path / "run", folder=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    folder = tmp_path / "run"
    record, epochs = complete(folder, lab, ranks)
    assert float(epochs[-1]["val_accuracy"]) > 0.3  # it learns: guessing scores 0.1
    executed = nbformat.read(folder / f"{lab}.ipynb", as_version=4)
    assert all(c.execution_count for c in executed.cells if c.cell_type == "code" and c.source)
    assert f"done: {folder}" in done.stdout and "Epoch =  1: Cumulative Time" in done.stdout
    # The network in the folder is the one whose accuracy the curve ends with.
    assert accuracy_of(folder / "model.safetensors", record) == pytest.approx(
        float(epochs[-1]["val_accuracy"]), abs=0.003
    )


def accuracy_of(weights, record):
    import torch

    from course_lib.models import HomeworkResNet, ParallelSGDNet, WideResNet
    from data_prep.staged import read

    staged, tensors = read(record["data"]["name"]), load_file(weights)
    if record["lab"] == "05_resnet_hw":  # the network of the notebook's answers, which names one part differently
        model = HomeworkResNet(len(staged.classes), len(staged.mean)).eval()
        tensors = {name.replace(".shortcut.", ".downsample."): tensor for name, tensor in tensors.items()}
    elif record["lab"] in ("08_parallel_sgd_mpi", "09_hogwild"):
        model = ParallelSGDNet(len(staged.classes), len(staged.mean)).eval()
    else:
        width = record["parameters"]["width"]
        model = WideResNet((16 * width, 32 * width, 64 * width), len(staged.mean)).eval()
    model.load_state_dict(tensors)
    images = torch.from_numpy(staged.arrays["test_images"].copy()).permute(0, 3, 1, 2).float() / 255
    if record["lab"] != "02_ddp":
        images = (images - torch.tensor(staged.mean).view(1, -1, 1, 1)) / torch.tensor(staged.std).view(1, -1, 1, 1)
    with torch.no_grad():
        predicted = torch.cat([model(part).argmax(1) for part in images.split(250)])
    return (predicted.numpy() == staged.arrays["test_labels"]).mean()


@pytest.mark.slow
def test_plain_papermill_leaves_the_same(tmp_path, repository):
    import yaml

    source = repository / "labs" / "01_single_gpu"
    done = run("lab", "run", "1", "--profile", "smoke", "-o", tmp_path / "a", folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    profile = yaml.safe_load((source / "profiles.yaml").read_text())["smoke"]
    options = [word for name, value in profile.items() for word in ("-p", name, value)]
    done = run(
        "papermill", source / "01_single_gpu.ipynb", tmp_path / "out.ipynb", *options, "-p", "output_dir", tmp_path / "b",
        folder=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (ours, our_rows), (plain, plain_rows) = (complete(tmp_path / name, "01_single_gpu", 1) for name in "ab")
    assert ours["parameters"] == plain["parameters"] and ours["data"] == plain["data"]
    for column in ("train_loss", "val_loss", "val_accuracy", "lr"):
        assert [row[column] for row in our_rows] == [row[column] for row in plain_rows]
    assert {p.name for p in (tmp_path / "a").iterdir()} - {"01_single_gpu.ipynb", ".lock"} == {
        p.name for p in (tmp_path / "b").iterdir()
    }


TOY = [
    "num_gpus = 1\nepochs = 1\nbatch_size = 4\nbase_lr = 0.1\nseed = 0\ntrain_samples = 0\noutput_dir = 'run'",
    """
from course_lib.records import EpochRecord, RunFolder
run = RunFolder(output_dir, "01_toy", {"epochs": epochs}, {"name": "none"}).start(1, None, "cpu")
run.append(EpochRecord(1, 1.0, 1.0, 1.0, 0.5, 1.0, epochs / 10, 0.1), 1.0)
""",
    """
import os
from course_lib.distributed import launch

def worker():
    raise ValueError("the optimiser ran away\\nand a second line")

if epochs == 3:
    launch(worker, 2)
if epochs == 4:
    os._exit(9)
""",
    "run.finish(False)",
]


@pytest.fixture
def toy(tmp_path):
    """A course of one lab whose run fails with epochs = 3 and whose kernel dies with epochs = 4; run once."""
    lab = tmp_path / "labs" / "01_toy"
    lab.mkdir(parents=True)
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in TOY]
    cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "x", "language": "python"}}),
                   lab / "01_toy.ipynb")  # fmt: skip
    (lab / "profiles.yaml").write_text("laptop: {}\n")
    done = run("lab", "run", "1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path


def visible(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_failing_run_leaves_earlier_results_and_names_the_cell(toy):
    folder = toy / "runs" / "01_toy"
    before = visible(folder)
    assert {"learning_curve.csv", "run.json", "assessment.out", "01_toy.ipynb"} <= before.keys()
    for epochs, words in (
        ("3", ("01_toy: failed in cell 4", "RankFailedError", "rank", "of 2 failed", "the optimiser ran away", "untouched")),
        ("4", ("01_toy", "kernel died", "untouched")),
    ):  # fmt: skip
        done = run("lab", "run", "01", "-p", "epochs", epochs, folder=toy)
        assert done.returncode == 1
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith("Error: ") and all(word in last for word in words), done.stderr
        assert visible(folder) == before
        assert (
            folder / "unfinished" / "learning_curve.csv"
        ).exists()  # what the failed run had so far can be looked at
    done = run("lab", "run", "01_toy", "-p", "epochs", "2", folder=toy)
    assert done.returncode == 0, done.stderr
    assert (
        visible(folder)["learning_curve.csv"] != before["learning_curve.csv"] and not (folder / "unfinished").exists()
    )
    shutil.rmtree(folder)
