"""Lab 11's figures show the numbers that they are given."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from course_lib.metrics.published_runs import PUBLISHED_RUNS
from course_lib.metrics.scaling_model import Measurement, StepModel
from course_lib.plots import scaling_study as plots_scaling


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_epochs_stand_side_by_side_and_the_first_is_marked():
    axes = plots_scaling.epoch_seconds({"a": [3.0, 1.0], "b": [2.0, 1.5]}, "t")
    assert [[bar.get_height() for bar in bars] for bars in axes.containers] == [[3.0, 1.0], [2.0, 1.5]]
    assert [[bool(bar.get_hatch()) for bar in bars] for bars in axes.containers] == [[True, False]] * 2


def test_efficiencies_are_lines_over_the_batch():
    axes = plots_scaling.efficiencies({"weak": {16: 0.6, 64: 0.8}, "strong": {64: 0.5}}, "t")
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.6, 0.8], [0.5], [1, 1]]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["16", "64"]


def bands(axes):
    return [collection.get_paths()[0].vertices for collection in axes.collections]


def test_the_fit_is_drawn_with_its_errors_and_held_out_points_are_open():
    covariance = [[0.0] * 4 for _ in range(4)]
    covariance[0][0] = 1e-8
    model = StepModel(1e-3, 1e-5, 2e-4, 0.0, tuple(map(tuple, covariance)))
    fitted = [Measurement(1, 16, 100, 1.2e-3), Measurement(2, 16, 100, 1.6e-3), Measurement(2, 16, 900, 9.0)]
    held_out = [Measurement(2, 64, 100, 2.1e-3)]
    axes = plots_scaling.fitted_steps(model, fitted, held_out, 100, "t")
    one, two = (line for line in axes.lines if len(line.get_xdata()) == 60)
    assert one.get_ydata()[0] == pytest.approx(1.16) and two.get_ydata()[-1] == pytest.approx(2.04)
    assert bands(axes)[0][:, 1].min() == pytest.approx(1.16 - 0.2)
    assert bands(axes)[0][:, 1].max() == pytest.approx(1.64 + 0.2)
    points = {(line.get_xdata()[0], round(line.get_ydata()[0], 6), line.get_markerfacecolor() == "white")
              for line in axes.lines if len(line.get_xdata()) == 1}  # fmt: skip
    assert points == {(16, 1.2, False), (16, 1.6, False), (64, 2.1, True)}


def test_extrapolations_have_their_bands_and_the_ideal_beside_them():
    axes = plots_scaling.extrapolated_speedups({"m": {1: (1, 1, 1), 2048: (50, 20, 90)}}, {2: 1.7}, "t")
    assert [list(line.get_ydata()) for line in axes.lines] == [[1, 2048], [1, 50], [1.7]]
    assert (bands(axes)[0][:, 1].min(), bands(axes)[0][:, 1].max()) == (1, 90)
    assert axes.get_yscale() == "log"


def test_every_published_run_is_in_the_figure():
    axes = plots_scaling.published_runs(PUBLISHED_RUNS, {"ring": {1: (6000, 6000, 6000), 2048: (300, 200, 500)}}, "t")
    dots = {(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines if len(line.get_xdata()) == 1}
    assert dots == {(run.chips, run.seconds / 60) for run in PUBLISHED_RUNS}
    assert list(axes.lines[0].get_ydata()) == [100, 5]
    assert np.allclose(sorted(set(bands(axes)[0][:, 1])), sorted({100, 200 / 60, 500 / 60}))
    texts = [text.get_text() for text in axes.texts]
    assert "V100, 11/2018: 3.7 min" in texts and len(texts) == 5
