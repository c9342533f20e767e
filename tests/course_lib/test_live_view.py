"""What is shown of a training and of ranks, without a notebook: states, drawings, escaping, the ranks' lines."""

import base64
import random
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from contextlib import redirect_stdout
from html.parser import HTMLParser
from io import StringIO
from itertools import pairwise
from types import SimpleNamespace

import pytest

from course_lib import plots
from course_lib.live_view import curve_drawing, rank_channel, rank_html, rank_text
from course_lib.live_view.curve_drawing import draw_curves, nice_ticks
from course_lib.live_view.front_end import watched
from course_lib.live_view.launch_view import LaunchView
from course_lib.live_view.progress import Point, Progress, seconds_in_words
from course_lib.live_view.rank_html import ranks_html, ranks_text
from course_lib.live_view.rank_text import RankText
from course_lib.live_view.training_html import training_html, training_text
from course_lib.live_view.training_view import INTERVAL, NoView, TrainingView, view_of_training

SVG = "{http://www.w3.org/2000/svg}"


def points(count):
    return [Point(e, 2.0 * e, 1000.0, 2.0 / e, 1 - 0.7 / e, 2.2 / e, 1 - 0.8 / e) for e in range(1, count + 1)]


class Tags(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.open, self.text = [], [], [], ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


class Sink:
    """Takes what a view shows, as JSON, the way a rank sends it."""

    def __init__(self):
        self.shown = []

    def begin(self):
        self.begun = True

    def show(self, progress):
        self.shown.append(Progress.from_json(progress.to_json()))


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def record(epoch, seconds=1.0):
    return SimpleNamespace(**Point(epoch, seconds * epoch, 64.0, 1.0, 0.5, 1.1, 0.4)._asdict())


def follow(view, clock, epochs, batches=8, step=1.0, validation=2.0):
    """A training whose steps and validation take given times."""
    with view:
        for epoch in range(1, epochs + 1):
            for _ in view.batches([(None, [0] * 8)] * batches, epoch):
                clock.now += step
            view.validating()
            clock.now += validation
            with view.lines():
                print("line", epoch)
            view.epoch_done(record(epoch))


def test_a_training_is_followed_within_and_between_epochs():
    sink, clock = Sink(), Clock()
    follow(TrainingView(sink, 3, clock=clock, ranks=2), clock, 3)
    first, *_, last = sink.shown
    assert (first.epoch, first.images, first.part, first.points) == (1, 16, 1 / 8, [])  # 8 images a rank
    assert first.images_per_sec == 16.0  # 8 images a second on each of two ranks
    assert first.seconds_left == pytest.approx(8 * 3 - 1)  # validation is not known yet
    fourth = next(state for state in sink.shown if state.epoch == 2 and state.images == 48)
    assert fourth.seconds_left == pytest.approx(2 * 10 - 3)  # by now it is: an epoch takes ten seconds
    assert [state.share for state in sink.shown] == sorted(state.share for state in sink.shown)
    assert fourth.share == pytest.approx((1 + 3 / 8) / 3)
    assert any(state.phase == "validating" and state.share == pytest.approx(2 / 3) for state in sink.shown)
    assert last.phase == "finished" and last.share == 1.0 and [point.epoch for point in last.points] == [1, 2, 3]
    assert last.headline() == "3 epochs, 3 s of training"
    assert last.details() == "2 ranks · validation accuracy 40.0%"


def test_it_is_shown_at_most_twice_a_second():
    sink, clock = Sink(), Clock()
    times = []
    sink.show = lambda progress: times.append(clock.now)
    follow(TrainingView(sink, 30, clock=clock), clock, 30, step=0.01, validation=0.03)
    gaps = [after - before for before, after in pairwise(times)]
    assert min(gaps[:-1]) >= INTERVAL == 0.5  # the last is the end, which is shown in any case
    assert len(times) in (6, 7, 8)


@pytest.mark.parametrize("quiet, shown", [(True, 0), (False, 1)])
def test_a_short_quiet_training_is_not_shown(quiet, shown):
    sink, clock = Sink(), Clock()
    follow(TrainingView(sink, 1, clock=clock, quiet=quiet), clock, 1, step=0.01, validation=0.0)
    assert len(sink.shown) == shown


def test_what_it_prints_is_kept_or_let_through(capsys):
    sink, clock = Sink(), Clock()
    follow(TrainingView(sink, 2, clock=clock, keeps_lines=True), clock, 2)
    assert capsys.readouterr().out == "" and sink.shown[-1].lines == ["line 1", "line 2"]
    follow(TrainingView(sink, 2, clock=clock), clock, 2)
    assert capsys.readouterr().out == "line 1\nline 2\n" and sink.shown[-1].lines == []


def test_a_view_that_cannot_be_drawn_becomes_text(capsys):
    sink, clock = Sink(), Clock()

    def fails(progress):
        if progress.epoch == 2:
            raise RuntimeError("no paper")

    sink.show = fails
    follow(TrainingView(sink, 3, clock=clock, keeps_lines=True), clock, 3)
    output = capsys.readouterr()
    assert output.out.splitlines() == ["no live view (RuntimeError: no paper)", "line 1", "line 2", "line 3"]
    assert output.err == ""


@pytest.mark.parametrize("error, phase", [(KeyboardInterrupt(), "interrupted"), (ValueError(), "failed")])
def test_a_training_that_ends_early_says_so(error, phase):
    sink = Sink()
    view = TrainingView(sink, 5, before=[record(1)], clock=Clock())
    with pytest.raises(type(error)) as raised, view:
        next(iter(view.batches([(None, [0])], 2)))
        raise error
    assert sink.shown[-1].headline() == f"{phase} in epoch 2 of 5" and len(sink.shown[-1].points) == 1
    shortened = getattr(raised.value, "_render_traceback_", None)
    assert (shortened is not None) == (phase == "interrupted")
    assert not shortened or shortened() == ["KeyboardInterrupt: the training was stopped in epoch 2 of 5"]


def test_where_nobody_looks_the_batches_are_the_same_object(capsys):
    assert not watched()
    view = view_of_training(3, [])
    assert type(view) is NoView
    batches = [1, 2]
    with view:
        assert view.batches(batches, 1) is batches
        with view.lines():
            print("as ever")
        assert capsys.readouterr().out == "as ever\n"


def test_importing_it_imports_nothing_of_notebooks():
    imports = "import sys, course_lib.live_view.launch_view, course_lib.live_view.training_view"
    code = f"{imports}; print([name for name in ('IPython', 'matplotlib', 'torch', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_curves_are_where_their_numbers_are():
    drawing = ElementTree.fromstring(draw_curves(points(4), 4))
    lines = [element for element in drawing.iter(SVG + "polyline")]
    assert len(lines) == 4
    for line, name in zip(lines, ("train_accuracy", "val_accuracy", "train_loss", "val_loss"), strict=True):
        places = [tuple(map(float, place.split(","))) for place in line.get("points").split()]
        values = [getattr(point, name) for point in points(4)]
        steps = {round(b[0] - a[0], 1) for a, b in pairwise(places)}
        assert len(steps) <= 2 and max(steps) - min(steps) < 0.2  # epochs evenly spaced
        slope = [(b[1] - a[1]) / (w - v) for a, b, v, w in zip(places, places[1:], values, values[1:], strict=False)]
        assert max(slope) - min(slope) < 0.02 * abs(slope[0]) and slope[0] < 0  # y falls as the value rises, linearly
    labels = [element.text for element in drawing.iter(SVG + "text")]
    assert {"accuracy", "loss", "training", "validation", "epoch", "100%"} <= set(labels)
    assert dict(curve_drawing.COLOURS) == {"validation": plots.COLOURS["measured"], "training": plots.COLOURS["other"]}


def test_a_loss_that_is_no_number_leaves_a_gap():
    broken = points(5)
    broken[2] = broken[2]._replace(val_loss=float("nan"), train_loss=float("inf"))
    drawing = ElementTree.fromstring(draw_curves(broken, 5))
    assert len(list(drawing.iter(SVG + "polyline"))) == 6
    assert "nan" not in draw_curves(broken, 5) and "inf" not in draw_curves(broken, 5)
    ElementTree.fromstring(draw_curves([broken[2]._replace(train_accuracy=float("nan"))], 1))


def test_nice_ticks_enclose_their_range():
    chance = random.Random(1)
    for _ in range(300):
        lowest, span = chance.uniform(-5, 5), 10 ** chance.uniform(-5, 5)
        ticks = nice_ticks(lowest, lowest + span)
        assert ticks[0] <= lowest + 1e-6 * span and ticks[-1] >= lowest + span * (1 - 1e-6) and 2 <= len(ticks) <= 7
    assert nice_ticks(0.0, 1.0) == [0, 0.25, 0.5, 0.75, 1]


def test_text_from_a_training_is_escaped_and_the_size_is_bounded():
    attack = "</pre><script>alert(1)</script> & \"quotes\" 'and'"
    progress = Progress(1000, points=points(1000), lines=[attack], earlier=[attack] * 50, phase=attack)
    html = training_html(progress)
    page = Tags(html)
    assert set(page.tags) == {"div", "b", "img", "pre"} and page.open == []
    assert page.text.count(attack) == 1 + 20 + 1  # the line, 20 earlier trainings, the headline
    assert [name for name, _ in page.attributes if name.startswith("on")] == []
    (image,) = [value for name, value in page.attributes if name == "src"]
    drawing = base64.b64decode(image.removeprefix("data:image/svg+xml;base64,"))
    assert len(drawing) < 60_000
    drawn = [len(line.get("points").split()) for line in ElementTree.fromstring(drawing).iter(SVG + "polyline")]
    assert len(drawn) == 4 and max(drawn) <= curve_drawing.MOST_POINTS + 1 == 301
    assert "(30 earlier trainings)" in training_text(progress)


def test_durations_in_words():
    told = {0.4: "0 s", 59.4: "59 s", 60: "1 min", 125: "2 min 5 s", 3600: "1 h", 4320: "1 h 12 min"}
    assert {seconds: seconds_in_words(seconds) for seconds in told} == told


def test_a_ranks_trainings_reach_the_other_end_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_channel, "_current", None)
    monkeypatch.setenv("WORLD_SIZE", "4")
    reader = rank_channel.ProgressReader(tmp_path)
    assert reader.read() is None
    rank_channel.open_channel(tmp_path)
    for number in range(2):
        with view_of_training(1, []) as view:
            list(view.batches([(None, [0, 1])], 1))
            view.epoch_done(record(1))
        found = reader.read()
        assert found.phase == "finished" and found.ranks == 4 and found.points == [Point(**vars(record(1)))]
        assert len(found.earlier) == number
        assert reader.read() is None  # nothing new


