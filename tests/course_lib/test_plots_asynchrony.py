"""Lab 07's figures show the numbers that they are given."""

import matplotlib.pyplot as plt
import pytest

from course_lib.distributed.parameter_server import staleness_of_order
from course_lib.plots import asynchrony as plots_asynchrony


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_the_histogram_counts_every_update_once():
    axes = plots_asynchrony.staleness_histogram({1: [0, 0], 4: [2, 3, 3, 30]}, most=12)
    heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
    assert heights == [[1.0], [0.25, 0.5, 0.25]]
    assert axes.containers[1][-1].get_x() < 13  # what is staler stands at the edge
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "1 worker: mean 0.00",
        "4 workers: mean 9.50",
    ]


def test_the_diagram_tells_staleness_as_counted_from_the_order():
    order = [1, 2, 1, 1, 2]
    told = [text.get_text() for text in plots_asynchrony.version_diagram(order).texts if "stale" in text.get_text()]
    assert told == [f"v{place}, stale by {stale}" for place, stale in enumerate(staleness_of_order(order), start=1)]


def test_timelines_begin_after_what_is_skipped():
    spans = {"a way": [[(0.1, 0.05), (0.2, 0.01)], [(0.15, 0.1)]]}
    figure = plots_asynchrony.worker_timelines(spans, {"a way": 1.5}, seconds=0.3, skip=0.1)
    (axes,) = figure.axes
    fast, slow = (bars.get_paths() for bars in axes.collections)
    assert [path.get_extents().x0 for path in (*fast, *slow)] == pytest.approx([0, 100, 50])  # ms
    assert "1.50 s" in axes.get_title(loc="left") and axes.get_xlim() == (0, 300)
