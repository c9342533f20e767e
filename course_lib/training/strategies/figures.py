"""A figure that compares ways to train: a row for each strategy, in its colour and with its mark.

Grey trains alone, blue sends messages at every step, green averages weights now and then, orange shares memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from course_lib.plots.curves import COLOURS

__all__ = ["strategy_comparison"]

LOOKS = {  # colour, marker
    "single": ("reference", "o"),
    "synchronous": ("measured", "s"),
    "parameter server": ("measured", "D"),
    "parallel SGD": ("third", "^"),
    "local SGD": ("third", "v"),
    "HogWild": ("other", "P"),
}


def strategy_comparison(table: pd.DataFrame, title: str, target: float) -> Figure:
    """Time to an accuracy, final accuracy and bytes sent, side by side.

    Each run is a pale dot; the mean is a mark with one standard deviation each way. A hollow mark means more processes
    than cores.

    Parameters
    ----------
    table : DataFrame
        Of `results_table`.
    title : str
    target : float
        The accuracy in 0…1 whose time ``time_to_target`` is.
    """
    names = list(dict.fromkeys(table["strategy"]))
    figure, panels = plt.subplots(1, 3, sharey=True, figsize=(10.4, 1.5 + 0.42 * len(names)), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    _rows(panels[0], table, names, "time_to_target", "{:.1f} s".format, "not reached")
    panels[0].set_xlabel(f"training time to {target:.0%} (s)")
    panels[0].set_xlim(left=0)
    _rows(panels[1], table, names, "final_accuracy", "{:.1%}".format, "")
    panels[1].set_xlabel("accuracy at the end")
    panels[1].xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    panels[1].xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    panels[2].set_xscale("log")
    sent = table.assign(bytes_sent=table["bytes_sent"].where(table["bytes_sent"] > 0))
    _rows(panels[2], sent, names, "bytes_sent", _bytes, "no message")
    panels[2].set_xlabel("bytes sent, all processes (log scale)")
    panels[2].xaxis.set_major_formatter(FuncFormatter(lambda value, _: _bytes(value)))
    panels[0].set_yticks(range(len(names)), names)
    panels[0].set_ylim(len(names) - 0.4, -0.6)
    if table["crowded"].any():
        counts = table.loc[table["crowded"], ["processes", "cores"]].drop_duplicates().itertuples(index=False)
        shared = ", or ".join(f"{processes} processes share {cores} core(s)" for processes, cores in counts)
        note = f"hollow: {shared}, so the time is not the strategy's alone"
        figure.supxlabel(note, x=0.01, ha="left", fontsize=9)
    return figure


def _rows(
    axes: Axes, table: pd.DataFrame, names: Sequence[str], column: str, label: Callable[[float], str], absent: str
) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    seen = table[column].dropna()
    if len(seen):
        low, high = seen.min(), seen.max()
        if axes.get_xscale() == "log":
            axes.set_xlim(low / 20, high * 4)
        else:
            room = max(high - low, 0.02 * abs(high), 1e-9)
            axes.set_xlim(low - 0.35 * room, high + 0.15 * room)
    for row, name in enumerate(names):
        runs = table[table["strategy"] == name]
        colour, marker = LOOKS.get(name, ("measured", "o"))
        values = runs[column].dropna()
        if len(values) < len(runs):
            missing = absent if values.empty else f"{absent} by {len(runs) - len(values)} of {len(runs)}"
            axes.annotate(missing, (0.02, row), xycoords=("axes fraction", "data"), va="center", fontsize=8.5,
                          xytext=(0, 0 if values.empty else -9), textcoords="offset points", color=COLOURS["reference"])  # fmt: skip
        if values.empty:
            continue
        mean, deviation = values.mean(), values.std() if len(values) > 1 else 0.0
        axes.plot(values, [row] * len(values), "o", color=COLOURS[colour], alpha=0.3, markersize=4)
        axes.errorbar(mean, row, xerr=deviation, fmt=marker, color=COLOURS[colour], markersize=7, capsize=4,
                      markerfacecolor="white" if runs["crowded"].any() else COLOURS[colour])  # fmt: skip
        axes.annotate(label(mean), (mean, row), xytext=(0, 8), textcoords="offset points", ha="center", fontsize=8.5)


def _bytes(value: float) -> str:
    if not value > 0:
        return "0"
    unit = min(4, int(math.log10(value) // 3))
    return f"{value / 1000**unit:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[unit]}"
