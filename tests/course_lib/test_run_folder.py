"""What a run leaves behind: forms, and wholeness whatever happens to the run."""

import csv
import json
import multiprocessing
import os
import random
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from run_folder_writer import Weights, write_for_ever, write_run
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from course_lib.distributed.launching.forked_ranks import warm_up
from course_lib.runs.records import EpochRecord, RunFolder, TrainingDivergedError, assessment_print, read_learning_curve
from course_lib.system import atomic
from course_lib.system.atomic import write_atomically

FILES = {"learning_curve.csv", "model.safetensors", "assessment.out", "run.json"}
HEADER = "epoch,time,images_per_sec,train_loss,train_accuracy,val_loss,val_accuracy,lr"

# The multi-GPU tutorial's own lines.
DOCUMENT_LINE = (
    "Epoch = {:2d}: Cumulative Time = {:5.3f}, Epoch Time = {:5.3f}, Images/sec = {}, "
    "Training Accuracy = {:5.3f}, Validation Loss = {:5.3f}, Validation Accuracy = {:5.3f}"
)


@pytest.fixture(autouse=True)
def no_run_elsewhere(monkeypatch):
    monkeypatch.delenv("ASSESSMENT_OUT", raising=False)
    yield
    os.environ.pop("ASSESSMENT_OUT", None)


def record(epoch, accuracy=0.5):
    return EpochRecord(epoch, 2.5 * epoch, 1234.5678, 0.9, 0.71, 0.8125, accuracy, 0.1)


def started(folder, **parameters):
    data = {"name": "toy", "provenance": "synthetic", "source": "a test"}
    return RunFolder(str(folder), "01_single_gpu", {"seed": 3, "output_dir": "x", **parameters}, data).start(
        2, "gloo", "cpu"
    )


def visible(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}


