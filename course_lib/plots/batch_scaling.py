"""Figures of lab 03: long steps, learning rates at a large batch, speed and accuracy, gradient noise, steps and images."""

import math
import statistics
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from course_lib.plots import style
from course_lib.plots.style import COLOURS, in_course_style, new_axes

__all__ = ["gradient_noise", "learning_rates", "long_step", "losses_by_epoch", "speed_and_accuracy", "steps_and_images"]

Runs = Mapping[float, Sequence[float]]


@in_course_style
def long_step(k: int = 8, lr: float = 0.16) -> Figure:
    """One step of length k·lr beside k steps of length lr, where the gradient hardly turns and where it does."""
    figure, both = plt.subplots(1, 2, figsize=(8.6, 3.0), sharex=True, sharey=True)
    x, y = np.meshgrid(np.linspace(-1.6, 2.2, 90), np.linspace(-1.2, 1.6, 90))
    starts = (("The gradient hardly turns: both arrive together", (0.25, 0.25)),
              ("The gradient turns: the long step overshoots", (0.25, 1.5)))  # fmt: skip
    for axes, (title, curvature) in zip(both, starts, strict=True):
        curvature = np.array(curvature)
        way = [np.array([1.9, 1.2])]
        for _ in range(k):
            way.append(way[-1] - lr * curvature * way[-1])
        end = way[0] - k * lr * curvature * way[0]
        axes.contour(x, y, curvature[0] * x**2 + curvature[1] * y**2, 9, colors=COLOURS["reference"], linewidths=0.5)
        axes.plot(*zip(*way, strict=True), "o-", color=COLOURS["measured"], markersize=3, label=f"{k} steps of η")
        style.arrow(axes, way[0], end, COLOURS["other"], linewidth=1.5)
        axes.plot(*end, "s", color=COLOURS["other"], label=f"1 step of {k}η")
        axes.set(title=title, xlabel="one weight")
        axes.set_aspect("equal")
    both[0].set_ylabel("another weight")
    both[0].legend(loc="lower left")
    return figure


@in_course_style
def learning_rates(optimizers: Mapping[str, tuple[Runs, Mapping[str, float], float]], batch: int) -> Figure:
    """Validation accuracy against learning rate at one batch size, a panel per optimiser.

    Parameters
    ----------
    optimizers : mapping of name to (runs, rules, reference)
        The accuracies in 0…1 of each learning rate; the learning rate of each rule; the small batch's mean accuracy.
    batch : int
    """
    figure, panels = plt.subplots(1, len(optimizers), figsize=(9.4, 3.8), sharey=True, squeeze=False)
    for axes, (name, (runs, rules, reference)) in zip(panels[0], optimizers.items(), strict=True):
        rates = sorted(runs)
        means = [statistics.fmean(runs[lr]) for lr in rates]
        errors = [style.standard_error(runs[lr]) for lr in rates]
        axes.errorbar(rates, means, errors, color=COLOURS["measured"], marker="o")
        for rule, lr in rules.items():
            mean = statistics.fmean(runs[lr])
            paper = {"fc": "white", "ec": "none", "pad": 0.5}
            above = (lr, mean + style.standard_error(runs[lr]))
            style.note(axes, rule, above, (0, 7), ha="center", color=COLOURS["other"], bbox=paper)
            axes.plot(lr, mean, "s", color=COLOURS["other"], zorder=4)
        axes.axhline(reference, **style.REFERENCE)
        style.label_line(axes, f"small batch, {reference:.1%}", reference)
        axes.set(xscale="log", xlabel=f"learning rate of {name} (log scale)",
                 title=f"{name}, batch {batch:,}: best at {rates[int(np.argmax(means))]:.3g}")  # fmt: skip
        axes.margins(x=0.14, y=0.14)
        style.plain_numbers(axes.xaxis)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panels[0][0].set_ylabel("validation accuracy")
    style.percent(panels[0][0].yaxis)
    panels[0][0].yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))  # whole percent, as the labels are
    return figure


