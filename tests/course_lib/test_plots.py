"""The figures show the numbers that they are given, in the course's look."""

import math
import re
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_rgb
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook, new_output

from course_lib import plots
from course_lib.distributed.messages import owned_blocks
from course_lib.distributed.parameter_server import staleness_of_order
from course_lib.live_view.cell_display import GREY
from course_lib.metrics.published_runs import PUBLISHED_RUNS
from course_lib.plots import (
    asynchrony,
    communication,
    curves,
    data_parallel,
    one_device,
    parallel_sgd,
    scaling_study,
)
from course_lib.plots.curvature import (
    block_diagonal,
    cost_of_a_step,
    damping_sweep,
    fisher_blocks,
    layer_owners,
    loss_curves,
    race,
)
from course_lib.plots.style import COLOURS, PALETTE, series_style
from course_lib.runs.sweep.outcome.figures import _curves

CURVE = pd.DataFrame({"epoch": [0, 1, 2], "time": [0.0, 3.0, 6.0], "val_accuracy": [0.0, 0.5, 0.6]})


def labelled(axes):
    return {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}


def bands(axes):
    return [collection.get_paths()[0].vertices for collection in axes.collections]


FIGURES = {
    "step times": lambda: plots.step_times([50.0, 10.0, 11.0], 10.0),
    "scaling": lambda: plots.scaling({"a": {1: 1.0, 2: 1.7}}, "t"),
    "accuracies": lambda: plots.final_accuracies({"a": [0.8, 0.82], "b": [0.7]}, "t", reference="a"),
    "batches": lambda: plots.accuracy_against_batch({"a": {32: [0.8, 0.82], 64: [0.7]}}, "t"),
    "messages": lambda: communication.message_times([8, 800], [1e-5, 2e-5], 1e-5, 1e-8),
    "predictions": lambda: communication.predicted_times({"p": {"ring": [1e-3, 2e-3]}}, [2, 4], "t").axes[0],
    "bandwidths": lambda: communication.bandwidths([8, 800], {"ring": [1e9, 2e9]}, "t", 1e9),
    "bytes": lambda: communication.sent_bytes({"ring": [3, 3], "tree": [6, 0]}, 3, "t"),
    "throughput models": lambda: one_device.throughput_models(
        {4: 10.0, 8: 15.0, 16: 16.0}, {"a + bB": {4: 9.0, 16: 17.0}}
    ),
    "parts of a step": lambda: one_device.step_parts(
        {"a": {"data": 1.0, "forward": 2.0}, "b": {"data": 0, "forward": 1}}, "t"
    ),
    "memory": lambda: one_device.memory_against_batch({"a": (1e6, 1e6), "b": (1e8, 1e7)}, 1e10, "t"),
    "forgotten zero_grad": lambda: one_device.forgotten_zero_grad(
        {"with": ([2.0, 1.0], [3.0, 2.0]), "without": ([2.0, 4.0], [3.0, 9.0])}
    ).axes[0],
    "landscapes": parallel_sgd.two_landscapes,
    "speed-ups": lambda: parallel_sgd.speedups({"a": {1: [1.0], 2: [1.5, 1.7]}}, "t"),
    "loss between": lambda: parallel_sgd.loss_between({"a": [(1.0, 0.5), (2.0, 0.4), (1.1, 0.5)]}, [0, 0.5, 1], "t"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_the_course_s_look_and_leaves_the_caller_s_alone(name):
    before = dict(plt.rcParams)
    axes = FIGURES[name]()
    axes.figure.canvas.draw()
    assert not axes.spines["top"].get_visible() and not axes.spines["right"].get_visible()
    assert axes.get_title(loc="left") or axes.figure.get_suptitle()
    assert any(line.get_visible() and line.get_alpha() == 0.25 for line in axes.get_xgridlines())
    assert axes.get_legend() is None or not axes.get_legend().get_frame_on()
    assert dict(plt.rcParams) == before


def test_a_speedup_has_the_ideal_one_beside_it():
    axes = plots.scaling({"a": {1: 1.0, 2: 1.7}}, "t")
    assert [list(line.get_ydata()) for line in axes.lines] == [[1, 2], [1.0, 1.7]]


def test_the_first_image_of_each_class():
    images = torch.arange(4 * 3 * 2 * 2, dtype=torch.uint8).view(4, 3, 2, 2)
    row = one_device.first_images(images, torch.tensor([1, 0, 0, 1]), ["a/b", "c", "never"], 3).axes
    assert [axes.get_title(loc="left") for axes in row] == ["a", "c", "never"] and not row[2].images
    for axes, number in zip(row[:2], (1, 0), strict=True):
        assert torch.equal(torch.as_tensor(axes.images[0].get_array()), images[number].permute(1, 2, 0))


def test_a_block_has_a_stripe_for_each_rank_in_it():
    start, step = owned_blocks.ring_steps([[(1, [1]), (0, [0])]], "t").axes
    colours = [[patch.get_facecolor()[:3] for patch in axes.patches if patch.get_fill()] for axes in (start, step)]
    one, other = (plt.matplotlib.colors.to_rgb(colour) for colour in PALETTE[:2])
    assert colours == [[one, one, other, other], [one, one, other, one, other, other]]
    assert sum(axes.get_title(loc="left") != "" for axes in owned_blocks.before_and_after().axes) == 7
    assert len(owned_blocks.topologies().axes) == 3


def test_a_label_has_the_same_colour_in_bars_and_lines():
    bars = communication.sent_bytes({"ring": [3], "tree": [6]}, 3, "t").containers
    lines = communication.bandwidths([8, 800], {"ring": [1e9, 2e9], "tree": [1e9, 2e9]}, "t").lines
    assert [bar[0].get_facecolor() for bar in bars] == [plt.matplotlib.colors.to_rgba(c) for c in PALETTE[:2]]
    assert [line.get_color() for line in lines] == PALETTE[:2]


@pytest.mark.parametrize("columns", [CURVE, CURVE.to_dict("list")], ids=["table", "lists"])
@pytest.mark.parametrize("against, first", [("time", 3.0), ("epoch", 1)])
def test_a_labs_curve_begins_at_its_first_epoch(columns, against, first):
    (line,) = curves.learning_curves({"a": columns}, "t", against=against).get_lines()
    assert line.get_xdata()[0] == first and list(line.get_ydata()) == [0.5, 0.6]


def test_a_curve_without_an_epoch_is_an_empty_one():
    (line,) = curves.learning_curves({"a": CURVE[:1]}, "t").get_lines()
    assert len(line.get_xdata()) == 0


def test_a_sweeps_curves_begin_at_the_first_epoch(tmp_path):
    (tmp_path / "one").mkdir()
    CURVE.to_csv(tmp_path / "one" / "learning_curve.csv", index=False)
    done = pd.DataFrame([{"ranks": 1, "variant": "", "batch_size": 8, "folder": "one", "final_accuracy": 0.6}])
    figure = _curves(tmp_path, done, [], "about")
    assert [list(line.get_xdata()) for line in figure.axes[0].get_lines()] == [[1, 2]]
    assert list(pd.read_csv(tmp_path / "one" / "learning_curve.csv").time) == [0.0, 3.0, 6.0]


def test_epochs_stand_side_by_side_and_the_first_is_marked():
    axes = scaling_study.epoch_seconds({"a": [3.0, 1.0], "b": [2.0, 1.5]}, "t")
    assert [[bar.get_height() for bar in bars] for bars in axes.containers] == [[3.0, 1.0], [2.0, 1.5]]
    assert [[bool(bar.get_hatch()) for bar in bars] for bars in axes.containers] == [[True, False]] * 2
    centres = [[bar.get_x() + bar.get_width() / 2 for bar in bars] for bars in axes.containers]
    assert centres == [pytest.approx([0.8, 1.8]), pytest.approx([1.2, 2.2])]


def test_efficiencies_are_lines_over_the_batch():
    axes = scaling_study.efficiencies({"weak": {16: 0.6, 64: 0.8}, "strong": {64: 0.5}}, "t")
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.6, 0.8], [0.5], [1, 1]]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["16", "64"]


