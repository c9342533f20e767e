"""The figures of lab 06: what messages cost, and what that means for many ranks."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from course_lib.metrics.communication_cost import Link, all_reduce_seconds
from course_lib.plots import style
from course_lib.plots.style import COLOURS, in_course_style, new_axes

__all__ = ["bandwidths", "message_times", "predicted_times", "sent_bytes"]


@in_course_style
def message_times(nbytes: Sequence[float], seconds: Sequence[float], link: Link) -> Axes:
    """Measured times of single messages, and the line α + βn with its two parts."""
    axes = new_axes(
        f"A message costs {1e6 * link.alpha:.0f} µs, and 1 s for {link.bandwidth / 1e9:.1f} GB",
        "bytes of the message", "time (s)",
    )  # fmt: skip
    sizes = np.geomspace(min(nbytes), max(nbytes), 200)
    axes.loglog(nbytes, seconds, "o", color=COLOURS["measured"], label="measured")
    axes.loglog(sizes, link.alpha + link.beta * sizes, color=COLOURS["other"], label="fit, $\\alpha + \\beta n$")
    if link.alpha > 0:
        alone = np.full_like(sizes, link.alpha)
        axes.loglog(sizes, alone, color=COLOURS["reference"], linestyle=":", label="$\\alpha$ alone")
    axes.loglog(sizes, link.beta * sizes, color=COLOURS["reference"], linestyle="--", label="$\\beta n$ alone")
    axes.set_ylim(0.4 * min(seconds), 2.5 * max(seconds))
    axes.legend()
    return axes


@in_course_style
def predicted_times(link: Link, nbytes: float, ranks: Sequence[int], algorithms: Sequence[str], title: str) -> Axes:
    """Predicted time of an all-reduce against the number of ranks, each with a band of two standard errors."""
    axes = new_axes(title, "ranks", "predicted time of an all-reduce (ms)")
    for index, algorithm in enumerate(algorithms):
        predictions = np.array([all_reduce_seconds(link, algorithm, nbytes, n) for n in ranks])
        times, errors = 1000 * predictions.T
        axes.loglog(ranks, times, **style.series_style(index), label=algorithm)
        low = np.maximum(times - 2 * errors, 0.01 * times)
        axes.fill_between(ranks, low, times + 2 * errors, color=style.PALETTE[index], alpha=0.15)
    style.powers_of_two(axes, ranks)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend()
    return axes


@in_course_style
def bandwidths(
    nbytes: Sequence[float], series: Mapping[str, Sequence[float]], title: str, link: Link | None = None
) -> Axes:
    """Bus bandwidth, in bytes per second, against the tensor's size; the link's own is drawn as a line."""
    axes = new_axes(title, "bytes of the tensor", "bus bandwidth (GB/s)")
    for index, (label, values) in enumerate(series.items()):
        axes.semilogx(nbytes, [value / 1e9 for value in values], **style.series_style(index), label=label)
    top = max(map(max, series.values())) / 1e9
    if link is not None and link.beta:
        top = max(top, link.bandwidth / 1e9)
        axes.axhline(link.bandwidth / 1e9, **style.REFERENCE, label="the link, by ping-pong")
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
    axes.axhline(least / 1e6, **style.REFERENCE, label="the least possible")
    axes.set_xticks(range(max(map(len, series.values()))))
    axes.set_ylim(0, 1.35 * max(map(max, series.values())) / 1e6)  # room for the legend
    axes.legend(ncol=2, loc="upper right")
    return axes
