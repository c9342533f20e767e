"""Reports of `fit` and of a run folder to listeners; without a page they import no display."""

import pickle
import sys

import pytest
import torch
from gloo_ranks import on_ranks
from torch import nn

from course_lib.live_view.listener import PROGRESS_FILE, TrainingListener
from course_lib.runs.records import EpochRecord, RunFolder
from course_lib.training.loop import fit, train_epoch

BATCHES = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))] * 3


class Heard(TrainingListener):
    """Notes each call; `shows_lines`: it shows the transcript itself."""

    def __init__(self, shows_lines=False):
        self.calls, self.shows_lines = [], shows_lines

    def began(self, epochs, records=()):
        self.calls.append(("began", epochs, len(records)))

    def epoch_began(self, epoch, batches):
        self.calls.append(("epoch", epoch, batches))

    def batch_done(self, images):
        self.calls.append(images)

    def line(self, text):
        self.calls.append(text[:5])
        return self.shows_lines

    def epoch_done(self, record):
        self.calls.append(("done", record.epoch))

    def interrupted(self):
        self.calls.append("interrupted")

    def ended(self, error=None):
        self.calls.append(("ended", error))


def train(epochs=2, **options):
    model = nn.Linear(3, 2)
    return fit(model, BATCHES, BATCHES, torch.optim.SGD(model.parameters(), lr=0.1), epochs=epochs, **options)


def record(epoch):
    return EpochRecord(epoch, float(epoch), 1.0, 1.0, 0.5, 1.0, 0.5, 0.1)


def folder(path, epochs=2, **options):
    return RunFolder(str(path), "02_ddp", {"epochs": epochs}, {}, **options)


EPOCHS = [call for e in (1, 2) for call in (("epoch", e, 3), 4, 4, 4, "epoch", ("done", e))]


@pytest.mark.parametrize("shows_lines", [False, True])
def test_fit_reports_each_step_in_order(shows_lines, capsys):
    heard, second = Heard(shows_lines), Heard()
    train(callbacks=[second, heard])
    assert heard.calls == second.calls == [("began", 2, 0), *EPOCHS, ("ended", None)]
    assert len(capsys.readouterr().out.splitlines()) == (0 if shows_lines else 2)
    train(callbacks=[], quiet=True)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("by_fit", [False, True])
def test_a_recorded_run_reports_once_and_keeps_its_transcript(tmp_path, by_fit, capsys):
    heard = Heard(shows_lines=True)
    run = folder(tmp_path, **({} if by_fit else {"callbacks": [heard]})).start(1, None, "cpu")
    train(run=run, **({"callbacks": [heard]} if by_fit else {}))
    expected = [("Epoch" if call == "epoch" else call) for call in EPOCHS]
    assert heard.calls[-len(expected) - 3 :] == [("began", 2, 0), *expected, ("ended", None), ("ended", None)]
    transcript = (run.unfinished / "assessment.out").read_text()
    assert [line[:10] for line in transcript.splitlines()] == ["Epoch =  1", "Epoch =  2"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("enough")])
def test_an_interrupt_is_one_line_and_no_failure(error):
    heard = Heard()

    def evaluation(*_):
        raise error

    with pytest.raises(type(error)):
        train(callbacks=[heard], evaluation=evaluation)
    shown = getattr(error, "_render_traceback_", list)()
    if isinstance(error, KeyboardInterrupt):
        assert heard.calls[-1] == "interrupted"
        assert shown == ["KeyboardInterrupt: the training was stopped in epoch 1 of 2"]
    else:
        assert heard.calls[-1] == ("ended", error) and shown == []


def test_a_loop_of_one_s_own_is_heard_by_what_it_appends(tmp_path, capsys):
    heard = Heard()
    run = folder(tmp_path, callbacks=[heard]).start(1, None, "cpu")
    model = nn.Linear(3, 2)
    for epoch in (1, 2):
        train_epoch(model, BATCHES, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
        run.append(record(epoch), 1.0)
    run.early_stop(2)
    run.save_model(model)
    assert heard.calls == [("began", 2, 0), "Epoch", ("done", 1), "Epoch", ("done", 2), "Early", ("ended", None)]
    lines = capsys.readouterr().out.splitlines()
    assert lines == (run.unfinished / "assessment.out").read_text().splitlines() and len(lines) == 3


@pytest.mark.parametrize("epochs", [None, 0, "three"])
def test_a_run_of_unknown_length_is_not_shown(tmp_path, epochs, capsys):
    heard = Heard()
    run = folder(tmp_path, epochs, callbacks=[heard]).start(1, None, "cpu")
    run.append(record(1), 1.0)
    assert heard.calls == [] and capsys.readouterr().out.startswith("Epoch =  1")


def test_a_rank_that_receives_a_run_begins_its_progress_file(tmp_path, monkeypatch):
    sent = pickle.dumps(folder(tmp_path))
    monkeypatch.setenv(PROGRESS_FILE, str(tmp_path / "training.json"))
    run = pickle.loads(sent)
    begun = (tmp_path / "training.json").read_text()
    run.unfinished.mkdir()
    run.append(record(1))
    assert '"epochs": 2' in begun and '"records": []' in begun
    pickle.dumps(run)  # its listeners stay in this process


def test_without_a_page_no_display_is_imported(tmp_path):
    def worker():
        train(run=folder(tmp_path).start(1, None, "cpu"))
        train(quiet=True)
        return [name for name in ("course_lib.live_view.cell_display", "IPython", "matplotlib") if name in sys.modules]

    assert on_ranks(worker, 1) == [[]]