@in_course_style
def speed_and_accuracy(speed: Mapping[int, Mapping[int, float]], accuracy: Runs) -> Figure:
    """Throughput against batch size, a line per number of ranks; beside it accuracy against the throughput of the last.

    Parameters
    ----------
    speed : mapping of ranks to mapping of batch to images/s
    accuracy : mapping of batch to accuracies in 0…1
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.8, 3.8))
    for index, (ranks, series) in enumerate(speed.items()):
        label = f"{ranks} rank{'s' * (ranks > 1)}"
        left.plot(list(series), list(series.values()), **style.series_style(index), label=label)
    few, many = min(speed), max(speed)
    sizes = list(accuracy)
    gains = [speed[many][size] / speed[few][size] for size in (sizes[-1], sizes[0])]
    title = (
        ""
        if few == many
        else f"{many} ranks against {few}: {gains[0]:.1f}× at {sizes[-1]:,}, {gains[1]:.1f}× at {sizes[0]}"
    )
    left.set(xlabel="effective batch (images, log scale)", ylabel="training throughput (images/s)", title=title)
    style.powers_of_two(left, sizes)
    left.set_ylim(bottom=0)
    style.plain_numbers(left.yaxis, ",.0f")
    left.legend()
    means = {size: statistics.fmean(values) for size, values in accuracy.items()}
    errors = list(map(style.standard_error, accuracy.values()))
    speeds = [speed[many][size] for size in sizes]
    right.errorbar(speeds, list(means.values()), errors, marker="o", color=COLOURS["measured"])
    for size, mean in means.items():
        style.note(right, f"{size:,}", (speed[many][size], mean), (6, 5))
    lost = 100 * (means[sizes[0]] - means[sizes[-1]])
    right.set(xlabel=f"throughput on {many} rank(s) (images/s)", ylabel="validation accuracy",
              title=f"{speed[many][sizes[-1]] / speed[many][sizes[0]]:.1f}× the images per second, {lost:.0f} points lost")  # fmt: skip
    right.margins(x=0.14, y=0.14)
    style.percent(right.yaxis)
    style.plain_numbers(right.xaxis, ",.0f")
    right.xaxis.set_major_locator(MaxNLocator(5))
    return figure


@in_course_style
def gradient_noise(estimates: Mapping[int, Sequence[tuple[float, float, float]]], batches: tuple[int, int]) -> Figure:
    """|G_B|² against B as signal and noise, early and late; beside it the noise scale after each epoch.

    Parameters
    ----------
    estimates : mapping of epoch to (|G|², tr Σ, B_simple) of each seed
    batches : (int, int)
        The two batch sizes that were measured; their points lie on the curve by construction.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.8, 3.8))
    sizes = np.geomspace(1, 16384, 100)
    mean = {epoch: np.mean([one[:2] for one in some], axis=0) for epoch, some in estimates.items()}
    for epoch, name in zip(sorted({min(mean), max(mean)}), ("measured", "other"), strict=False):
        signal, trace = mean[epoch]
        left.plot(sizes, signal + trace / sizes, color=COLOURS[name], label=f"after epoch {epoch}")
        left.plot(batches, [signal + trace / size for size in batches], "o", color=COLOURS[name])
        if signal > 0:
            left.axhline(signal, color=COLOURS[name], linestyle=":", linewidth=1)
    left.set(xscale="log", yscale="log", xlabel="batch B (images, log scale)", ylabel="mean |G_B|² (log scale)",
             title="Noise falls like 1/B down to the signal |G|² (dotted)")  # fmt: skip
    left.legend()
    style.plain_numbers(left.xaxis, ",.0f")
    style.plain_numbers(left.yaxis)
    epochs, scales = [], []
    for epoch, some in estimates.items():
        found = [scale for *_, scale in some if math.isfinite(scale) and scale > 0]
        right.plot([epoch] * len(found), found, "o", color=COLOURS["measured"], alpha=0.4)
        signal, trace = mean[epoch]
        if signal > 0 and trace > 0:
            epochs.append(epoch)
            scales.append(trace / signal)
    right.plot(epochs, scales, "-", color=COLOURS["measured"])
    grown = f"B_simple grows {scales[-1] / scales[0]:.0f}-fold during training" if len(scales) > 1 else "B_simple"
    right.set(yscale="log", xlabel="epochs of training", ylabel="B_simple (images, log scale)", title=grown)
    right.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    style.plain_numbers(right.yaxis, ",.0f")
    right.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    return figure


@in_course_style
def steps_and_images(
    points: Mapping[int, tuple[float, float]], fewest: tuple[float, float], predicted: Mapping[int, float]
) -> Axes:
    """Steps against images to one target loss: measured points, the fitted hyperbola, and what a noise scale predicts.

    Parameters
    ----------
    points : mapping of batch to (steps, images)
    fewest : (float, float)
        S_min and E_min of the fit; its knee is at twice both.
    predicted : mapping of batch to steps
    """
    steps, images = fewest
    axes = new_axes(f"At B_crit = {images / steps:,.0f} training takes twice the fewest steps and images",
                    "images to the target loss, E (log scale)", "steps to the target loss, S (log scale)", (6.8, 4.2))  # fmt: skip
    batches = np.geomspace(min(points) / 2, max(points) * 2, 100)
    curve = steps + images / batches
    axes.plot(curve * batches, curve, color=COLOURS["measured"], label="fit")
    measured_steps, measured_images = zip(*points.values(), strict=True)
    axes.plot(measured_images, measured_steps, "o", color=COLOURS["measured"], label="measured")
    for batch, (s, e) in points.items():
        style.note(axes, f"{batch:,}", (e, s), (5, 4))
    axes.plot([batch * s for batch, s in predicted.items()], list(predicted.values()), "^--", color=COLOURS["other"],
              linewidth=1, label="predicted from B_simple")  # fmt: skip
    axes.plot(2 * images, 2 * steps, "D", color=COLOURS["third"], markersize=9, label="B_crit")
    axes.axhline(steps, **style.REFERENCE)
    axes.axvline(images, **style.REFERENCE)
    style.label_line(axes, "S_min", steps, right=True)
    style.note(axes, "E_min", (images, 1), (3, -10), xycoords=("data", "axes fraction"), color=COLOURS["reference"])
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        style.plain_numbers(axis, ",.0f")
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.legend()
    return axes


@in_course_style
def losses_by_epoch(runs: Mapping[str, Sequence[Sequence[float]]], guess: float) -> Axes:
    """Mean training loss of each epoch, a line per label with the range of its seeds, and the loss of guessing.

    Parameters
    ----------
    runs : mapping of label to losses by seed and epoch
    """
    first = statistics.fmean(seed[0] for seed in next(iter(runs.values())))
    axes = new_axes(f"The first epoch's loss is {first:.1f}; guessing has {guess:.1f}", "epoch",
                    "training loss, mean of the epoch (log scale)")  # fmt: skip
    for index, (label, seeds) in enumerate(runs.items()):
        losses, epochs = np.array(seeds), range(1, len(seeds[0]) + 1)
        axes.plot(epochs, losses.mean(0), **style.series_style(index), label=label)
        axes.fill_between(epochs, losses.min(0), losses.max(0), color=style.PALETTE[index], alpha=0.2, linewidth=0)
    axes.axhline(guess, **style.REFERENCE)
    style.label_line(axes, "guessing", guess, right=True)
    axes.set_yscale("log")
    style.plain_numbers(axes.yaxis)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.legend()
    return axes
