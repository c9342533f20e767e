"""The figures of lab 06: what messages cost, and what that means for many ranks."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from course_lib.plots import style
from course_lib.plots.style import COLOURS, in_course_style, new_axes

__all__ = ["bandwidths", "message_times", "predicted_times", "sent_bytes"]


@in_course_style
def message_times(nbytes: Sequence[float], seconds: Sequence[float], alpha: float, beta: float) -> Axes:
    """Measured times of single messages, and the line α + βn with its two parts; α in seconds, β in seconds per byte."""
    axes = new_axes(
        f"A message costs {1e6 * alpha:.0f} µs, and 1 s for {1e-9 / beta:.1f} GB" if beta > 0 else "Times of messages",
        "bytes of the message", "time (s)",
    )  # fmt: skip
    sizes = np.geomspace(min(nbytes), max(nbytes), 200)
    axes.loglog(nbytes, seconds, "o", color=COLOURS["measured"], label="measured")
    axes.loglog(sizes, alpha + beta * sizes, color=COLOURS["other"], label="fit, $\\alpha + \\beta n$")
    if alpha > 0:
        alone = np.full_like(sizes, alpha)
        axes.loglog(sizes, alone, color=COLOURS["reference"], linestyle=":", label="$\\alpha$ alone")
    if beta > 0:
        axes.loglog(sizes, beta * sizes, color=COLOURS["reference"], linestyle="--", label="$\\beta n$ alone")
    axes.set_ylim(0.4 * min(seconds), 2.5 * max(seconds))
    axes.legend()
    return axes


@in_course_style
def predicted_times(panels: Mapping[str, Mapping[str, Sequence[float]]], ranks: Sequence[int], title: str) -> Figure:
    """Predicted times of all-reduces, in seconds, against the number of ranks: ``panels[panel][algorithm]``."""
    figure, all_axes = plt.subplots(1, len(panels), figsize=(5 * len(panels), 3.6), layout="constrained", squeeze=False)
    for axes, (panel, series) in zip(all_axes.flat, panels.items(), strict=True):
        for index, (algorithm, seconds) in enumerate(series.items()):
            axes.loglog(ranks, [1000 * each for each in seconds], **style.series_style(index), label=algorithm)
        style.powers_of_two(axes, ranks)
        axes.tick_params(axis="x", labelrotation=60)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(LogFormatter())  # 20, 30, 60 on a short axis, nothing on a long one
        axes.set(xlabel="ranks", ylabel="predicted time of an all-reduce (ms)")
        axes.set_title(panel, loc="left", fontsize=10)
        axes.legend()
    style.figure_title(figure, title)
    return figure


@in_course_style
def bandwidths(
    nbytes: Sequence[float], series: Mapping[str, Sequence[float]], title: str, link: float | None = None
) -> Axes:
    """Bus bandwidth, in bytes per second, against the tensor's size; that of the `link` is drawn as a line."""
    axes = new_axes(title, "bytes of the tensor", "bus bandwidth (GB/s)")
    for index, (label, values) in enumerate(series.items()):
        axes.semilogx(nbytes, [value / 1e9 for value in values], **style.series_style(index), label=label)
    top = max(map(max, series.values())) / 1e9
    if link is not None:
        top = max(top, link / 1e9)
        axes.axhline(link / 1e9, **style.REFERENCE, label="the link, by ping-pong")
    axes.set_ylim(0, 1.1 * top)
    axes.legend()
    return axes


@in_course_style
def sent_bytes(series: Mapping[str, Sequence[int]], least: float, title: str) -> Axes:
    """Bytes that each rank sends, a group of bars for each way; `least` is drawn as a line."""
    axes = new_axes(title, "rank", "bytes sent (MB)")
    width, offsets = style.bar_offsets(len(series))
    for index, (label, values) in enumerate(series.items()):
        axes.bar(
            np.arange(len(values)) + offsets[index], [value / 1e6 for value in values], width, label=label,
            color=style.PALETTE[index], hatch=style.HATCHES[index], edgecolor="white",
        )  # fmt: skip
    axes.axhline(least / 1e6, **style.REFERENCE, label="the least for the busiest rank")
    axes.set_xticks(range(max(map(len, series.values()))))
    axes.set_ylim(0, 1.35 * max(map(max, series.values())) / 1e6)  # room for the legend
    axes.legend(ncol=2, loc="upper right")
    return axes
