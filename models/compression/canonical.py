"""A CP decomposition: query and key projections of all heads as one sum of rank-1 terms.

    W[q, i, k] = sum_d Q_i[d, q] K_i[d, k]   ~   sum_r A[q, r] M[i, r] C[k, r]

for the weights Q_i, K_i of head i, whose scores are x Q_i' K_i y. Alternating least squares solves
for one factor after the other. The tensor W, width x heads x width, is never formed, because
products with it can be computed head by head:

    sum_{i,k} W[q, i, k] M[i, r] C[k, r]  =  sum_i Q_i' (M[i, r] (K_i C)[:, r])

and similarly for the other factors. That takes about 2 h d_k d R multiply-adds per factor, instead
of h d^2 R. The error |W|^2 - 2 <W, W~> + |W~|^2 also needs only matrices of R or d_k columns.

Source: Cordonnier et al. 2020, arXiv:2006.16362, section 3.3; alternating least squares: Kolda and
Bader 2009, SIAM Review 51(3), section 3.4.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

SWEEPS = 100
TOLERANCE = 1e-6
"""Iterations end when a sweep lowers the relative error by less than this."""
RIDGE = 1e-12
"""Number added to the diagonal of the normal equations, as a multiple of its mean."""


class CanonicalFactors(NamedTuple):
    """A sum of R terms, in double precision."""

    queries: Float[Tensor, "d r"]
    """A, with columns of norm 1."""
    mixing: Float[Tensor, "h r"]
    """M, which contains the weights of the terms."""
    keys: Float[Tensor, "s r"]
    """C, with columns of norm 1."""
    errors: tuple[float, ...]
    """Relative Frobenius errors: of the start, then after each sweep."""


def decompose_heads(
    queries: Float[Tensor, "h k d"],
    keys: Float[Tensor, "h k s"],
    rank: int,
    *,
    sweeps: int = SWEEPS,
    tolerance: float = TOLERANCE,
    start: CanonicalFactors | None = None,
) -> CanonicalFactors:
    """Return factors A, M, C whose `rank` terms approximate W of all heads.

    They start from the largest singular vectors of single heads, which are exact for the largest
    rank, and are improved by alternating least squares.

    Args:
        queries: Q_i, the query projection of each head.
        keys: K_i, the key projection of each head.
        rank: Number of terms R, from 1 to h k.
        sweeps: Largest number of sweeps over the three factors.
        tolerance: Iterations end when a sweep lowers the relative error by less; 0: never.
        start: Initial factors; None: singular vectors.

    Raises:
        ValueError: `rank` or `sweeps` is out of range.
    """
    heads, width = queries.shape[:2]
    if not 1 <= rank <= heads * width:
        raise ValueError(
            f"rank must be from 1 to {heads * width} ({heads} heads of width {width}; the largest "
            f"rank is exact): got {rank}"
        )
    if sweeps < 0:
        raise ValueError(f"sweeps must be 0 or more: got {sweeps}")
    q, k = queries.detach().double(), keys.detach().double()
    a, m, c = (
        _find_strongest_terms(q, k, rank) if start is None else (x.double() for x in start[:3])
    )
    squared = float(((q @ q.mT) * (k @ k.mT)).sum())  # |W|^2
    if squared == 0.0:
        return CanonicalFactors(a, torch.zeros_like(m), c, (0.0,))
    errors = [_relative_error(squared, _multiply_tensor(q, k, m, c), a, m, c)]
    for _ in range(sweeps if errors[0] > _EXACT else 0):
        a = _solve(_multiply_tensor(q, k, m, c), (m.T @ m) * (c.T @ c))
        m = _solve(torch.einsum("hkr,hkr->hr", q @ a, k @ c), (a.T @ a) * (c.T @ c))
        c = _solve(_multiply_tensor(k, q, m, a), (m.T @ m) * (a.T @ a))
        errors.append(_relative_error(squared, _multiply_tensor(q, k, m, c), a, m, c))
        a_norm, c_norm = (factor.norm(dim=0).clamp_min(1e-300) for factor in (a, c))
        a, c, m = a / a_norm, c / c_norm, m * a_norm * c_norm
        if tolerance and errors[-2] - errors[-1] < tolerance:
            break
    return CanonicalFactors(a, m, c, tuple(errors))


_EXACT = 1e-7
"""Relative error that counts as exact; rounding makes smaller errors meaningless."""


def _multiply_tensor(
    q: Float[Tensor, "h k d"],
    k: Float[Tensor, "h k s"],
    m: Float[Tensor, "h r"],
    c: Float[Tensor, "s r"],
) -> Float[Tensor, "d r"]:
    """Return sum_{i,k} W[q, i, k] M[i, r] C[k, r], computed head by head."""
    return torch.einsum("hkd,hkr->dr", q, (k @ c) * m[:, None])


def _solve(product: Float[Tensor, "n r"], normal: Float[Tensor, "r r"]) -> Float[Tensor, "n r"]:
    """Return the least-squares factor: product normal^-1."""
    ridge = RIDGE * normal.diagonal().mean().clamp_min(1e-300)
    ridged = normal + ridge * torch.eye(len(normal), dtype=normal.dtype, device=normal.device)
    factor: Tensor = torch.linalg.solve(ridged, product.T).T
    return factor


def _relative_error(squared: float, product: Tensor, a: Tensor, m: Tensor, c: Tensor) -> float:
    """Return |W - W~| / |W|, from `squared` = |W|^2 and `product`, that of W with M and C."""
    approximation_squared = float(((a.T @ a) * (m.T @ m) * (c.T @ c)).sum())
    difference_squared = squared - 2.0 * float((product * a).sum()) + approximation_squared
    relative: float = (max(difference_squared, 0.0) / squared) ** 0.5
    return relative


def _find_strongest_terms(
    q: Float[Tensor, "h k d"], k: Float[Tensor, "h k s"], rank: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return A, M, C from the `rank` largest singular values of all Q_i' K_i, one head per term."""
    heads = len(q)
    left_basis, left_factor = torch.linalg.qr(q.mT)  # Q_i' = left_basis left
    right_basis, right_factor = torch.linalg.qr(k.mT)
    u, values, v = torch.linalg.svd(left_factor @ right_factor.mT, full_matrices=False)
    a, c = left_basis @ u, right_basis @ v.mT
    columns = values.shape[1]
    chosen = values.flatten().argsort(descending=True, stable=True)[:rank]
    # Index h * columns + i means singular value i of head h.
    owner, column = chosen // columns, chosen % columns
    mixing = torch.zeros(heads, rank, dtype=q.dtype, device=q.device)
    mixing[owner, torch.arange(rank, device=q.device)] = values.flatten()[chosen]
    return a[owner, :, column].T, mixing, c[owner, :, column].T
