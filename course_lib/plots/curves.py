"""The figures of the labs. The same thing has the same colour and marker in every lab, readable in grey."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator, PercentFormatter

from course_lib.metrics.speed import saturation_knee

__all__ = [
    "COLOURS",
    "accuracy_against_batch",
    "batch_throughput",
    "epoch_times",
    "final_accuracies",
    "learning_curves",
    "scaling",
    "statistics_batch",
    "step_times",
]

# Okabe–Ito: told apart by colour-blind readers, and by their lightness in grey.
COLOURS = {"measured": "#0072B2", "other": "#D55E00", "third": "#009E73", "reference": "#555555"}
MARKERS = ["o", "s", "^", "D"]


def _axes(title: str, xlabel: str, ylabel: str, size: tuple[float, float] = (6.4, 3.8)) -> Axes:
    _, axes = plt.subplots(figsize=size, layout="constrained")
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def learning_curves(
    curves: Mapping[str, Mapping[str, Sequence[float]]],
    title: str,
    target: float | None = None,
    against: str = "time",
) -> Axes:
    """Validation accuracy of one or several runs.

    Parameters
    ----------
    curves : mapping of label to columns
        Each with ``time`` (s) or ``epoch``, and ``val_accuracy`` (0…1); `History.curve` or a learning-curve CSV.
    target : float, optional
        Drawn as a dashed line.
    against : {"time", "epoch"}
    """
    axes = _axes(title, "training time (s)" if against == "time" else "epoch", "validation accuracy")
    colours = [COLOURS["measured"], COLOURS["other"], COLOURS["third"], COLOURS["reference"]]
    for index, (label, columns) in enumerate(curves.items()):
        # The row of zeros before the first epoch is the file's beginning, no measurement: an untrained network guesses.
        measured = [(x, y) for x, y in zip(columns[against], columns["val_accuracy"], strict=True) if x > 0]
        axes.plot(
            *zip(*measured, strict=True) if measured else ((), ()),
            marker=MARKERS[index % 4], color=colours[index % 4], label=label,
        )  # fmt: skip
    axes.set_xlim(left=0)
    if target:
        axes.axhline(target, color=COLOURS["reference"], linestyle="--", linewidth=1)
        _label_line(axes, f"target {target:.0%}", target)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    if len(curves) > 1:
        axes.legend(frameon=False)
    return axes


def batch_throughput(throughput: Mapping[int, float], share: float = 0.9) -> Axes:
    """Images/s against batch size, both axes logarithmic in the sizes measured, with the saturation knee marked."""
    sizes = sorted(throughput)
    knee = saturation_knee(throughput, share)
    axes = _axes(
        f"Throughput reaches {share:.0%} of its best at batch size {knee}",
        "batch size (images)", "training throughput (images/s)",
    )  # fmt: skip
    axes.plot(sizes, [throughput[size] for size in sizes], marker="o", color=COLOURS["measured"])
    axes.plot(knee, throughput[knee], marker="o", markersize=14, markerfacecolor="none", color=COLOURS["other"])
    axes.annotate("knee", (knee, throughput[knee]), xytext=(0, -26), textcoords="offset points", ha="center",
                  color=COLOURS["other"])  # fmt: skip
    axes.axhline(share * max(throughput.values()), color=COLOURS["reference"], linestyle="--", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    return axes


def step_times(milliseconds: Sequence[float], steady: float) -> Axes:
    """Duration of each of a process's first training steps, with the steady time as a line."""
    axes = _axes(
        f"The first step took {milliseconds[0] / steady:.0f}× a steady one", "step", "duration (ms, log scale)"
    )
    axes.semilogy(range(1, len(milliseconds) + 1), milliseconds, marker="o", color=COLOURS["measured"])
    axes.axhline(steady, color=COLOURS["reference"], linestyle="--", linewidth=1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.annotate(f"median {steady:.0f} ms", (1, steady), xytext=(0, 12), xycoords=("axes fraction", "data"),
                  textcoords="offset points", ha="right", color=COLOURS["reference"], fontsize=9)  # fmt: skip
    return axes


def statistics_batch(accuracy: Mapping[int, float], stored: float) -> Axes:
    """Accuracy against the number of images that share their batch-norm statistics.

    Parameters
    ----------
    accuracy : mapping of images to accuracy in 0…1
        Must hold 2 and 32.
    stored : float
        Accuracy with the running statistics, drawn as a line.
    """
    axes = _axes(
        f"Statistics of 2 images cost {100 * (stored - accuracy[2]):.0f} points of accuracy, "
        f"of 32 images {100 * (stored - accuracy[32]):.0f}",
        "images that share their batch-norm statistics", "accuracy",
    )  # fmt: skip
    axes.plot(list(accuracy), list(accuracy.values()), marker="o", color=COLOURS["measured"])
    axes.axhline(stored, color=COLOURS["reference"], linestyle="--", linewidth=1)
    _label_line(axes, f"running statistics, {stored:.1%}", stored)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(accuracy), [str(size) for size in accuracy])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    return axes


