"""Lab 08's figures, the loss along a line, and the matching of neurons."""

import itertools

import pytest
import torch
from torch import nn

from course_lib.distributed import best_matching
from course_lib.plots.parallel_sgd import (
    accuracy_against_interval,
    accuracy_against_workers,
    loss_between,
    speedups,
    timelines,
    two_landscapes,
)
from course_lib.training.linear_interpolation import loss_along_line


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_best_matching_is_the_best_of_all_orders(count):
    for seed in range(20):
        similarity = torch.randn(count, count, generator=torch.Generator().manual_seed(seed))
        rows = torch.arange(count)
        best = max(similarity[rows, list(order)].sum() for order in itertools.permutations(range(count)))
        order = best_matching(similarity)
        assert sorted(order.tolist()) == list(range(count))
        assert similarity[rows, order].sum() == pytest.approx(best.item(), abs=1e-5)


def test_a_hidden_order_is_found():
    order = torch.randperm(300, generator=torch.Generator().manual_seed(3))
    found = best_matching(torch.eye(300)[order])
    assert torch.equal(found, order)


@pytest.mark.parametrize("odd", [torch.zeros(2, 3), torch.tensor([[float("nan")]]), torch.zeros(4)])
def test_what_is_no_table_of_similarities_is_refused(odd):
    with pytest.raises(ValueError, match="square matrix"):
        best_matching(odd)


def test_the_loss_along_a_line_is_that_of_its_points():
    """On a linear model with two points of data, by hand."""
    model = nn.Linear(1, 2, bias=False)
    first, second = ({"weight": torch.tensor([[w], [0.0]])} for w in (2.0, -4.0))
    batches = [(torch.tensor([[1.0], [1.0], [-1.0]]), torch.tensor([0, 0, 0]))]

    def between(a, b, t):
        return {name: torch.lerp(a[name], b[name], t) for name in a}

    found = loss_along_line(model, first, second, between, [0.0, 0.5, 1.0], batches)
    for (loss, accuracy), w in zip(found, (2.0, -1.0, -4.0), strict=True):
        ones, minus = (torch.nn.functional.softplus(torch.tensor(-s * w)).item() for s in (1, -1))
        assert loss == pytest.approx((2 * ones + minus) / 3, rel=1e-5)
        assert accuracy == pytest.approx(2 / 3 if w > 0 else 1 / 3)


def test_the_figures_show_what_they_are_given():
    axes = speedups({"wall": {1: [1.0, 1.0], 2: [1.5, 1.9]}}, "title")
    assert axes.get_title(loc="left") == "title" and list(axes.get_xticks()) == [1, 2]
    bars = axes.containers[0]
    assert list(bars.lines[0].get_ydata()) == [1.0, 1.7]
    low, high = bars.lines[2][0].get_segments()[1][:, 1]
    assert (low, high) == pytest.approx((1.5, 1.9))
    panels = accuracy_against_workers({"a": {1: [0.9], 3: [0.5, 0.7]}}, "t", 0.88)
    assert [axes.get_ylim() for axes in panels] == [(0.0, 1.02), (0.88, 1.0)]
    for axes in panels:
        assert list(axes.containers[0].lines[0].get_ydata()) == pytest.approx([0.9, 0.6])
    axes = loss_between({"own": [(0.1, 1.0), (2.0, 0.1), (0.2, 0.9)]}, [0.0, 0.5, 1.0], "t")
    assert list(axes.lines[0].get_ydata()) == [0.1, 2.0, 0.2]
    assert [line.get_ydata()[0] for line in axes.lines[1:]] == [0.1, 2.0, 0.2]
    axes = accuracy_against_interval({"a": {"5": [0.9], "once": [0.2, 0.4]}}, "t")
    assert list(axes.containers[0].lines[0].get_ydata()) == pytest.approx([0.9, 0.3])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["5", "once"]
    convex, valleys = (
        line.get_ydata() for line in [line for line in two_landscapes().lines if len(line.get_xdata()) > 2]
    )
    assert (convex[2:] - 2 * convex[1:-1] + convex[:-2] > 0).all() and not (
        valleys[2:] - 2 * valleys[1:-1] + valleys[:-2] > 0
    ).all()


def test_the_time_lines_differ_by_their_messages():
    bars = timelines(steps=12, every=4, message=0.5).patches
    ends = {}
    for bar in bars:
        lane = round(bar.get_y() + bar.get_height() / 2, 3)
        ends[lane] = max(ends.get(lane, 0), bar.get_x() + bar.get_width())
    assert sorted(ends.values()) == pytest.approx([12.5, 12.5, 13.5, 13.5, 18, 18])
