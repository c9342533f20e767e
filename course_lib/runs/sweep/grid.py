"""Axes of parameters: ``batch_size=64,128,256`` → values; crossed, or side by side → the trials of a sweep."""

import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from course_lib.runs.parameters import ParameterError

__all__ = ["LONGEST_AXIS", "grid", "parse_axis", "parse_value", "side_by_side"]

LONGEST_AXIS = 10_000  # values; a longer range is a mistake


def grid(**axes: Iterable[Any]) -> list[dict[str, Any]]:
    """Every combination of the axes' values, the last axis varying fastest.

    Examples
    --------
    >>> grid(num_gpus=[1, 2], batch_size=[64, 128])[1]
    {'num_gpus': 1, 'batch_size': 128}
    """
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def side_by_side(**axes: Sequence[Any]) -> list[dict[str, Any]]:
    """The first values of all axes, the second ones, and so on.

    Raises
    ------
    ParameterError
        The axes differ in length.

    Examples
    --------
    >>> side_by_side(num_gpus=[1, 2], batch_size=[128, 64])[1]
    {'num_gpus': 2, 'batch_size': 64}
    """
    if len(set(map(len, axes.values()))) > 1:
        lengths = ", ".join(f"{name} has {len(values)}" for name, values in axes.items())
        raise ParameterError(f"--zip: every axis needs as many values as the others; {lengths}")
    return [dict(zip(axes, values, strict=True)) for values in zip(*axes.values(), strict=True)]


def parse_axis(text: str, once: bool = True) -> tuple[str, list[Any]]:
    """Read one axis: ``KEY=V1,V2,…``, where a value may be a range.

    ``FIRST:LAST`` and ``FIRST:LAST:STEP`` count by 1 or by STEP and include LAST if they reach it;
    ``FIRST:LAST:*FACTOR`` multiplies. Values are read as YAML, so that ``1e-3`` is a number, ``true`` a boolean and a
    word a string. With `once` a repeated value counts once.

    Raises
    ------
    ParameterError
        One line: no ``=``, no value, an invalid range.

    Examples
    --------
    >>> parse_axis("batch_size=32:256:*2,1000")
    ('batch_size', [32, 64, 128, 256, 1000])
    """
    name, equals, values = text.partition("=")
    name = name.strip()
    if not equals or not name.isidentifier():
        raise ParameterError(f"-g {text!r}: KEY=V1,V2,… is needed, as in -g batch_size=64,128")
    axis: list[Any] = []
    for part in values.split(","):
        part = part.strip()
        if not part:
            raise ParameterError(f"-g {text!r}: {'a value is missing' if values.strip() else 'there are no values'}")
        axis += _range(text, part) if ":" in part else [parse_value(f"-g {text!r}", part)]
    return name, list(dict.fromkeys(axis)) if once else axis


def parse_value(place: str, part: str) -> Any:
    """A number, a boolean or a word; `ParameterError`, which begins with `place`, for anything else."""
    try:
        value = yaml.safe_load(part)
    except yaml.YAMLError:
        raise ParameterError(f"{place}: {part!r} cannot be read") from None
    if isinstance(value, str):
        try:
            return float(value)  # YAML 1.1 reads 1e-3 as text
        except ValueError:
            return value
    if not isinstance(value, int | float):
        raise ParameterError(f"{place}: {part!r} is no number and no word")
    return value


def _range(text: str, part: str) -> list[int | float]:
    first, last, *step = part.split(":")
    factor = bool(step) and step[0].startswith("*")
    try:
        low, high, by = (_number(piece) for piece in (first, last, step[0].removeprefix("*") if step else "1"))
        if len(step) > 1:
            raise ValueError
    except ValueError:
        raise ParameterError(
            f"-g {text!r}: {part!r} is no range; FIRST:LAST, FIRST:LAST:STEP or FIRST:LAST:*FACTOR"
        ) from None
    if high < low or (by <= 1 or low <= 0 if factor else by <= 0):
        raise ParameterError(f"-g {text!r}: the range {part} never comes from {first} to {last}")
    try:
        steps = math.log(high / low, by) if factor else (high - low) / by
        count = math.floor(steps + 1e-9) + 1
    except OverflowError:
        count = sys.maxsize
    if count > LONGEST_AXIS:
        raise ParameterError(f"-g {text!r}: the range {part} has {count:,} values; at most {LONGEST_AXIS:,}")
    values = (low * by**index if factor else low + index * by for index in range(count))
    return [value if isinstance(value, int) else float(f"{value:.12g}") for value in values]


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        value = float(text)
        if not math.isfinite(value):
            raise
        return value
