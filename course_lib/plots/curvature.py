"""Figures of lab 10: the valley, the Fisher and its approximation, damping, and the race between SGD and K-FAC."""

import statistics
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from course_lib.plots.style import COLOURS, figure_title, in_course_style, label_line, new_axes, percent

__all__ = ["damping_sweep", "fisher_blocks", "interval_trade", "loss_curves", "race", "valley"]

_STYLES = (("other", "--", "s"), ("measured", "-", "o"), ("third", "-.", "^"), ("reference", ":", "D"))
_LAST = {"SGD": 0, "K-FAC": 1}  # what has a place of its own among the styles


def _style(label: str, place: int) -> dict[str, str]:
    """Colour, line and marker: SGD's and K-FAC's wherever they appear, by the place of others."""
    known = next((index for name, index in _LAST.items() if label.startswith(name)), place % 4)
    colour, line, marker = _STYLES[known]
    return {"color": COLOURS[colour], "linestyle": line, "marker": marker}


@in_course_style
def valley(
    curvature: torch.Tensor, best: Sequence[float], paths: Mapping[str, Sequence[Sequence[float]]], title: str
) -> Axes:
    """Contours of the loss ½ (w − best)ᵀ H (w − best) over two weights, and the places that each method went through.

    Parameters
    ----------
    curvature : Tensor (2, 2)
        H, symmetric and positive.
    paths : mapping of label to places ``[(w1, w2), …]``
        The first is drawn as SGD is, the second as K-FAC is.
    """
    axes = new_axes(title, "first weight", "second weight", (6.4, 4.4))
    places = np.array([place for path in paths.values() for place in path] + [best])
    low, high = places.min(0) - 0.25, places.max(0) + 0.25
    first, second = np.meshgrid(np.linspace(low[0], high[0], 200), np.linspace(low[1], high[1], 200))
    h, d1, d2 = curvature.double().numpy(), first - best[0], second - best[1]
    loss = 0.5 * (h[0, 0] * d1**2 + 2 * h[0, 1] * d1 * d2 + h[1, 1] * d2**2)
    levels = loss.max() * 4.0 ** np.arange(-7, 1)
    axes.contour(first, second, loss, levels=levels, colors=COLOURS["reference"], linewidths=0.6, alpha=0.7)
    for place, (label, path) in enumerate(paths.items()):
        axes.plot(*np.array(path).T, **_style(label, place), markersize=4, linewidth=1.4, label=label)
    axes.plot(*best, marker="*", markersize=13, color="black", linestyle="none", label="lowest loss")
    axes.set_aspect("equal")
    axes.legend(fontsize=9, loc="lower left", frameon=True, framealpha=0.9, edgecolor="none")
    return axes


@in_course_style
def fisher_blocks(exact: torch.Tensor, approximation: torch.Tensor, classes: int, title: str, first: int = 0) -> Figure:
    """A layer's Fisher matrix beside its Kronecker approximation, in the same grey levels, and their difference.

    Parameters
    ----------
    exact, approximation : Tensor (k, k)
        Only the block of five inputs is drawn, from the input `first` on, `classes` rows each.
    """
    figure, panels = plt.subplots(1, 3, figsize=(9, 3.4))
    block = slice(first * classes, (first + 5) * classes)
    whole, factored = (matrix[block, block].double().numpy() for matrix in (exact, approximation))
    bound = np.abs(whole).max()
    drawn = {"mean of products: F": whole, "product of means: A ⊗ G": factored, "difference": whole - factored}
    for axes, (name, matrix) in zip(panels, drawn.items(), strict=True):
        image = axes.imshow(matrix, cmap="RdBu_r", vmin=-bound, vmax=bound, interpolation="nearest")
        axes.set_title(name, fontsize=10)
        axes.grid(False)
        axes.spines[:].set_visible(True)
        axes.set_xticks([classes * k - 0.5 for k in range(6)], [])
        axes.set_yticks([classes * k - 0.5 for k in range(6)], [])
        axes.set_xlabel(f"5 inputs × {classes} classes")
    figure.colorbar(image, ax=panels, shrink=0.8, label="entry")
    figure_title(figure, title)
    return figure


