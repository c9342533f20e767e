"""A loop over the epochs that is not `fit`'s is shown by what goes through `train_epoch` and the run folder."""

import pickle
import re

import pytest
import torch
from notebook_kernel import Kernel
from torch import nn

from course_lib.live_view import own_loop
from course_lib.live_view.training_view import NoView
from course_lib.records import EpochRecord, RunFolder
from course_lib.training import fit, train_epoch

SETUP = """
import time
import torch
import torch.distributed as dist
from torch import nn
from course_lib.distributed import launch
from course_lib.records import EpochRecord, RunFolder
from course_lib.training import train_epoch, train_step

def slowly(*arguments):
    time.sleep(0.07)
    return train_step(*arguments)

def train(run, epochs=4, ends=None, epoch_of=train_epoch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    batches = [(torch.randn(8, 1, 3, 4), torch.randint(4, (8,))) for _ in range(10)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    writes = run is not None and (not dist.is_initialized() or dist.get_rank() == 0)
    for epoch in range(1, epochs + 1):
        loss, correct, images = epoch_of(model, batches, optimizer, nn.CrossEntropyLoss(), step=slowly).tolist()
        if writes:
            run.append(EpochRecord(epoch, 0.3 * epoch, 250.0, loss / images, correct / images, 1.0, 0.5, 0.1), 0.3)
        if epoch == 2 and ends is not None:
            raise ends
    if writes:
        run.early_stop(epochs)
        run.save_model(model)

def started(path, **parameters):
    return RunFolder(path, "02_ddp", {"epochs": 4, **parameters}, {}).start(2, "gloo", "cpu")

def mine(model, batches, optimizer, loss_fn, step):
    model.train()
    total = torch.zeros(3, dtype=torch.float64)
    for images, labels in batches:
        loss, logits = step(model, images, labels, optimizer, loss_fn)
        total += torch.tensor([loss * len(labels), 0, len(labels)])
    return total
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    with Kernel(tmp_path_factory.mktemp("own loop")) as kernel:
        assert kernel.run(SETUP).error is None
        yield kernel


def test_in_a_rank_it_is_shown_within_and_between_the_epochs(kernel):
    cell = kernel.run("run = started('a'); launch(train, 2, (run,), threads=1); run.finish(True)")
    assert cell.error is None and cell.streams["stderr"] == ""
    (training,) = (each for each in cell.displays.values() if "<img" in each[-1].get("text/html", ""))
    pages = [bundles["text/html"] for bundles in training]
    assert re.search(r"epoch 1 of 4", pages[0]) and "images/s" in pages[0]  # before there is a point of the curve
    assert training[-1]["text/plain"] == "4 epochs, 1 s of training · 2 ranks · validation accuracy 50.0%"
    said = cell.streams["stdout"] + "".join(each[-1]["text/plain"] for each in cell.displays.values())
    assert len(re.findall(r"\[rank 0\] .*Early stopping", said)) == 1 and "[rank 1]" not in said


def test_in_the_notebook_the_lines_are_part_of_it(kernel):
    cell = kernel.run("run = started('b'); train(run); folder = run.finish(True)")
    assert cell.error is None and cell.streams == {"stdout": "", "stderr": ""}
    (bundles,) = cell.displays.values()
    assert "epoch 1 of 4" in bundles[0]["text/html"] and len(bundles) >= 3
    lines = bundles[-1]["text/plain"].splitlines()
    assert "<b>4 epochs, 1 s of training</b>" in bundles[-1]["text/html"]
    assert [line[:10] for line in lines] == [f"Epoch =  {epoch}" for epoch in range(1, 5)] + ["Early stop"]
    assert kernel.run("print((folder / 'assessment.out').read_text())").streams["stdout"].splitlines()[:5] == lines


def test_a_training_step_of_one_s_own_is_shown_epoch_by_epoch(kernel):
    cell = kernel.run("run = started('c'); train(run, epoch_of=mine)")
    (bundles,) = cell.displays.values()
    assert "epoch 2 of 4" in bundles[0]["text/html"] and "4 epochs" in bundles[-1]["text/html"]


@pytest.mark.parametrize("error, phase", [("ValueError('enough')", "failed"), ("KeyboardInterrupt()", "interrupted")])
def test_the_cell_s_end_is_the_view_s(kernel, error, phase):
    cell = kernel.run(f"run = started('d'); train(run, ends={error})")
    assert cell.error is not None
    (bundles,) = cell.displays.values()
    assert f"<b>{phase} in epoch 3 of 4</b>" in bundles[-1]["text/html"]
    # Whatever the next cells train is no part of that run.
    assert kernel.run("train(None, epochs=1)").displays == {}


def test_another_cell_than_the_one_that_started_the_run_is_not_shown(kernel):
    assert kernel.run("run = started('g')").displays == {}
    assert kernel.run("train(None, epochs=1)").displays == {}


def test_where_nobody_looks_it_is_plain_text(kernel):
    cell = kernel.run("run = started('e'); train(run)", False)
    assert cell.displays == {} and len(cell.streams["stdout"].splitlines()) == 5
    cell = kernel.run("run = started('f'); launch(train, 2, (run,), threads=1)", False)
    assert cell.displays == {} and cell.streams["stdout"].count("[rank 0] ") == 5


@pytest.fixture
def batches():
    return [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))] * 3


@pytest.fixture
def seen(monkeypatch):
    """Epochs of which batches were counted, and records, by views of own loops."""
    seen = []

    class View(NoView):
        def batches(self, batches, epoch):
            seen.append(("batches", epoch))
            return super().batches(batches, epoch)

        def epoch_done(self, record):
            seen.append(("done", record.epoch))

    monkeypatch.setattr(own_loop, "view_of_training", lambda epochs, before: View(epochs))
    yield seen
    own_loop.follow("", None)


def record(epoch):
    return EpochRecord(epoch, float(epoch), 1.0, 1.0, 0.5, 1.0, 0.5, 0.1)


def train(batches):
    model = nn.Linear(3, 2)
    train_epoch(model, batches, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())


def test_the_run_that_came_to_this_process_is_followed(tmp_path, seen, batches):
    sent = pickle.dumps(RunFolder(str(tmp_path), "02_ddp", {"epochs": 2}, {}))
    train(batches)
    assert seen == []
    run = pickle.loads(sent)
    run.unfinished.mkdir()
    train(batches)
    run.append(record(1))
    train(batches)
    run.append(record(2))
    assert seen == [("batches", 1), ("done", 1), ("batches", 2), ("done", 2)]
    other = RunFolder(str(tmp_path / "other"), "02_ddp", {"epochs": 2}, {})
    other.unfinished.mkdir(parents=True)
    other.append(record(1))
    assert len(seen) == 4


def test_fit_shows_itself(tmp_path, seen, batches):
    run = RunFolder(str(tmp_path), "01_single_gpu", {"epochs": 2}, {}).start(1, None, "cpu")
    model = nn.Linear(3, 2)
    fit(model, batches, batches, torch.optim.SGD(model.parameters(), lr=0.1), epochs=2, run=run)
    train(batches)  # the run is over
    assert seen == [] and len(run.rows) == 2


@pytest.mark.parametrize("epochs", [None, 0, "three"])
def test_a_run_of_unknown_length_is_not_shown(tmp_path, seen, batches, epochs):
    RunFolder(str(tmp_path), "02_ddp", {"epochs": epochs}, {}).start(1, None, "cpu")
    train(batches)
    assert seen == [] and own_loop.followed() is None
