"""Figures of lab 07: how stale gradients are, and who waits for whom."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from course_lib.plots.curves import COLOURS

__all__ = ["staleness_histogram", "version_diagram", "worker_timelines"]


def staleness_histogram(staleness: Mapping[int, Sequence[int]], most: int = 12) -> Axes:
    """Share of the updates with each staleness, for several numbers of workers.

    Parameters
    ----------
    staleness : mapping of number of workers to the staleness of each update
        At most four numbers.
    most : int
        What is staler is counted at the right edge.
    """
    _, axes = plt.subplots(figsize=(6.8, 3.6), layout="constrained")
    colours = [COLOURS["reference"], COLOURS["measured"], COLOURS["other"], COLOURS["third"]]
    width = 0.8 / len(staleness)
    for index, (workers, values) in enumerate(staleness.items()):
        counts = Counter(min(value, most) for value in values)
        places = [value + (index - (len(staleness) - 1) / 2) * width for value in sorted(counts)]
        shares = [counts[value] / len(values) for value in sorted(counts)]
        label = f"{workers} worker{'s' if workers > 1 else ''}: mean {statistics.fmean(values):.2f}"
        axes.bar(
            places,
            shares,
            width,
            color=colours[index],
            edgecolor="white",
            hatch=["", "//", "..", "xx"][index],
            label=label,
        )
    axes.set_title("A gradient of W workers is about W − 1 updates old", loc="left", fontsize=11)
    axes.set_xlabel(f"staleness (updates; {most} stands for {most} and more)")
    axes.set_ylabel("share of the updates")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.grid(alpha=0.25, axis="y")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return axes


def version_diagram(order: Sequence[int]) -> Axes:
    """A server between workers, as time goes on: gradients up, parameters back, and the versions.

    Parameters
    ----------
    order : sequence of int
        The worker, 1 or 2, whose gradient makes each update.
    """
    _, axes = plt.subplots(figsize=(7.6, 2.9), layout="constrained")
    heights, travel = {1: 1.0, 2: -1.0}, 0.16
    axes.axhline(0, color=COLOURS["reference"], linewidth=1)
    has = {worker: (0.0, 0) for worker in heights}  # when the last answer came, and its version
    for place, worker in enumerate(order, start=1):
        colour, height = COLOURS["measured" if worker == 1 else "other"], heights[worker]
        begun, version = has[worker]
        axes.barh(height, place - travel - begun, left=begun, height=0.42, color=colour, edgecolor="white")
        stale = place - 1 - version
        axes.text(
            (begun + place - travel) / 2, height, f"on v{version}", ha="center", va="center", color="white", fontsize=9
        )
        inner = height * 0.78
        for start, end in (((place - travel, inner), (place, 0)), ((place, 0), (place + travel, inner))):
            axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": colour})
        axes.plot(place, 0, "o", color=colour, markersize=5)
        axes.text(
            place,
            -0.16 * height,
            f"v{place}, stale by {stale}",
            ha="center",
            va="top" if height > 0 else "bottom",
            fontsize=9,
        )
        has[worker] = (place + travel, place)
    axes.set_yticks([1, 0, -1], ["worker 1", "server", "worker 2"])
    axes.set_xlim(-0.05, len(order) + 0.6)
    axes.set_ylim(-1.35, 1.35)
    axes.set_xticks([])
    axes.set_xlabel("time")
    axes.set_title(
        "A gradient is as stale as the updates that were made while it was computed", loc="left", fontsize=11
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    return axes


def worker_timelines(
    timelines: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
    totals: Mapping[str, float],
    seconds: float,
    skip: float = 0.1,
) -> Figure:
    """When each worker was computing, for several ways to train: a bar a step, white where it waited.

    Parameters
    ----------
    timelines : mapping of way to a list for each worker of (start, duration), in seconds
    totals : mapping of way to seconds of the whole training
    seconds : float
        How much of each training is drawn…
    skip : float
        …after its first so many seconds, in which processes warm up.
    """
    figure, rows = plt.subplots(
        len(timelines), 1, figsize=(7.6, 0.6 + 1.05 * len(timelines)), layout="constrained", sharex=True, squeeze=False
    )
    for axes, (way, workers) in zip(rows.flat, timelines.items(), strict=True):
        for row, spans in enumerate(workers):
            shown = [(1000 * (begin - skip), 1000 * length) for begin, length in spans]
            colour = [COLOURS["measured"], COLOURS["other"], COLOURS["third"], COLOURS["reference"]][row % 4]
            axes.broken_barh(shown, (row - 0.35, 0.7), facecolor=colour, edgecolor="white", linewidth=0.8)
        axes.set_yticks(
            range(len(workers)), ["fast", "slow"] if len(workers) == 2 else [str(i + 1) for i in range(len(workers))]
        )
        axes.invert_yaxis()
        axes.set_title(f"{way}: {totals[way]:.2f} s in all", loc="left", fontsize=10)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(left=False)
    rows.flat[-1].set_xlim(0, 1000 * seconds)
    rows.flat[-1].set_xlabel("time (ms); a bar is one gradient, white is waiting")
    return figure
