"""Comparing observations: strict about types, lenient about rounding. Observations may come from hostile code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["contrast", "equal", "finite", "is_number", "kind_of", "picked", "plain", "short"]


def plain(value: Any) -> Any:
    """An observation as it would arrive from a sandbox: tensors without a graph, numpy's scalars as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy()) if value.dtype.kind in "biuf" else None
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value)) if type(value) in (list, tuple) else list(map(plain, value))
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def equal(a: Any, b: Any, tolerance: float = 1e-4) -> bool:
    """Whether an observation `a` is `b`, which is ours: NaN equals NaN, a list a tuple, a float a number or 0-d tensor."""
    if isinstance(a, np.ndarray):
        a = plain(a)
    if isinstance(b, torch.Tensor):
        if not isinstance(a, torch.Tensor) or a.shape != b.shape or (a.dtype is torch.bool) != (b.dtype is torch.bool):
            return False
        a, b = a.detach().double(), b.detach().double()
        near = b.isfinite() & ((a - b).abs() <= tolerance * (1 + b.abs()))
        return bool((near | (a == b) | (a.isnan() & b.isnan())).all())
    if isinstance(b, float):
        if not is_number(a):
            return False
        return math.isclose(float(a), b, rel_tol=tolerance, abs_tol=1e-12) or (math.isnan(a) and math.isnan(b))
    if isinstance(b, list | tuple):
        return (
            isinstance(a, list | tuple)
            and len(a) == len(b)
            and all(equal(x, y, tolerance) for x, y in zip(a, b, strict=True))
        )
    if isinstance(b, Mapping):
        return isinstance(a, dict) and a.keys() == b.keys() and all(equal(a[key], b[key], tolerance) for key in b)
    return type(a) is type(b) and bool(a == b)


def is_number(value: Any) -> bool:
    """An int, a float or a 0-dimensional tensor of one; booleans are no numbers."""
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and value.dtype is not torch.bool
    return type(value) in (int, float) or isinstance(value, np.integer | np.floating)


def finite(value: Any) -> float:
    """A number as a float, for judges; `TypeError` for anything else, NaN and infinity too."""
    if not is_number(value) or not math.isfinite(value):
        raise TypeError("no finite number")
    return float(value)


def picked(observation: Any, keys: str) -> Any:
    """The entries of an observation that count; None for each if it is no dict."""
    if not keys:
        return observation
    entries = [observation.get(key) if isinstance(observation, dict) else None for key in keys.split()]
    return entries[0] if len(entries) == 1 else entries


def contrast(a: Any, b: Any, tolerance: float = 1e-4) -> str:
    """Where an observation `a` first differs from `b`, and by what: ``weights, entry (3, 1): expected 1, yours gives 2``."""
    if isinstance(b, Mapping) and isinstance(a, dict) and a.keys() == b.keys():
        differing = [key for key in b if not equal(a[key], b[key], tolerance)]
        return f"{differing[0]}, {contrast(a[differing[0]], b[differing[0]], tolerance)}" if differing else ""
    if isinstance(b, list | tuple) and isinstance(a, list | tuple) and len(a) == len(b) > 2:
        place = next((n for n, (x, y) in enumerate(zip(a, b, strict=True)) if not equal(x, y, tolerance)), 0)
        return f"place {place}, {contrast(a[place], b[place], tolerance)}"
    if isinstance(b, torch.Tensor) and isinstance(a, torch.Tensor) and a.shape == b.shape and b.numel() > 6:
        apart = (a.double() - b.double()).abs().nan_to_num(math.inf)
        apart[a.isnan() & b.isnan()] = 0
        entry = tuple(int(i) for i in np.unravel_index(int(apart.argmax()), apart.shape))
        where = entry[0] if len(entry) == 1 else entry
        return f"entry {where}: expected {short(b[entry].item())}, yours gives {short(a[entry].item())}"
    mine, theirs = short(a), short(b)
    return f"expected {theirs}, yours gives {kind_of(a) if mine == theirs or a is None else mine}"


def kind_of(value: Any) -> str:
    """What a value is, in words: its type, and a tensor's shape."""
    if value is None:
        return "nothing (None): is there a return?"
    if is_number(value):
        return "a number"
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {getattr(value, 'type_name', type(value).__name__)}"


def short(value: Any) -> str:
    """A value for a message: six digits of a number, the shape and norm of a larger tensor."""
    if is_number(value):
        return f"{float(value):.6g}"
    if isinstance(value, torch.Tensor):
        if value.numel() <= 6:
            return short(value.tolist())
        return f"a tensor of shape {tuple(value.shape)} and norm {value.double().norm():.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {short(item)}" for name, item in list(value.items())[:4])
    if isinstance(value, list | tuple):
        more = ", …" if len(value) > 6 else ""
        return f"[{', '.join(map(short, value[:6]))}{more}]"
    return f"{value!r:.120}"
