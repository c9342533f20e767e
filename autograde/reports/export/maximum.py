"""The platform's maximum for an assignment against the gradebook's for the lab."""

from __future__ import annotations

from pathlib import Path

from autograde.reports.export.template import ExportError

__all__ = ["scale_factor"]


def scale_factor(path: Path, place: str, theirs: float | None, ours: float, scale: bool) -> tuple[float, list[str]]:
    """What to multiply the lab's scores by.

    Parameters
    ----------
    path : Path
        The template, for messages.
    place : str
        Where its maximum is, for messages.
    theirs : float or None
        The platform's maximum; None where the file has none.
    ours : float
        The lab's, from the gradebook.
    scale : bool
        Whether to scale to `theirs`.

    Returns
    -------
    factor : float
    warnings : list of str
        One line where the two differ and nothing is scaled.

    Raises
    ------
    ExportError
        Asked to scale where one of the two is missing or 0.
    """
    if scale:
        if not theirs or not ours:
            raise ExportError(
                f"{path}: cannot scale, {place} is {'missing' if theirs is None else f'{theirs:g}'} and the lab's "
                f"maximum {ours:g}; set both above 0 or leave out --scale"
            )
        return theirs / ours, []
    # Both platforms show two decimals.
    if theirs is None or abs(theirs - ours) < 0.005:
        return 1.0, []
    return 1.0, [f"warning: {place} is {theirs:g}, the lab is worth {ours:g}; change it there or give --scale"]
