"""Figures of lab 01: images, the network, throughput and its models, a step's parts, memory, the forgotten zero_grad."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import LogLocator

from course_lib.metrics.speed import saturation_knee
from course_lib.plots import style
from course_lib.plots.style import COLOURS, HATCHES, PALETTE, in_course_style, new_axes

__all__ = [
    "first_images", "forgotten_zero_grad", "memory_against_batch", "step_parts", "throughput_models", "wide_resnet",
]  # fmt: skip


@in_course_style
def first_images(images: torch.Tensor, labels: torch.Tensor, classes: Sequence[str], count: int = 10) -> Figure:
    """A row of images: the first of each of the first `count` classes, with the class's name.

    Parameters
    ----------
    images : uint8 Tensor, (N, C, H, W)
    labels : int Tensor, (N,)
        A class without an image leaves its place empty.
    """
    figure, row = plt.subplots(1, count, figsize=(0.9 * count, 1.25))
    for label, axes in enumerate(row):
        axes.axis("off")
        axes.set_title(classes[label].split("/")[0], fontsize=7)
        for first in (labels == label).nonzero()[:1, 0].tolist():
            axes.imshow(images[first].permute(1, 2, 0).squeeze(), cmap="gray_r")
    return figure


def _box(axes: Axes, x: float, y: float, text: str, colour: str, width: float, height: float = 0.62) -> None:
    """A rounded box around a text, centred at (x, y)."""
    axes.add_patch(
        FancyBboxPatch((x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0.02,rounding_size=0.12",
                       facecolor=colour, edgecolor=colour, alpha=0.18)
    )  # fmt: skip
    axes.text(x, y, text, ha="center", va="center", fontsize=9)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    style.arrow(axes, start, end, COLOURS["reference"], arrowstyle="-|>", shrinkA=0, shrinkB=0)


@in_course_style
def wide_resnet(widths: Sequence[int], side: int, channels: int, classes: int) -> Figure:
    """The network from the image to the logits, and below it one residual block.

    Parameters
    ----------
    widths : three ints
        Channels of the stages.
    side, channels : int
        Of the input images, in pixels.
    """
    figure, (above, below) = plt.subplots(2, 1, figsize=(8.8, 3.6))
    sides = (side, side // 2, side // 4)
    parts = [(f"image\n{channels}×{side}×{side}", "reference")]
    parts += [(f"stem\n16×{side}×{side}", "measured")]
    for number, (width, height) in enumerate(zip(widths, sides, strict=True), 1):
        parts += [(f"stage {number}: 2 blocks\n{width}×{height}×{height}", "other")]
        parts += [("max\npool", "third")] if number < 3 else [("mean", "third")]
    parts += [(f"linear\n{classes} logits", "measured")]
    x = 0.0
    for index, (text, colour) in enumerate(parts):
        width = 1.8 if "blocks" in text else 0.62 if colour == "third" else 1.15
        _box(above, x + width / 2, 0, text, COLOURS[colour], width, 0.8)
        x += width
        if index < len(parts) - 1:
            _arrow(above, (x + 0.04, 0), (x + 0.3, 0))
            x += 0.34
    above.set(xlim=(-0.1, x + 0.1), ylim=(-0.55, 0.55), title="The network: channels × height × width of each output")
    row = [("x", "reference", 0.4), ("conv 3×3, batch norm, ReLU", "measured", 2.1), ("dropout", "third", 0.8),
           ("conv 3×3, batch norm, ReLU", "measured", 2.1), ("+", "other", 0.4), ("y = F(x) + S(x)", "reference", 1.3)]  # fmt: skip
    x, centres = 0.0, []
    for index, (text, colour, width) in enumerate(row):
        _box(below, x + width / 2, 0, text, COLOURS[colour], width)
        centres.append(x + width / 2)
        x += width
        if index < len(row) - 1:
            _arrow(below, (x + 0.04, 0), (x + 0.4, 0))
            x += 0.44
    below.plot([centres[0], centres[0], centres[4]], [0.33, 0.9, 0.9], color=COLOURS["reference"], linewidth=1)
    _arrow(below, (centres[4], 0.9), (centres[4], 0.35))
    middle = (centres[0] + centres[4]) / 2
    below.text(middle, 0.98, "S(x): the identity, or a 1×1 convolution", ha="center", va="bottom", fontsize=9)
    below.set(xlim=(-0.1, x + 0.1), ylim=(-0.5, 1.35), title="One residual block")
    for axes in (above, below):
        axes.axis("off")
    return figure


@in_course_style
def throughput_models(throughput: Mapping[int, float], models: Mapping[str, Mapping[int, float]]) -> Axes:
    """Images/s against batch size, measured and by models of the step's time, with the saturation knee marked.

    Parameters
    ----------
    throughput : mapping of batch size to images/s
    models : mapping of label to mapping of batch size to images/s
        At most two; lines.
    """
    sizes = sorted(throughput)
    knee = saturation_knee(throughput)
    axes = new_axes(
        f"Batch {knee} is the smallest with 90 % of the best throughput", "batch size (images, log scale)",
        "training throughput (images/s)",
    )  # fmt: skip
    for (label, line), colour, dash in zip(models.items(), ("third", "other"), ("-", "--"), strict=False):
        axes.plot(list(line), list(line.values()), dash, color=COLOURS[colour], label=label)
    axes.plot(sizes, [throughput[size] for size in sizes], "o", color=COLOURS["measured"], label="measured")
    axes.plot(knee, throughput[knee], "o", markersize=14, markerfacecolor="none", color=COLOURS["measured"])
    level = 0.9 * max(throughput.values())
    axes.axhline(level, **style.REFERENCE)
    style.label_line(axes, "90 % of the best", level)
    style.powers_of_two(axes, sizes)
    axes.set_ylim(bottom=0)
    style.plain_numbers(axes.yaxis, ",.0f")
    axes.legend(loc="lower right")
    return axes


@in_course_style
def step_parts(parts: Mapping[str, Mapping[str, float]], title: str) -> Axes:
    """Stacked bars: where the time of an image goes, a bar per way to train.

    Parameters
    ----------
    parts : mapping of label to mapping of part to µs per image
        The same parts, at most four, for every label.
    """
    axes = new_axes(title, "time per image (µs)", "", (7.6, 1.2 + 0.5 * len(parts)))
    names = list(next(iter(parts.values())))
    axes.set_xlim(right=1.12 * max(sum(bar.values()) for bar in parts.values()))
    left = np.zeros(len(parts))
    for name, colour, hatch in zip(names, PALETTE, HATCHES, strict=False):
        lengths = np.array([bar[name] for bar in parts.values()])
        axes.barh(list(parts), lengths, left=left, color=colour, hatch=hatch, edgecolor="white", alpha=0.85, label=name)
        left += lengths
    style.plain_numbers(axes.xaxis, ",.0f")
    for row, length in enumerate(left):
        style.note(axes, f"{length:,.0f} µs", (length, row), (4, 0), va="center")
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.32 if len(parts) < 4 else -0.25))
    return axes


@in_course_style
def memory_against_batch(needs: Mapping[str, tuple[float, float]], free: float, title: str) -> Axes:
    """Memory of a step against its batch, on two logarithmic axes, with the memory that is free as a line.

    Parameters
    ----------
    needs : mapping of label to (bytes that do not depend on the batch, bytes per image)
        At most four networks. The first part is drawn alone, too, dotted.
    free : float
        Bytes.
    """
    axes = new_axes(title, "batch size (images, log scale)", "memory (GB, log scale)")
    sizes = 2.0 ** np.arange(0, 21)
    for index, (label, (fixed, each)) in enumerate(needs.items()):
        colour = PALETTE[index % 4]
        axes.loglog(sizes, (fixed + each * sizes) / 1e9, color=colour, label=label)
        axes.loglog(sizes, np.full_like(sizes, fixed) / 1e9, ":", color=colour)
        limit = (free - fixed) / each
        if limit >= 1:
            axes.plot(limit, free / 1e9, "o", color=colour)
            style.note(axes, f"{limit:,.0f}", (limit, free / 1e9), (-4, 5), ha="right", color=colour)
    axes.axhline(free / 1e9, **style.REFERENCE)
    style.label_line(axes, f"free: {free / 1e9:.0f} GB", free / 1e9)
    lowest = min(fixed for fixed, _ in needs.values())
    axes.set_ylim(0.01 * lowest / 1e9, 8 * free / 1e9)  # room for the legend below
    style.plain_numbers(axes.yaxis)
    axes.legend(loc="lower right", title="solid: all of it; dotted: without activations", title_fontsize=9)
    return axes


@in_course_style
def forgotten_zero_grad(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """Loss and gradient norm of each step, on logarithmic axes side by side, with zero_grad and without.

    Parameters
    ----------
    curves : mapping of label to (losses, gradient norms)
        Two, the right one first.
    """
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for (label, both), colour, dash in zip(curves.items(), ("measured", "other"), ("-", "--"), strict=True):
        for axes, values in zip(panels, both, strict=True):
            axes.plot(range(1, len(values) + 1), values, dash, color=COLOURS[colour], label=label)
    right, wrong = ([np.mean(values[-10:]) for values in both] for both in curves.values())
    for axes, place, name in zip(panels, (0, 1), ("training loss", "gradient norm"), strict=True):
        axes.set(xlabel="step", ylabel=f"{name} (log scale)", yscale="log")
        title = f"{name}, last ten steps: {wrong[place]:.1f} instead of {right[place]:.1f}"
        axes.set_title(title[:1].upper() + title[1:], loc="left", fontsize=10)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        style.plain_numbers(axes.yaxis)
    panels[0].legend(frameon=False)
    return figure
