"""Lab 05's figures: residual block and bottleneck, the two shortcuts, a network's maps, and learning by depth."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from course_lib.plots import style
from course_lib.plots.style import COLOURS, arrow, box, in_course_style

__all__ = ["blocks", "network_maps", "shortcuts", "training_accuracies"]


def _draw_block(axes: Axes, title: str, layers: Sequence[str], x_in: str, x_out: str) -> None:
    axes.set(xlim=(-2.2, 4.6), ylim=(-0.6, len(layers) + 2.6), title=title)
    axes.axis("off")
    top = len(layers) + 1.9
    axes.text(0, top + 0.35, x_in, ha="center", fontsize=9)
    for place, text in enumerate(layers):
        y = len(layers) + 0.9 - place
        arrow(axes, (0, y + 0.7 if place else top + 0.25), (0, y + 0.3))
        box(axes, (-1.3, y - 0.3), 2.6, 0.6, text, COLOURS["measured"])
    arrow(axes, (0, 1.6), (0, 1.0))
    axes.plot([0, 3, 3], [top, top, 0.8], color=COLOURS["other"], linewidth=1.6)
    arrow(axes, (3, 0.8), (0.3, 0.8), COLOURS["other"])
    axes.text(3.1, len(layers) / 2 + 1, "shortcut:\nthe identity, or\nBN(conv 1×1)", va="center", fontsize=9,
              color=COLOURS["other"])  # fmt: skip
    axes.add_patch(plt.Circle((0, 0.8), 0.25, facecolor="white", edgecolor="0.3"))
    axes.text(0, 0.8, "+", ha="center", va="center", fontsize=12)
    arrow(axes, (0, 0.55), (0, 0.1))
    axes.text(0, -0.15, f"ReLU → {x_out}", ha="center", fontsize=9)


@in_course_style
def blocks() -> Figure:
    """A basic block and a bottleneck, side by side, from input to output."""
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 4.4))
    _draw_block(axes[0], "Basic block", ["conv 3×3, stride, BN", "ReLU", "conv 3×3, BN"],
                "x: (B, in_channels, H, W)", "(B, channels, H/s, W/s)")  # fmt: skip
    _draw_block(axes[1], "Bottleneck", ["conv 1×1, BN, ReLU", "conv 3×3, stride, BN, ReLU", "conv 1×1, BN"],
                "x: (B, in_channels, H, W)", "(B, 4·channels, H/s, W/s)")  # fmt: skip
    style.figure_title(figure, "The layers compute F(x); the shortcut carries x past them; the sum goes through a ReLU")
    return figure


@in_course_style
def shortcuts() -> Figure:
    """How 2 channels of 4×4 pixels become 4 channels of 2×2: zero padding (option A) and a projection (option B)."""
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 2.9))
    titles = ("Option A: no weights", "Option B: a 1×1 convolution, then BN")
    for ax, title, filled in zip(axes, titles, (2, 4), strict=True):
        ax.set(xlim=(-0.3, 8.6), ylim=(-0.9, 4.6), title=title, aspect="equal")
        ax.axis("off")
        for channel in (1, 0):
            for row in range(4):
                for column in range(4):
                    kept = row % 2 == 0 and column % 2 == 0
                    place = (column * 0.7 + channel * 0.45, 2.1 - row * 0.7 + channel * 0.45)
                    colour = COLOURS["measured"] if kept else "0.93"
                    ax.add_patch(plt.Rectangle(place, 0.66, 0.66, facecolor=colour, edgecolor="white"))
        arrow(ax, (3.6, 1.6), (4.6, 1.6))
        for channel in (3, 2, 1, 0):
            colour = COLOURS["measured" if filled == 2 else "other"] if channel < filled else "0.85"
            for row in range(2):
                for column in range(2):
                    place = (5 + column * 0.7 + channel * 0.45, 1.1 - row * 0.7 + channel * 0.45)
                    ax.add_patch(plt.Rectangle(place, 0.66, 0.66, facecolor=colour, edgecolor="white"))
        what = "two new channels of zeros (grey)" if filled == 2 else "each pixel's channels mixed into four"
        ax.text(4, -0.6, f"every second pixel; {what}", ha="center", fontsize=9)
    style.figure_title(figure, "Two ways to make x fit: 2 channels of 4×4 pixels become 4 channels of 2×2")
    return figure


@in_course_style
def network_maps(model: nn.Module, parts: Sequence[str]) -> Figure:
    """A bar for each part of `model`, as high as its map of a 32×32 image and as wide as its channels, with its parameters.

    Parameters
    ----------
    parts : sequence of str
        Names of the model's attributes, in the order of its forward.
    """
    side = 32
    shapes: dict[str, tuple[int, ...]] = {}
    handles = [
        getattr(model, name).register_forward_hook(
            lambda m, args, out, name=name: shapes.update({name: tuple(out.shape)})
        )
        for name in parts
    ]
    training = model.training
    parameter = next(model.parameters())
    with torch.no_grad():
        model.eval()(torch.zeros(1, 3, side, side, device=parameter.device, dtype=parameter.dtype))
    model.train(training)
    for handle in handles:
        handle.remove()
    figure, axes = plt.subplots(figsize=(8.4, 3.2))
    x = 0.0
    for name in parts:
        _, channels, *size = shapes[name] + (1, 1) if len(shapes[name]) == 2 else shapes[name]
        width, height = channels / 64, max(size[0] / side * 4, 0.25)
        axes.add_patch(plt.Rectangle((x, -height / 2), width, height, facecolor=COLOURS["measured"], alpha=0.35,
                                     edgecolor=COLOURS["measured"]))  # fmt: skip
        weights = sum(p.numel() for p in getattr(model, name).parameters())
        text = f"{name}\n{channels}×{size[0]}×{size[1]}\n{weights:,}"
        axes.text(x + width / 2, -2.3, text, ha="center", va="top", fontsize=8)
        x += max(width, 1.1) + 0.5
    axes.set(xlim=(-0.6, x), ylim=(-3.6, 2.2))
    axes.axis("off")
    total = sum(p.numel() for p in model.parameters())
    axes.set_title(
        f"Your network on a {side}×{side} image: {total:,} parameters (height: pixels, width: channels)", loc="left"
    )
    return figure


@in_course_style
def training_accuracies(curves: Mapping[tuple[bool, int], Sequence[Sequence[float]]]) -> Figure:
    """Training accuracy by epoch of plain and of residual networks of several depths.

    Parameters
    ----------
    curves : mapping
        ``(residual, layers)`` → a list of accuracies (0…1, one per epoch) for each seed.
    """
    figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.6), sharey=True)
    means = {key: [sum(values) / len(values) for values in zip(*runs, strict=True)] for key, runs in curves.items()}
    depths = sorted({depth for _, depth in curves})
    for ax, residual in zip(axes, (False, True), strict=True):
        for place, depth in enumerate(depths):
            look = style.series_style(place)
            epochs = range(1, len(means[residual, depth]) + 1)
            for run in curves[residual, depth]:
                ax.plot(epochs, run, look["linestyle"], color=look["color"], linewidth=0.7, alpha=0.5)
            label = f"{depth} layers: {means[residual, depth][-1]:.0%}"
            ax.plot(epochs, means[residual, depth], label=label, **look)
        ax.set(xlabel="epoch", title="residual" if residual else "plain", ylim=(0, None), xticks=list(epochs))
        style.percent(ax.yaxis)
        ax.legend()
    axes[0].set_ylabel("training accuracy")
    lost = [100 * (means[kind, depths[0]][-1] - means[kind, depths[-1]][-1]) for kind in (False, True)]
    style.figure_title(figure, f"From {depths[0]} to {depths[-1]} layers the plain network loses {lost[0]:.0f} points of "
                               f"training accuracy, the residual one {lost[1]:.0f}")  # fmt: skip
    return figure