def feed(path, *chunks):
    """A rank's text after each chunk that it writes."""
    text = RankText(path)
    path.touch()
    for chunk in chunks:
        with path.open("ab") as file:
            file.write(chunk)
        text.read()
        yield text


def test_lines_are_whole_whatever_the_pieces(tmp_path):
    whole = "one\nzwö ↔\n\n  four\n"
    raw = whole.encode()
    for seed in range(50):
        chance = random.Random(seed)
        cuts = sorted(chance.sample(range(len(raw)), 5))
        pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
        *_, text = feed(tmp_path / str(seed), *pieces)
        assert list(text.lines) == whole.splitlines() and text.count == 4 and text.current() == list(text.lines)


def test_a_line_that_is_being_written_is_shown_and_counted_once(tmp_path):
    states = [(text.count, text.current()) for text in feed(tmp_path / "log", b"half", b" and half\n", b"end")]
    assert states == [(0, ["half"]), (1, ["half and half"]), (1, ["half and half", "end"])]
    text = RankText(tmp_path / "log")
    assert text.read(to_the_end=True) and (text.count, list(text.lines)) == (2, ["half and half", "end"])
    assert not RankText(tmp_path / "none").read()


def test_progress_bars_leave_one_line(tmp_path):
    bar = b"".join(b"\r%3d%%|##" % share for share in range(100)) + b"\r100%|## done\r\n"
    *_, text = feed(
        tmp_path / "log", *(bar[i : i + 7] for i in range(0, len(bar), 7)), b"\x1b[31mred\x1b[0m\ttab\x00\n"
    )
    assert list(text.lines) == ["100%|## done", "red     tab"]
    *_, text = feed(tmp_path / "endless", *[b"\r" + b"x" * 1500] * 50)
    assert len(text._rest) < 3 * rank_text.WIDEST and text.current() == ["x" * 1500]


