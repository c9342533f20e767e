"""The figures of lab 08: time-lines, speed-up and accuracy against workers, the loss between two workers, a non-convex average."""

import statistics
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from course_lib.plots import style
from course_lib.plots.style import COLOURS, in_course_style, new_axes

__all__ = [
    "accuracy_against_interval", "accuracy_against_workers", "loss_between", "speedups", "timelines", "two_landscapes",
]  # fmt: skip


@in_course_style
def two_landscapes() -> Axes:
    """A convex and a non-convex loss of one weight, two workers in each, and their average."""
    title = "Between two good weights a convex loss is good; another one need not be"
    axes = new_axes(title, "weight", "loss", (6.8, 3.2))
    w = torch.linspace(-1.7, 1.7, 200)
    for label, loss, ends, colour, line in (
        ("convex", lambda x: 0.45 * (x - 0.2) ** 2, (-0.5, 0.8), "measured", "-"),
        ("two valleys", lambda x: 0.9 * (x**2 - 1) ** 2 + 0.15 * x + 0.2, (-1.05, 0.97), "other", "--"),
    ):
        axes.plot(w, loss(w), line, color=COLOURS[colour], label=label)
        axes.plot(ends, [loss(x) for x in ends], "o", color=COLOURS[colour])
        middle = sum(ends) / 2
        axes.plot(middle, loss(middle), "*", markersize=14, color=COLOURS[colour])
        style.note(axes, "average", (middle, loss(middle)), (0, 10), ha="center")
    axes.set_ylim(-0.15, 1.8)
    axes.legend(loc="upper center")
    return axes


@in_course_style
def timelines(steps: int = 12, every: int = 4, message: float = 0.5) -> Axes:
    """When two workers compute and when they send, drawn to scale: every step, every `every` steps, once.

    Parameters
    ----------
    message : float
        How long a message takes, in steps.
    """
    ways = {"DDP: every step": 1, f"local SGD: every {every} steps": every, "parallel SGD: once": steps}
    title = "The same computation; what differs is how often the workers send"
    axes = new_axes(title, "time (in steps of one worker)", "", (8.4, 3.2))
    lanes = []
    for place, (label, interval) in enumerate(ways.items()):
        for worker in range(2):
            lane = 2.6 * place + worker
            lanes.append((lane, f"{label}, worker {worker}" if worker == 0 else "worker 1"))
            now = 0.0
            for step in range(1, steps + 1):
                axes.barh(lane, 0.92, left=now, height=0.7, color=COLOURS["measured"])
                now += 1
                if step % interval == 0:
                    axes.barh(lane, message, left=now, height=0.9, color=COLOURS["other"], hatch="//")
                    now += message
    for colour, hatch, label in (("measured", "", "a step"), ("other", "//", "a message, for which all wait")):
        axes.barh(0, 0, color=COLOURS[colour], hatch=hatch, label=label)
    axes.set_yticks([lane for lane, _ in lanes], [label for _, label in lanes])
    axes.invert_yaxis()
    axes.grid(False)
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=9)
    return axes


@in_course_style
def speedups(series: Mapping[str, Mapping[int, Sequence[float]]], title: str) -> Axes:
    """Speed-up against workers, mean and range over seeds, with the ideal S(P) = P drawn.

    Parameters
    ----------
    series : mapping of label to mapping of workers to speed-ups, one a seed
    """
    axes = new_axes(title, "workers P", "speed-up T(1) / T(P)")
    workers = sorted({count for runs in series.values() for count in runs})
    axes.plot(workers, workers, color=COLOURS["reference"], linewidth=1, linestyle=(0, (1, 3)), label="ideal")
    for index, (label, runs) in enumerate(series.items()):
        _with_range(axes, runs, index, label, len(series))
    axes.set_xticks(workers)
    axes.set_ylim(bottom=0)
    axes.legend()
    return axes


@in_course_style
def accuracy_against_workers(
    series: Mapping[str, Mapping[int, Sequence[float]]], title: str, lowest: float
) -> list[Axes]:
    """Test accuracy against workers, mean and range over seeds: whole, and the part above `lowest` once more.

    Parameters
    ----------
    series : mapping of label to mapping of workers to accuracies in 0…1, one a seed
        At most four.
    """
    figure, panels = plt.subplots(1, 2, figsize=(9.2, 4.2))
    workers = sorted({count for runs in series.values() for count in runs})
    for axes, (bottom, top) in zip(panels, ((0.0, 1.02), (lowest, 1.0)), strict=True):
        for index, (label, runs) in enumerate(series.items()):
            _with_range(axes, runs, index, label, len(series))
        axes.set_xticks(workers)
        axes.set_xlabel("workers P")
        axes.set_ylim(bottom, top)
        style.percent(axes.yaxis)
    panels[0].set_ylabel("test accuracy")
    panels[0].set_title(title)
    panels[1].set_title(f"above {lowest:.0%}", loc="right", fontsize=9)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=9)
    return list(panels)


@in_course_style
def accuracy_against_interval(series: Mapping[str, Mapping[str, Sequence[float]]], title: str) -> Axes:
    """Test accuracy of the average against the steps between two averagings, mean and range over seeds.

    Parameters
    ----------
    series : mapping of label to mapping of interval, in words, to accuracies in 0…1, one per seed
    """
    axes = new_axes(title, "H, steps between two averagings", "test accuracy of the average", (6.8, 3.6))
    for index, (label, runs) in enumerate(series.items()):
        _with_range(axes, dict(enumerate(runs.values())), index, label, len(series))
        axes.set_xticks(range(len(runs)), list(runs))
    axes.set_ylim(0, 1.02)
    style.percent(axes.yaxis)
    axes.legend()
    return axes


@in_course_style
def loss_between(lines: Mapping[str, Sequence[tuple[float, float]]], points: Sequence[float], title: str) -> Axes:
    """Loss along the line between two workers, the ends and the middle marked.

    Parameters
    ----------
    lines : mapping of label to (loss, accuracy) at each of `points`
    points : sequence of float
        0 is the first worker, 1 the second.
    """
    axes = new_axes(title, "from worker 0 (t = 0) to worker 1 (t = 1)", "test loss (log scale)", (6.8, 3.8))
    for index, (label, line) in enumerate(lines.items()):
        losses = [loss for loss, _ in line]
        axes.semilogy(points, losses, style.LINES[index], color=style.PALETTE[index], label=label)
        for place, marker, size in ((0.0, "o", 6), (0.5, "*", 11), (1.0, "o", 6)):
            at = min(range(len(points)), key=lambda i: abs(points[i] - place))
            axes.plot(points[at], losses[at], marker, color=style.PALETTE[index], markersize=size)
    style.plain_numbers(axes.yaxis)
    axes.yaxis.set_minor_formatter(
        FuncFormatter(lambda value, _: f"{value:g}" if str(value).lstrip("0.")[:1] in "25" else "")
    )
    axes.legend(loc="upper right", fontsize=9)
    axes.set_ylim(top=axes.get_ylim()[1] * 2.5)  # room for the legend
    return axes


def _with_range(axes: Axes, runs: Mapping[int, Sequence[float]], index: int, label: str, many: int) -> None:
    rows = {key: (statistics.fmean(values), min(values), max(values)) for key, values in runs.items()}
    style.ranges(axes, rows, index, label, many)
