"""Figures of labs 02 and 12: copies and shares of data-parallel training, who trains which image, a program's epoch, messages."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course_lib.plots import style
from course_lib.plots.style import COLOURS, in_course_style

__all__ = ["backward_timeline", "copies_and_shares", "dealt_images", "epoch_of_a_program", "learning_rates"]

RANKS = [COLOURS["measured"], COLOURS["other"], COLOURS["third"], COLOURS["reference"]]


@in_course_style
def copies_and_shares(batch_size: int) -> Figure:
    """Two ranks with a copy of the model each and `batch_size` images each, and the all-reduce between them."""
    figure, axes = plt.subplots(figsize=(8.2, 3.2))
    axes.set(xlim=(0.8, 9.2), ylim=(0, 4))
    axes.axis("off")
    for rank, x in enumerate((1.2, 5.9)):
        rows = (
            (3.3, f"images {batch_size * rank}…{batch_size * (rank + 1) - 1} of the batch"),
            (2.35, f"copy of the model on rank {rank}"),
            (1.4, f"gradient $g_{rank}$"),
        )
        for y, text in rows:
            style.box(axes, (x, y), 2.9, 0.55, text, RANKS[rank], face="0.95", fontsize=10)
        for top in (3.3, 2.35):
            style.arrow(axes, (x + 1.45, top), (x + 1.45, top - 0.4))
        style.arrow(axes, (x + 1.45, 1.4), (x + 1.45, 0.72), arrowstyle="<->")
    text = r"all-reduce: afterwards both ranks have $(g_0+g_1)/2$, and both take the same step"
    style.box(axes, (1.2, 0.12), 7.6, 0.6, text, fontsize=10)
    style.figure_title(figure, "The data is cut, the model is copied, the gradients are averaged")
    return figure


@in_course_style
def dealt_images(orders: Mapping[str, Sequence[Sequence[Sequence[int]]]], title: str) -> Figure:
    """Which rank trains which image, and when, in each epoch.

    Parameters
    ----------
    orders : mapping of panel to ``[epoch][rank]`` to the indices of the images, in the order of training
    """
    figure, panels = plt.subplots(1, len(orders), figsize=(9.6, 0.62 * len(next(iter(orders.values()))) + 1.5))
    for axes, (label, epochs) in zip(panels, orders.items(), strict=True):
        images = 1 + max(index for ranks in epochs for order in ranks for index in order)
        for epoch, ranks in enumerate(epochs):
            for rank, order in enumerate(ranks):
                for position, index in enumerate(order):
                    axes.add_patch(plt.Rectangle((index - 0.46, epoch - 0.4), 0.92, 0.8, facecolor=RANKS[rank % 4]))
                    axes.text(index, epoch, position + 1, ha="center", va="center", color="white", fontsize=8)
        axes.set(xlim=(-0.6, images - 0.4), ylim=(len(epochs) - 0.4, -0.6), title=label, xlabel="image")
        axes.set_xticks(range(images))
        axes.tick_params(axis="x", labelsize=7)
        axes.set_yticks(range(len(epochs)), [f"epoch {epoch}" for epoch in range(len(epochs))])
        axes.grid(visible=False)
    handles = [
        plt.Rectangle((0, 0), 1, 1, color=RANKS[rank % 4]) for rank in range(len(next(iter(orders.values()))[0]))
    ]
    figure.legend(handles, [f"rank {rank}" for rank in range(len(handles))], loc="outside lower right", ncols=4)
    style.figure_title(figure, title)
    return figure


@in_course_style
def backward_timeline(traces: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], title: str) -> Figure:
    """Backward computation and all-reduces of one step, a panel per setting.

    Parameters
    ----------
    traces : mapping of panel to lanes (``backward pass``, ``all-reduce``) to ``(begin, end)`` in milliseconds
    """
    figure, panels = plt.subplots(len(traces), 1, sharex=True, figsize=(8.2, 1.5 * len(traces) + 0.8))
    for axes, (label, lanes) in zip(panels, traces.items(), strict=True):
        for row, (name, spans) in enumerate(lanes.items()):
            bars = [(begin, end - begin) for begin, end in spans]
            axes.broken_barh(bars, (row - 0.38, 0.76), facecolor=RANKS[row], edgecolor="white", linewidth=0.6)
            if name == "all-reduce":
                for number, (begin, end) in enumerate(spans, 1):
                    axes.text((begin + end) / 2, row, number, ha="center", va="center", color="white", fontsize=9)
        axes.set_yticks(range(len(lanes)), list(lanes))
        axes.set_title(label, loc="left", fontsize=10)
        axes.set_ylim(len(lanes) - 0.4, -0.6)
        axes.grid(visible=False)
    longest = max(end for lanes in traces.values() for spans in lanes.values() for _, end in spans)
    panels[-1].set_xlim(0, 1.02 * longest)
    panels[-1].set_xlabel("time since the backward pass began (ms)")
    style.figure_title(figure, title)
    return figure


@in_course_style
def epoch_of_a_program() -> Figure:
    """What two ranks do in an epoch of a data-parallel program, and where a collective connects them; time runs down."""
    rows = (
        ("own", "the sampler's share of the images", "once per epoch"),
        ("own", "forward and backward of one batch", "in every step"),
        ("both", "all-reduce: the mean of the gradients", "in every step"),
        ("own", "one step of optimiser and schedule", "in every step"),
        ("both", "broadcast: rank 0's batch-norm statistics", "once per epoch"),
        ("own", "evaluation of a share of the test images", "once per epoch"),
        ("both", "all-reduce: sums and counts, longest time", "once per epoch"),
        ("own", "equal numbers, so an equal decision to stop", "once per epoch"),
        ("rank 0", "transcript, learning curve, checkpoint", "once per epoch"),
    )
    figure, axes = plt.subplots(figsize=(9.2, 5.0))
    axes.set(xlim=(0, 10.6), ylim=(len(rows) + 0.1, -0.7))
    axes.axis("off")
    for y, (who, text, often) in enumerate(rows):
        if who == "both":
            style.box(axes, (0.2, y), 8.6, 0.62, text, face="0.88", fontsize=10)
        for rank, x in enumerate((0.2, 4.7)) if who != "both" else ():
            if rank == 0 or who == "own":
                style.box(axes, (x, y), 4.1, 0.62, text, RANKS[rank])
        axes.text(9.0, y + 0.31, often, va="center", fontsize=9)
        for x in (2.25, 6.75) if 0 < y < len(rows) - 1 else (2.25,) if y else ():
            style.arrow(axes, (x, y - 0.38), (x, y))
    for rank, x in enumerate((2.25, 6.75)):
        axes.text(x, -0.3, f"rank {rank}", ha="center", color=RANKS[rank], fontsize=11)
    style.figure_title(figure, "An epoch on two ranks: three collectives keep them together (grey)")
    return figure


@in_course_style
def learning_rates(rates: Mapping[str, Sequence[float]], steps_per_epoch: int) -> Figure:
    """Learning rate against epochs, a line per label; `rates` are those of every step."""
    figure, axes = plt.subplots(figsize=(7.2, 3.0))
    for index, (label, values) in enumerate(rates.items()):
        epochs = [step / steps_per_epoch for step in range(len(values))]
        axes.plot(epochs, values, label=label, color=RANKS[index % 4])
    axes.set(xlabel="epoch", ylabel="learning rate", ylim=(0, None))
    axes.legend()
    highest = ", ".join(f"{label} {max(values):g}" for label, values in rates.items())
    axes.set_title(f"Your recipe; highest learning rate: {highest}", loc="left")
    return figure
