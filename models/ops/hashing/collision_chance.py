"""Sums of values, weighted by the chance that query and key collide in angular hashing.

    o_i = sum_j P(x_ij) v_j,   P(x) = (1 - acos(x) / pi)^tau,   x_ij the cosine of q_i and k_j

No weight outlives its tile: backward makes them again. Cost: 4 n s d operations forward, 14 n s d
with backward, and an arc cosine for each pair and pass.
"""

import math
from enum import StrEnum, auto
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lra.models.ops.linear.gaussian_product import tiles
from lra.models.ops.numerics import add_product


class Gradient(StrEnum):
    """Derivative of a weight with respect to the cosine of query and key."""

    surrogate = auto()
    """The authors' surrogate, tau / 2 times the weight."""
    true = auto()
    """The true derivative, with its divisor sqrt(1 - x^2) bounded below by the square root of a
    rounding error."""


class Chance(NamedTuple):
    """The weight as a function of the cosine."""

    tau: int
    gradient: Gradient

    def weights(
        self, q: Float[Tensor, "r i k"], k: Float[Tensor, "r j k"]
    ) -> tuple[Float[Tensor, "r i j"], Float[Tensor, "r i j"], Float[Tensor, "r i j"]]:
        """Return P(x), its base 1 - acos(x) / pi, and the cosines x, for all pairs of q and k."""
        cosine = torch.bmm(q, k.mT).clamp_(-1, 1)
        base = torch.acos(cosine).mul_(-1 / math.pi).add_(1)
        return _power(base, self.tau), base, cosine

    def slope(self, weights: Tensor, base: Tensor, cosine: Tensor) -> Float[Tensor, "r i j"]:
        """Return the derivative of P by x, or its surrogate, times 2 / tau; overwrites `cosine`."""
        if self.gradient == Gradient.surrogate:
            return weights
        least = torch.finfo(cosine.dtype).eps
        factor = cosine.square_().neg_().add_(1).clamp_(min=least).rsqrt_().mul_(2 / math.pi)
        return factor.mul_(_power(base, max(self.tau - 1, 0)))


def _power(x: Tensor, exponent: int) -> Tensor:
    """Return x^exponent by repeated squaring, which takes a seventh of the time of `pow`."""
    if not exponent:
        return torch.ones_like(x)
    y = x.clone()
    for bit in f"{exponent:b}"[1:]:
        y.square_()
        if bit == "1":
            y.mul_(x)
    return y


def chance_product(
    q: Float[Tensor, "r l k"], k: Float[Tensor, "r s k"], v: Float[Tensor, "r s v"], chance: Chance
) -> Float[Tensor, "r l v"]:
    """Return o_i = sum_j P(q_i . k_j) v_j, tile by tile; queries and keys are unit vectors.

    Autograd is not supported; `pull_chance` computes the gradients.
    """
    o = v.new_zeros(*q.shape[:2], v.shape[-1])
    for rows, columns in tiles(q, k):
        weights, _, _ = chance.weights(q[:, rows], k[:, columns])
        add_product(o[:, rows], weights, v[:, columns])
    return o


def pull_chance(
    q: Float[Tensor, "r l k"],
    k: Float[Tensor, "r s k"],
    v: Float[Tensor, "r s v"],
    chance: Chance,
    *,
    gradient: Float[Tensor, "r l v"],
) -> tuple[Float[Tensor, "r l k"], Float[Tensor, "r s k"], Float[Tensor, "r s v"]]:
    """Return the gradients of `chance_product` by q, k and v."""
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    for rows, columns in tiles(q, k):
        weights, base, cosine = chance.weights(q[:, rows], k[:, columns])
        g = gradient[:, rows]
        add_product(dv[:, columns], weights.mT, g)
        pulled = torch.bmm(g, v[:, columns].mT).mul_(chance.slope(weights, base, cosine))
        add_product(dq[:, rows], pulled, k[:, columns])
        add_product(dk[:, columns], pulled.mT, q[:, rows])
    return (
        dq.mul_(chance.tau / 2),
        dk.mul_(chance.tau / 2),
        dv,
    )  # `slope` is 2 / tau times too large
