"""The conditions line that every benchmark prints above its figures."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence

import torch

from course_lib.system.hardware import machine_line

__all__ = ["conditions", "spread"]


def conditions(**facts: object) -> str:
    """Machine, versions, threads, and whatever else bears on the figures."""
    named = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())
    return (
        f"{machine_line()}; {torch.get_num_threads()} threads; Python {platform.python_version()}, "
        f"PyTorch {torch.__version__}; {named}"
    )


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Median, least and greatest of several runs."""
    return (
        f"{statistics.median(values):.{digits}f} (least {min(values):.{digits}f}, greatest {max(values):.{digits}f}, "
        f"{len(values)} runs)"
    )
