"""The means of a sweep: a row per combination of parameters, over its repeats."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from course_lib.runs.sweep.outcome.results import csv_text
from course_lib.runs.sweep.trials import NAMED
from course_lib.system.atomic import write_atomically

__all__ = ["summarise", "write_summary"]

# Column → its heading and its format in summary.md.
QUANTITIES = {
    "final_accuracy": ("final accuracy", "{:.4f}"),
    "images_per_sec": ("images/s", "{:,.0f}"),
    "train_seconds": ("training (s)", "{:.1f}"),
    "seconds_to_target": ("to the target (s)", "{:.1f}"),
    "core_seconds": ("cost (core-s)", "{:,.0f}"),
    "gpu_seconds": ("cost (GPU-s)", "{:,.0f}"),
}


def summarise(table: pd.DataFrame, axes: Sequence[str]) -> pd.DataFrame:
    """Mean and standard deviation over the repeats.

    Parameters
    ----------
    table : DataFrame
        From `course_lib.runs.sweep.outcome.results.collect`.
    axes : sequence of str
        The parameters that were varied.

    Returns
    -------
    DataFrame
        A row per combination, in the table's order: the varied parameters, data and device, ``n`` (trials that are done),
        ``failed``, and of each of `QUANTITIES` that has values ``…_mean``, ``…_sd`` (of single trials, n − 1 in the
        denominator; empty for one value) and ``…_n``, the trials that have a value: not all reach a target.
    """
    keys = [name for name in dict.fromkeys([*axes, *NAMED]) if name != "seed" and name in table]
    # Runs on other data or another device are not repeats of each other; a failed trial says nothing of either.
    keys += [name for name in ("dataset", "provenance", "device") if table[name].nunique() > 1 and name not in keys]
    shown = [name for name in keys if name in axes or table[name].nunique() > 1] or keys
    rows = []
    for values, trials in table.groupby(keys, sort=False, dropna=False) if len(table) else ():
        done = trials[trials["status"] == "done"]
        row = dict(zip(keys, values, strict=True)) | {"n": len(done), "failed": len(trials) - len(done)}
        for name in QUANTITIES:
            single = pd.to_numeric(done[name]).dropna()
            row |= {f"{name}_mean": single.mean(), f"{name}_sd": single.std(ddof=1), f"{name}_n": len(single)}
        rows.append(row)
    measured = [name for name in QUANTITIES if any(row[f"{name}_n"] for row in rows)]
    columns = [f"{name}_{what}" for name in measured for what in ("mean", "sd", "n")]
    return pd.DataFrame(rows, columns=[*shown, "n", "failed", *columns])


def write_summary(folder: Path, summary: pd.DataFrame, about: str) -> None:
    """Write ``summary.csv``, and ``summary.md`` with mean ± standard deviation (n) in a cell; `about` is for its end."""
    write_atomically(folder / "summary.csv", csv_text(summary))
    measured = {name: look for name, look in QUANTITIES.items() if f"{name}_mean" in summary}
    parameters = list(summary.columns[: list(summary.columns).index("n")])
    lines = [[*parameters, *(heading for heading, _ in measured.values())]]
    lines.append(["---"] * len(lines[0]))
    for _, row in summary.iterrows():
        cells = [f"{row[name]:.12g}" if pd.api.types.is_number(row[name]) else str(row[name]) for name in parameters]
        for name, (_, form) in measured.items():
            mean, deviation, n = (row[f"{name}_{what}"] for what in ("mean", "sd", "n"))
            spread = f" ± {form.format(deviation)}" if n > 1 else ""
            cells.append(f"{form.format(mean)}{spread} (n = {n:.0f})" if n else "–")
        lines.append([cell.replace("|", "\\|") for cell in cells])
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    note = "Mean ± standard deviation of single trials, n trials"
    write_atomically(folder / "summary.md", f"{text}\n\n{note}; {about}.\n")
