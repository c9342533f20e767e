"""The figures of a sweep: throughput, speed-up, efficiency, memory, accuracy against batch size, learning curves.

Markers are means over the repeats; bars and bands are one standard deviation of the single run. A title states what was
measured, and no cause.
"""

import contextlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from course_lib.plots import style
from course_lib.plots.style import COLOURS, MARKERS, PALETTE
from course_lib.runs.records import read_learning_curve
from course_lib.runs.sweep.outcome.results import conditions
from course_lib.system.atomic import write_atomically

__all__ = ["draw_results"]

UNITS = {"num_gpus": "{} rank(s)", "batch_size": "{} images per rank", "base_lr": "lr {}", "momentum": "momentum {}",
         "dataset": "{}", "provenance": "{}", "device": "{}",
         "warmup_epochs": "{} warm-up epochs"}  # fmt: skip
RANKS = "ranks (GPUs, or CPU processes)"
MOST_CURVES = 8  # in one panel


@style.in_course_style
def draw_results(folder: Path, table: pd.DataFrame, axes: Sequence[str], lab: str) -> list[Path]:
    """Draw the figures for which the table has data, each as PNG and, for print, as SVG; returns the PNG files.

    Parameters
    ----------
    folder : path
        The sweep's; the files go there, and the trials' learning curves are read from there.
    table : DataFrame
        From `course_lib.runs.sweep.outcome.results.collect`.
    axes : sequence of str
        The parameters that were varied.
    """
    done = table[table["status"] == "done"]
    if "images_per_sec" not in done or not done["images_per_sec"].notna().any():
        return []
    done = done[done["images_per_sec"].notna()].copy()
    variants = [name for name in axes if name not in ("num_gpus", "batch_size", "seed")]
    # A sweep may have been continued elsewhere, or on other data; such runs are not averaged together.
    variants += [
        name for name in ("dataset", "provenance", "device")
        if name not in variants and name in done and done[name].nunique() > 1
    ]  # fmt: skip
    done["variant"] = [_label(row, variants) for _, row in done.iterrows()]
    about = _about(done, lab) + _diverged(table)
    drawn = [
        ("throughput", _throughput(done, about)),
        ("speedup", _scaling(done, about, "speedup")),
        ("efficiency", _scaling(done, about, "efficiency")),
        ("memory", _memory(folder, done, about)),
        ("accuracy", _accuracy(done, about)),
        ("learning_curves", _curves(folder, done, variants, about)),
    ]
    return [folder / f"{name}.png" for name, figure in drawn if _written(folder / name, figure)]


def _written(path: Path, figure: Figure | None) -> bool:
    for form in ("png", "svg"):
        file = path.with_name(f"{path.name}.{form}")
        if figure is None:
            file.unlink(missing_ok=True)  # of an earlier state of the sweep
            continue
        picture = io.BytesIO()
        # Without the date, and with ids that are not drawn at random, the same data give the same file.
        with matplotlib.rc_context({"svg.hashsalt": path.name}):
            figure.savefig(picture, format=form, dpi=130, metadata={"Date": None} if form == "svg" else None)
        write_atomically(file, picture.getvalue())
    return figure is not None


