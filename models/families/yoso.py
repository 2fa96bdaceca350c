"""YOSO: attention weights are probabilities of LSH collisions, estimated in linear time.

Equation   o_i = y_i / |y_i| + conv(v)_i,  y_i = sum_j P_ij v_j, conv convolves along the length
Modes      expectation  P_ij = (1 - acos(q_i k_j / |q_i| |k_j|) / pi)^tau, exact and quadratic
           hashed       P_ij = the fraction of m hashes in which the codes are equal; a code's tau
                        bits are the signs of tau random projections. Linear: values are summed in a
                        table with an entry for each code. Its mean over draws is the expectation.
Gradient   surrogate    the authors': tau / 2 P_ij instead of the derivative of P_ij by the cosine,
                        with the P of the mode, so that it is estimated by the same hashes
           true         tau (1 - acos(x) / pi)^(tau - 1) / (pi sqrt(1 - x^2)), which is unbounded at
                        x = 1; for mode=expectation alone
Cost       Each head takes in expectation mode 4 n^2 d operations and an arc cosine for each pair.
           In hashed mode it takes 4 n m tau d operations to hash and 2 n m d additions to sum, and
           backward takes m (8 C + 16 d) n d operations, with C = 64.
Source     Zeng et al. 2021, arXiv:2111.09714.
Notation   the paper's B(Q, K) is P; its hash code length is tau, its number of hashes `hashes`.
Differs    Random planes are drawn when the mixer is built and again every `redraw_every` steps of
           the optimiser; the authors draw in every pass. If the codes of a query match no key, its
           output and its gradient are 0.
Speed      In hashed mode at 8,192 tokens on a CPU, a layer of width 256 takes 3.6 times as long as
           the lower bound that its products and memory traffic set.
Mind       Choose tau near log2 of the length: `tau: null` takes it from the model's longest
           sequence, 11 for 2,048 tokens.
"""

import math
from enum import StrEnum, auto
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lra.models.mixer import Count, Growth, Layout, Need, Site, Traits, Unsupported, Whole
from lra.models.multi_head import MultiHead
from lra.models.ops.convolution.values import ValueConvolution
from lra.models.ops.hashing.collision_chance import Chance, Gradient, chance_product, pull_chance
from lra.models.ops.hashing.collisions import (
    Sides,
    draw_planes,
    hash_codes,
    match_sums,
    sum_matches,
)
from lra.models.ops.numerics import full_precision, reciprocal, sum_dtype

LONGEST = 24
"""Most bits of a code: float32 holds every code exactly, and a table has 2^tau entries."""


class YosoEstimator(StrEnum):
    """Whether weights are exact (expectation) or estimated by hashing (hashed)."""

    expectation = auto()
    hashed = auto()


class Rule(NamedTuple):
    """What the weights are; `planes` are None for the expectation."""

    tau: int
    planes: Float[Tensor, "h k p"] | None = None
    gradient: Gradient = Gradient.surrogate

    @property
    def chance(self) -> Chance:
        """The weight as a function of the cosine."""
        return Chance(self.tau, self.gradient)


def _unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x / |x|, 0 for 0, and 1 / |x|."""
    inverse = reciprocal(torch.linalg.vector_norm(x, dim=-1, keepdim=True))
    return x * inverse, inverse


def _unit_gradient(gradient: Tensor, unit: Tensor, inverse: Tensor) -> Tensor:
    """Return the gradient of x from that of x / |x|."""
    along = (gradient * unit).sum(-1, keepdim=True)
    return (gradient - along * unit) * inverse


class _Yoso(torch.autograd.Function):
    """`apply(q, k, v, keep, rule)`, in float32, or float64 where v is."""

    @staticmethod
    def forward(  # noqa: PLR0917  autograd functions have no keywords
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, rule: Rule
    ) -> Tensor:
        with full_precision(q):
            (q_unit, _), (k_unit, _), values = _prepared(q, k, v, keep)
            codes: tuple[Tensor, ...] = ()
            if rule.planes is None:
                sums = chance_product(q_unit, k_unit, values, rule.chance)
            else:
                by_query, by_key = (hash_codes(x, rule.planes, rule.tau) for x in (q_unit, k_unit))
                codes = by_query, by_key
                sums = sum_matches(by_query, by_key, values, 2**rule.tau).div_(by_query.shape[1])
            o, inverse = _unit(sums)
        ctx.rule = rule
        ctx.save_for_backward(q, k, v, keep, o, inverse, *codes)
        return o.view(*q.shape[:3], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, keep, o, inverse, *codes = ctx.saved_tensors
        rule: Rule = ctx.rule
        with full_precision(gradient):
            (q_unit, q_inverse), (k_unit, k_inverse), values = _prepared(q, k, v, keep)
            given = _unit_gradient(gradient.to(o.dtype).flatten(0, 1), o, inverse)
            if codes:
                by_query, by_key = codes
                share = 1 / by_query.shape[1]
                dv = sum_matches(by_key, by_query, given, 2**rule.tau).mul_(share)
                sides = Sides(given, q_unit), Sides(values, k_unit)
                dq, dk = match_sums(*sides, by_query, by_key)
                dq, dk = (x * (share * rule.tau / 2) for x in (dq, dk))
            else:
                dq, dk, dv = pull_chance(q_unit, k_unit, values, rule.chance, gradient=given)
            dq, dk = _unit_gradient(dq, q_unit, q_inverse), _unit_gradient(dk, k_unit, k_inverse)
            dv = dv.view_as(v)
            if keep is not None:
                dv = dv * keep[:, None, :, None]
        return dq.view_as(q).to(q.dtype), dk.view_as(k).to(k.dtype), dv.to(v.dtype), None, None


def _prepared(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor]:
    """Fold heads into the batch; return unit vectors with 1 / their lengths, and kept values."""
    if keep is not None:
        v = v * keep[:, None, :, None]
    dtype = sum_dtype(v)
    units = (_unit(x.to(dtype).flatten(0, 1)) for x in (q, k))
    return next(units), next(units), v.to(dtype).flatten(0, 1)


def yoso_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    rule: Rule,
    keep: Bool[Tensor, "b s"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Attend over all kept keys; the result is float32, or float64 where the values are."""
    o: Tensor = _Yoso.apply(q, k, v, keep, rule)  # type: ignore[no-untyped-call]
    return o


