"""Figures of lab 10: the Fisher matrix and its approximations, damping, owners of layers, the cost and the race."""

import itertools
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from course_lib.plots.style import COLOURS, figure_title, in_course_style, label_line, new_axes, percent

__all__ = [
    "block_diagonal", "cost_of_a_step", "damping_sweep", "fisher_blocks", "layer_owners", "loss_curves", "race",
]  # fmt: skip

_STYLES = (("other", "--", "s"), ("measured", "-", "o"), ("third", "-.", "^"), ("reference", ":", "D"))
_LAST = {"SGD": 0, "K-FAC": 1, "AdamW": 2, "Muon": 3}  # what has a place of its own among the styles


def _style(label: str, place: int) -> dict[str, str]:
    """Colour, line and marker: SGD's and K-FAC's wherever they appear, by the place of others."""
    known = next((index for name, index in _LAST.items() if label.startswith(name)), place % 4)
    colour, line, marker = _STYLES[known]
    return {"color": COLOURS[colour], "linestyle": line, "marker": marker}


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
def block_diagonal(matrix: torch.Tensor, sizes: Sequence[int], names: Sequence[str], title: str) -> Figure:
    """The entries of a Fisher matrix over all weights, and what its block-diagonal approximation keeps.

    Parameters
    ----------
    matrix : Tensor (k, k)
    sizes : sequence of int
        Weights of each layer; they add up to k.
    names : sequence of str
        Of the layers.
    """
    figure, panels = plt.subplots(1, 2, figsize=(8.2, 3.8), layout="constrained")
    whole = matrix.abs().double().numpy()
    kept, edges = np.zeros_like(whole), np.concatenate([[0], np.cumsum(sizes)])
    for begin, end in itertools.pairwise(edges):
        kept[begin:end, begin:end] = whole[begin:end, begin:end]
    bound = np.quantile(whole, 0.995)
    for axes, name, entries in zip(
        panels, ("F, all layers", "K-FAC keeps the blocks of single layers"), (whole, kept), strict=True
    ):
        image = axes.imshow(entries, cmap="Greys", vmin=0, vmax=bound, interpolation="antialiased")
        axes.grid(False)
        axes.set_title(name, fontsize=10)
        middles = [(begin + end) / 2 for begin, end in itertools.pairwise(edges)]
        axes.set_xticks(middles, names, fontsize=9)
        axes.set_yticks(middles, names, fontsize=9, rotation=90, va="center")
        for edge in edges[1:-1]:
            axes.axhline(edge - 0.5, color=COLOURS["other"], linewidth=1)
            axes.axvline(edge - 0.5, color=COLOURS["other"], linewidth=1)
    figure.colorbar(image, ax=panels, shrink=0.8, label="|entry|")
    figure_title(figure, title)
    return figure


@in_course_style
def layer_owners(sizes: Sequence[tuple[int, int]], owners: Sequence[int], ranks: int, title: str) -> Figure:
    """Which rank inverts which layer's factors, and which ranks hold the inverses, with both ways to divide the work.

    A factor is a square whose side grows with its size: dark where a rank inverts it, light where it receives the inverse.

    Parameters
    ----------
    sizes : sequence of (n, m)
        Sizes of A and G of each layer.
    owners : sequence of int
        The rank that inverts a layer's factors.
    """
    figure, panels = plt.subplots(1, 2, figsize=(8.6, 0.7 + 0.62 * len(sizes)), layout="constrained", sharey=True)
    largest = max(max(size) for size in sizes)
    for axes, way in zip(panels, ("comm-opt", "mem-opt"), strict=True):
        for layer, size in enumerate(sizes):
            for rank in range(ranks):
                mine = owners[layer] == rank
                if not mine and way == "mem-opt":
                    continue
                for side, n in enumerate(size):
                    width = 0.1 + 0.28 * (n / largest) ** 0.5
                    place = rank + 0.21 * (2 * side - 1)
                    style = {"facecolor": COLOURS["measured"]} if mine else {"facecolor": "white", "hatch": "///"}
                    style |= {"width": width, "height": 2 * width, "edgecolor": COLOURS["measured"]}
                    axes.add_patch(plt.Rectangle((place - width / 2, layer - width), **style))
        axes.set(xlim=(-0.5, ranks - 0.5), ylim=(len(sizes) - 0.5, -0.5), title=f"{way}: who holds which inverses")
        axes.title.set_fontsize(10)
        axes.set_xticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
        axes.grid(False)
    panels[0].set_yticks(range(len(sizes)), [f"A {n}, G {m}" for n, m in sizes], fontsize=9)
    handles = [plt.Rectangle((0, 0), 1, 1, facecolor=COLOURS["measured"]),
               plt.Rectangle((0, 0), 1, 1, facecolor="white", hatch="///", edgecolor=COLOURS["measured"])]  # fmt: skip
    figure.legend(handles, ["inverted here", "received"], fontsize=8, loc="outside right upper")
    figure_title(figure, title)
    return figure


@in_course_style
def cost_of_a_step(rows: Mapping[str, Mapping[str, float]], title: str) -> Axes:
    """Milliseconds of each part of a step, stacked, one bar per label.

    Parameters
    ----------
    rows : mapping of label to mapping of part to milliseconds
        The same parts in each.
    """
    axes = new_axes(title, "milliseconds per step", "", (7.6, 0.9 + 0.45 * len(rows)))
    # One colour per cause: the gradient, K-FAC's factors and its inverses, messages.
    looks = {"forward": ("reference", ""), "backward": ("reference", "//"), "factors": ("measured", ""), "inverses": ("other", ""),
             "messages": ("third", ""), "update": ("reference", "xxx")}  # fmt: skip
    left = dict.fromkeys(rows, 0.0)
    for part in next(iter(rows.values())):
        colour, hatch = looks.get(part, ("reference", "xx"))
        widths = [row[part] for row in rows.values()]
        look = {"color": COLOURS[colour], "hatch": hatch, "edgecolor": "white"}
        axes.barh(list(rows), widths, left=list(left.values()), label=part, **look)
        left = {label: left[label] + row[part] for label, row in rows.items()}
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.legend(fontsize=8, handleheight=1.4, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return axes


@in_course_style
def race(curves: Mapping[str, Sequence[Mapping[str, Sequence[float]]]], target: float, title: str) -> Figure:
    """Accuracy against epochs, and the same against seconds: each seed thin, the mean over seeds thick.

    Parameters
    ----------
    curves : mapping of label to runs
        Each run with ``epoch``, ``time`` (s) and ``accuracy`` (0…1), of equal lengths.
    target : float
        Drawn as a line.
    """
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.7), sharey=True, layout="constrained")
    for axes, against, xlabel in zip(panels, ("epoch", "time"), ("epoch", "seconds of training"), strict=True):
        for place, (label, runs) in enumerate(curves.items()):
            style = _style(label, place)
            for run in runs:
                axes.plot(run[against], run["accuracy"], **(style | {"marker": ""}), linewidth=0.6, alpha=0.4)
            mean = {name: np.mean([run[name] for run in runs], axis=0) for name in (against, "accuracy")}
            axes.plot(mean[against], mean["accuracy"], **style, linewidth=1.8, markersize=5, label=label)
        axes.axhline(target, color=COLOURS["reference"], linestyle=":", linewidth=1)
        axes.set(xlabel=xlabel, ylabel="test accuracy" if against == "epoch" else "")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        percent(axes.yaxis)
    label_line(panels[0], f"{target:.1%}", target)
    panels[1].legend(fontsize=9, loc="lower right")
    figure_title(figure, title)
    return figure
