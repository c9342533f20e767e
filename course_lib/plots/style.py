"""The course's look. The same thing has the same colour and marker in every lab, readable in grey.

`course.mplstyle` beside this file holds what matplotlib lets a style decide; here is the rest.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from IPython.core.pylabtools import print_figure
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator, PercentFormatter

# Okabe–Ito: colour-blind readers can distinguish them, and so can readers in grey, by lightness.
COLOURS = {"measured": "#0072B2", "other": "#D55E00", "third": "#009E73", "reference": "#555555"}
PALETTE = list(COLOURS.values())
MARKERS = ["o", "s", "^", "D"]
LINES = ["-", "--", ":", "-."]
HATCHES = ["", "//", "..", "xx"]
BESIDE = 0.2  # of the distance between two places on an axis, for all series at a place together
REFERENCE = {"color": COLOURS["reference"], "linestyle": "--", "linewidth": 1}

in_course_style = plt.style.context("course_lib.plots.course")
"""Decorator: what the function draws has the course's look, and the caller's own settings stay."""


def new_axes(title: str, xlabel: str, ylabel: str, size: tuple[float, float] | None = None) -> Axes:
    """A figure with one pair of axes; `size` in inches, by default the style's."""
    _, axes = plt.subplots(figsize=size)
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    return axes


def show(alternative_text: str) -> None:
    """Show the current figure in a notebook, with a text for readers who do not see it; it says what the figure shows.

    JupyterLab (4.6) and nbconvert's template `lab` (7.17) ignore the metadata ``alt`` of a picture. They prefer HTML, whose
    ``img`` has the text. The picture itself is for feedback, the site and PDF, which take the text from the metadata.
    """
    figure = plt.gcf()
    picture = print_figure(figure, base64=True)
    html = f'<img alt="{escape(alternative_text)}" src="data:image/png;base64,{picture}">'
    bundle = {"text/html": html, "image/png": picture, "text/plain": alternative_text}
    display(bundle, raw=True, metadata={"image/png": {"alt": alternative_text}})
    plt.close(figure)


def series_style(index: int) -> dict[str, str]:
    """Colour, marker and line of the series with this number; after four they begin again."""
    return {"color": PALETTE[index % 4], "marker": MARKERS[index % 4], "linestyle": LINES[index % 4]}


def figure_title(figure: Figure, title: str) -> None:
    """A title above all panels, at the left as those of single axes."""
    figure.suptitle(title, x=0.01, ha="left")


def note(axes: Axes, text: str, point: tuple[float, float], offset: tuple[float, float], **look: Any) -> None:
    """Write a small text beside a point; the offset is in points."""
    axes.annotate(text, point, xytext=offset, textcoords="offset points", **{"fontsize": 9} | look)


def label_line(axes: Axes, text: str, height: float, right: bool = False, offset: float = 3) -> None:
    """Name a horizontal line above its left end, where learning curves are still below, or above its right end."""
    place, side = (0.99, "right") if right else (0.01, "left")
    note(
        axes,
        text,
        (place, height),
        (0, offset),
        xycoords=("axes fraction", "data"),
        ha=side,
        color=COLOURS["reference"],
    )


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = "0.3", **look: Any) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": colour} | look)


def box(
    axes: Axes, corner: tuple[float, float], width: float, height: float, text: str, edge: str = "0.3",
    face: str = "white", fontsize: float = 9,
) -> None:  # fmt: skip
    """A rectangle with a text in its middle; `corner` is the one of the smallest x and y."""
    axes.add_patch(plt.Rectangle(corner, width, height, facecolor=face, edgecolor=edge, linewidth=1.3))
    axes.text(corner[0] + width / 2, corner[1] + height / 2, text, ha="center", va="center", fontsize=fontsize)


def beside(
    own: Iterable[float], places: Iterable[float], index: int, many: int, log: bool = False
) -> np.ndarray:  # fmt: skip
    """Where one of `many` series is drawn, so that its bars do not hide those of the others at the same places.

    Parameters
    ----------
    own, places : iterable of float
        The places of this series, and of all of them, on an axis that is logarithmic or not. Together the series take
        `BESIDE` of the smallest distance between two places.
    """
    scale, back = (np.log2, np.exp2) if log else (np.asarray, np.asarray)
    apart = np.diff(scale(np.unique(np.array([*places], dtype=float)))).min(initial=1.0)
    return back(scale(np.array([*own], dtype=float)) + BESIDE * apart * ((index + 0.5) / many - 0.5))


def ranges(
    axes: Axes, rows: Mapping[float, tuple[float, float, float]], index: int, label: str, many: int = 1, log: bool = False,
    **look: Any,
) -> None:  # fmt: skip
    """A series of (middle, lowest, highest) by place, with bars from the lowest to the highest; one of `many`."""
    places = sorted(rows)
    middle, low, high = np.array([rows[place] for place in places]).T
    places = beside(places, places, index, many, log)
    axes.errorbar(places, middle, yerr=[middle - low, high - middle], label=label, **series_style(index), **look)


def standard_error(values: Sequence[float]) -> float:
    """Of the mean; 0 of a single value."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def percent(axis: Axis, decimals: int | None = 0) -> None:
    """Write shares in 0…1 as percentages; None: as many decimals as the axis needs."""
    axis.set_major_formatter(PercentFormatter(1, decimals=decimals))


def plain_numbers(axis: Axis, pattern: str = "g", minor: bool = False) -> None:
    """Write a logarithmic axis without powers of ten; `minor` ticks have their numbers too, or none."""
    numbers = f"{{x:{pattern}}}"
    axis.set_major_formatter(numbers)
    axis.set_minor_formatter(numbers if minor else NullFormatter())


def powers_of_two(axes: Axes, ticks: Iterable[int]) -> None:
    """A logarithmic x axis with ticks at these numbers and nowhere else."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(ticks), [f"{tick:,}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def bar_offsets(count: int) -> tuple[float, list[float]]:
    """Width of a bar, and the offset of each of `count` bars that share a place on the axis."""
    width = 0.8 / count
    return width, [(index - (count - 1) / 2) * width for index in range(count)]