@in_course_style
def loss_curves(losses: Mapping[str, Sequence[float]], title: str) -> Axes:
    """Training loss against the step, a line a method, the losses on a logarithmic axis."""
    axes = new_axes(title, "step", "training loss (log scale)", (6.4, 3.6))
    for place, (label, values) in enumerate(losses.items()):
        style = _style(label, place) | {"marker": ""}
        axes.plot(range(1, len(values) + 1), values, **style, linewidth=1.6, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.legend(fontsize=9)
    return axes


@in_course_style
def damping_sweep(losses: Mapping[str, Mapping[float, float]], title: str, highest: float) -> Axes:
    """Loss after a fixed number of steps against the damping, a line a learning rate.

    Parameters
    ----------
    losses : mapping of label to mapping of γ to loss
    highest : float
        Losses beyond it, and those that are not finite, are drawn at the upper edge, as crosses.
    """
    axes = new_axes(title, "damping γ (log scale)", "training loss at the end", (6.4, 3.6))
    for place, (label, series) in enumerate(losses.items()):
        colour, line, marker = _STYLES[(place + 1) % 4]
        shown = [value if value < highest else highest for value in series.values()]  # NaN compares as False
        axes.plot(list(series), shown, line, color=COLOURS[colour], marker=marker, label=label)
        lost = [damping for damping, value in series.items() if not value < highest]
        axes.plot(lost, [highest] * len(lost), "x", color=COLOURS[colour], markersize=10, clip_on=False)
    axes.set_xscale("log")
    axes.set_ylim(0, highest)
    axes.legend(fontsize=9, loc="upper right")
    return axes


@in_course_style
def race(curves: Mapping[str, Sequence[Mapping[str, Sequence[float]]]], target: float, title: str) -> Figure:
    """Validation accuracy against epochs, and the same against seconds: each seed thin, the mean over seeds thick.

    Parameters
    ----------
    curves : mapping of label to runs
        Each run with ``epoch``, ``time`` (s) and ``accuracy`` (0…1), of equal lengths.
    target : float
        Drawn as a line.
    """
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.7), sharey=True)
    for axes, against, xlabel in zip(panels, ("epoch", "time"), ("epoch", "seconds of training"), strict=True):
        for place, (label, runs) in enumerate(curves.items()):
            style = _style(label, place)
            if label.endswith("2 ranks"):
                style["markerfacecolor"] = "white"
            for run in runs:
                axes.plot(run[against], run["accuracy"], **(style | {"marker": ""}), linewidth=0.6, alpha=0.4)
            mean = {name: np.mean([run[name] for run in runs], axis=0) for name in (against, "accuracy")}
            axes.plot(mean[against], mean["accuracy"], **style, linewidth=1.8, markersize=5, label=label)
        axes.axhline(target, color=COLOURS["reference"], linestyle=":", linewidth=1)
        axes.set(xlabel=xlabel, ylabel="validation accuracy" if against == "epoch" else "")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        percent(axes.yaxis)
    label_line(panels[0], f"{target:.1%}", target)
    panels[1].legend(fontsize=9, loc="lower right")
    figure_title(figure, title)
    return figure


@in_course_style
def interval_trade(rows: Mapping[int, Mapping[str, Sequence[float]]], sgd: Mapping[str, float], title: str) -> Figure:
    """Milliseconds a step, megabytes a step and accuracy against the update interval, with SGD as a line.

    Parameters
    ----------
    rows : mapping of interval (steps) to ``{"ms": runs, "megabytes": runs, "accuracy": runs}``
    sgd : mapping
        The same three, one number each.
    """
    figure, panels = plt.subplots(1, 3, figsize=(9, 3.1))
    labels = {"ms": "ms per step", "megabytes": "MB per step and rank", "accuracy": "validation accuracy"}
    for axes, (name, label) in zip(panels, labels.items(), strict=True):
        means = [statistics.fmean(row[name]) for row in rows.values()]
        for interval, row in rows.items():
            axes.plot([interval] * len(row[name]), row[name], "o", color=COLOURS["measured"], alpha=0.35, markersize=4)
        axes.plot(list(rows), means, marker="o", color=COLOURS["measured"])
        axes.axhline(sgd[name], color=COLOURS["other"], linestyle="--")
        axes.annotate("SGD", (1, sgd[name]), xytext=(0, 3), xycoords=("axes fraction", "data"), ha="right",
                      textcoords="offset points", color=COLOURS["other"], fontsize=9)  # fmt: skip
        axes.set_xscale("log")
        axes.set_xticks(list(rows), [str(interval) for interval in rows])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set(xlabel="steps between updates", ylabel=label)
        if name == "accuracy":
            percent(axes.yaxis, decimals=1)
        else:
            axes.set_ylim(bottom=0)
    figure_title(figure, title)
    return figure
