"""Student's t distribution: how large a difference must be, in its standard errors, before it counts."""

import math

import numpy as np

__all__ = ["t_limit"]

PLACES = 20_001  # of the grid; the limit is right to four digits from one degree of freedom to a million


def t_limit(degrees: float, level: float = 0.05) -> float:
    """The value that |t| exceeds with probability `level` where nothing differs.

    With t = √ν·tan θ the density of θ is proportional to cos(θ)^(ν − 1), and the share of −θ…θ is read from a grid.

    Parameters
    ----------
    degrees : float
        Degrees of freedom ν, at least 1; need not be whole.
    level : float
        In (0, 1): 0.05 gives the limit of a two-sided test at 5 %.

    Raises
    ------
    ValueError
        `degrees` below 1 (to rounding) or not finite, `level` not between 0 and 1.
    """
    if not 1 - 1e-9 <= degrees < math.inf:
        raise ValueError(f"degrees must be a finite number of at least 1, got {degrees}")
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    end = min(math.pi / 2, 40 / math.sqrt(degrees))  # beyond it the density is below 10⁻³⁰⁰
    angles = np.linspace(0, end, PLACES)
    density = np.maximum(np.cos(angles), 0) ** max(degrees - 1, 0)
    share = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return math.sqrt(degrees) * math.tan(float(np.interp(1 - level, share / share[-1], angles)))
