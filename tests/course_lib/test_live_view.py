"""What is shown of a training and of ranks, without a notebook: states, drawings, escaping, the ranks' lines."""

import random
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from itertools import pairwise
from types import SimpleNamespace

import pytest

from course_lib.live_view import cell_display, rank_lines
from course_lib.live_view.cell_display import CellTrainings, draw_curves, training_html
from course_lib.live_view.launch_view import LaunchView
from course_lib.live_view.listener import PROGRESS_FILE, Listeners, default_callbacks
from course_lib.live_view.progress import INTERVAL, Progress, ProgressListener
from course_lib.live_view.progress_file import ProgressFile
from course_lib.live_view.rank_lines import RankLog, ranks_html, ranks_text


class Tags(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.open, self.text = [], [], ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


class Sink:
    """Keeps each state as text: the listener changes its one `Progress`."""

    keeps_lines = True

    def __init__(self, clock=None, fails_in=None):
        self.bars, self.times, self.clock, self.fails_in = [], [], clock, fails_in

    def begin(self, progress):
        self.progress = progress

    def show(self, progress):
        if progress.epoch == self.fails_in:
            raise RuntimeError("no paper")
        self.bars.append(progress.bar())
        self.times.append(self.clock() if self.clock else 0.0)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def record(epoch):
    return SimpleNamespace(
        epoch=epoch, time=float(epoch), images_per_sec=64.0, train_loss=2 / epoch, train_accuracy=1 - 0.7 / epoch,
        val_loss=2.2 / epoch, val_accuracy=1 - 0.8 / epoch, lr=0.1,
    )  # fmt: skip


def records(count):
    return [vars(record(epoch)) for epoch in range(1, count + 1)]


def follow(listener, clock, epochs, step=1.0, before=()):
    """A training of 8 batches of 8 images whose steps take `step` seconds, and the validation two steps."""
    listeners = Listeners([listener])
    with listeners.hear(epochs, before):
        for epoch in range(len(before) + 1, epochs + 1):
            listeners.epoch_began(epoch, 8)
            for _ in range(8):
                clock.now += step
                listeners.batch_done(8)
            clock.now += 2 * step
            listeners.line(f"line {epoch}")
            listeners.epoch_done(record(epoch))


def test_a_training_is_followed_within_and_between_epochs():
    clock = Clock()
    sink = Sink(clock)
    follow(ProgressListener(sink, 2, clock), clock, 4, before=[record(1)])
    first, second, *_, last = sink.bars
    assert re.fullmatch(
        r"epoch 2 of 4:  28%\|\S+ *\| 00:01<00:23, 2 ranks, 16 images/s, validation accuracy 20.0%", first
    )
    assert "31%" in second and "00:02<00:22" in second  # 2.75 epochs are left; the restored one took no time here
    shares = [int(re.search(r"(\d+)%", bar)[1]) for bar in sink.bars]
    assert shares == sorted(shares) and shares[-1] == 100
    assert last.startswith("4 epochs: 100%") and last.endswith(
        "00:30<00:00, 2 ranks, 64 images/s, validation accuracy 80.0%"
    )
    assert sink.progress.lines == ["line 2", "line 3", "line 4"]


def test_it_is_shown_at_most_twice_a_second_and_a_short_training_without_lines_never():
    clock = Clock()
    sink = Sink(clock)
    follow(ProgressListener(sink, clock=clock), clock, 30, step=0.01)
    gaps = [after - before for before, after in pairwise(sink.times)]
    assert min(gaps[:-1]) >= INTERVAL == 0.5  # the last is the end, which is shown in any case
    assert len(sink.times) in (5, 6, 7)
    sink.keeps_lines, sink.times = False, []
    follow(ProgressListener(sink, clock=clock), clock, 1, step=0.01)
    assert sink.times == []


def test_lines_that_no_display_keeps_are_printed(capsys):
    sink = Sink()
    sink.keeps_lines = False
    follow(ProgressListener(sink, clock=(clock := Clock())), clock, 2)
    assert capsys.readouterr().out == "line 1\nline 2\n"
    follow(ProgressListener(Sink(fails_in=2), clock=clock), clock, 3)
    assert capsys.readouterr().out.splitlines() == [
        "no live view (RuntimeError: no paper)",
        *("line 1", "line 2", "line 3"),
    ]


@pytest.mark.parametrize("error, phase", [(KeyboardInterrupt(), "interrupted"), (ValueError(), "failed")])
def test_a_training_that_ends_early_says_so(error, phase):
    sink = Sink()
    listeners = Listeners([ProgressListener(sink, clock=(clock := Clock()))])
    with pytest.raises(type(error)), listeners.hear(5, [record(1)]):
        listeners.epoch_began(2, 8)
        clock.now += 1
        listeners.batch_done(8)
        raise error
    assert sink.bars[-1].startswith(f"{phase} in epoch 2 of 5:  22%")
    stopped = Progress(20, phase="finished", records=records(3))
    assert stopped.bar().startswith("3 epochs of at most 20: 100%")


def test_the_curves_have_their_labels_and_survive_numbers_that_are_none():
    broken = records(5)
    broken[2] |= {"val_loss": float("nan"), "train_loss": float("inf")}
    for rows, epochs in ((broken, 8), (records(1), 1), (records(1000), 1000)):
        drawing = draw_curves(rows, epochs)
        labels = [element.text for element in ElementTree.fromstring(drawing).iter("{http://www.w3.org/2000/svg}text")]
        assert {"accuracy", "loss", "training", "validation", "epoch"} <= set(labels)
        assert "nan" not in drawing and len(drawing) < 60_000


@pytest.fixture
def shown(monkeypatch):
    """Replaces the cell's output; a drawing takes 0.1 s."""
    shown, drawn, clock = [], [], Clock()

    def draw(rows, epochs):
        clock.now += 0.1
        drawn.append(len(rows))
        return "<svg/>"

    monkeypatch.setattr(cell_display, "draw_curves", draw)
    monkeypatch.setattr(cell_display.CellOutput, "show", lambda self, html, text: shown.append((html, text)))
    return SimpleNamespace(shown=shown, drawn=drawn, clock=clock)


def test_drawing_takes_little_of_the_time_and_the_last_state_is_drawn(shown):
    trainings = CellTrainings(shown.clock)
    for count in range(1, 21):  # an epoch a second
        shown.clock.now += 1
        trainings.show(Progress(20, records=records(count)))
    trainings.show(Progress(20, records=records(20), phase="finished"))
    assert len(shown.shown) == 21 and shown.drawn[0] == 4 and shown.drawn[-1] == 20 and len(shown.drawn) <= 7
    assert ["<img" in html for html, _ in shown.shown] == 3 * [False] + 18 * [True]


@pytest.mark.parametrize(
    "error, phase", [(None, "finished"), (KeyboardInterrupt(), "interrupted"), (ValueError(), "failed")]
)
def test_the_cell_s_end_is_the_training_s(shown, error, phase):
    trainings = CellTrainings(shown.clock)
    trainings.close(error)
    assert shown.shown == []
    trainings.show(progress := Progress(2, records=records(1)))
    trainings.close(error)
    trainings.close(None)
    assert progress.phase == phase and len(shown.shown) == 2


def test_text_from_a_training_is_escaped_and_bounded():
    attack = "</pre><script>alert(1)</script> & \"quotes\" 'and'"
    page = Tags(training_html(Progress(9, lines=[attack], earlier=[attack] * 50, phase=attack), "<svg/>"))
    assert set(page.tags) == {"div", "img", "pre"} and page.open == []
    assert page.text.count(attack) == 1 + 20 + 1  # the line, 20 earlier trainings, the headline
    assert "(30 earlier trainings)" in page.text


def test_a_ranks_trainings_reach_the_other_end_whole(tmp_path, monkeypatch):
    monkeypatch.setenv(PROGRESS_FILE, str(tmp_path / "training.json"))
    monkeypatch.setenv("WORLD_SIZE", "4")
    reader = ProgressFile(tmp_path / "training.json")
    assert reader.read() is None
    for number in range(2):
        (listener,) = default_callbacks()
        listener.began(1)
        listener.began(1)  # a run that came to the rank, then its training
        listener.epoch_began(1, 8)
        listener._last = 0.0  # long ago
        listener.epoch_done(record(1))
        listener.ended()
        state = reader.read()
        assert state.phase == "finished" and state.ranks == 4 and state.records == records(1)
        assert state.earlier == ["1 epoch, 4 ranks, 64 images/s, validation accuracy 20.0%"] * number
        assert reader.read() is None  # nothing new


def feed(path, *chunks):
    """A rank's text after each chunk that it writes."""
    log = RankLog(path)
    path.touch()
    for chunk in chunks:
        with path.open("ab") as file:
            file.write(chunk)
        log.read()
        yield log


def test_lines_are_whole_whatever_the_pieces(tmp_path):
    whole = "one\nzwö ↔\n\n  four\n"
    raw = whole.encode()
    for seed in range(50):
        cuts = sorted(random.Random(seed).sample(range(len(raw)), 5))
        pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
        *_, log = feed(tmp_path / str(seed), *pieces)
        assert log.lines == whole.splitlines() and log.count == 4


def test_a_line_that_is_being_written_is_shown_and_counted_once(tmp_path):
    states = [(log.count, log.lines) for log in feed(tmp_path / "log", b"half", b" and half\n", b"end")]
    assert states == [(1, ["half"]), (1, ["half and half"]), (2, ["half and half", "end"])]
    assert not RankLog(tmp_path / "none").read()


def test_progress_bars_leave_one_line(tmp_path):
    bar = b"".join(b"\r%3d%%|##" % share for share in range(100)) + b"\r100%|## done\r\n"
    pieces = [bar[i : i + 7] for i in range(0, len(bar), 7)]
    *_, log = feed(tmp_path / "log", *pieces, b"\x1b[31mred\x1b[0m\ttab\x00\n")
    assert log.lines == ["100%|## done", "red     tab"]
    *_, log = feed(tmp_path / "endless", *[b"\r" + b"x" * 1500] * 500)
    assert (log.count, log.lines) == (1, ["x" * 1500])


def test_a_flood_keeps_the_last_lines_and_counts_all(tmp_path):
    *_, log = feed(tmp_path / "log", b"begun", b"x" * 4 * rank_lines.READ + b"\nend\n")
    assert log.count == 2 and set(log.lines[0][:100]) == {"x"} and log.lines[1] == "end"
    *_, log = feed(tmp_path / "flood", b"".join(b"line %06d of many\n" % number for number in range(100_000)))
    assert log.count == 100_000 and log.left_out == 100_000 - rank_lines.KEPT
    assert log.lines[-1] == "line 099999 of many" and log.lines[0] == f"line {100_000 - rank_lines.KEPT:06d} of many"


def test_ranks_are_told_apart_and_escaped(tmp_path):
    logs = {}
    for rank, number in enumerate((3, 0, rank_lines.OPEN + 1, 500)):
        lines = b"".join(b"%d.%d <b>&\n" % (rank, i) for i in range(number))
        *_, logs[rank] = feed(tmp_path / str(rank), lines)
    page = Tags(ranks_html(logs, over=True, note="<i>there</i>"))
    assert page.open == [] and "i" not in page.tags and page.tags.count("details") == 2
    assert re.findall(r"rank (\d)", page.text) == ["0", "2", "3"] and page.tags.count("b") == 3  # rank 1 is silent
    assert page.text.count("<b>&") == 3 + (16 + 1) + (200 + 1)  # the last line is in the summary, too
    assert "(300 lines before these: <i>there</i>)" in page.text
    running = Tags(ranks_html(logs, over=False))
    assert "details" not in running.tags and running.text.count("<b>&") == 3 + 6 + 6
    plain = ranks_text(logs).splitlines()
    assert plain[:4] == ["[rank 0] 0.0 <b>&", "[rank 0] 0.1 <b>&", "[rank 0] 0.2 <b>&", "[rank 2] 2.0 <b>&"]
    assert len(plain) == 3 + 16 + 1 + 200


@pytest.mark.parametrize("looks", [0, 3])
def test_a_launch_whose_view_fails_says_so_once_and_shows_the_lines_at_the_end(tmp_path, capsys, looks):
    (tmp_path / "log").write_text("said\n")
    (tmp_path / "training.json").write_text("no JSON")
    view = LaunchView(tmp_path / "training.json", lambda: {0: tmp_path / "log"}, CellTrainings(), clock := Clock())
    for _ in range(looks):
        clock.now += 1
        view.look()
    view.close()
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("no live view (JSONDecodeError") and said[1:] == ["[rank 0] said"]
