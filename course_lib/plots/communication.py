"""The figures of lab 06: what messages cost, and what that means for many ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from course_lib.metrics.communication_cost import Link, all_reduce_seconds
from course_lib.plots.curves import COLOURS, MARKERS, _axes

__all__ = ["bandwidths", "message_times", "predicted_times", "sent_bytes"]

_STYLES = ["-", "--", ":", "-."]


def message_times(nbytes: Sequence[float], seconds: Sequence[float], link: Link) -> Axes:
    """Measured times of single messages, and the line α + βn with its two parts."""
    axes = _axes(
        f"A message costs {1e6 * link.alpha:.0f} µs, and 1 s for {link.bandwidth / 1e9:.1f} GB",
        "bytes of the message", "time (s)",
    )  # fmt: skip
    sizes = np.geomspace(min(nbytes), max(nbytes), 200)
    axes.loglog(nbytes, seconds, "o", color=COLOURS["measured"], label="measured")
    axes.loglog(sizes, link.alpha + link.beta * sizes, color=COLOURS["other"], label="fit, $\\alpha + \\beta n$")
    if link.alpha > 0:
        axes.loglog(
            sizes, np.full_like(sizes, link.alpha), color=COLOURS["reference"], linestyle=":", label="$\\alpha$ alone"
        )
    axes.loglog(sizes, link.beta * sizes, color=COLOURS["reference"], linestyle="--", label="$\\beta n$ alone")
    axes.set_ylim(0.4 * min(seconds), 2.5 * max(seconds))
    axes.legend(frameon=False)
    return axes


def predicted_times(link: Link, nbytes: float, ranks: Sequence[int], algorithms: Sequence[str], title: str) -> Axes:
    """Predicted time of an all-reduce against the number of ranks, each with a band of two standard errors."""
    axes = _axes(title, "ranks", "predicted time of an all-reduce (ms)")
    colours = [COLOURS["measured"], COLOURS["other"], COLOURS["third"], COLOURS["reference"]]
    for index, algorithm in enumerate(algorithms):
        predictions = np.array([all_reduce_seconds(link, algorithm, nbytes, n) for n in ranks])
        times, errors = 1000 * predictions.T
        axes.loglog(
            ranks, times, marker=MARKERS[index], linestyle=_STYLES[index], color=colours[index], label=algorithm
        )
        axes.fill_between(
            ranks, np.maximum(times - 2 * errors, 0.01 * times), times + 2 * errors, color=colours[index], alpha=0.15
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(ranks), [str(n) for n in ranks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.legend(frameon=False)
    return axes


def bandwidths(
    nbytes: Sequence[float], series: Mapping[str, Sequence[float]], title: str, link: Link | None = None
) -> Axes:
    """Bus bandwidth, in bytes per second, against the tensor's size; the link's own is drawn as a line."""
    axes = _axes(title, "bytes of the tensor", "bus bandwidth (GB/s)")
    colours = [COLOURS["measured"], COLOURS["other"], COLOURS["third"], COLOURS["reference"]]
    for index, (label, values) in enumerate(series.items()):
        axes.semilogx(
            nbytes, [value / 1e9 for value in values], marker=MARKERS[index], linestyle=_STYLES[index],
            color=colours[index], label=label,
        )  # fmt: skip
    top = max(map(max, series.values())) / 1e9
    if link is not None and link.beta:
        top = max(top, link.bandwidth / 1e9)
        axes.axhline(
            link.bandwidth / 1e9,
            color=COLOURS["reference"],
            linestyle="--",
            linewidth=1,
            label="the link, by ping-pong",
        )
    axes.set_ylim(0, 1.1 * top)
    axes.legend(frameon=False)
    return axes


def sent_bytes(series: Mapping[str, Sequence[int]], least: float, title: str) -> Axes:
    """Bytes that each rank sends, a group of bars for each way; `least` is drawn as a line."""
    axes = _axes(title, "rank", "bytes sent (MB)")
    colours = [COLOURS["measured"], COLOURS["other"], COLOURS["third"], COLOURS["reference"]]
    width = 0.8 / len(series)
    for index, (label, values) in enumerate(series.items()):
        places = np.arange(len(values)) + (index - (len(series) - 1) / 2) * width
        axes.bar(
            places, [value / 1e6 for value in values], width, color=colours[index], label=label,
            hatch=["", "//", "..", "xx"][index], edgecolor="white",
        )  # fmt: skip
    axes.axhline(least / 1e6, color=COLOURS["reference"], linestyle="--", linewidth=1, label="the least possible")
    axes.set_xticks(range(max(map(len, series.values()))))
    axes.set_ylim(0, 1.35 * max(map(max, series.values())) / 1e6)  # room for the legend
    axes.legend(frameon=False, ncol=2, loc="upper right")
    return axes
