"""Comparing what came out of the sandbox with the reference: strict about types, lenient about rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import torch

from autograde.checks.registry import driver_source

__all__ = ["by_reference", "close", "is_int", "is_number", "number", "same_tensor", "same_tensors", "trusted"]


@cache
def _driver(name: str) -> Mapping[str, Any]:
    namespace: dict[str, Any] = {"__name__": "driver"}
    exec(compile(driver_source(name), f"<driver of {name}>", "exec"), namespace)
    return MappingProxyType(namespace)


def by_reference(check: str, function: str, given: Any, answers: Mapping[str, Callable[..., Any]]) -> Any:
    """What a driver returns for the right answers, computed here: the drivers are ours, and so are the `answers`."""
    return _driver(check)[function](answers.__getitem__, given, None)


def trusted(check: str, function: str) -> Callable[..., Any]:
    """A function of a check's driver, for the grader's own use."""
    return _driver(check)[function]


def is_int(value: Any, expected: int) -> bool:
    """Whether a value is an int, no other kind of number, and the expected one."""
    return type(value) is int and value == expected


def is_number(value: Any) -> bool:
    """A finite int or float, or a 0-dimensional tensor of one; booleans are no numbers."""
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and value.dtype is not torch.bool and math.isfinite(value.item())
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number(value: Any) -> float:
    """The number as a float; NaN for what is none."""
    return float(value) if is_number(value) else math.nan


def close(value: Any, expected: float, relative: float = 1e-4) -> bool:
    """Whether a number is the expected one."""
    return is_number(value) and math.isclose(float(value), expected, rel_tol=relative, abs_tol=1e-6)


def same_tensors(found: Any, expected: Sequence[torch.Tensor], tolerance: float = 1e-4) -> bool:
    """Whether a list of tensors is the expected one, in shape and, to rounding, in value."""
    return (
        isinstance(found, list | tuple)
        and len(found) == len(expected)
        and all(same_tensor(a, b, tolerance) for a, b in zip(found, expected, strict=True))
    )


def same_tensor(found: Any, expected: torch.Tensor, tolerance: float = 1e-4) -> bool:
    """Whether a tensor has the expected shape and, to rounding, values; NaN equals nothing."""
    if not isinstance(found, torch.Tensor) or found.shape != expected.shape:
        return False
    a, b = found.detach().double(), expected.detach().double()
    return bool(((a - b).abs() <= tolerance * (1 + b.abs())).all())