def test_the_fit_is_drawn_with_its_errors_and_the_held_out_point_is_open():
    mib = 2**20
    line = {mib: (1e-3, 1e-4), 4 * mib: (4e-3, 2e-4)}
    measured = {mib: 1.1e-3, 2 * mib: 2.5e-3, 3 * mib: 3.3e-3, 4 * mib: 4.1e-3}
    axes = scaling_study.fitted_sums(measured, 2 * mib, [3 * mib], line, "t")
    fit, fitted, held_out, between = axes.lines
    assert list(fit.get_ydata()) == pytest.approx([1, 4]) and list(fit.get_xdata()) == [1, 4]
    assert bands(axes)[0][:, 1].min() == pytest.approx(0.8) and bands(axes)[0][:, 1].max() == pytest.approx(4.4)
    assert list(fitted.get_ydata()) == pytest.approx([1.1, 4.1]) and fitted.get_markerfacecolor() != "white"
    assert list(held_out.get_ydata()) == pytest.approx([2.5]) and held_out.get_markerfacecolor() == "white"
    assert list(between.get_ydata()) == pytest.approx([3.3]) and between.get_marker() == "x"


def test_strong_scaling_divides_the_images_and_weak_does_not():
    strong, weak = scaling_study.strong_and_weak().axes
    assert [bar.get_height() for bar in strong.patches] == [64, 32, 32, 16, 16, 16, 16]
    assert [bar.get_height() for bar in weak.patches] == [64] * 7
    assert [tick.get_text() for tick in weak.get_xticklabels()] == ["N = 1", "N = 2", "N = 4"]