def scaling_table(done: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Speed-up and efficiency over ranks.

    Parameters
    ----------
    done : DataFrame
        With ``num_gpus`` (or ``ranks``), ``batch_size``, ``effective_batch``, ``images_per_sec`` and ``variant``.
    kind : {"weak", "strong"}
        Weak: the batch *of a rank* stays the same, so that a step's work grows with the ranks. Strong: the *effective*
        batch stays. Either way the speed-up is the ratio of images/s to those of the fewest ranks measured, times
        their number (the UPC article: S(N) = T(1)/T(N) for the same number of images).

    Returns
    -------
    DataFrame
        ``variant``, ``batch``, ``ranks``, ``speedup``, ``speedup_sd``, ``efficiency``, ``efficiency_sd``, ``runs``,
        ``base`` (the fewest ranks); only series of at least two numbers of ranks. The standard deviation counts the
        standard deviation of the numerator and of the base; one run has none.
    """
    batch = "batch_size" if kind == "weak" else "effective_batch"
    rows = []
    for (variant, size), series in done.groupby(["variant", batch], sort=True):
        rates = series.groupby("ranks")["images_per_sec"]
        if len(rates) < 2:
            continue
        means, spreads, counts = rates.mean(), rates.std(ddof=1), rates.size()
        base = means.index.min()
        for ranks in means.index:
            ratio = means[ranks] / means[base] * base
            relative = np.hypot(spreads[ranks] / means[ranks], spreads[base] / means[base]) if ranks != base else 0.0
            rows.append({
                "variant": variant, "batch": size, "ranks": ranks, "base": base, "runs": counts[ranks],
                "speedup": ratio, "speedup_sd": ratio * relative,
                "efficiency": ratio / ranks, "efficiency_sd": ratio * relative / ranks,
            })  # fmt: skip
    return pd.DataFrame(rows)


def _throughput(done: pd.DataFrame, about: str) -> Figure | None:
    by_ranks = done["ranks"].nunique() > 1
    x, others = ("ranks", "batch_size") if by_ranks else ("batch_size", "ranks")
    if not {x, others} <= set(done) or done[x].nunique() < 2:
        return None
    best = done.groupby(["variant", x, others])["images_per_sec"].mean()
    variant, at, other = best.idxmax()
    where = _join(variant, *((_ranks(at), _batch(other)) if by_ranks else (_batch(at), _ranks(other))))
    figure, (axes,) = _figure(1, f"At best {best.max():,.0f} images/s: {where}", about)
    for index, ((variant, other), series) in enumerate(groups := list(done.groupby(["variant", others]))):
        label = _join(variant, _batch(other) if by_ranks else _ranks(other))
        _errorbar(axes, *_mean(series, x, "images_per_sec"), index, len(groups), label, done[x], log=not by_ranks)
    label = RANKS if by_ranks else "batch size per rank (images)"
    _category_axis(axes, sorted(done[x].unique()), label, log=not by_ranks)
    axes.set_ylabel("training throughput (images/s)")
    axes.set_ylim(bottom=0)
    style.plain_numbers(axes.yaxis, ",.0f")
    _legend(axes)
    return figure


def _scaling(done: pd.DataFrame, about: str, what: str) -> Figure | None:
    tables = {kind: scaling_table(done, kind) for kind in ("weak", "strong")} if "batch_size" in done else {}
    tables = {kind: table for kind, table in tables.items() if len(table)}
    if not tables:
        return None
    word = "speed-up" if what == "speedup" else "efficiency"
    most = max(table["ranks"].max() for table in tables.values())
    form = "{:.2f}×" if what == "speedup" else "{:.0%}"
    shown = {kind: table[table["ranks"] == most][what] for kind, table in tables.items()}
    finding = "; ".join(f"{kind} {_span(values, form)}" for kind, values in shown.items() if len(values))
    figure, panels = _figure(len(tables), f"{word.capitalize()} at {most} ranks: {finding}", about)
    for axes, (kind, table) in zip(panels, tables.items(), strict=True):
        ranks = sorted(table["ranks"].unique())
        ideal = ranks if what == "speedup" else [1] * len(ranks)
        axes.plot(ranks, ideal, **style.REFERENCE, label="ideal")
        for index, ((variant, size), series) in enumerate(groups := list(table.groupby(["variant", "batch"]))):
            values = series.set_index("ranks")
            text = _batch(size) if kind == "weak" else f"{size:g} images in all"
            _errorbar(axes, values[what], values[f"{what}_sd"], index, len(groups), _join(variant, text), ranks)
        base = table["base"].min()
        _category_axis(axes, ranks, RANKS, log=False)
        fixed = "batch per rank constant" if kind == "weak" else "effective batch constant"
        of = "1 rank" if base == 1 else f"{base} ranks"
        axes.set_ylabel(f"{kind} {word} in images/s over {of}\n({fixed})")
        axes.set_ylim(0, 1.03 * axes.get_ylim()[1])
        if what == "efficiency":
            style.percent(axes.yaxis)
        _legend(axes)
    return figure


def _memory(folder: Path, done: pd.DataFrame, about: str) -> Figure | None:
    """Of the rank that keeps most: weights, gradients and optimiser state, where the lab wrote a ledger.csv."""
    kept = {}
    for place in done["folder"]:
        with contextlib.suppress(OSError, ValueError, KeyError):
            ledger = pd.read_csv(folder / place / "ledger.csv")
            kept[place] = ledger[["parameters", "gradients", "state"]].sum(axis=1).max() / 1e6
    done = done.assign(memory=done["folder"].map(kept)).dropna(subset="memory")
    if done["memory"].nunique() < 2:
        return None
    least, most = done.loc[done["memory"].idxmin()], done["memory"].max()
    where = _join(least["variant"], _ranks(least["ranks"]))
    figure, (axes,) = _figure(1, f"At least {least['memory']:.3g} MB ({where}), at most {most:.3g} MB", about)
    for index, (variant, series) in enumerate(groups := list(done.groupby("variant"))):
        _errorbar(axes, *_mean(series, "ranks", "memory"), index, len(groups), variant, done["ranks"])
    _category_axis(axes, sorted(done["ranks"].unique()), RANKS, log=False)
    axes.set_ylabel("weights, gradients, optimiser state\n(MB on the rank that keeps most)")
    axes.set_ylim(bottom=0)
    _legend(axes)
    return figure


def _accuracy(done: pd.DataFrame, about: str) -> Figure | None:
    if "effective_batch" not in done or not done["final_accuracy"].notna().any():
        return None
    means = done.groupby("effective_batch")["final_accuracy"].mean()
    if len(means) < 2:
        return None
    small, large = means.index.min(), means.index.max()
    finding = f"{means[small]:.1%} with {small} images per step, {means[large]:.1%} with {large}"
    figure, (axes,) = _figure(1, f"Mean final accuracy: {finding}", about)
    several = done["ranks"].nunique() > 1
    for index, ((variant, ranks), series) in enumerate(groups := list(done.groupby(["variant", "ranks"]))):
        means = _mean(series, "effective_batch", "final_accuracy")
        label = _join(variant, _ranks(ranks) if several else "")
        _errorbar(axes, *means, index, len(groups), label, done["effective_batch"], log=True)
    _category_axis(axes, sorted(done["effective_batch"].unique()), "effective batch: images per rank × ranks", log=True)
    axes.set_ylabel("final validation accuracy")
    style.percent(axes.yaxis, decimals=None)
    _legend(axes)
    return figure


def _curves(folder: Path, done: pd.DataFrame, variants: Sequence[str], about: str) -> Figure | None:
    """A panel for each number of ranks; in it a curve for each batch size and variant, dark for large batches."""
    curves = {}
    for ranks, runs in list(done.groupby("ranks"))[:4]:
        for key, series in runs.groupby(["variant", "batch_size"] if "batch_size" in runs else ["variant"]):
            frames = []
            for place in series["folder"]:
                try:
                    curve = read_learning_curve(folder / place / "learning_curve.csv").set_index("epoch")
                    frames.append(curve["val_accuracy"].drop(index=0, errors="ignore"))  # zeros, no measurement
                except (OSError, ValueError):
                    continue
            if frames:
                curves.setdefault(ranks, []).append((key, pd.concat(frames, axis=1)))
    if not curves:
        return None
    best = done.loc[done["final_accuracy"].idxmax()]
    title = f"Best final accuracy {best['final_accuracy']:.1%} ({best['folder']})"
    figure, all_axes = _figure(len(curves), title, about, sharey=True)
    for axes, (ranks, series) in zip(all_axes, curves.items(), strict=True):
        for index, (key, frame) in enumerate(series[:MOST_CURVES]):
            colour = matplotlib.colormaps["viridis_r"](0.15 + 0.8 * index / max(1, len(series[:MOST_CURVES]) - 1))
            mean, deviation = frame.mean(axis=1), frame.std(axis=1, ddof=1).fillna(0)
            label = _join(key[0], _batch(key[1]) if len(key) > 1 else "")
            axes.plot(mean.index, mean, marker=MARKERS[index % 4], markersize=4, color=colour, label=label)
            axes.fill_between(mean.index, mean - deviation, mean + deviation, color=colour, alpha=0.18, linewidth=0)
        if len(series) > MOST_CURVES:
            more = f"{len(series) - MOST_CURVES} more in the table"
            axes.annotate(more, (0.02, 0.97), xycoords="axes fraction", va="top", fontsize=8)
        axes.set_xlabel(f"epoch, {_ranks(ranks)}")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_ylim(0, 1)
        style.percent(axes.yaxis)
        _legend(axes)
    all_axes[0].set_ylabel("validation accuracy")
    return figure


def _figure(panels: int, title: str, about: str, sharey: bool = False) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(6.6 if panels == 1 else 4.9 * panels, 4.4))  # unknown to pyplot, which would keep it
    axes = figure.subplots(1, panels, squeeze=False, sharey=sharey)[0]
    style.figure_title(figure, title)
    figure.supxlabel(about, x=0.01, ha="left", fontsize=7.5, color=COLOURS["reference"])
    return figure, axes


def _errorbar(
    axes: Axes, mean: pd.Series, deviation: pd.Series, index: int, many: int, label: str, places: Sequence[float],
    log: bool = False,
) -> None:  # fmt: skip
    """One of many series; `places` are those of all series on the axis. Each is shifted, so that no bar hides another."""
    colour = PALETTE[index] if many <= 4 else matplotlib.colormaps["viridis"](0.9 * index / (many - 1))
    x = style.beside(mean.index, places, index, many, log) if deviation.gt(0).any() else mean.index
    axes.errorbar(x, mean, yerr=deviation, label=label, marker=MARKERS[index % 4], color=colour)


def _category_axis(axes: Axes, values: Sequence[Any], label: str, log: bool) -> None:
    if log:
        axes.set_xscale("log", base=2)
    shown = values if len(values) <= 10 else values[:: -(-len(values) // 10)]
    axes.set_xticks(shown, [f"{value:g}" for value in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(label)


def _legend(axes: Axes) -> None:
    if any(axes.get_legend_handles_labels()[1]):
        axes.legend(fontsize=8)


def _mean(series: pd.DataFrame, by: str, value: str) -> tuple[pd.Series, pd.Series]:
    groups = series.groupby(by)[value]
    return groups.mean(), groups.std(ddof=1)  # of one run there is no deviation, and no bar


def _diverged(table: pd.DataFrame) -> str:
    """A line about the runs that diverged, for the caption."""
    lost = [row.folder for row in table.itertuples() if row.status == "failed" and "diverged" in str(row.error)]
    more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
    return f"\n{len(lost)} run(s) diverged and are left out: {', '.join(lost[:3])}{more}" if lost else ""


def _about(done: pd.DataFrame, lab: str) -> str:
    repeats = done.groupby([name for name in ("variant", "batch_size", "ranks") if name in done]).size()
    runs = f"{repeats.min()}" if repeats.min() == repeats.max() else f"{repeats.min()}–{repeats.max()}"
    statistic = "mean ± 1 s.d. of " if repeats.max() > 1 else ""
    return f"{conditions(done, lab)}; {statistic}{runs} run(s) per marker"


def _label(row: Mapping[str, Any], names: Sequence[str]) -> str:
    numbers = int | float | np.number
    values = {name: f"{row[name]:g}" if isinstance(row[name], numbers) else str(row[name]) for name in names}
    return ", ".join(UNITS.get(name, f"{name} {{}}").format(value) for name, value in values.items())


def _join(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _batch(size: Any) -> str:
    return f"{size:g} images per rank"


def _ranks(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def _span(values: pd.Series, form: str) -> str:
    low, high = form.format(values.min()), form.format(values.max())
    return low if low == high else f"{low} to {high}"
