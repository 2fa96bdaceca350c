"""Query and key projections of all heads as one sum of rank-1 terms: a CP decomposition.

    W[q, i, k] = sum_d Q_i[d, q] K_i[d, k]   ~   sum_r A[q, r] M[i, r] C[k, r]

for the weights Q_i, K_i of head i, of which Q_i' K_i is what its scores are made by. Alternating
least squares solves for one factor after the other; the tensor, width x heads x width, is never
formed, for every product with it goes through the heads:

    sum_{i,k} W[q, i, k] M[i, r] C[k, r]  =  sum_i Q_i' (M[i, r] (K_i C)[:, r])

and alike for the others: about 2 h d_k d R multiply-adds a factor, where the tensor takes h d^2 R.
The error needs no tensor either: |W|^2 - 2 <W, W~> + |W~|^2, all from matrices of R or d_k columns.

Source: Cordonnier et al. 2020, arXiv:2006.16362, section 3.3; alternating least squares: Kolda and
Bader 2009, SIAM Review 51(3), section 3.4.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

SWEEPS = 100
TOLERANCE = 1e-6
"""A sweep that lowers the relative error by less is the last."""
RIDGE = 1e-12
"""Of the mean diagonal of the normal equations, in double precision."""


class CanonicalFactors(NamedTuple):
    """A sum of R terms, in double precision."""

    queries: Float[Tensor, "d r"]
    """A, of columns of norm 1."""
    mixing: Float[Tensor, "h r"]
    """M, which has the weights of the terms."""
    keys: Float[Tensor, "s r"]
    """C, of columns of norm 1."""
    errors: tuple[float, ...]
    """Relative Frobenius error after each sweep; before the first, of the start."""


def decompose_heads(
    queries: Float[Tensor, "h k d"],
    keys: Float[Tensor, "h k s"],
    rank: int,
    *,
    sweeps: int = SWEEPS,
    tolerance: float = TOLERANCE,
    start: CanonicalFactors | None = None,
) -> CanonicalFactors:
    """Return the factors of all heads' products of queries and keys.

    They start from the strongest singular vectors of single heads, which is exact where the rank is
    that of all heads together, and go on by alternating least squares.

    Args:
        queries: Weights of each head, from tokens to its queries.
        keys: The same of keys.
        rank: Number of terms, from the number of heads to that of all their columns.
        sweeps: At most.
        tolerance: A sweep that lowers the relative error by less is the last; 0: none is.
        start: Factors to start from instead; their errors are not read.

    Raises:
        ValueError: The rank is none, or no sweep is asked for.
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
        _strongest_terms(q, k, rank) if start is None else (each.double() for each in start[:3])
    )
    squared = float(((q @ q.mT) * (k @ k.mT)).sum())
    if squared == 0.0:
        return CanonicalFactors(a, torch.zeros_like(m), c, (0.0,))
    errors = [_relative_error(squared, _by_queries(q, k, m, c), a, m, c)]
    for _ in range(sweeps if errors[0] > _EXACT else 0):
        a = _solve(_by_queries(q, k, m, c), (m.T @ m) * (c.T @ c))
        m = _solve(torch.einsum("hkr,hkr->hr", q @ a, k @ c), (a.T @ a) * (c.T @ c))
        c = _solve(_by_queries(k, q, m, a), (m.T @ m) * (a.T @ a))
        errors.append(_relative_error(squared, _by_queries(q, k, m, c), a, m, c))
        lengths = [each.norm(dim=0).clamp_min(1e-300) for each in (a, c)]
        a, c, m = a / lengths[0], c / lengths[1], m * lengths[0] * lengths[1]
        if tolerance and errors[-2] - errors[-1] < tolerance:
            break
    return CanonicalFactors(a, m, c, tuple(errors))


_EXACT = 1e-7
"""Of relative errors, whose squares are differences of larger numbers."""


def _by_queries(
    q: Float[Tensor, "h k d"],
    k: Float[Tensor, "h k s"],
    m: Float[Tensor, "h r"],
    c: Float[Tensor, "s r"],
) -> Float[Tensor, "d r"]:
    """Return sum_{i,k} W[q, i, k] M[i, r] C[k, r]."""
    return torch.einsum("hkd,hkr->dr", q, (k @ c) * m[:, None])


def _solve(product: Float[Tensor, "n r"], normal: Float[Tensor, "r r"]) -> Float[Tensor, "n r"]:
    """Return the least-squares factor: product normal^-1."""
    ridge = RIDGE * normal.diagonal().mean().clamp_min(1e-300)
    ridged = normal + ridge * torch.eye(len(normal), dtype=normal.dtype, device=normal.device)
    factor: Tensor = torch.linalg.solve(ridged, product.T).T
    return factor


def _relative_error(squared: float, product: Tensor, a: Tensor, m: Tensor, c: Tensor) -> float:
    """Return the relative Frobenius error of the factors, given the product for the factor A."""
    approximation_squared = float(((a.T @ a) * (m.T @ m) * (c.T @ c)).sum())
    left = squared - 2.0 * float((product * a).sum()) + approximation_squared
    relative: float = (max(left, 0.0) / squared) ** 0.5
    return relative


def _strongest_terms(
    q: Float[Tensor, "h k d"], k: Float[Tensor, "h k s"], rank: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the strongest singular pairs of single heads: each term belongs to one head."""
    heads = len(q)
    left_basis, left = torch.linalg.qr(q.mT)  # Q_i' = left_basis left
    right_basis, right = torch.linalg.qr(k.mT)
    u, values, v = torch.linalg.svd(left @ right.mT, full_matrices=False)
    a, c = left_basis @ u, right_basis @ v.mT
    columns = values.shape[1]
    chosen = values.flatten().argsort(descending=True, stable=True)[:rank]
    owner, column = chosen // columns, chosen % columns
    mixing = torch.zeros(heads, rank, dtype=q.dtype, device=q.device)
    mixing[owner, torch.arange(rank, device=q.device)] = values.flatten()[chosen]
    return a[owner, :, column].T, mixing, c[owner, :, column].T