def test_each_rank_has_the_megabytes_that_it_sent_and_an_arrow_for_each_message():
    sent = {"1 server": [3_000_000, 1_000_000, 1_000_000], "ring": [2_000_000] * 3, "3 servers": [2_000_000] * 3}
    panels = scaling_study.who_sends(sent).axes
    texts = [[text.get_text() for text in axes.texts if text.get_text()] for axes in panels]
    assert texts == [["3.0", "1.0", "1.0"], ["2.0"] * 3, ["2.0"] * 3]
    assert [sum(not text.get_text() for text in axes.texts) for axes in panels] == [4, 3, 6]


def test_a_bucket_starts_when_it_is_ready_and_the_one_before_has_ended():
    steps = {"apart": (1.0, 2.0, [0.5, 0.5], False, 4.0), "overlap": (1.0, 2.0, [1.5, 0.5], True, 4.0)}
    axes = scaling_study.step_timelines(steps, "t")
    bars = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    assert bars[:5] == [(0, 1), (1, 1), (3, 0.5), (2, 1), (3.5, 0.5)]
    assert bars[5:] == [(0, 1), (1, 1), (2, 1.5), (2, 1), (3.5, 0.5)]
    assert [text.get_text() for text in axes.texts] == ["4.0 s", "4.0 s"]


def test_memory_is_a_line_for_each_stage_and_one_for_the_device():
    axes = scaling_study.memory_per_rank({0: {1: 112, 2: 112}, 3: {1: 112, 2: 56}}, 80, "t")
    assert [list(line.get_ydata()) for line in axes.lines] == [[112, 112], [112, 56], [80, 80]]
    assert axes.texts[0].get_text() == "80 GB"


def test_extrapolations_have_their_bands_and_the_ideal_beside_them():
    axes = scaling_study.extrapolated_speedups({"m": {1: (1, 1, 1), 2048: (50, 20, 90)}}, {2: 1.7}, "t")
    assert [list(line.get_ydata()) for line in axes.lines] == [[1, 2048], [1, 50], [1.7]]
    assert (bands(axes)[0][:, 1].min(), bands(axes)[0][:, 1].max()) == (1, 90)
    assert axes.get_yscale() == "log"


