"""Figures of lab 07: how stale gradients are, and who waits for whom."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from course_lib.plots.style import (
    COLOURS,
    HATCHES,
    PALETTE,
    bar_offsets,
    figure_title,
    in_course_style,
    new_axes,
    percent,
)

__all__ = ["staleness_histogram", "star_and_ring", "version_diagram", "worker_timelines"]


@in_course_style
def staleness_histogram(staleness: Mapping[int, Sequence[int]], most: int = 12) -> Axes:
    """Share of the updates with each staleness, for several numbers of workers.

    Parameters
    ----------
    staleness : mapping of number of workers to the staleness of each update
        At most four numbers.
    most : int
        What is staler is counted at the right edge.
    """
    title = "A gradient of W workers is about W − 1 updates old"
    clipped = any(value > most for values in staleness.values() for value in values)
    xlabel = f"staleness (updates; {most} means {most} or more)" if clipped else "staleness (updates)"
    axes = new_axes(title, xlabel, "share of the updates", (6.8, 3.6))
    width, offsets = bar_offsets(len(staleness))
    for index, (workers, values) in enumerate(staleness.items()):
        counts = Counter(min(value, most) for value in values)
        places = [value + offsets[index] for value in sorted(counts)]
        shares = [counts[value] / len(values) for value in sorted(counts)]
        label = f"{workers} worker{'s' if workers > 1 else ''}: mean {statistics.fmean(values):.2f}"
        look = {"color": PALETTE[index - 1], "hatch": HATCHES[index], "edgecolor": "white"}  # the reference is first
        axes.bar(places, shares, width, label=label, **look)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    percent(axes.yaxis)
    axes.grid(False, axis="x")
    axes.legend()
    return axes


@in_course_style
def star_and_ring(ranks: int) -> Figure:
    """A parameter server's star beside an all-reduce's ring, with what each link carries per step, for n bytes of gradient."""
    figure, panels = plt.subplots(1, 2, figsize=(7.6, 3.5))
    whole = 2 * (ranks - 1)
    places = [(math.sin(2 * math.pi * rank / ranks), math.cos(2 * math.pi * rank / ranks)) for rank in range(ranks)]
    around = [(math.sin(2 * math.pi * rank / (ranks - 1)), math.cos(2 * math.pi * rank / (ranks - 1)))
              for rank in range(ranks - 1)]  # fmt: skip
    for axes, name, where in ((panels[0], "star", [(0, 0), *around]), (panels[1], "ring", places)):
        axes.set(xlim=(-1.5, 1.5), ylim=(-1.4, 1.4), aspect="equal")
        axes.axis("off")
        star = name == "star"
        pairs = (
            [(rank, 0) for rank in range(1, ranks)] if star else [(rank, (rank + 1) % ranks) for rank in range(ranks)]
        )
        for one, other in pairs:
            (x, y), (to_x, to_y) = where[one], where[other]
            look = {"arrowstyle": "<->" if star else "->", "color": COLOURS["reference"], "shrinkA": 14, "shrinkB": 14}
            axes.annotate("", (to_x, to_y), (x, y), arrowprops=look)
            text = "2n" if star else f"{whole}/{ranks} n"
            paper = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
            axes.text((x + to_x) / 2, (y + to_y) / 2, text, ha="center", va="center", fontsize=9, bbox=paper)
        for rank, (x, y) in enumerate(where):
            colour = COLOURS["other" if star and rank == 0 else "measured"]
            axes.plot(x, y, "o", markersize=26, color=colour)
            axes.text(x, y, str(rank), ha="center", va="center", color="white", fontweight="bold")
        busiest = f"{whole}n through rank 0" if star else f"{whole}/{ranks} n sent by every rank"
        axes.set_title(f"{name}: {busiest}", fontsize=10)
    figure_title(figure, "A server's link carries everything; a ring's links carry equal parts")
    return figure


@in_course_style
def version_diagram(order: Sequence[int]) -> Axes:
    """A server between workers, over time: gradients up, parameters back, and the versions.

    Parameters
    ----------
    order : sequence of int
        The worker, 1 or 2, whose gradient makes each update.
    """
    title = "A gradient is as stale as the updates that were made while it was computed"
    axes = new_axes(title, "time", "", (7.6, 2.9))
    axes.grid(False)
    heights, travel = {1: 1.0, 2: -1.0}, 0.16
    axes.axhline(0, color=COLOURS["reference"], linewidth=1)
    has = {worker: (0.0, 0) for worker in heights}  # when the last answer came, and its version
    for place, worker in enumerate(order, start=1):
        colour, height = COLOURS["measured" if worker == 1 else "other"], heights[worker]
        begun, version = has[worker]
        axes.barh(height, place - travel - begun, left=begun, height=0.42, color=colour, edgecolor="white")
        stale = place - 1 - version
        inside = {"ha": "center", "fontsize": 9}
        axes.text((begun + place - travel) / 2, height, f"on v{version}", va="center", color="white", **inside)
        inner = height * 0.78
        for start, end in (((place - travel, inner), (place, 0)), ((place, 0), (place + travel, inner))):
            axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": colour})
        axes.plot(place, 0, "o", color=colour, markersize=5)
        below = "top" if height > 0 else "bottom"
        axes.text(place, -0.16 * height, f"v{place}, stale by {stale}", va=below, **inside)
        has[worker] = (place + travel, place)
    axes.set_yticks([1, 0, -1], ["worker 1", "server", "worker 2"])
    axes.set_xlim(-0.05, len(order) + 0.6)
    axes.set_ylim(-1.35, 1.35)
    axes.set_xticks([])
    axes.spines["left"].set_visible(False)
    axes.tick_params(left=False)
    return axes


@in_course_style
def worker_timelines(
    timelines: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
    totals: Mapping[str, float],
    seconds: float,
    skip: float = 0.1,
) -> Figure:
    """When each worker was computing, for several ways to train: one bar per step, white where it waited.

    Parameters
    ----------
    timelines : mapping of way to a list for each worker of (start, duration), in seconds
    totals : mapping of way to seconds of the whole training
    seconds : float
        How much of each training is drawn…
    skip : float
        …after its first so many seconds, in which processes warm up; of a short training a quarter at most.
    """
    skip = min(skip, min(totals.values()) / 4)
    seconds = min(seconds, max(totals.values()) - skip)
    size = (7.6, 0.6 + 1.05 * len(timelines))
    figure, rows = plt.subplots(len(timelines), 1, figsize=size, sharex=True, squeeze=False)
    for axes, (way, workers) in zip(rows.flat, timelines.items(), strict=True):
        for row, spans in enumerate(workers):
            shown = [(1000 * (begin - skip), 1000 * length) for begin, length in spans]
            axes.broken_barh(shown, (row - 0.35, 0.7), facecolor=PALETTE[row % 4], edgecolor="white", linewidth=0.8)
        numbers = [str(number) for number in range(1, len(workers) + 1)]
        axes.set_yticks(range(len(workers)), ["fast", "slow"] if len(workers) == 2 else numbers)
        axes.invert_yaxis()
        axes.set_title(f"{way}: {totals[way]:.2f} s in all", fontsize=10)
        axes.grid(False)
        axes.spines["left"].set_visible(False)
        axes.tick_params(left=False)
    rows.flat[-1].set_xlim(0, 1000 * seconds)
    rows.flat[-1].set_xlabel("time (ms); a bar is one gradient, white is waiting")
    return figure
