"""What an answer's number is, as the grader sees it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

__all__ = ["as_number", "shown"]


def as_number(value: Any) -> float | None:
    """A finite number as a float, NumPy's and 0-dimensional tensors' too; None for what is none (a boolean, NaN, text)."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, torch.Tensor):
        if value.dim() or value.dtype is torch.bool:
            return None
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def shown(value: Any) -> str:
    """An answer, for a message: short, and with a question where nothing came."""
    if value is None:
        return "nothing (None): is there a return?"
    number = as_number(value)
    return repr(value)[:80] if number is None else f"{number:.4g}"
