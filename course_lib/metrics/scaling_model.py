"""What more ranks bring: a model of a training step fitted to measured times.

A synchronous step computes, then sums the gradient. With b images per rank, n bytes of gradient and N ranks on a ring,

    T(N, b) = t₀ + c·b + 2(N − 1)·(α + β·n/N),

t₀ being what a step costs whatever its batch, c the seconds an image, α and β the link's (`course_lib.metrics.communication_cost`).
It is linear in its four parameters, so that least squares give them with a covariance, and any prediction an error.
Overlap of the two parts, links that are shared, and ranks that are late are left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from course_lib.metrics.communication_cost import ALL_REDUCE_COSTS
from course_lib.metrics.relative_fit import fit_relative

__all__ = ["Measurement", "StepModel", "fit_step_model", "torus_cost"]

PARAMETERS = ("overhead", "per_image", "alpha", "beta")


def torus_cost(nbytes: float, ranks: int) -> tuple[float, float]:
    """Messages and bytes of the longest chain of an all-reduce on a 2-D torus (Mikami et al. 2018).

    Reduce-scatter along the rows, all-reduce along the columns, all-gather along the rows; the rows are as near to √N long
    as N's divisors allow. It sends as few bytes as a ring, in far fewer messages.
    """
    row = next(width for width in range(math.isqrt(ranks), 0, -1) if ranks % width == 0)
    column = ranks // row
    messages = 2 * (row - 1) + 2 * (column - 1)
    return messages, 2 * (row - 1) / row * nbytes + 2 * (column - 1) / column * nbytes / row


COSTS = {**ALL_REDUCE_COSTS, "2-D torus": torus_cost}


@dataclass(frozen=True)
class Measurement:
    """One measured time.

    Attributes
    ----------
    ranks : int
    batch : int
        Images a rank and step; 0: an all-reduce alone, without a step around it.
    nbytes : float
        Of the gradient that is summed over the ranks.
    seconds : float
    """

    ranks: int
    batch: int
    nbytes: float
    seconds: float


@dataclass(frozen=True)
class StepModel:
    """The model of a step.

    Attributes
    ----------
    overhead : float
        t₀, seconds that a step costs whatever its batch.
    per_image : float
        c, seconds of computing for each image of a rank.
    alpha, beta : float
        The link's latency, seconds, and its seconds a byte.
    covariance : tuple of four tuples of four floats
        Of the four, in this order, from the fit; zeros where they are given.
    """

    overhead: float
    per_image: float
    alpha: float
    beta: float
    covariance: tuple[tuple[float, ...], ...] = ((0.0,) * 4,) * 4

    @property
    def errors(self) -> dict[str, float]:
        """Standard error of each parameter."""
        return {name: math.sqrt(self.covariance[i][i]) for i, name in enumerate(PARAMETERS)}

    def seconds(self, ranks: int, batch: int, nbytes: float, way: str = "ring") -> float:
        """Predicted seconds of a step (of an all-reduce alone, with batch 0), the sum made in a `way` of `COSTS`."""
        return float(_row(ranks, batch, nbytes, way) @ [getattr(self, name) for name in PARAMETERS])

    def seconds_error(self, ranks: int, batch: int, nbytes: float, way: str = "ring") -> float:
        """Standard error of `seconds`, from the fit alone: that the model is wrong is not in it."""
        row = _row(ranks, batch, nbytes, way)
        return math.sqrt(max(0.0, float(row @ np.array(self.covariance) @ row)))

    def throughput(self, ranks: int, batch: int, nbytes: float, way: str = "ring") -> tuple[float, float, float]:
        """Images a second of all ranks together, and the ends of a band of two standard errors of the step's time.

        The time within the band does not fall below a hundredth of the predicted one.
        """
        middle, error = self.seconds(ranks, batch, nbytes, way), self.seconds_error(ranks, batch, nbytes, way)
        times = (middle, middle + 2 * error, max(middle - 2 * error, middle / 100))
        return tuple(ranks * batch / seconds for seconds in times)


def fit_step_model(measurements: Sequence[Measurement]) -> StepModel:
    """Fit t₀, c, α and β by least squares of the errors relative to the measured times; none comes out negative.

    Parameters
    ----------
    measurements : sequence of Measurement
        Steps with two batches at least, and sums of two sizes of gradient at least on two or more ranks.

    Raises
    ------
    ValueError
        A time that is not above 0, or too little variety to determine the four.
    """
    if not all(m.seconds > 0 and math.isfinite(m.seconds) for m in measurements):
        raise ValueError("fit_step_model: every time must be above 0 seconds")
    rows = [_row(m.ranks, m.batch, m.nbytes, "ring") / m.seconds for m in measurements]
    columns = np.array(rows) if rows else np.zeros((0, 4))
    scale = np.linalg.norm(columns, axis=0)
    if (scale == 0).any() or np.linalg.matrix_rank(columns / np.where(scale, scale, 1), tol=1e-9) < 4:
        raise ValueError(
            "fit_step_model: these times do not determine the four parameters; it needs steps with two batches, and sums of "
            "two sizes of gradient on two or more ranks"
        )
    solution, covariance = fit_relative(columns)
    return StepModel(*solution.tolist(), tuple(map(tuple, covariance.tolist())))


def _row(ranks: int, batch: int, nbytes: float, way: str) -> np.ndarray:
    """What each parameter is multiplied by."""
    if ranks < 1 or batch < 0 or nbytes < 0:
        raise ValueError(f"ranks must be at least 1, batch and bytes not negative, got {ranks}, {batch}, {nbytes}")
    if way not in COSTS:
        raise ValueError(f"no way {way!r} to sum; there are {', '.join(COSTS)}")
    messages, sent = COSTS[way](nbytes, ranks) if nbytes else (0, 0)
    return np.array([float(batch > 0), batch, messages, sent], dtype=float)
