"""The figures of lab 11: what more ranks bring, what a step is made of, and what the fitted model predicts."""

from collections.abc import Collection, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_lib.metrics.published_runs import PublishedRun
from course_lib.plots import style
from course_lib.plots.style import COLOURS, in_course_style, new_axes

__all__ = [
    "efficiencies", "epoch_seconds", "extrapolated_speedups", "fitted_sums", "memory_per_rank", "published_runs",
    "step_timelines", "strong_and_weak", "who_sends",
]  # fmt: skip


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
def fitted_sums(
    measured: Mapping[int, float], held_out: int, between: Collection[int],
    line: Mapping[int, tuple[float, float]], title: str,
) -> Axes:  # fmt: skip
    """Seconds of an all-reduce against its bytes, both logarithmic, and the fitted line with two standard errors.

    Parameters
    ----------
    measured : mapping of bytes to seconds
    held_out : int
        The bytes of the open mark.
    between : collection of int
        The bytes of the crosses: neither fitted nor predicted.
    line : mapping of bytes to (seconds, standard error)
    """
    axes = new_axes(title, "all-reduce (MiB)", "milliseconds")
    value, error = 1000 * np.array(list(line.values())).T
    sizes = np.array(list(line)) / 2**20
    axes.plot(sizes, value, color=COLOURS["other"], linestyle="--", label="fit, ± 2 standard errors")
    axes.fill_between(
        sizes, np.maximum(value - 2 * error, value / 100), value + 2 * error, color=COLOURS["other"], alpha=0.2
    )
    for name, kept, mark, face in (
        ("fitted", [n for n in measured if n != held_out and n not in between], "o", COLOURS["measured"]),
        ("held out", [held_out], "o", "white"),
        ("not fitted", list(between), "x", None),
    ):
        axes.plot(
            [n / 2**20 for n in kept], [1000 * measured[n] for n in kept], mark, color=COLOURS["measured"],
            markerfacecolor=face, markersize=8, label=f"measured, {name}",
        )  # fmt: skip
    axes.set_xscale("log")
    style.plain_numbers(axes.xaxis)
    _log_scale(axes)
    axes.legend()
    return axes


@in_course_style
def strong_and_weak() -> Figure:
    """Images per rank on 1, 2 and 4 ranks, in strong and in weak scaling: a sketch."""
    figure, panels = plt.subplots(1, 2, figsize=(6.8, 2.2), sharey=True)
    counts = {"strong: the same 64 images": (64, 32, 16), "weak: 64 images per rank": (64, 64, 64)}
    for axes, (title, images) in zip(panels, counts.items(), strict=True):
        for ranks, first, count in zip((1, 2, 4), (0, 2, 5), images, strict=True):
            axes.bar(first + np.arange(ranks), count, 0.9, color=style.PALETTE[:ranks])
        axes.set_xticks([0, 2.5, 6.5], ["N = 1", "N = 2", "N = 4"])
        axes.set_title(title)
    panels[0].set_ylabel("images per rank")
    return figure


@in_course_style
def who_sends(sent: Mapping[str, Sequence[int]]) -> Figure:
    """Ranks as circles with the megabytes that each sent, and arrows to whom: one server, a ring, servers on all ranks.

    Parameters
    ----------
    sent : mapping of label to bytes of each rank
        In this order: one server, ring, a server on every rank.
    """
    figure, panels = plt.subplots(1, 3, figsize=(8.4, 2.9))
    count = len(next(iter(sent.values())))
    angles = np.pi / 2 - 2 * np.pi * np.arange(count) / count
    places = np.stack([np.cos(angles), np.sin(angles)], 1)
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    arrows = [
        [(a, b) for a, b in pairs if 0 in (a, b)], [(a, (a + 1) % count) for a in range(count)], pairs,
    ]  # fmt: skip
    for axes, (label, values), some in zip(panels, sent.items(), arrows, strict=True):
        for a, b in some:
            bent = {"shrinkA": 17, "shrinkB": 17, "connectionstyle": "arc3,rad=0.12"}
            style.arrow(axes, places[a], places[b], COLOURS["reference"], **bent)
        for place, value in zip(places, values, strict=True):
            colour = COLOURS["other"] if value > 1.01 * min(values) else COLOURS["measured"]
            axes.plot(*place, "o", markersize=30, color=colour, alpha=0.9)
            axes.text(*place, f"{value / 1e6:.1f}", color="white", ha="center", va="center", fontsize=9)
        axes.set(xlim=(-1.5, 1.5), ylim=(-1.5, 1.5), aspect="equal")
        axes.set_axis_off()
        axes.set_title(f"{label}: at most {max(values) / 1e6:.1f} MB")
    return figure