def test_every_published_run_is_in_the_figure():
    axes = scaling_study.published_runs(PUBLISHED_RUNS, {"ring": {1: (6000, 6000, 6000), 2048: (300, 200, 500)}}, "t")
    dots = {(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines if len(line.get_xdata()) == 1}
    assert dots == {(run.chips, run.seconds / 60) for run in PUBLISHED_RUNS}
    assert list(axes.lines[0].get_ydata()) == [100, 5]
    assert np.allclose(sorted(set(bands(axes)[0][:, 1])), sorted({100, 200 / 60, 500 / 60}))
    texts = [text.get_text() for text in axes.texts]
    assert "V100, 11/2018: 3.7 min" in texts and len(texts) == 5


def test_the_histogram_counts_every_update_once():
    axes = asynchrony.staleness_histogram({1: [0, 0], 4: [2, 3, 3, 30]})
    heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
    assert heights == [[1.0], [0.25, 0.5, 0.25]]
    assert axes.containers[1][-1].get_x() < 13  # what is staler stands at the edge
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["1 worker: mean 0.00", "4 workers: mean 9.50"]
    assert axes.get_title(loc="left") == "With W = 1, 4 a gradient is 0.0, 9.5 updates old in the mean"


def test_the_diagram_tells_staleness_as_counted_from_the_order():
    order = [1, 2, 1, 1, 2]
    told = [text.get_text() for text in asynchrony.version_diagram(order).texts if "stale" in text.get_text()]
    assert told == [f"v{place}, stale by {stale}" for place, stale in enumerate(staleness_of_order(order), start=1)]


def test_timelines_begin_after_what_is_skipped():
    spans = {"a way": [[(0.1, 0.05), (0.2, 0.01)], [(0.15, 0.1)]]}
    figure = asynchrony.worker_timelines(spans, {"a way": 1.5}, seconds=0.3, skip=0.1)
    (axes,) = figure.axes
    fast, slow = (bars.get_paths() for bars in axes.collections)
    assert [path.get_extents().x0 for path in (*fast, *slow)] == pytest.approx([0, 100, 50])  # ms
    assert "1.50 s" in axes.get_title(loc="left") and axes.get_xlim() == (0, 300)


def test_lost_updates_are_beside_what_k_of_n_predicts():
    axes = asynchrony.lost_against_features({16: 0.4, 64: 0.11}, {16: 1.0, 64: 0.99}, 16)
    lines = [list(line.get_ydata()) for line in axes.lines]
    assert lines == [[1.0, 0.99], pytest.approx([0.4, 0.1]), [0.4, 0.11]]
    assert "40% are lost, at 64 features 11.00%" in axes.get_title(loc="left")


def test_speedups_have_their_median_and_range():
    found = {"texts": {1: (1.0, 0.9, 1.1), 2: (1.8, 1.5, 1.9)}}
    figure = asynchrony.speedup_and_accuracy(found, {"texts": {1: [0.7, 0.8, 0.9], 2: [0.8]}}, cores=1)
    speedups, accuracies = figure.axes
    for axes, middle, ranges in (
        (speedups, [1.0, 1.8], [[0.9, 1.1], [1.5, 1.9]]),
        (accuracies, [0.8, 0.8], [[0.7, 0.9], [0.8, 0.8]]),
    ):
        (bars,) = axes.containers
        assert list(bars.lines[0].get_ydata()) == middle
        assert [list(segment[:, 1]) for segment in bars.lines[2][0].get_segments()] == [
            pytest.approx(r) for r in ranges
        ]
    assert "Up to 1.8 times" in figure.get_suptitle() and "1 core(s)" in [text.get_text() for text in speedups.texts]


def test_the_fishers_blocks_are_the_ones_asked_for_in_one_scale():
    exact, other = torch.arange(400.0).view(20, 20), torch.ones(20, 20)
    figure = fisher_blocks(exact, other, 2, "title", first=3)
    images = [axes.get_images()[0] for axes in figure.axes[:3]]
    block = exact[6:16, 6:16].numpy()
    for image, wanted in zip(images, (block, np.ones((10, 10)), block - 1), strict=True):
        assert np.allclose(image.get_array(), wanted)
        assert image.get_clim() == (-block.max(), block.max())


def test_loss_curves_begin_with_step_1():
    axes = loss_curves({"K-FAC, yours": [2.0, 1.0, 0.5], "SGD": [2.0, 1.9, 1.8]}, "title")
    lines = labelled(axes)
    assert lines["SGD"].get_xydata().tolist() == [[1, 2.0], [2, 1.9], [3, 1.8]]
    assert lines["SGD"].get_color() == COLOURS["other"] and axes.get_yscale() == "log"


def test_dampings_that_lost_the_training_are_crosses_at_the_edge():
    axes = damping_sweep({"batch 64": {0.001: math.inf, 0.01: math.nan, 0.1: 0.5, 1.0: 3.0}}, "title", highest=1.5)
    line = labelled(axes)["batch 64"]
    assert line.get_xydata().tolist() == [[0.001, 1.5], [0.01, 1.5], [0.1, 0.5], [1.0, 1.5]]
    crosses = next(line for line in axes.get_lines() if line.get_marker() == "x")
    assert crosses.get_xdata().tolist() == [0.001, 0.01, 1.0] and axes.get_ylim() == (0, 1.5)


def test_the_race_is_run_against_epochs_and_against_seconds():
    runs = [
        dict(epoch=[1, 2], time=[1.0, 2.0], accuracy=[0.5, 0.7]),
        dict(epoch=[1, 2], time=[3.0, 4.0], accuracy=[0.6, 0.8]),
    ]
    figure = race({"SGD": runs, "K-FAC": runs}, 0.65, "title")
    for axes, places in zip(figure.axes, ([1, 2], [2.0, 3.0]), strict=True):
        line = labelled(axes)["SGD"]
        assert line.get_xdata().tolist() == places and np.allclose(line.get_ydata(), [0.55, 0.75])
    lines = labelled(figure.axes[0])
    assert lines["SGD"].get_color() == COLOURS["other"] and lines["K-FAC"].get_color() == COLOURS["measured"]
    assert "65.0%" in [text.get_text() for text in figure.axes[0].texts]


def test_what_the_block_diagonal_drops_is_white():
    figure = block_diagonal(torch.ones(5, 5), [2, 3], ["one", "two"], "title")
    whole, kept = (axes.get_images()[0].get_array() for axes in figure.axes[:2])
    assert whole.min() == 1 and kept[:2, 2:].max() == 0 == kept[2:, :2].max() and kept[:2, :2].min() == 1


def test_who_inverts_and_who_receives():
    figure = layer_owners([(9, 4), (100, 10)], [1, 0], 2, "title")
    comm, mem = ([patch.get_facecolor()[:3] != (1.0, 1.0, 1.0) for patch in axes.patches] for axes in figure.axes)
    assert comm.count(True) == comm.count(False) == 4 and mem == [True] * 4


def test_the_parts_of_a_step_are_stacked():
    axes = cost_of_a_step({"a": {"forward": 1.0, "factors": 2.0}, "b": {"forward": 3.0, "factors": 4.0}}, "title")
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0, 1), (0, 3), (1, 2), (3, 4)]


