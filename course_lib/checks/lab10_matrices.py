"""What lab 10's checks ask of every matrix that an answer returns."""

from __future__ import annotations

from typing import Any

import torch

from course_lib.checks.registry import CheckFailed

__all__ = ["matrix_of", "same", "vec"]


def vec(matrix: torch.Tensor) -> torch.Tensor:
    """The columns of a matrix, one below the other."""
    return matrix.T.reshape(-1)


def matrix_of(found: Any, shape: tuple[int, ...], what: str, reasons: dict[tuple[int, ...], str] | None = None) -> Any:
    """The tensor that an answer returned, in float64, of the shape asked for.

    Parameters
    ----------
    reasons : mapping of shape to str, optional
        The likeliest reason for other shapes.

    Raises
    ------
    CheckFailed
        It is no tensor, has another shape, or holds NaN or infinity.
    """
    wanted = "×".join(map(str, shape))
    if found is None:
        raise CheckFailed(f"{what} has shape {wanted}; yours returned nothing (None): is there a return?")
    if not isinstance(found, torch.Tensor):
        raise CheckFailed(f"{what} is a tensor of shape {wanted}; yours is of type {type(found).__name__}")
    if found.shape != shape:
        why = (reasons or {}).get(tuple(found.shape), "")
        came = "×".join(map(str, found.shape)) or "a single number"
        raise CheckFailed(f"{what} has shape {wanted}, yours {came}. {why}".rstrip(" ."))
    found = found.detach().double()
    if not bool(torch.isfinite(found).all()):
        raise CheckFailed(f"{what} has entries that are NaN or infinite in yours")
    return found


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Equal to one part in 10⁵ of the largest entry: answers may compute in float32."""
    return found.shape == wanted.shape and bool(
        ((found - wanted).abs().max() <= 1e-5 * wanted.abs().max() + 1e-12).item()
    )