@in_course_style
def step_timelines(steps: Mapping[str, tuple[float, float, Sequence[float], bool, float]], title: str) -> Axes:
    """Time-lines of steps: forward, the parts of backward, and each bucket's sum in a second row.

    Parameters
    ----------
    steps : mapping of label to (forward, backward, seconds of each bucket, overlap, end of the step)
    """
    axes = new_axes(title, "seconds", "", (7.6, 3.4))
    labels = []
    for row, (label, (forward, backward, buckets, overlap, end)) in enumerate(steps.items()):
        part, summed = backward / len(buckets), 0.0 if overlap else forward + backward
        axes.barh(
            -row, forward, 0.34, color=COLOURS["reference"], edgecolor="white", label="forward" if not row else None
        )
        for number, seconds in enumerate(buckets):
            start = forward + number * part
            axes.barh(-row, part, 0.34, left=start, color=COLOURS["measured"], edgecolor="white",
                      label="backward, in parts" if not row + number else None)  # fmt: skip
            begins = max(start + part, summed)
            axes.barh(-row - 0.34, seconds, 0.3, left=begins, color=COLOURS["other"], edgecolor="white",
                      label="sum of a bucket" if not row + number else None)  # fmt: skip
            summed = begins + seconds
        axes.text(end + 0.05, -row - 0.17, f"{end:.1f} s", va="center", fontsize=9)
        labels.append(label)
    axes.set_yticks([-row - 0.17 for row in range(len(labels))], labels)
    axes.set_xlim(0, 1.12 * max(end for *_, end in steps.values()))
    axes.legend(fontsize=8, loc="upper right")
    return axes


@in_course_style
def memory_per_rank(stages: Mapping[int, Mapping[int, float]], device: float, title: str) -> Axes:
    """Gigabytes per rank against ranks, both logarithmic, a line for each stage; a device's memory is drawn.

    Parameters
    ----------
    stages : mapping of stage to mapping of ranks to gigabytes
        At most four.
    device : float
        Gigabytes.
    """
    axes = new_axes(title, "ranks", "GB per rank, without activations")
    names = ["0: data parallelism", "1: optimizer sharded", "2: gradients, too", "3: parameters, too (FSDP)"]
    for index, (stage, values) in enumerate(stages.items()):
        axes.plot(list(values), list(values.values()), **style.series_style(index), label=f"stage {names[stage]}")
    axes.axhline(device, **style.REFERENCE)
    style.label_line(axes, f"{device:g} GB", device)
    _log_scale(axes)
    style.powers_of_two(axes, _thinned(sorted(next(iter(stages.values())))))
    axes.legend(fontsize=9, loc="lower left")
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
        offset, side = (8, "left") if run.chips >= 2000 else (-8, "right")
        text = f"{run.kind}, {run.date}: {run.seconds / 60:.1f} min"
        style.note(axes, text, (run.chips, run.seconds / 60), (offset, 0), va="center", ha=side, fontsize=8)
    _log_scale(axes)
    style.powers_of_two(axes, _thinned(ranks))
    axes.set_xlim(ranks[0], 10 * ranks[-1])
    axes.legend(fontsize=9, loc="lower left")
    return axes
