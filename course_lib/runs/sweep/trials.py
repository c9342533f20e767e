"""The trials of a sweep: their parameters, and the folders that are named by them."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.runs.labs import Lab
from course_lib.runs.parameters import ParameterError, check_values
from course_lib.runs.sweep.grid import grid, side_by_side

__all__ = ["Trial", "plan"]

# The multi-GPU tutorial names its learning curves so: {}ranks-{}bs-{}lr-{}m-{}w.csv.
NAMED = {"num_gpus": "ranks", "batch_size": "bs", "base_lr": "lr", "momentum": "m", "warmup_epochs": "w"}
MOST_TRIALS = 100_000


@dataclass(frozen=True)
class Trial:
    """One run: all of the notebook's parameters, less ``output_dir``, and the folder below the sweep's.

    ``folder`` is ``2ranks-128bs-0.1lr-0.9m-5w/seed-0``.
    """

    parameters: Mapping[str, Any]
    folder: str

    @property
    def ranks(self) -> int:
        return int(self.parameters["num_gpus"])

    @property
    def seed(self) -> int:
        return int(self.parameters["seed"])


def plan(
    lab: Lab,
    profile: str,
    axes: Mapping[str, Sequence[Any]],
    fixed: Mapping[str, Any],
    repeats: int,
    zipped: bool = False,
) -> list[Trial]:
    """Every trial of a sweep, its parameters checked.

    Parameters
    ----------
    fixed : mapping
        Parameters that override the profile's everywhere.
    repeats : int
        Each combination runs with the seeds ``seed``, ``seed + 1``, …
    zipped : bool
        The axes' first values are a combination, their second values another, and so on; else every combination of them
        is one.

    Returns
    -------
    list of Trial
        In the grid's order, a combination's seeds beside each other.

    Raises
    ------
    ParameterError
        One line: nothing to vary, an unknown parameter (with the nearest name), a value that cannot work, a parameter
        given twice, seeds both varied and repeated, zipped axes of different lengths.
    """
    if not axes:
        raise ParameterError("nothing to vary: give at least one axis, as in -g num_gpus=1,2")
    known = lab.defaults()
    if not {"seed", "num_gpus"} <= known.keys():
        raise ParameterError(f"{lab.name} cannot be swept: its parameters cell needs num_gpus and seed")
    if "output_dir" in (*axes, *fixed):
        raise ParameterError("output_dir is chosen by the sweep; choose the sweep's folder by -o DIR")
    lab.overlaid(known, {name: known.get(name) for name in (*axes, *fixed)})  # refuses an unknown name
    if both := set(axes) & set(fixed):
        raise ParameterError(f"{min(both)} is both varied (-g) and fixed (-p); leave one out")
    if repeats < 1:
        raise ParameterError(f"--repeat {repeats}: at least 1 is needed")
    if "seed" in axes and repeats > 1:
        raise ParameterError("seed is varied by -g; leave --repeat out, or vary the seed by --repeat alone")
    lengths = list(map(len, axes.values()))
    if (count := repeats * (max(lengths) if zipped else math.prod(lengths))) > MOST_TRIALS:
        raise ParameterError(f"{count:,} trials; a sweep has at most {MOST_TRIALS:,}")

    trials: list[Trial] = []
    folders: dict[str, Mapping[str, Any]] = {}
    common, rules = lab.parameters(profile, fixed), lab.rules()  # once: they read the notebook
    for combination in side_by_side(**axes) if zipped else grid(**axes):
        values = lab.overlaid(common, combination)
        values.pop("output_dir", None)
        # The executor checks whether there is room for so many ranks; the jobs may run on a larger machine.
        check_values(values, rules, machine=False)
        for seed in range(values["seed"], values["seed"] + repeats):
            folder = f"{_name(values, axes)}/seed-{seed}"
            if folder in folders:
                raise ParameterError(f"{folder} names two trials: {folders[folder]} and {combination}; leave one out")
            folders[folder] = combination
            trials.append(Trial({**values, "seed": seed}, folder))
    return trials


def _name(values: Mapping[str, Any], axes: Mapping[str, Any]) -> str:
    parts = [f"{_text(values[name])}{unit}" for name, unit in NAMED.items() if name in values]
    parts += [f"{name}_{_text(values[name])}" for name in axes if name not in NAMED and name != "seed"]
    return "-".join(parts)


def _text(value: Any) -> str:
    text = repr(value) if isinstance(value, float) else str(value)
    return re.sub(r"[^A-Za-z0-9._+-]", "_", text.removesuffix(".0"))[:60]
