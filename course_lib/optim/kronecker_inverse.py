"""The damped inverse of a Kronecker product A ⊗ G, applied to a gradient without ever building the product.

(A ⊗ G)⁻¹ vec(V) = vec(G⁻¹ V A⁻¹) for a gradient V ``(fan_out, fan_in)``, vec stacking its columns, is why the
factors are worth having: two small inverses for one of size fan_in · fan_out. The matrices of an untrained layer are
singular, so damping γ is added, in one of two ways:

- *eigen*: exactly (A ⊗ G + γI)⁻¹. With A = Q_A Λ_A Q_Aᵀ and G likewise, γ is added to each product of an eigenvalue of A
  and one of G (Pauloski et al. 2020, arXiv 2007.00784; the TACC slides). γ may change at every step, for free.
- *cholesky*: γ split between the factors, (A + π√γ I)⁻¹ ⊗ (G + √γ/π I)⁻¹ (Martens and Grosse 2015, section 6.3).
  Multiplied out there are two terms more, π√γ (I ⊗ G) and √γ/π (A ⊗ I), so it damps more than γ says; π, the root of the
  ratio of the factors' mean eigenvalues, balances the two. Cheaper to compute and to apply.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["damped_inverse", "eigendecomposition", "pi_split", "precondition_by_eigen", "precondition_by_inverse"]


def eigendecomposition(factor: Tensor) -> Tensor:
    """Eigenvectors and eigenvalues of a symmetric ``(n, n)`` matrix, as one tensor ``(n + 1, n)``.

    The columns of the first n rows are the eigenvectors, the last row the eigenvalues, those below 0 by rounding set to 0.
    """
    values, vectors = torch.linalg.eigh(factor)
    return torch.cat([vectors, values.clamp(min=0)[None]])


def precondition_by_eigen(gradient: Tensor, A: Tensor, G: Tensor, damping: float) -> Tensor:
    """(A ⊗ G + γI)⁻¹ applied to `gradient` ``(fan_out, fan_in)``, from the factors' `eigendecomposition`."""
    in_basis = G[:-1].T @ gradient @ A[:-1]
    return G[:-1] @ (in_basis / (torch.outer(G[-1], A[-1]) + damping)) @ A[:-1].T


def pi_split(A: Tensor, G: Tensor, damping: float) -> tuple[float, float]:
    """How much of γ goes to each factor: π√γ and √γ/π, whose product is γ.

    π = √((tr A / dim A) / (tr G / dim G)), so a factor of large numbers gets a large share; 1 where a trace is 0.
    """
    means = A.diagonal().mean().item(), G.diagonal().mean().item()
    pi = (means[0] / means[1]) ** 0.5 if min(means) > 0 else 1.0
    return damping**0.5 * pi, damping**0.5 / pi


def damped_inverse(factor: Tensor, damping: float) -> Tensor:
    """(factor + damping · I)⁻¹ of a symmetric ``(n, n)`` matrix by Cholesky's decomposition.

    Raises
    ------
    torch.linalg.LinAlgError
        Even the damped matrix is not positive definite in its precision.
    """
    damped = factor.clone()
    damped.diagonal().add_(damping)
    lower, info = torch.linalg.cholesky_ex(damped)
    if info.item():
        raise torch.linalg.LinAlgError(
            f"a Kronecker factor of size {len(factor)} plus {damping:.2g} on its diagonal is not positive definite in "
            f"{str(factor.dtype).removeprefix('torch.')}; raise damping, or use inverse='eigen'"
        )
    return torch.cholesky_inverse(lower)


def precondition_by_inverse(gradient: Tensor, A: Tensor, G: Tensor) -> Tensor:
    """G⁻¹ V A⁻¹ from the two inverses: the TACC slides' update."""
    return G @ gradient @ A
