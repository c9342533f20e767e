"""The course's look. The same thing has the same colour and marker in every lab, readable in grey.

`course.mplstyle` beside this file holds what matplotlib lets a style decide; here is the rest.
"""

from collections.abc import Iterable

import matplotlib.pyplot as plt
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator, PercentFormatter

# Okabe–Ito: colour-blind readers can distinguish them, and so can readers in grey, by lightness.
COLOURS = {"measured": "#0072B2", "other": "#D55E00", "third": "#009E73", "reference": "#555555"}
PALETTE = list(COLOURS.values())
MARKERS = ["o", "s", "^", "D"]
LINES = ["-", "--", ":", "-."]
HATCHES = ["", "//", "..", "xx"]
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

    The text is in the metadata of the output, where nbconvert and JupyterLab take a picture's alternative text from.
    """
    figure = plt.gcf()
    display(figure, metadata={"image/png": {"alt": alternative_text}})
    plt.close(figure)


def series_style(index: int) -> dict[str, str]:
    """Colour, marker and line of the series with this number; after four they begin again."""
    return {"color": PALETTE[index % 4], "marker": MARKERS[index % 4], "linestyle": LINES[index % 4]}


def figure_title(figure: Figure, title: str) -> None:
    """A title above all panels, at the left as those of single axes."""
    figure.suptitle(title, x=0.01, ha="left")


def label_line(axes: Axes, text: str, height: float, offset: float = 0.01) -> None:
    """Name a horizontal line at its left end, above it, where learning curves are still below."""
    axes.annotate(text, (offset, height), xytext=(0, 3), xycoords=("axes fraction", "data"), textcoords="offset points",
                  color=COLOURS["reference"], fontsize=9)  # fmt: skip


def percent(axis: Axis, decimals: int = 0) -> None:
    """Write shares in 0…1 as percentages."""
    axis.set_major_formatter(PercentFormatter(1, decimals=decimals))


def plain_numbers(axis: Axis, pattern: str = "g", minor: bool = False) -> None:
    """Write a logarithmic axis without powers of ten; `minor` ticks have their numbers too, or none."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:{pattern}}"))
    axis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:{pattern}}") if minor else NullFormatter())


def powers_of_two(axes: Axes, ticks: Iterable[int]) -> None:
    """A logarithmic x axis with ticks at these numbers and nowhere else."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(ticks), [f"{tick:,}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def bar_offsets(count: int) -> tuple[float, list[float]]:
    """Width of a bar, and the offset of each of `count` bars that share a place on the axis."""
    width = 0.8 / count
    return width, [(index - (count - 1) / 2) * width for index in range(count)]
