"""Labs run headlessly from top to end, and leave what the contracts say; a run that fails leaves the old results."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from finished_run import VALIDATION, accuracy_of, complete
from jupyter_client.provisioning import KernelProvisionerFactory

from course_lib.runs import cli
from course_lib.runs.warm_kernels import WarmServer

BIN = Path(sys.executable).parent


def run(*command, folder, timeout=1200):
    environment = {**os.environ, "LAB_DATA": str(folder / "no data here")}  # the shipped set needs no staging
    return subprocess.run(
        [str(BIN / command[0]), *map(str, command[1:])], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=timeout, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.parametrize(
    "number, lab, ranks",
    [
        # In make test their whole notebooks are executed by `nbgrader validate`, their runs by sweeps, which look at the
        # same run folders; and the command runs the toy below.
        pytest.param("1", "01_single_gpu", 1, marks=pytest.mark.slow),
        pytest.param("02", "02_ddp", 2, marks=pytest.mark.slow),
        pytest.param("3", "03_batch_size_scaling", 2, marks=pytest.mark.slow),
        pytest.param("4", "04_momentum_warmup_novograd", 2, marks=pytest.mark.slow),
        pytest.param("5", "05_resnet_hw", 2, marks=pytest.mark.slow),
        pytest.param("6", "06_communication", 2, marks=pytest.mark.slow),
        pytest.param("7", "07_sync_async_sgd", 2, marks=pytest.mark.slow),
        pytest.param("8", "08_parallel_sgd_mpi", 2, marks=pytest.mark.slow),
        pytest.param("9", "09_hogwild", 2, marks=pytest.mark.slow),
        pytest.param("10", "10_kfac", 2, marks=pytest.mark.slow),
        pytest.param("11", "11_scaling_study", 2, marks=pytest.mark.slow),
        pytest.param("12", "12_assessment", 2, marks=pytest.mark.slow),
        pytest.param("14", "14_model_parallel", 2, marks=pytest.mark.slow),
    ],
)
def test_smoke(number, lab, ranks, tmp_path):
    done = run("lab", "run", number, "--profile", "smoke", "-o", tmp_path / "run", folder=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    folder = tmp_path / "run"
    record, epochs = complete(folder, lab, ranks)
    # It learns: guessing scores 0.1, and always a space 0.17.
    assert float(epochs[-1]["val_accuracy"]) > (0.2 if lab == "14_model_parallel" else 0.3)
    executed = nbformat.read(folder / f"{lab}.ipynb", as_version=4)
    assert all(c.execution_count for c in executed.cells if c.cell_type == "code" and c.source)
    assert f"done: {folder}" in done.stdout and "Epoch =  1: Cumulative Time" in done.stdout
    # The network in the folder is the one whose accuracy the curve ends with.
    assert accuracy_of(folder / "model.safetensors", record) == pytest.approx(
        float(epochs[-1]["val_accuracy"]), abs=0.06 if lab in VALIDATION else 0.003
    )


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
from course_lib.runs.records import EpochRecord, RunFolder
run = RunFolder(output_dir, "01_toy", {"epochs": epochs}, {"name": "none"}).start(1, None, "cpu")
run.append(EpochRecord(1, 1.0, 1.0, 1.0, 0.5, 1.0, epochs / 10, 0.1), 1.0)
if epochs == 5:
    run.append(EpochRecord(2, 2.0, 1.0, float("nan"), 0.5, 1.0, 0.1, 0.1), 1.0)
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
    "run.finish(False)\nprint('the toy says:', epochs, 'epochs')",
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
    assert "the toy says: 1 epochs" in done.stdout and "Traceback" not in done.stderr
    assert f"done: {tmp_path / 'runs' / '01_toy'}" in done.stdout
    executed = nbformat.read(tmp_path / "runs" / "01_toy" / "01_toy.ipynb", as_version=4)
    assert all(cell.execution_count for cell in executed.cells)
    return tmp_path


def visible(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def lab_here(toy, warm_server, monkeypatch, capfd):
    """The `lab` command in this process, its kernel a fork of the warm one: exit code and standard error."""
    monkeypatch.setattr(WarmServer, "shared", lambda: warm_server)
    monkeypatch.setattr(KernelProvisionerFactory.instance(), "default_provisioner_name", "lab-warm")
    monkeypatch.chdir(toy)

    def lab_here(*words):
        monkeypatch.setattr(sys, "argv", ["lab", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, capfd.readouterr().err

    return lab_here


def fails_and_changes_nothing(folder, before, code, errors, words):
    assert code == 1
    last = errors.strip().splitlines()[-1]
    assert last.startswith("Error: ") and all(word in last for word in words), errors
    assert visible(folder) == before
    assert (folder / "unfinished" / "learning_curve.csv").exists()  # what the failed run had so far can be looked at


def test_a_failing_run_leaves_earlier_results_and_names_the_cell(toy, lab_here):
    folder = toy / "runs" / "01_toy"
    before = visible(folder)
    told = ("01_toy: failed in cell 4", "RankFailedError", "rank", "of 2 failed", "the optimiser ran away", "untouched")
    fails_and_changes_nothing(folder, before, *lab_here("run", "01", "-p", "epochs", "3"), told)
    done = run("lab", "run", "01", "-p", "epochs", "4", folder=toy)
    fails_and_changes_nothing(folder, before, done.returncode, done.stderr, ("01_toy", "kernel died", "untouched"))
    told = ("01_toy: the training diverged: its training loss is nan in epoch 2", "untouched")
    fails_and_changes_nothing(folder, before, *lab_here("run", "01", "-p", "epochs", "5"), told)
    code, errors = lab_here("run", "01", "-p", "epochs", "3", "-o", "first")
    assert code == 1 and "earlier results" not in errors, errors
    code, errors = lab_here("run", "01_toy", "-p", "epochs", "2", "-p", "output_dir", "mine")
    assert code == 0 and (toy / "mine" / "run.json").exists() and visible(folder) == before, errors
    code, errors = lab_here("run", "01_toy", "-p", "epochs", "2")
    assert code == 0, errors
    assert (
        visible(folder)["learning_curve.csv"] != before["learning_curve.csv"] and not (folder / "unfinished").exists()
    )
    shutil.rmtree(folder)
