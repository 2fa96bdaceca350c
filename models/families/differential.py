"""Differential Transformer: each head subtracts two softmax maps, so that common noise cancels.

    o_h = (softmax(Q1 K1' / sqrt(c)) - lambda softmax(Q2 K2' / sqrt(c))) V,   c = k / 2
    y = W_O ((1 - lambda_0) norm_h(o)),
    lambda = exp(a1 · b1) - exp(a2 · b2) + lambda_0,   lambda_0 = 0.8 - 0.6 exp(-0.3 layer)

Q1, Q2 and K1, K2 are the halves of a head; a1, b1, a2, b2 are learned vectors, one set for all
heads of a layer. norm_h divides a head by its root mean square and multiplies it by weights.

Cost       The layer takes twice as many operations as `sdpa`, since each head has two maps. Each
           map has half of the width, padded with zeros to the whole width. State: keys and values,
           as in `sdpa`.
Source     Ye et al. 2024, arXiv:2410.05258, equations 1 to 3, and the code, microsoft/unilm.
Notation   the paper's d is c here. A head has two maps, so a model has half as many heads as
           another transformer of the same width with heads of width c. Layers are counted from 0.
Published  The paper's models are causal, with heads of 128 channels, rotary positions and without
           biases, in blocks with SwiGLU and RMSNorm.
"""

import math
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import Growth, NonNegative, Roles, Site
from lra.models.multi_head import HeadCounts, MultiHead
from lra.models.ops.exact import ExactCore, sdpa
from lra.models.ops.gated.head_norm import GatedHeadNorm
from lra.models.ops.numerics import full_precision, sum_dtype


class TwoMaps(Roles):
    """The difference of two attention maps, normed by head.

    Args:
        width: Width of a head's values, twice the width c of a map's queries and keys.
        layer: Number of the layer, from 0, which decides lambda_0.
        deviation: Standard deviation of the initial vectors a1, b1, a2 and b2.
    """

    no_matrices = ("vectors",)

    def __init__(self, width: int, layer: int, deviation: float) -> None:
        """Draw the pairs (a1, b1) and (a2, b2), [2 2 c], and make the norm; `start` is lambda_0."""
        super().__init__()
        self.start = 0.8 - 0.6 * math.exp(-0.3 * layer)
        self.vectors = nn.Parameter(torch.empty(2, 2, width // 2))
        nn.init.normal_(self.vectors, std=deviation)
        self.norm = GatedHeadNorm(width)

    def strength(self, dtype: torch.dtype) -> Float[Tensor, ""]:
        """Return lambda = exp(a1 · b1) - exp(a2 · b2) + lambda_0."""
        first, second = self.vectors.to(dtype).prod(1).sum(-1).exp().unbind()
        return first - second + self.start

    def forward(
        self,
        q: Float[Tensor, "b h2 l c"],
        k: Float[Tensor, "b h2 s c"],
        v: Float[Tensor, "b h s v"],
        *,
        causal: bool = False,
        visible: Bool[Tensor, "#b 1 #l s"] | None = None,
        dropout: float = 0.0,
        bias: Tensor | None = None,
    ) -> Float[Tensor, "b h l v"]:
        """Return the normed difference of both maps of each head, applied to the values `v`.

        Heads 2 i and 2 i + 1 of `q` and `k` are the two maps of head i of `v`. The other arguments
        are those of `lra.models.ops.exact.softmax_attention`.
        """
        # Fused kernels need keys as wide as values, so zeros are appended. `sdpa` then divides by
        # the square root of the new width, which the factor turns into sqrt(c).
        added = v.shape[-1] - q.shape[-1]
        q, k = F.pad(q * (v.shape[-1] / q.shape[-1]) ** 0.5, (0, added)), F.pad(k, (0, added))
        both = sdpa(
            q, k, v.repeat_interleave(2, 1),
            causal=causal, visible=visible, dropout=dropout, bias=bias,
        )  # fmt: skip
        with full_precision(q):
            strength = self.strength(sum_dtype(q)).to(both.dtype)
        o = both[:, 0::2] - strength * both[:, 1::2]
        normed: Tensor = self.norm(o)
        return (1 - self.start) * normed


class Differential(MultiHead):
    """Multi-head differential attention.

    Args:
        deviation: Standard deviation of the initial vectors from which lambda is computed.

    Raises:
        ValueError: The width of a head is odd, or `deviation` is below 0.
    """

    def __init__(self, site: Site, *, deviation: NonNegative = 0.1, bias: bool = False) -> None:
        """Make two heads of queries and of keys, half as wide, for each head of values."""
        if site.head_width % 2:
            raise ValueError(
                "differential attention divides the channels of a head between two attention "
                f"maps, so a head needs an even number: got {site.head_width} channels per head; "
                "change heads or head_width"
            )
        heads = HeadCounts(2 * site.heads, 2 * site.heads, site.heads, site.heads)
        maps = TwoMaps(site.head_width, site.layer, deviation)
        core = ExactCore(site, maps, memory=Growth(1.0), value_heads=site.heads)
        core.traits = replace(core.traits, positions=frozenset(), row_stochastic=False)
        super().__init__(
            site, core, bias=bias, bias_default=False, heads=heads, key_width=site.head_width // 2
        )