def test_a_finished_run(tmp_path, capsys):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    run = started(tmp_path / "deep" / "run")
    run.append(record(1, 0.6), 2.5)
    run.append(record(2, 0.9), 2.5)
    run.early_stop(2)
    run.save_model(model)
    folder = run.finish(True)
    assert folder == tmp_path / "deep" / "run" and {p.name for p in folder.iterdir()} == FILES

    text = (folder / "learning_curve.csv").read_text()
    assert text.splitlines()[0] == HEADER
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert (rows[0]["time"], rows[0]["val_accuracy"]) == ("0.0", "0.0")
    assert [float(row["time"]) for row in rows] == [0.0, 2.5, 5.0]
    assert [float(row["val_accuracy"]) for row in rows] == [0.0, 0.6, 0.9]
    assert float(rows[1]["images_per_sec"]) == pytest.approx(1234.5678, rel=1e-5) and float(rows[2]["lr"]) == 0.1

    lines = (folder / "assessment.out").read_text().splitlines()
    assert lines == [
        DOCUMENT_LINE.format(1, 2.5, 2.5, 1234.5678, 0.71, 0.8125, 0.6),
        DOCUMENT_LINE.format(2, 5.0, 2.5, 1234.5678, 0.71, 0.8125, 0.9),
        "Early stopping after epoch 2",
    ]
    assert capsys.readouterr().out.splitlines() == lines  # printed as well

    written = json.loads((folder / "run.json").read_text())
    expected = {"lab": "01_single_gpu", "world_size": 2, "backend": "gloo", "device": "cpu"}
    assert {name: written[name] for name in expected} == expected
    assert written["parameters"] == {"seed": 3} and written["stopped_early"] is True
    assert written["data"]["provenance"] == "synthetic" and written["versions"]["torch"] == torch.__version__
    assert written["started"] <= written["ended"]

    with safe_open(folder / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(model.state_dict())
    twin = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    twin.load_state_dict(load_file(folder / "model.safetensors"))
    assert all(torch.equal(a, b) for a, b in zip(twin.state_dict().values(), model.state_dict().values(), strict=True))
    assert "ASSESSMENT_OUT" not in os.environ


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
@pytest.mark.parametrize("which", ["train_loss", "val_loss"])
def test_a_loss_that_is_not_finite_ends_the_run_and_is_on_record(tmp_path, which, loss):
    run = started(tmp_path)
    run.append(record(1), 2.5)
    with pytest.raises(TrainingDivergedError, match=f"{loss:g} in epoch 2; take a lower base_lr") as raised:
        run.append(replace(record(2), **{which: loss}), 2.5)
    written = json.loads((tmp_path / "unfinished" / "run.json").read_text())
    assert written["diverged"] == str(raised.value) and written["ended"] is None and visible(tmp_path) == {}
    assert len((tmp_path / "unfinished" / "learning_curve.csv").read_text().splitlines()) == 4
    started(tmp_path)
    assert "diverged" not in json.loads((tmp_path / "unfinished" / "run.json").read_text())


def test_channels_last_weights_are_stored_as_they_are(tmp_path):
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    run = started(tmp_path)
    run.save_model(model)
    assert torch.equal(load_file(run.unfinished / "model.safetensors")["weight"], model.weight)


def test_earlier_results_stay_until_the_new_ones_are_complete(tmp_path):
    write_run(str(tmp_path), 1)
    before = visible(tmp_path)
    assert before.keys() == FILES
    run = started(tmp_path)
    assert visible(tmp_path) == before
    run.append(record(1), 2.5)
    run.save_model(nn.Linear(1, 1))
    assert visible(tmp_path) == before
    written = {path.name: path.stat().st_ino for path in run.unfinished.iterdir() if path.name != "run.json"}
    run.finish(False)
    assert written == {name: (tmp_path / name).stat().st_ino for name in written}  # renamed, not copied
    after = visible(tmp_path)
    assert after.keys() == FILES and all(after[name] != before[name] for name in FILES)


def test_an_unfinished_run_leaves_nothing_in_the_next_ones_results(tmp_path):
    run = started(tmp_path)
    run.append(record(1), 2.5)
    run.early_stop(1)
    run.save_model(nn.Linear(1, 1))
    (run.unfinished / ".run.json.abcd").write_text("half")  # a kill inside write_atomically
    again = started(tmp_path)
    again.append(record(1, 0.25), 2.5)
    folder = again.finish(False)
    assert len((folder / "assessment.out").read_text().splitlines()) == 1
    assert {path.name for path in folder.iterdir()} == {"learning_curve.csv", "assessment.out", "run.json"}


@pytest.mark.parametrize("renames", [0, 1, 2, 3])
def test_a_publication_cut_short_is_completed_by_the_next_start(tmp_path, monkeypatch, renames):
    write_run(str(tmp_path), 1)
    run = RunFolder(str(tmp_path), "01_single_gpu", {"seed": 2}, {"name": "none"}).start(1, None, "cpu")
    run.append(EpochRecord(1, 1.0, 2.0, 1.0, 0.5, 1.0, 0.5, 0.1), 1.0)
    run.save_model(Weights(2))

    class Killed(BaseException):
        pass

    replace, done = os.replace, []

    def dying(source, target):
        if Path(target).parent == tmp_path:  # a publication, not a temporary file's rename
            if len(done) == renames:
                raise Killed
            done.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", dying)
    with pytest.raises(Killed):
        run.finish(False)
    monkeypatch.setattr(os, "replace", replace)
    assert not (tmp_path / "run.json").exists()  # it goes first and comes last: with it, the files are one run's
    RunFolder(str(tmp_path), "01_single_gpu", {"seed": 3}, {"name": "none"}).start(1, None, "cpu")
    assert numbers(tmp_path) == {name: 2 for name in FILES}


def numbers(folder):
    """Which run each visible file is of; raises where one does not parse."""
    result = {}
    for name in visible(folder):
        path = Path(folder) / name
        if name == "learning_curve.csv":
            rows = list(csv.DictReader(path.read_text().splitlines()))
            assert all(None not in row and None not in row.values() for row in rows)
            result[name] = int(float(rows[1]["images_per_sec"]))
        elif name == "assessment.out":
            text = path.read_text()
            assert text.endswith("\n")
            (result[name],) = {int(float(re.search(r"Images/sec = ([\d.]+),", line)[1])) for line in text.splitlines()}
        elif name == "run.json":
            result[name] = json.loads(path.read_text())["parameters"]["seed"]
        elif name == "model.safetensors":
            (value,) = set(load_file(path)["w"].tolist())
            result[name] = int(value)
        else:
            raise AssertionError(f"{name} does not belong there")
    return result


@pytest.mark.parametrize("kills", [5, pytest.param(40, marks=pytest.mark.slow)])
def test_kills_leave_whole_files_and_the_next_run_finishes(tmp_path, kills):
    folder, chance = tmp_path, random.Random(kills)
    warm_up()  # each writer is a fork of a process that has imported PyTorch
    context, first = multiprocessing.get_context("forkserver"), 1
    for _ in range(kills):
        begun, signal = context.Pipe(duplex=False)
        writer = context.Process(target=write_for_ever, args=(str(folder), first, signal))
        writer.start()
        begun.recv()
        time.sleep(chance.uniform(0, 0.2))
        writer.kill()
        writer.join()
        result = numbers(folder)
        if result:
            # A folder with a run.json is one run's. Without it, a publication was cut short, and waits to be completed.
            if "run.json" in result:
                assert len(set(result.values())) == 1, result
            else:
                assert json.loads((folder / "unfinished" / "run.json").read_text())["ended"]
            first = max(result.values()) + 10
        write_run(str(folder), first)
        assert numbers(folder) == {name: first for name in FILES}  # the next run goes through, and is whole
        first += 10


@pytest.mark.parametrize("folder", ["/dev/null/run", "/proc/nothing/run", "a file"])
def test_an_output_that_cannot_be_written_is_one_line(tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    Path("a file").write_text("not a folder")
    with pytest.raises(OSError, match=f"output_dir .*{folder} cannot be written") as raised:
        started(folder)
    assert "\n" not in str(raised.value) and Path("a file").read_text() == "not a folder"


def test_write_atomically_writes_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, "größer\n")
    assert path.read_bytes() == "größer\n".encode()
    mask = os.umask(0o027)
    try:
        write_atomically(path, b"\x00\x01")
    finally:
        assert os.umask(mask) == 0o027  # left as it was
    assert path.read_bytes() == b"\x00\x01" and path.stat().st_mode & 0o777 == 0o640

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "never")
    assert path.read_bytes() == b"\x00\x01" and list(tmp_path.iterdir()) == [path]


