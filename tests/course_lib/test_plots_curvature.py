"""Lab 10's figures: what is drawn is what was given."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from course_lib.plots.curvature import damping_sweep, fisher_blocks, interval_trade, loss_curves, race, valley
from course_lib.plots.curves import COLOURS


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def labelled(axes):
    return {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}


def test_the_valley_has_the_paths_and_the_lowest_place_in_sight():
    paths = {"SGD": [(0.0, 0.0), (2.0, 1.0)], "K-FAC": [(0.0, 0.0), (1.0, -1.0)]}
    axes = valley(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), (1.0, -1.0), paths, "title")
    lines = labelled(axes)
    assert {name: np.array(lines[name].get_xydata()).tolist() for name in paths} == {
        name: [list(place) for place in path] for name, path in paths.items()
    }
    assert lines["SGD"].get_color() == COLOURS["other"] and lines["K-FAC"].get_color() == COLOURS["measured"]
    (low_x, high_x), (low_y, high_y) = axes.get_xlim(), axes.get_ylim()
    assert low_x < 0 and high_x > 2 and low_y < -1 and high_y > 1
    assert axes.get_title(loc="left") == "title"


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
    figure = race({"SGD, 1 rank": runs, "K-FAC, 2 ranks": runs}, 0.65, "title")
    for axes, places in zip(figure.axes, ([1, 2], [2.0, 3.0]), strict=True):
        line = labelled(axes)["SGD, 1 rank"]
        assert line.get_xdata().tolist() == places and np.allclose(line.get_ydata(), [0.55, 0.75])
    lines = labelled(figure.axes[0])
    assert lines["K-FAC, 2 ranks"].get_markerfacecolor() == "white" != lines["SGD, 1 rank"].get_markerfacecolor()
    assert "65.0%" in [text.get_text() for text in figure.axes[0].texts]


def test_the_interval_trade_draws_the_means_and_sgd():
    rows = {
        1: {"ms": [40.0, 50.0], "megabytes": [7.0], "accuracy": [0.8]},
        10: {"ms": [10.0], "megabytes": [1.0], "accuracy": [0.7]},
    }
    figure = interval_trade(rows, {"ms": 8.0, "megabytes": 0.1, "accuracy": 0.75}, "title")
    assert [axes.get_ylabel() for axes in figure.axes] == ["ms a step", "MB a step and rank", "validation accuracy"]
    for axes, means, sgd in zip(figure.axes, ([45.0, 10.0], [7.0, 1.0], [0.8, 0.7]), (8.0, 0.1, 0.75), strict=True):
        joined = next(line for line in axes.get_lines() if line.get_linestyle() == "-" and len(line.get_xdata()) == 2)
        assert joined.get_xdata().tolist() == [1, 10] and joined.get_ydata().tolist() == means
        assert any(line.get_linestyle() == "--" and set(line.get_ydata()) == {sgd} for line in axes.get_lines())