def test_a_flood_keeps_the_last_lines_and_counts_all(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"line %06d of many\n" % number for number in range(100_000)))
    text = RankText(log)
    text.read(to_the_end=True)
    assert text.count == 100_000 and text.left_out == 100_000 - rank_text.KEPT
    assert text.lines[-1] == "line 099999 of many" and text.lines[0] == f"line {100_000 - rank_text.KEPT:06d} of many"


def test_a_line_whose_middle_was_skipped_is_not_joined(tmp_path):
    *_, text = feed(tmp_path / "log", b"begun", b"x" * 4 * rank_text.READ + b"\nend\n")
    assert text.count == 2 and set(text.lines[0][:100]) == {"x"} and text.lines[1] == "end"


def said(tmp_path, **lines):
    texts = {}
    for name, number in lines.items():
        rank = int(name[1:])
        (tmp_path / name).write_text("".join(f"{rank}.{i} <b>&\n" for i in range(number)))
        texts[rank] = RankText(tmp_path / name)
        texts[rank].read(to_the_end=True)
    return texts


def test_ranks_are_told_apart_and_escaped(tmp_path):
    texts = said(tmp_path, r0=3, r1=0, r2=rank_html.OPEN + 1, r3=500)
    page = Tags(ranks_html(texts, over=True, note="<i>there</i>"))
    assert page.open == [] and "i" not in page.tags and page.tags.count("details") == 2
    assert page.tags.count("b") == 3  # the ranks' names: rank 1 has said nothing
    heads = re.findall(r"rank (\d)", page.text)
    assert heads == ["0", "2", "3"]
    assert page.text.count("<b>&") == 3 + (16 + 1) + (200 + 1)  # the last line stands in the summary, too
    assert "(300 lines before these: <i>there</i>)" in page.text
    running = Tags(ranks_html(texts, over=False))
    assert "details" not in running.tags and running.text.count("<b>&") == 3 + 6 + 6
    plain = ranks_text(texts).splitlines()
    assert plain[:4] == ["[rank 0] 0.0 <b>&", "[rank 0] 0.1 <b>&", "[rank 0] 0.2 <b>&", "[rank 2] 2.0 <b>&"]
    assert len(plain) == 3 + 16 + 1 + 200


def test_a_launch_whose_view_fails_still_shows_the_lines(tmp_path, monkeypatch):
    (tmp_path / "log").write_text("said\n")
    view = LaunchView(tmp_path, lambda: {0: tmp_path / "log"}, clock=(clock := Clock()))
    (tmp_path / rank_channel.NAME).write_text("no JSON")
    clock.now += 1
    view.look()
    caught = StringIO()
    with redirect_stdout(caught):
        view.close()
    assert caught.getvalue() == "[rank 0] said\n"


def test_a_launch_s_view_that_fails_says_so_once_and_the_lines_come_at_the_end(tmp_path, capsys):
    def logs():
        raise OSError("no disk")

    view = LaunchView(tmp_path, logs, clock=(clock := Clock()))
    for _ in range(3):
        clock.now += 1
        view.look()
    assert capsys.readouterr().out == "no live view (OSError: no disk)\n"
