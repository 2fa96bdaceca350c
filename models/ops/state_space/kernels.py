"""Sums over powers of eigenvalues, without a table of all powers.

    vandermonde   K_t = 2 Re sum_p c_p lambda_p^t       a kernel from weights of eigenvalues
    exponential   K_t = sum_s p_s q_s^t                 the same with real eigenvalues
    polynomial    S_p = sum_t u_t lambda_p^t            an input summed into a state

With t = i m + j and m about sqrt(n), lambda^t = lambda^(i m) lambda^j, and the sums are batched
products of two tables with about sqrt(n) powers of each eigenvalue. This takes 4 n P operations per
channel with P complex eigenvalues, and 2 sqrt(n) P saved powers instead of n P. Powers are computed
by products only, so that eigenvalues can be 0 or negative. Half precision is computed in float32.
"""

import torch
from jaxtyping import Float, Inexact, Real
from torch import Tensor
from torch.nn import functional as F

from lra.models.ops.numerics import full_precision


def vandermonde(
    c: Inexact[Tensor, "*b d p"], factor: Inexact[Tensor, "d p"], length: int
) -> Real[Tensor, "*b d {length}"]:
    """Return K_t = 2 Re sum_p c_p lambda_p^t for every t < `length`.

    Args:
        c: Weights of p eigenvalues for d channels, real or complex, with optional further axes.
        factor: The eigenvalues lambda of each channel, real or complex.
        length: Number of lags, at least 1.
    """
    dtype = torch.promote_types(torch.promote_types(c.dtype, factor.dtype), torch.float32)
    with full_precision(factor):
        inner, outer = _tables(factor.to(dtype), length)
        weighted_powers = _as_real(2 * c.to(dtype).unsqueeze(-2) * outer, conjugate=True)
        return torch.einsum("...diq,djq->...dij", weighted_powers, _as_real(inner)).flatten(-2)[
            ..., :length
        ]


def exponential(
    p: Float[Tensor, "*b d s"], q: Float[Tensor, "d s"], length: int
) -> Float[Tensor, "*b d {length}"]:
    """Return K_t = sum_s p_s q_s^t for every t < `length`, with weights p and eigenvalues q."""
    return vandermonde(p / 2, q, length)


def polynomial(
    u: Real[Tensor, "*b d l"], factor: Inexact[Tensor, "d p"]
) -> Inexact[Tensor, "*b d p"]:
    """Return S_p = sum_t u_t lambda_p^t for each of p eigenvalues: the transpose of `vandermonde`.

    Args:
        u: Real coefficients of l powers for d channels, at least one.
        factor: The eigenvalues lambda of each channel, real or complex.
    """
    dtype = torch.promote_types(torch.promote_types(u.dtype, factor.dtype), torch.float32)
    length = u.shape[-1]
    with full_precision(factor):
        inner, outer = _tables(factor.to(dtype), length)
        number, size = outer.shape[-2], inner.shape[-2]
        padded = F.pad(u.to(dtype.to_real()), (0, number * size - length))
        parts = torch.unflatten(padded, -1, (number, size))
        sums = torch.einsum("...dij,djq->...diq", parts, _as_real(inner))
        if dtype.is_complex:
            sums = torch.view_as_complex(torch.unflatten(sums, -1, (-1, 2)))
        return (sums * outer).sum(-2)


def power(base: Inexact[Tensor, "*s"], exponent: int) -> Inexact[Tensor, "*s"]:
    """Return base^exponent by squaring, for an exponent of at least 1; gradients at 0 are exact."""
    result = base if exponent % 2 else None
    while exponent := exponent // 2:
        base = base * base
        if exponent % 2:
            result = base if result is None else result * base
    return base if result is None else result


def _tables(
    factor: Inexact[Tensor, "d p"], length: int
) -> tuple[Inexact[Tensor, "d m p"], Inexact[Tensor, "d i p"]]:
    """Return two tables: lambda^j for j < m, and lambda^(m i) for i m < length.

    m is the power of two next to sqrt(length), so that the first table needs only doublings.
    """
    size = 1 << ((length - 1).bit_length() + 1) // 2
    inner = _powers(factor, size)
    return inner, _powers(power(factor, size), -(-length // size))


def _powers(base: Inexact[Tensor, "d p"], number: int) -> Inexact[Tensor, "d m p"]:
    """Return base^0 … base^(number - 1), doubling the table by products with base^(2^k)."""
    table = torch.ones_like(base).unsqueeze(-2)
    while (size := table.shape[-2]) < number:
        table = torch.cat((table, table[:, : number - size] * base.unsqueeze(-2)), dim=-2)
        base = base * base
    return table


def _as_real(x: Inexact[Tensor, "*s p"], *, conjugate: bool = False) -> Real[Tensor, "*s q"]:
    """Return complex numbers as interleaved real and imaginary parts; return real `x` unchanged.

    A real product of such rows gives Re(a b) = Re conj(a) Re b + Im conj(a) Im b.
    """
    if not x.is_complex():
        return x
    return torch.view_as_real(x.conj().resolve_conj() if conjugate else x).flatten(-2)
