"""The gradient noise scale: from which batch on more ranks stop saving steps (McCandlish et al. 2018).

The gradient of a batch of B images is the true gradient G plus noise of covariance Σ/B. Where B is far below
tr Σ / |G|² the noise rules and twice the batch halves the steps; far above it the gradient is already known and more
images buy nothing. Numbered equations are those of arXiv 1812.06162.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["GradientNoise", "gradient_noise_scale", "steps_needed"]


@dataclass(frozen=True)
class GradientNoise:
    """An estimate of the gradient's signal and noise."""

    squared_gradient: float  # |G|²; unbiased, hence below 0 now and then when |G|² is small
    covariance_trace: float  # tr Σ, of one image's gradient

    @property
    def noise_scale(self) -> float:
        """B_noise = tr Σ / |G|² in images (the paper's B_simple, equation 2.9).

        Infinite where the estimate of |G|² is not positive: the gradient cannot be distinguished from 0. Average |G|² and tr Σ
        over several measurements, each by itself: both are unbiased and their means converge, quotients near |G|² = 0
        explode, and a mean of quotients converges to nothing (appendix A.1).
        """
        return self.covariance_trace / self.squared_gradient if self.squared_gradient > 0 else math.inf


def gradient_noise_scale(
    small_batch: float, big_batch: float, small_sq_norm: float, big_sq_norm: float
) -> GradientNoise:
    """Signal and noise from the gradient's squared norm at two batch sizes (appendix A.1, equations A.2 and A.3).

    E|G_B|² = |G|² + tr Σ / B at any B; two batch sizes are two equations. With data parallelism both norms are at
    hand: a rank's own gradient is the small batch's, the all-reduced mean is the big one's.

    Parameters
    ----------
    small_batch, big_batch : float
        Images, small < big.
    small_sq_norm, big_sq_norm : float
        |G_B|² of the mean gradient over that many images. An average of several for the small batch is better.

    Raises
    ------
    ValueError
        The batches are not 0 < small < big.
    """
    if not 0 < small_batch < big_batch:
        raise ValueError(f"the batches must be 0 < small < big, got {small_batch} and {big_batch}")
    return GradientNoise(
        squared_gradient=(big_batch * big_sq_norm - small_batch * small_sq_norm) / (big_batch - small_batch),
        covariance_trace=(small_sq_norm - big_sq_norm) / (1 / small_batch - 1 / big_batch),
    )


def steps_needed(batch: float, noise_scale: float, min_steps: float) -> float:
    """Steps to a given loss with batches of `batch` images: S(B) = S_min (1 + B_noise / B) (from equation 2.11).

    The images seen are S·B = S_min (B + B_noise): both steps and images are at twice their least where B = B_noise.

    Parameters
    ----------
    batch, noise_scale : float
        Images.
    min_steps : float
        S_min, the steps that an unlimited batch would take.

    Raises
    ------
    ValueError
        `batch` or `min_steps` not positive, `noise_scale` negative.
    """
    if not batch > 0:
        raise ValueError(f"batch must be positive, got {batch}")
    if not noise_scale >= 0:
        raise ValueError(f"noise_scale must not be negative, got {noise_scale}")
    if not min_steps > 0:
        raise ValueError(f"min_steps must be positive, got {min_steps}")
    return min_steps * (1 + noise_scale / batch)
