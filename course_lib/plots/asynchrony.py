"""Figures of labs 07 and 09: how stale gradients are, who waits for whom, what a race loses, and what processes gain."""

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
    arrow,
    bar_offsets,
    figure_title,
    in_course_style,
    new_axes,
    note,
    percent,
    ranges,
    series_style,
)  # fmt: skip

__all__ = [
    "interleaving", "lost_against_features", "speedup_and_accuracy", "staleness_histogram", "star_and_ring",
    "version_diagram", "worker_timelines",
]  # fmt: skip

MOST_STALE = 12  # what is staler is counted at the right edge


@in_course_style
def staleness_histogram(staleness: Mapping[int, Sequence[int]]) -> Axes:
    """Share of the updates with each staleness, for several numbers of workers.

    Parameters
    ----------
    staleness : mapping of number of workers to the staleness of each update
        At most four numbers.
    """
    means = ", ".join(f"{statistics.fmean(values):.1f}" for values in staleness.values())
    title = f"With W = {', '.join(map(str, staleness))} a gradient is {means} updates old in the mean"
    clipped = any(value > MOST_STALE for values in staleness.values() for value in values)
    xlabel = f"staleness (updates; {MOST_STALE} means {MOST_STALE} or more)" if clipped else "staleness (updates)"
    axes = new_axes(title, xlabel, "share of the updates", (6.8, 3.6))
    width, offsets = bar_offsets(len(staleness))
    for index, (workers, values) in enumerate(staleness.items()):
        counts = Counter(min(value, MOST_STALE) for value in values)
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
            ends = {"arrowstyle": "<->" if star else "->", "shrinkA": 14, "shrinkB": 14}
            arrow(axes, (x, y), (to_x, to_y), COLOURS["reference"], **ends)
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
            arrow(axes, start, end, colour)
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


@in_course_style
def interleaving() -> Axes:
    """Two processes add 1 to a shared number: read, add, write, in an order that loses one of the two."""
    axes = new_axes("Two increments, but the number grows by one", "time", "", (7.6, 2.7))
    rows = {"process A": 2, "in memory": 1, "process B": 0}
    steps = [("process A", 0, "read 41"), ("process B", 1, "read 41"), ("process A", 2, "41 + 1"),
             ("process B", 3, "41 + 1"), ("process A", 4, "write 42"), ("process B", 5, "write 42")]  # fmt: skip
    for who, at, text in steps:
        colour = COLOURS["measured" if who == "process A" else "other"]
        y = rows[who]
        axes.text(at, y, text, ha="center", va="center", color="white", bbox={"facecolor": colour, "edgecolor": "none"})
        if "1 + 1" not in text:
            reads = text.startswith("read")
            near, far = y + (0.25 if y == 0 else -0.25), 1.2 if y == 2 else 0.8
            arrow(axes, (at, far if reads else near), (at, near if reads else far), colour)
    for at, value in enumerate((41, 41, 41, 41, 42, 42)):
        axes.text(at, 1, str(value), ha="center", va="center")
    axes.set_yticks(list(rows.values()), list(rows))
    axes.set_xticks([])
    axes.set(xlim=(-0.6, 5.6), ylim=(-0.5, 2.5))
    axes.grid(False)
    return axes


@in_course_style
def lost_against_features(lost: Mapping[int, float], colliding: Mapping[int, float], nonzeros: int) -> Axes:
    """Share of the increments that were lost, and of the updates that collide, against the number of features.

    Parameters
    ----------
    lost, colliding : mapping of number of features to a share in 0…1
        The first number of features is `nonzeros`: all is shared.
    nonzeros : int
        Features of one update.
    """
    sizes = list(lost)
    title = f"Of dense updates {lost[sizes[0]]:.0%} are lost, at {sizes[-1]:,} features {lost[sizes[-1]]:.2%}"
    axes = new_axes(title, f"features n (each update has k = {nonzeros})", "share (log scale)", (6.8, 3.8))
    series = {
        "updates that collide, by the formula": list(colliding.values()),
        "loss of dense updates × k/n": [lost[nonzeros] * nonzeros / n for n in sizes],
        "increments lost, measured": list(lost.values()),
    }
    for index, (label, values) in enumerate(series.items()):
        axes.plot(sizes, values, label=label, **series_style(index))
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
    axes.minorticks_off()
    axes.legend()
    return axes


@in_course_style
def speedup_and_accuracy(
    speedups: Mapping[str, Mapping[int, tuple[float, float, float]]],
    accuracy: Mapping[str, Mapping[int, Sequence[float]]],
    cores: int,
) -> Figure:
    """Speed-up over one process, and final accuracy, against processes: median and range over the runs.

    Parameters
    ----------
    speedups : mapping of a problem to a mapping of processes to (median, lowest, highest)
    accuracy : mapping of a problem to a mapping of processes to one number for each run
    cores : int
        More processes than these share cores.
    """
    figure, panels = plt.subplots(1, 2, figsize=(9.0, 3.8))
    counts = sorted({count for runs in speedups.values() for count in runs})
    panels[0].plot(counts, counts, ":", color=COLOURS["reference"], label="P times as fast")
    for index, (label, runs) in enumerate(speedups.items()):
        scores = {count: (statistics.median(some), min(some), max(some)) for count, some in accuracy[label].items()}
        for axes, rows in zip(panels, (runs, scores), strict=True):
            ranges(axes, rows, index, label, len(speedups), log=True, capsize=4)
    best = max(median for runs in speedups.values() for median, _, _ in runs.values())
    for axes, name in zip(panels, ("speed-up over one process", "test accuracy"), strict=True):
        axes.set(xlabel="processes P", ylabel=name, xscale="log")
        axes.set_xticks(counts, map(str, counts))
        axes.minorticks_off()
    panels[0].set_ylim(bottom=0)
    if cores < counts[-1]:
        panels[0].axvline(cores, color=COLOURS["reference"], linewidth=1)
        note(panels[0], f"{cores} core(s)", (cores, 0.05), (4, 0))
    panels[0].legend()
    percent(panels[1].yaxis)
    panels[1].margins(y=0.4)
    figure_title(figure, f"Up to {best:.1f} times as fast as one process, on {cores} core(s); the accuracy beside it")
    return figure
