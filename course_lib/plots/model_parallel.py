"""The figures of lab 14: a pipeline's timeline, its bubble, and losses of layouts that compute the same."""

import statistics
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_lib.plots import style
from course_lib.plots.style import COLOURS, in_course_style, new_axes

__all__ = ["bubbles", "divided_matrices", "loss_curves", "timelines"]

Action = tuple[str, int, float, float]
"""``("F" or "B", micro-batch, start, end)``, in any unit of time."""


@in_course_style
def timelines(panels: Mapping[str, Sequence[Sequence[Action]]], title: str, unit: str = "slots") -> Figure:
    """One panel for each schedule, one row for each stage: what it computes when, with the micro-batches' numbers."""
    figure, all_axes = plt.subplots(
        len(panels), 1, figsize=(9, 1.7 * len(panels) + 0.4), sharex=True, layout="constrained", squeeze=False
    )
    for axes, (name, stages) in zip(all_axes.flat, panels.items(), strict=True):
        begin = min(start for stage in stages for _, _, start, _ in stage)
        for place, stage in enumerate(stages):
            for kind, number, start, end in stage:
                colour = COLOURS["measured" if kind == "F" else "other"]
                axes.barh(place, end - start, left=start - begin, height=0.8, color=colour, edgecolor="white")
                axes.text((start + end) / 2 - begin, place, str(number), ha="center", va="center", color="white", fontsize=8)
        axes.set(yticks=range(len(stages)), ylabel="stage")
        axes.invert_yaxis()
        axes.grid(False)
        axes.set_title(name, loc="left", fontsize=10)
    all_axes[-1, 0].set_xlabel(f"time ({unit}); blue: forward, orange: backward, white: waiting")
    style.figure_title(figure, title)
    return figure


@in_course_style
def bubbles(
    micro_batches: Sequence[int], measured: Mapping[str, Sequence[Sequence[float]]], stages: int, title: str
) -> Axes:
    """The share of waiting of each schedule, median and range of its runs, and the formula's line."""
    axes = new_axes(title, "micro-batches", "share of the time in which a stage waits")
    formula = [(stages - 1) / (m + stages - 1) for m in micro_batches]
    axes.plot(micro_batches, formula, **style.REFERENCE, label="(p − 1)/(m + p − 1)")
    for index, (name, runs) in enumerate(measured.items()):
        middle = [statistics.median(each) for each in runs]
        below = [median - min(each) for median, each in zip(middle, runs, strict=True)]
        above = [max(each) - median for median, each in zip(middle, runs, strict=True)]
        look = style.series_style(index) | {"linestyle": "", "capsize": 3}
        beside = [m + 0.3 * (index - 0.5) for m in micro_batches]  # the schedules' shares are nearly equal
        axes.errorbar(beside, middle, (below, above), **look, label=f"{name}, measured (median, range)")
    axes.set_ylim(0, 1)
    style.percent(axes.yaxis)
    axes.legend()
    return axes


@in_course_style
def loss_curves(curves: Mapping[str, Sequence[float]], title: str) -> Axes:
    """The training loss of each layout against the step."""
    axes = new_axes(title, "step", "training loss (nats per character)")
    for index, (name, losses) in enumerate(curves.items()):
        look = style.series_style(index) | {"marker": ""}
        axes.plot(range(1, len(losses) + 1), losses, **look, linewidth=3 - 0.5 * index, label=name)
    axes.legend()
    return axes


@in_course_style
def divided_matrices(title: str) -> Figure:
    """The weights of an MLP on two ranks: the first by output features, the second by input features."""
    figure, axes = plt.subplots(figsize=(8, 2.6), layout="constrained")
    pieces = (
        ("x", 0, 1, 2, None), ("first weight, by columns", 3, 2, 4, "columns"), ("hidden", 9, 1, 4, "columns"),
        ("second weight, by rows", 15, 4, 2, "rows"), ("sum = y", 19, 1, 2, None),
    )  # fmt: skip
    for name, left, height, width, cut in pieces:
        for rank, colour in enumerate((COLOURS["measured"], COLOURS["other"])):
            w, h = (width / 2, height) if cut == "columns" else (width, height / 2)
            at = (left + rank * w, 0) if cut == "columns" else (left, (1 - rank) * h)
            if cut is None:
                at, h, colour = (left, 0), height, COLOURS["reference"]
            axes.add_patch(plt.Rectangle(at, w, h, facecolor=colour, edgecolor="white", alpha=0.8))
        axes.text(left + width / 2, -0.5, name, ha="center", va="top", fontsize=9)
    axes.set(xlim=(-1, 22), ylim=(-1.3, 4.3), aspect="equal")
    axes.axis("off")
    style.figure_title(figure, title)
    return figure
