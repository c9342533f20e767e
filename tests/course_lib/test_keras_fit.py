"""Training with the lines that Keras prints, and the UPC article's baseline program: alone, and on two ranks."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import cloudpickle
import pytest
import torch
from torch import nn

from course_lib.distributed import launch
from course_lib.training.keras_fit import KerasEpoch, keras_fit

cloudpickle.register_pickle_by_value(sys.modules[__name__])

PROGRAM = Path(__file__).parents[2] / "labs" / "11_scaling_study" / "resnet_cifar10.py"
SMALL = ["--dataset", "cifar10-synthetic", "--image_size", "32", "--train_samples", "24"]


class Epochs:
    """Batches that record which epoch was set."""

    def __init__(self):
        self.asked = []

    def set_epoch(self, epoch):
        self.asked.append(epoch)

    def __len__(self):
        return 2

    def __iter__(self):
        yield torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1])
        yield torch.tensor([[3.0]]), torch.tensor([1])


def test_an_epoch_is_printed_as_keras_does(capsys):
    model = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(model.weight)
    batches = Epochs()
    first, _ = keras_fit(model, batches, torch.optim.SGD(model.parameters(), lr=0.0), 2)
    assert batches.asked == [0, 1]
    assert first.loss == pytest.approx(0.693147, abs=1e-5)  # of three images, not of two batches
    assert first.accuracy == pytest.approx(1 / 3)  # of equal logits the first is the largest
    assert first.images_per_sec == pytest.approx(3 / first.seconds)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Epoch 1/2" and lines[2] == "Epoch 2/2"
    assert re.fullmatch(r"2/2 - \d\.\ds - loss: 0\.6931 - accuracy: 0\.3333", lines[1])
    assert str(KerasEpoch(1, 5, 196, 41.7, 1.0, 2.0179, 0.2585)).endswith(
        "196/196 - 42s - loss: 2.0179 - accuracy: 0.2585"
    )
    trained = keras_fit(model, batches, torch.optim.SGD(model.parameters(), lr=0.1), 3, verbose=False)
    assert trained[-1].loss < trained[0].loss and not capsys.readouterr().out


def imported():
    spec = importlib.util.spec_from_file_location("resnet_cifar10", PROGRAM)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


def test_the_baseline_program_prints_what_keras_would(tmp_path, monkeypatch, capsys):
    program = imported()
    given = [*SMALL, "--epochs", "1", "--batch_size", "8", "--output", str(tmp_path / "report" / "one.json")]
    monkeypatch.setattr(sys, "argv", ["x", *given])
    program.train(program.parse())
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["resnet50v2: 23,585,290 parameters", "Epoch 1/1"] and lines[2].startswith("3/3 - ")
    report = json.loads((tmp_path / "report" / "one.json").read_text())
    assert report["ranks"] == 1 and report["batch_size"] == 8 and report["data"]["name"] == "cifar10-synthetic"
    assert [epoch["steps"] for epoch in report["epochs"]] == [3]


def test_what_the_program_cannot_do_is_one_line(monkeypatch, capsys):
    program = imported()
    monkeypatch.setattr(sys, "argv", ["x"])
    options = program.parse()
    # The UPC article's defaults.
    assert (options.epochs, options.batch_size, options.network) == (5, 2048, "resnet50v2")
    monkeypatch.setattr(sys, "argv", ["x", "--epochs", "0"])
    with pytest.raises(SystemExit) as ended:
        program.parse()
    assert ended.value.code == 2 and capsys.readouterr().err.startswith("resnet_cifar10.py: error: --epochs ")
    monkeypatch.setattr(sys, "argv", ["x", *SMALL, "--batch-size", "25"])
    with pytest.raises(SystemExit):
        program.parse()
    assert "--batch_size = 25: must be in [1, train_samples], at most 24 here" in capsys.readouterr().err


def train_on_a_rank(*arguments):
    sys.argv = ["x", *arguments]
    program = imported()
    program.train(program.parse())


@pytest.mark.slow
def test_two_ranks_train_and_rank_0_reports(tmp_path, capsys):
    output = tmp_path / "two.json"
    arguments = [*SMALL, "--epochs", "2", "--batch_size", "6", "--output", str(output)]
    launch(train_on_a_rank, 2, arguments, process_group=False, threads=1)  # torchrun's environment
    printed = capsys.readouterr().out
    assert printed.count("Epoch 1/2") == 1 and "2/2 - " in printed
    report = json.loads(output.read_text())
    assert report["ranks"] == 2 and len(report["epochs"]) == 2
