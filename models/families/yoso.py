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
"""Largest tau, because float32 represents only codes of up to 24 bits exactly."""


class YosoEstimator(StrEnum):
    """Whether weights are exact (expectation) or estimated by hashing (hashed)."""

    expectation = auto()
    hashed = auto()


class Rule(NamedTuple):
    """How weights are computed: by hashes with random `planes`; None: by their expectation."""

    tau: int
    planes: Float[Tensor, "h k p"] | None = None
    gradient: Gradient = Gradient.surrogate

    @property
    def chance(self) -> Chance:
        """The weight as a function of the cosine."""
        return Chance(self.tau, self.gradient)


def _normalise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x / |x| (0 if x is 0), and 1 / |x|."""
    inverse = reciprocal(torch.linalg.vector_norm(x, dim=-1, keepdim=True))
    return x * inverse, inverse


def _pull_through_norm(gradient: Tensor, unit: Tensor, inverse: Tensor) -> Tensor:
    """Return the gradient of x, given that of `unit` = x / |x|, with `inverse` = 1 / |x|."""
    projection = (gradient * unit).sum(-1, keepdim=True)
    return (gradient - projection * unit) * inverse


class _Yoso(torch.autograd.Function):
    """`apply(q, k, v, keep, rule)` returns y / |y|, in float32, or in float64 if v is."""

    @staticmethod
    def forward(  # noqa: PLR0917  autograd functions have no keywords
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, rule: Rule
    ) -> Tensor:
        """Return y / |y|; store the inputs, the output, 1 / |y| and the hash codes."""
        with full_precision(q):
            (q_unit, _), (k_unit, _), values = _prepare(q, k, v, keep)
            codes: tuple[Tensor, ...] = ()
            if rule.planes is None:
                sums = chance_product(q_unit, k_unit, values, rule.chance)
            else:
                query_codes, key_codes = (
                    hash_codes(x, rule.planes, rule.tau) for x in (q_unit, k_unit)
                )
                codes, hashes = (query_codes, key_codes), query_codes.shape[1]
                sums = sum_matches(query_codes, key_codes, values, 2**rule.tau).div_(hashes)
            o, inverse = _normalise(sums)
        ctx.rule = rule
        ctx.save_for_backward(q, k, v, keep, o, inverse, *codes)
        return o.view(*q.shape[:3], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k and v, estimated by the same hashes as the output."""
        q, k, v, keep, o, inverse, *codes = ctx.saved_tensors
        rule: Rule = ctx.rule
        with full_precision(gradient):
            (q_unit, q_inverse), (k_unit, k_inverse), values = _prepare(q, k, v, keep)
            dsums = _pull_through_norm(gradient.to(o.dtype).flatten(0, 1), o, inverse)
            if codes:
                query_codes, key_codes = codes
                per_hash = 1 / query_codes.shape[1]
                dv = sum_matches(key_codes, query_codes, dsums, 2**rule.tau).mul_(per_hash)
                sides = Sides(dsums, q_unit), Sides(values, k_unit)
                dq, dk = match_sums(*sides, query_codes, key_codes)
                dq, dk = (x * (per_hash * rule.tau / 2) for x in (dq, dk))  # surrogate: tau / 2 P
            else:
                dq, dk, dv = pull_chance(q_unit, k_unit, values, rule.chance, gradient=dsums)
            dq, dk = (
                _pull_through_norm(dq, q_unit, q_inverse),
                _pull_through_norm(dk, k_unit, k_inverse),
            )
            dv = dv.view_as(v)
            if keep is not None:
                dv = dv * keep[:, None, :, None]
        return dq.view_as(q).to(q.dtype), dk.view_as(k).to(k.dtype), dv.to(v.dtype), None, None


def _prepare(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor]:
    """Return q / |q| with 1 / |q|, the same of k, and v with zeros at padding.

    The heads are folded into the batch.
    """
    if keep is not None:
        v = v * keep[:, None, :, None]
    dtype = sum_dtype(v)
    units = (_normalise(x.to(dtype).flatten(0, 1)) for x in (q, k))
    return next(units), next(units), v.to(dtype).flatten(0, 1)


def yoso_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    rule: Rule,
    keep: Bool[Tensor, "b s"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return y / |y| for each query, over the keys that `keep` allows, at least in float32."""
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
        """Set the traits; `tau_grows` is True where tau is log2 of the longest sequence."""
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
        """Return YOSO's attention, plus the convolution of values if there is one."""
        o = yoso_attention(q, k, v, Rule(self.tau, self.planes, self.gradient), layout.keep)
        if self.conv is not None:
            o = o + self.conv(v, layout.keep)
        return o.to(v.dtype)


class Yoso(MultiHead):
    """Attention by the probability of hash collisions, between the four projections.

    Planes are drawn again every `redraw_every` optimiser steps; 0: never. `tau=None` means log2 of
    the longest sequence. `conv_kernel` is the odd number of taps of the convolution of values; 0:
    no convolution, and then cross attention is possible.
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
        """Check the options, and draw the planes of the hashes."""
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
                f"tau, the number of bits of a hash code, must be 0 to {LONGEST}: got {tau}; set "
                "null for log2 of the longest sequence"
            )
        if gradient == Gradient.true and mode == YosoEstimator.hashed:
            raise ValueError(
                "gradient=true needs mode=expectation, because hashes estimate the weights but not "
                "their derivative: got mode=hashed; set mode=expectation, or gradient=surrogate"
            )
        self.draw = partial(draw_planes, site.heads, site.head_width, hashes * tau)
        planes = None
        if mode == YosoEstimator.hashed:
            planes = self.draw(site.generator).to(torch.empty(()))
        core = YosoCore(
            site, tau=tau, tau_grows=tau_grows, planes=planes, gradient=gradient,
            conv_kernel=conv_kernel,
        )  # fmt: skip
        super().__init__(site, core)
        self.redraw_every = redraw_every

    def after_step(self, step: int, generator: torch.Generator) -> None:
        """Draw new planes every `redraw_every` steps."""
        planes = cast(YosoCore, self.core).planes
        if planes is not None and self.redraw_every and step % self.redraw_every == 0:
            planes.copy_(self.draw(generator))
