"""The figures of lab 11: what more ranks bring here, and what the fitted model says of 2,048."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from course_lib.metrics.published_runs import PublishedRun
from course_lib.metrics.scaling_model import Measurement, StepModel
from course_lib.plots import style
from course_lib.plots.style import COLOURS, in_course_style, new_axes

__all__ = ["efficiencies", "epoch_seconds", "extrapolated_speedups", "fitted_steps", "published_runs"]


def _thinned(ticks: Sequence[int]) -> Sequence[int]:
    """Of more than eight ticks every second; the last is always named."""
    return ticks[::-1][:: 2 if len(ticks) > 8 else 1][::-1]


def _log_scale(axes: Axes) -> None:
    axes.set_yscale("log")
    style.plain_numbers(axes.yaxis)


@in_course_style
def epoch_seconds(series: Mapping[str, Sequence[float]], title: str) -> Axes:
    """Seconds of each epoch, a group of bars for each label; the first epoch of each is hatched: it is left out."""
    axes = new_axes(title, "epoch", "seconds")
    width, offsets = style.bar_offsets(len(series))
    for index, (label, seconds) in enumerate(series.items()):
        places = np.arange(1, len(seconds) + 1) + offsets[index]
        bars = axes.bar(places, seconds, width, color=style.PALETTE[index], label=label)
        bars[0].set(hatch="//", edgecolor="white")
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=8)
    axes.set_xticks(range(1, max(map(len, series.values())) + 1))
    axes.margins(y=0.15)
    if len(series) > 1:
        axes.legend()
    return axes


@in_course_style
def efficiencies(series: Mapping[str, Mapping[int, float]], title: str) -> Axes:
    """Efficiency against the batch in images, a line for each label; 100 % is drawn.

    Parameters
    ----------
    series : mapping of label to mapping of batch to efficiency
    """
    axes = new_axes(title, "images in a step of the sequential program", "efficiency")
    for index, (label, values) in enumerate(series.items()):
        axes.plot(list(values), list(values.values()), **style.series_style(index), label=label)
    axes.axhline(1, **style.REFERENCE)
    style.powers_of_two(axes, _thinned(sorted({batch for values in series.values() for batch in values})))
    axes.set_ylim(0, max(1.1, 1.1 * max(max(values.values()) for values in series.values())))
    style.percent(axes.yaxis)
    axes.legend(loc="lower right")
    return axes


@in_course_style
def fitted_steps(
    model: StepModel, fitted: Sequence[Measurement], held_out: Sequence[Measurement], nbytes: float, title: str
) -> Axes:
    """Measured steps against the batch per rank, one colour for each number of ranks, with the model and its errors.

    Parameters
    ----------
    fitted, held_out : sequences of Measurement
        Filled marks and open ones; those of another gradient than `nbytes` bytes are left out.
    """
    axes = new_axes(title, "images per rank and step", "step (ms)")
    shown = [m for m in (*fitted, *held_out) if m.nbytes == nbytes and m.batch]
    batches = sorted({m.batch for m in shown})
    grid = np.geomspace(batches[0], batches[-1], 60)
    for index, ranks in enumerate(sorted({m.ranks for m in shown})):
        times = 1000 * np.array([model.seconds(ranks, b, nbytes) for b in grid])
        errors = 1000 * np.array([model.seconds_error(ranks, b, nbytes) for b in grid])
        colour = style.PALETTE[index % 4]
        label = f"model, {ranks} rank{'s' if ranks > 1 else ''}"
        axes.plot(grid, times, color=colour, linestyle=style.LINES[index % 4], label=label)
        low = np.maximum(times - 2 * errors, times / 100)
        axes.fill_between(grid, low, times + 2 * errors, color=colour, alpha=0.2)
        for points, face in ((fitted, colour), (held_out, "white")):
            kept = [m for m in points if m in shown and m.ranks == ranks]
            axes.plot(
                [m.batch for m in kept], [1000 * m.seconds for m in kept], style.MARKERS[index % 4], color=colour,
                markerfacecolor=face, markersize=8,
            )  # fmt: skip
    axes.plot([], [], "o", color=COLOURS["reference"], label="measured, fitted")
    axes.plot([], [], "o", color=COLOURS["reference"], markerfacecolor="white", label="measured, held out")
    _log_scale(axes)
    style.powers_of_two(axes, _thinned(batches))
    axes.legend()
    return axes


@in_course_style
def extrapolated_speedups(
    lines: Mapping[str, Mapping[int, tuple[float, float, float]]], measured: Mapping[int, float], title: str
) -> Axes:
    """Speed-up against ranks, both logarithmic: predictions with their bands, what was measured, and S(N) = N.

    Parameters
    ----------
    lines : mapping of label to mapping of ranks to (speed-up, low, high)
        At most four.
    measured : mapping of ranks to speed-up
    """
    axes = new_axes(title, "ranks", "speed-up", (6.8, 4.2))
    ranks = sorted({n for series in lines.values() for n in series})
    axes.plot(ranks, ranks, **style.REFERENCE, label="ideal")
    for index, (label, series) in enumerate(lines.items()):
        middle, low, high = np.array(list(series.values())).T
        axes.plot(list(series), middle, **style.series_style(index), markersize=4, label=label)
        axes.fill_between(list(series), low, high, color=style.PALETTE[index], alpha=0.2, linewidth=0)
    if measured:
        axes.plot(list(measured), list(measured.values()), "k*", markersize=11, label="measured")
    _log_scale(axes)
    style.powers_of_two(axes, _thinned(ranks))
    axes.legend(fontsize=9)
    return axes


@in_course_style
def published_runs(
    runs: Sequence[PublishedRun], lines: Mapping[str, Mapping[int, tuple[float, float, float]]], title: str
) -> Axes:
    """Seconds of a training against chips, both logarithmic: what was published, and predictions with their bands.

    Parameters
    ----------
    lines : mapping of label to mapping of ranks to (seconds, low, high)
    """
    axes = new_axes(title, "GPUs, or other chips", "ResNet-50 on ImageNet (minutes)", (6.8, 4.2))
    ranks = sorted({n for series in lines.values() for n in series})
    for index, (label, series) in enumerate(lines.items()):
        middle, low, high = np.array(list(series.values())).T / 60
        axes.plot(list(series), middle, linestyle=style.LINES[index], color=style.PALETTE[index], label=label)
        axes.fill_between(list(series), low, high, color=style.PALETTE[index], alpha=0.2, linewidth=0)
    for index, run in enumerate(runs):
        axes.plot(run.chips, run.seconds / 60, "k" + "os^DP"[index % 5], markersize=7)
        beside = {"xytext": (8, 0), "ha": "left"} if run.chips >= 2000 else {"xytext": (-8, 0), "ha": "right"}
        text = f"{run.kind}, {run.date}: {run.seconds / 60:.1f} min"
        place = (run.chips, run.seconds / 60)
        axes.annotate(text, place, textcoords="offset points", va="center", fontsize=8, **beside)
    _log_scale(axes)
    style.powers_of_two(axes, _thinned(ranks))
    axes.set_xlim(ranks[0], 10 * ranks[-1])
    axes.legend(fontsize=9, loc="lower left")
    return axes