def _label_line(axes: Axes, text: str, height: float) -> None:
    """Name a horizontal line at its left end, above it, where learning curves are still below."""
    axes.annotate(text, (0.01, height), xytext=(0, 3), xycoords=("axes fraction", "data"), textcoords="offset points",
                  color=COLOURS["reference"], fontsize=9)  # fmt: skip


def epoch_times(seconds: Mapping[str, float], title: str) -> Axes:
    """Bars of seconds per epoch (or of any named duration), each labelled with its value."""
    axes = _axes(title, "", "seconds")
    bars = axes.bar(list(seconds), list(seconds.values()), color=COLOURS["measured"], width=0.55)
    axes.bar_label(bars, fmt="%.2f s", padding=2)
    axes.margins(y=0.15)
    return axes


def scaling(times: Mapping[str, Mapping[int, float]], title: str, ideal: bool = True) -> Axes:
    """Speed-up (or any ratio) against ranks, one line per label, with the ideal S(N) = N drawn.

    Parameters
    ----------
    times : mapping of label to mapping of ranks to ratio
    """
    axes = _axes(title, "ranks", "speed-up")
    ranks = sorted({rank for series in times.values() for rank in series})
    if ideal:
        axes.plot(ranks, ranks, color=COLOURS["reference"], linestyle="--", linewidth=1, label="ideal")
    for index, (label, series) in enumerate(times.items()):
        colour = list(COLOURS.values())[index % 3]
        axes.plot(list(series), list(series.values()), marker=MARKERS[index % 4], color=colour, label=label)
    axes.set_xticks(ranks)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return axes


def final_accuracies(runs: Mapping[str, Sequence[float]], title: str, reference: str | None = None) -> Axes:
    """Final accuracy of several ways to train: each run a dot, their mean a mark with one standard deviation each way.

    Parameters
    ----------
    runs : mapping of label to accuracies in 0…1, one a seed
        Drawn from the top down.
    reference : str, optional
        The label whose mean is drawn as a line.
    """
    axes = _axes("", "validation accuracy at the end", "", (6.8, 1.2 + 0.34 * len(runs)))
    axes.figure.suptitle(title, x=0.01, ha="left", fontsize=11)  # above the labels too, which are long
    lowest, highest = (pick(value for values in runs.values() for value in values) for pick in (min, max))
    for row, (label, values) in enumerate(runs.items()):
        mean, spread = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
        colour = COLOURS["reference" if label == reference else "measured"]
        axes.plot(values, [row] * len(values), "o", color=colour, alpha=0.35, markersize=4)
        axes.errorbar(mean, row, xerr=spread, fmt="D", color=colour, markersize=6, capsize=4)
        left = min(*values, mean - spread)
        axes.annotate(f"{mean:.1%}", (left, row), xytext=(-8, 0), textcoords="offset points", va="center", ha="right",
                      fontsize=9)  # fmt: skip
        if label == reference:
            axes.axvline(mean, color=COLOURS["reference"], linestyle="--", linewidth=1)
    axes.set_yticks(range(len(runs)), list(runs))
    axes.invert_yaxis()
    room = max(highest - lowest, 0.02)
    axes.set_xlim(max(0.0, lowest - 0.3 * room), min(1.0, highest + 0.1 * room))
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    return axes


def accuracy_against_batch(accuracy: Mapping[str, Mapping[int, Sequence[float]]], title: str) -> Axes:
    """Mean accuracy against effective batch, a line per rule, with the standard error of the mean as bars.

    Parameters
    ----------
    accuracy : mapping of rule to mapping of batch (images) to the runs' accuracies in 0…1
        At most four rules.
    """
    axes = _axes(title, "effective batch (images, log scale)", "validation accuracy")
    colours = [COLOURS["measured"], COLOURS["other"], COLOURS["third"], COLOURS["reference"]]
    for index, (label, runs) in enumerate(accuracy.items()):
        errors = [statistics.stdev(v) / len(v) ** 0.5 if len(v) > 1 else 0.0 for v in runs.values()]
        axes.errorbar(
            list(runs), [statistics.fmean(v) for v in runs.values()], yerr=errors, capsize=3, label=label,
            color=colours[index], marker=MARKERS[index], linestyle=["-", "--", ":", "-."][index],
        )  # fmt: skip
    batches = sorted({batch for runs in accuracy.values() for batch in runs})
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [f"{batch:,}" for batch in batches])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.legend(frameon=False)
    return axes