class YosoCore(nn.Module):
    """YOSO with its options, planes, and the convolution of values."""

    planes: Float[Tensor, "h k p"] | None
    conv: ValueConvolution | None

    def __init__(
        self,
        site: Site,
        *,
        tau: int,
        tau_grows: bool,
        planes: Float[Tensor, "h k p"] | None,
        gradient: Gradient,
        conv_kernel: int,
    ) -> None:
        super().__init__()
        self.register_buffer("planes", planes)
        self.tau, self.gradient = tau, gradient
        self.conv = ValueConvolution(site.heads, conv_kernel) if conv_kernel else None
        hashed = planes is not None
        self.traits = Traits(
            operations=Growth(1.0, log=tau_grows) if hashed else Growth(2.0),
            cross=self.conv is None,
            surrogate_gradient=gradient == Gradient.surrogate,
            random_draws=hashed and tau > 0,
            sees_order=self.conv is not None,
        )

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Attend."""
        o = yoso_attention(q, k, v, Rule(self.tau, self.planes, self.gradient), layout.keep)
        if self.conv is not None:
            o = o + self.conv(v, layout.keep)
        return o.to(v.dtype)


class Yoso(MultiHead):
    """Attention by the chance of a collision between the four projections.

    `redraw_every` counts optimiser steps, 0 = never. `tau: null` is log2 of the site's longest
    sequence. `conv_kernel` is the number of taps of the convolution of values, odd, 0 for none,
    without which the attention also takes other sources.
    """

    needs = (Need("hashes", "redraw_every", mode=YosoEstimator.hashed),)

    def __init__(
        self,
        site: Site,
        *,
        mode: YosoEstimator = YosoEstimator.hashed,
        tau: int | None = None,
        hashes: Count = 16,
        gradient: Gradient = Gradient.surrogate,
        conv_kernel: int = 0,
        redraw_every: Whole = 1,
    ) -> None:
        if site.causal:
            raise Unsupported(
                "YOSO has no causal form: choose a causal family, or a task that reads the whole "
                "sequence"
            )
        tau_grows = tau is None
        if tau is None:
            tau = round(math.log2(site.max_length))
        if not 0 <= tau <= LONGEST:
            raise ValueError(
                f"tau must lie between 0 and {LONGEST}: got {tau}; null takes log2 of the length"
            )
        if gradient == Gradient.true and mode == YosoEstimator.hashed:
            raise ValueError(
                "gradient=true needs mode=expectation, because hashes estimate the weights "
                "without their derivative: got mode=hashed"
            )
        self.draw = partial(draw_planes, site.heads, site.head_width, hashes * tau)
        planes = None
        if mode == YosoEstimator.hashed:
            planes = self.draw(site.generator).to(torch.empty(()))
        core = YosoCore(
            site,
            tau=tau,
            tau_grows=tau_grows,
            planes=planes,
            gradient=gradient,
            conv_kernel=conv_kernel,
        )
        super().__init__(site, core)
        self.redraw_every = redraw_every

    def after_step(self, step: int, generator: torch.Generator) -> None:
        """Draw other planes when their time has come."""
        planes = cast(YosoCore, self.core).planes
        if planes is not None and self.redraw_every and step % self.redraw_every == 0:
            planes.copy_(self.draw(generator))
