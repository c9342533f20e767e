"""Match the neurons of two networks one to one, so that matched neurons are as similar as possible."""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["best_matching"]


def best_matching(similarity: torch.Tensor) -> torch.Tensor:
    """The order of the columns ``int64 (n,)`` for which Σ similarity[i, order[i]] is largest.

    Parameters
    ----------
    similarity : Tensor ``(n, n)``
        Finite numbers, of any sign.

    Notes
    -----
    The assignment problem, by shortest augmenting paths (the Hungarian method): n rows are added one after the other, each
    in at most n steps of n operations. 512 neurons take a fraction of a second.

    Raises
    ------
    ValueError
        Not a square matrix of finite numbers.
    """
    cost = -similarity.detach().double().numpy()
    count = len(cost)
    if cost.shape != (count, count) or not np.isfinite(cost).all():
        raise ValueError(f"similarities of two layers are a square matrix of finite numbers, not {tuple(cost.shape)}")
    rows, columns = np.zeros(count + 1), np.zeros(count + 1)  # potentials; row and column 0 are made up
    row_of = np.zeros(count + 1, dtype=int)  # of each column; 0: none yet
    for row in range(1, count + 1):
        row_of[0], column = row, 0
        slack, before = np.full(count + 1, np.inf), np.zeros(count + 1, dtype=int)
        used = np.zeros(count + 1, dtype=bool)
        while True:
            used[column] = True
            reduced = cost[row_of[column] - 1] - rows[row_of[column]] - columns[1:]
            nearer = ~used[1:] & (reduced < slack[1:])
            slack[1:][nearer], before[1:][nearer] = reduced[nearer], column
            column = 1 + int(np.where(used[1:], np.inf, slack[1:]).argmin())
            step = slack[column]
            rows[row_of[used]] += step
            columns[used] -= step
            slack[~used] -= step
            if row_of[column] == 0:
                break
        while column:
            row_of[column] = row_of[before[column]]
            column = before[column]
    order = np.empty(count, dtype=np.int64)
    order[row_of[1:] - 1] = np.arange(count)
    return torch.from_numpy(order)
