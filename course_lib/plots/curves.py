"""Figures that several labs draw: learning curves, accuracies, speed-up."""

import statistics
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from course_lib.plots import style
from course_lib.plots.style import COLOURS, MARKERS, in_course_style, new_axes

__all__ = ["COLOURS", "accuracy_against_batch", "final_accuracies", "learning_curves", "scaling", "step_times"]


@in_course_style
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
    axes = new_axes(title, "training time (s)" if against == "time" else "epoch", "validation accuracy")
    for index, (label, columns) in enumerate(curves.items()):
        # The row of zeros before the first epoch is the file's beginning, no measurement: an untrained network guesses.
        measured = [(x, y) for x, y in zip(columns[against], columns["val_accuracy"], strict=True) if x > 0]
        points = zip(*measured, strict=True) if measured else ((), ())
        axes.plot(*points, **style.series_style(index) | {"linestyle": "-"}, label=label)
    axes.set_xlim(left=0)
    if target:
        axes.axhline(target, **style.REFERENCE)
        style.label_line(axes, f"target {target:.0%}", target)
    axes.set_ylim(0, 1)
    style.percent(axes.yaxis)
    if len(curves) > 1:
        axes.legend()
    return axes


@in_course_style
def step_times(milliseconds: Sequence[float], steady: float) -> Axes:
    """Duration of each of a process's first training steps, with the steady time as a line."""
    axes = new_axes(
        f"The first step took {milliseconds[0] / steady:.0f}× a steady one", "step", "duration (ms, log scale)"
    )
    axes.semilogy(range(1, len(milliseconds) + 1), milliseconds, marker="o", color=COLOURS["measured"])
    axes.axhline(steady, **style.REFERENCE)
    style.plain_numbers(axes.yaxis, minor=True)
    style.label_line(axes, f"median {steady:.0f} ms", steady, right=True, offset=12)
    return axes


@in_course_style
def scaling(times: Mapping[str, Mapping[int, float]], title: str) -> Axes:
    """Speed-up (or any ratio) against ranks, one line per label, with the ideal S(N) = N drawn.

    Parameters
    ----------
    times : mapping of label to mapping of ranks to ratio
    """
    axes = new_axes(title, "ranks", "speed-up")
    ranks = sorted({rank for series in times.values() for rank in series})
    axes.plot(ranks, ranks, **style.REFERENCE, label="ideal")
    for index, (label, series) in enumerate(times.items()):
        look = {"marker": MARKERS[index % 4], "color": style.PALETTE[index % 3]}
        axes.plot(list(series), list(series.values()), **look, label=label)
    axes.set_xticks(ranks)
    axes.set_ylim(bottom=0)
    axes.legend()
    return axes


@in_course_style
def final_accuracies(runs: Mapping[str, Sequence[float]], title: str, reference: str | None = None) -> Axes:
    """Final accuracy of several ways to train: each run a dot, their mean a mark with one standard deviation each way.

    Parameters
    ----------
    runs : mapping of label to accuracies in 0…1, one a seed
        Drawn from the top down.
    reference : str, optional
        The label whose mean is drawn as a line.
    """
    axes = new_axes("", "validation accuracy at the end", "", (6.8, 1.2 + 0.34 * len(runs)))
    style.figure_title(axes.figure, title)  # above the labels too, which are long
    lowest, highest = (pick(value for values in runs.values() for value in values) for pick in (min, max))
    for row, (label, values) in enumerate(runs.items()):
        mean, deviation = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
        colour = COLOURS["reference" if label == reference else "measured"]
        axes.plot(values, [row] * len(values), "o", color=colour, alpha=0.35, markersize=4)
        axes.errorbar(mean, row, xerr=deviation, fmt="D", color=colour, markersize=6, capsize=4)
        left = min(*values, mean - deviation)
        style.note(axes, f"{mean:.1%}", (left, row), (-8, 0), va="center", ha="right")
        if label == reference:
            axes.axvline(mean, **style.REFERENCE)
    axes.set_yticks(range(len(runs)), list(runs))
    axes.invert_yaxis()
    room = max(highest - lowest, 0.02)
    axes.set_xlim(max(0.0, lowest - 0.3 * room), min(1.0, highest + 0.1 * room))
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    style.percent(axes.xaxis)
    return axes


@in_course_style
def accuracy_against_batch(accuracy: Mapping[str, Mapping[int, Sequence[float]]], title: str) -> Axes:
    """Mean accuracy against effective batch, a line per rule, with the standard error of the mean as bars.

    Parameters
    ----------
    accuracy : mapping of rule to mapping of batch (images) to the runs' accuracies in 0…1
        At most four rules.
    """
    axes = new_axes(title, "effective batch (images, log scale)", "validation accuracy")
    batches = sorted({batch for runs in accuracy.values() for batch in runs})
    for index, (label, runs) in enumerate(accuracy.items()):
        means = [statistics.fmean(values) for values in runs.values()]
        errors = list(map(style.standard_error, runs.values()))
        places = style.beside(runs, batches, index, len(accuracy), log=True)
        axes.errorbar(places, means, yerr=errors, label=label, **style.series_style(index))
    style.powers_of_two(axes, batches)
    style.percent(axes.yaxis)
    axes.legend()
    return axes
