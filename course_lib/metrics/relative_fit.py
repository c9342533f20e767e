"""Least squares of errors relative to measured times, with no negative coefficient."""

import numpy as np

__all__ = ["fit_relative"]


def fit_relative(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Solve ``columns @ x = 1`` by least squares, where each row was divided by the time that it explains.

    Times reach from microseconds to seconds; the plain sum of squares would see the longest only. Relative to what was
    measured, a time that is far too long, as a disturbed one is, weighs little. None of x comes out negative: the
    coefficient that is furthest below zero, by its standard error, is 0, and the others are fitted again.

    Parameters
    ----------
    columns : ndarray (measurements, k)
        Of rank k; no column is zero.

    Returns
    -------
    x : ndarray (k,)
    covariance : ndarray (k, k)
        Zero in the rows and columns of coefficients that are 0.
    """
    scale = np.linalg.norm(columns, axis=0)  # seconds and bytes differ by many orders
    kept = list(range(columns.shape[1]))
    while True:
        used = columns[:, kept] / scale[kept]
        x = np.linalg.lstsq(used, np.ones(len(used)), rcond=None)[0]
        inverse = np.linalg.inv(used.T @ used)
        if (x >= 0).all():
            break
        del kept[int((x / np.sqrt(np.diag(inverse))).argmin())]
    residual = used @ x - 1
    freedom = max(1, len(used) - len(kept))
    solution, covariance = np.zeros(len(scale)), np.zeros((len(scale), len(scale)))
    solution[kept] = x / scale[kept]
    covariance[np.ix_(kept, kept)] = inverse / np.outer(scale[kept], scale[kept]) * (residual @ residual) / freedom
    return solution, covariance