def test_a_figure_is_shown_with_its_alternative_text(monkeypatch):
    shown = []
    monkeypatch.setattr("course_lib.plots.style.display", lambda data, raw, metadata: shown.append((data, metadata)))
    figure, _ = plt.subplots()
    plots.show('a line that rises, "x" < y')
    [(data, metadata)] = shown
    output = new_output("display_data", data, metadata=metadata)
    page = HTMLExporter().from_notebook_node(new_notebook(cells=[new_code_cell("", outputs=[output])]))[0]
    [picture] = ElementTree.fromstring(re.search("<img[^>]*>", page)[0].replace('">', '"/>')).iter("img")
    assert picture.get("alt") == data["text/plain"] == 'a line that rises, "x" < y'
    assert picture.get("src") == f"data:image/png;base64,{data['image/png']}" and not plt.fignum_exists(figure.number)


def contrast(colour, ground="#ffffff"):
    """WCAG 2.1's ratio of the relative luminances."""

    def luminance(one):
        parts = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in to_rgb(one)]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    dark, light = sorted((luminance(colour), luminance(ground)))
    return (light + 0.05) / (dark + 0.05)


def test_lines_have_wcag_s_contrast_and_differ_without_their_colours():
    assert contrast("#000000") == pytest.approx(21) and contrast("#777777") == pytest.approx(4.48, abs=0.01)
    with plt.style.context("course_lib.plots.course"):
        cycle = plt.rcParams["axes.prop_cycle"].by_key()
    assert cycle["color"] == PALETTE
    assert min(map(contrast, PALETTE)) >= 3  # of graphics; text needs 4.5
    assert min(contrast(colour) for colour in (COLOURS["reference"], GREY)) >= 4.5
    assert len(set(cycle["linestyle"])) == len(PALETTE)
    for key in ("marker", "linestyle"):
        assert len({series_style(index)[key] for index in range(4)}) == 4


def test_every_image_is_drawn_in_the_colour_of_its_rank():
    orders = {"without": [[[0, 2], [1, 3]]], "with": [[[3, 1], [2, 0]]]}
    figure = data_parallel.dealt_images(orders, "t")
    figure.canvas.draw()
    for axes, ranks in zip(figure.axes, ([0, 1, 0, 1], [1, 0, 1, 0]), strict=True):
        drawn = sorted((patch.get_x(), patch.get_facecolor()) for patch in axes.patches)
        assert [colour for _, colour in drawn] == [plt.matplotlib.colors.to_rgba(PALETTE[rank]) for rank in ranks]


def test_a_timeline_shows_every_all_reduce_of_every_setting():
    one = {"backward pass": [(0.0, 5.0)], "all-reduce": [(5.0, 9.0)]}
    several = {"backward pass": [(0.0, 2.0), (2.0, 12.0)], "all-reduce": [(2.0, 4.0), (12.0, 14.0)]}
    figure = data_parallel.backward_timeline({"one": one, "several": several}, "t")
    figure.canvas.draw()
    assert [[text.get_text() for text in axes.texts] for axes in figure.axes] == [["1"], ["1", "2"]]
    assert all(axes.get_xlim()[0] == 0 and axes.get_xlim()[1] > 14 for axes in figure.axes)


def test_the_picture_of_data_parallel_training_names_each_rank_s_images():
    figure = data_parallel.copies_and_shares(32)
    figure.canvas.draw()
    text = " ".join(text.get_text() for text in figure.axes[0].texts)
    assert "images 0…31 " in text and "images 32…63 " in text and "all-reduce" in text