def test_assessment_print_as_in_the_document(tmp_path, monkeypatch, capsys):
    from assessment_print import assessment_print as as_documented

    assert as_documented is assessment_print
    monkeypatch.chdir(tmp_path)
    as_documented("one", 2)
    as_documented("three")
    assert capsys.readouterr().out == "one 2\nthree\n" == Path("assessment.out").read_text()


@pytest.mark.parametrize(
    "text", [f"{HEADER}\n0,0.0,,,,,0.0,\n1,2.5,10,1,0.5,1,0.75,0.1\n", "time,val_accuracy\n0.0,0.0\n2.5,0.75\n"]
)
def test_learning_curves_that_can_be_read(tmp_path, text):
    path = tmp_path / "curve.csv"
    path.write_text(text)
    frame = read_learning_curve(path)
    assert frame["epoch"].tolist() == [0, 1] and frame["time"].tolist() == [0.0, 2.5]
    assert frame["val_accuracy"].tolist() == [0.0, 0.75]


@pytest.mark.parametrize(
    "content, words",
    [
        (b"time,val_accuracy\n0.0,0.0\n2.5\n", "line 3"),  # of a file that was cut
        (b"\x89PNG\r\n\x1a\n\xff\xfe\xff", "utf-8"),
    ],
)
def test_learning_curves_that_cannot(tmp_path, content, words):
    path = tmp_path / "curve.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path} is no learning curve: ") as raised:
        read_learning_curve(path)
    assert words in str(raised.value) and "\n" not in str(raised.value)
