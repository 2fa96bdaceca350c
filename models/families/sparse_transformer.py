"""Sparse Transformer: strided or fixed sparse attention; two layers connect any two tokens.

With stride l and c summary columns, token i attends to j <= i where

    strided    near: i - j <= l                far: (i - j) mod l = 0
    fixed      near: floor(j/l) = floor(i/l)    far: j mod l in {l-c, ..., l-1} or j mod l = 0

so that two layers connect any two tokens: through far, then near, or through one of them and the
residual connection. `head_use` assigns the patterns: `interleave` (layers alternate, near first),
`merged` (every head uses the union) or `heads` (the first half of the heads near, the others far).
Within its pattern, each head computes softmax attention. The bidirectional form is an addition of
this project: it has no condition j <= i and uses |i - j|.

Cost: the layer takes 4 n D operations times the average number of keys per token. In the causal
form these are: near l / 2 (fixed) or l (strided), far n (c + 1) / (2 l) (fixed) or n / (2 l)
(strided); near keys are computed in whole blocks, which makes l (fixed) and 1.5 l (strided). With l
= sqrt(n), the cost grows as n sqrt(n); with a fixed l, it is quadratic with a small constant. To
continue a text, the layer stores all keys and values of the past. This is exact, but saves no
memory.

Source: Child et al. 2019, arXiv:1904.10509, sections 4 and 5. Notation: l and c are the paper's,
`stride` and `summary` here.

Differences from the paper: with `heads` and `fixed`, the far heads use different summary columns:
the r-th head has the r-th c columns from the end of a block, cyclically, and also the first column,
so that every token has at least one key. `stride: null` is sqrt(max_length), but at least 2c.

`variant: lra` is the pattern of the Long Range Arena code: fixed and merged, l = 50 and c = 10
unless given, and lower-triangular in bidirectional models too. The CLS vector, where there is one,
is outside the pattern: it attends to all tokens, and all attend to it. So does the first token with
`open_first`, as in that code's model of pairs, which has no CLS vector. That code builds the n x n
mask; here the cost is that of the pattern. A padded token gives the mean of the values at all
positions, unless causal: a bias of -1e10 on all of its scores makes them equal in float32.
Attention dropout is not applied to that mean.
"""

import math
from collections.abc import Iterator, Mapping
from enum import StrEnum, auto
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import (
    Count,
    Growth,
    Layout,
    Need,
    Positions,
    Site,
    State,
    Traits,
    Unsupported,
    Variant,
    options,
)
from lra.models.multi_head import MultiHead
from lra.models.ops import kv_cache
from lra.models.ops.exact import sloped_mask
from lra.models.ops.sparse.key_sets import KeySet, Rectangles
from lra.models.ops.sparse.strided_and_fixed import SparsePattern, Sparsity
from lra.models.ops.sparse.union import union_attention
from lra.models.positions import alibi_slopes


class HeadUse(StrEnum):
    """How heads and layers use the two patterns."""

    merged = auto()
    interleave = auto()
    heads = auto()


class SparseCore(nn.Module):
    """The patterns of each head, ALiBi and the state along time."""

    slopes: Float[Tensor, " h"] | None

    def __init__(self, site: Site, chosen: "SparseTransformer") -> None:
        super().__init__()
        lra = chosen.variant == Variant.lra
        self.pattern, self.head_use, self.stride = chosen.pattern, chosen.head_use, chosen.stride
        self.summary = (10 if lra else 8) if chosen.summary is None else chosen.summary
        if lra and site.causal and site.cls:
            raise Unsupported(
                "in variant=lra, all tokens and the CLS vector attend to each other, which a "
                "causal model forbids: choose another pooling, or variant=faithful"
            )
        if self.head_use == HeadUse.heads and site.heads < 2:
            raise ValueError(
                f"head_use=heads gives each pattern half of the heads: got heads={site.heads}; "
                "set at least 2, or head_use=merged"
            )
        if lra and self.stride is None:
            self.stride = 50
        self.causal = site.causal or lra
        self.outside = int(lra and (site.cls or chosen.open_first))
        self.layer, self.heads, self.dropout = site.layer, site.heads, site.attention_dropout
        self.sparsity = self.for_length(site.max_length)
        stride = self.sparsity.stride
        if self.pattern == SparsePattern.fixed and self.summary >= stride:
            raise ValueError(
                "summary must be less than the stride, or every token would attend to all: got "
                f"summary={self.summary}, stride={stride}; choose a smaller summary"
            )
        alibi = site.positions == Positions.alibi
        self.register_buffer(
            "slopes", alibi_slopes(site.heads) if alibi else None, persistent=False
        )
        self.traits = Traits(
            positions=frozenset({Positions.alibi.value}),
            causal=site.causal and not self.outside,
            operations=self.growth(),
            row_stochastic=True,
            weight_dropout=True,
            sees_order=self.causal or not self.sees_alike(site.max_length),
        )

    def sees_alike(self, length: int) -> bool:
        """Return whether, looking both ways, every head sees all tokens, or its own alone."""
        stride, strided = self.sparsity.stride, self.pattern == SparsePattern.strided
        near, far = stride >= length - strided, strided and stride == 1
        if self.head_use == HeadUse.merged:
            return near or far
        far = far or (strided and stride >= length)
        if self.head_use == HeadUse.heads:
            return near and far
        return far if self.layer % 2 else near

    def growth(self) -> Growth:
        """Return how operations grow: near keys as the stride, far ones as the length over it."""
        near_alone = self.head_use == HeadUse.interleave and self.layer % 2 == 0
        if self.stride is None:  # it grows with the square root
            return Growth(1.5)
        return Growth(1.0 if near_alone else 2.0)

    def for_length(self, longest: int) -> Sparsity:
        """Return the patterns of a model for so many tokens."""
        stride = self.stride or max(2 * self.summary, math.isqrt(max(longest, 1) - 1) + 1)
        return Sparsity(
            pattern=self.pattern, stride=stride, summary=self.summary, causal=self.causal
        )

    def shares(
        self, sparsity: Sparsity, batch: int, length: int
    ) -> Iterator[tuple[slice, tuple[KeySet, ...]]]:
        """Yield ranges of heads with the sets of keys that they see."""
        heads, half, first = self.heads, self.heads // 2, self.outside
        if self.head_use == HeadUse.merged:
            yield slice(0, heads), sparsity.union(batch * heads, length, first=first)
        elif self.head_use == HeadUse.interleave:
            sees_near, rows = self.layer % 2 == 0, batch * heads
            keys = (
                sparsity.near(rows, length) if sees_near else sparsity.far(rows, length, alone=True)
            )
            yield slice(0, heads), (keys,)
        else:
            yield slice(0, half), (sparsity.near(batch * half, length),)
            if self.pattern == SparsePattern.strided:
                rows = batch * (heads - half)
                yield slice(half, heads), (sparsity.far(rows, length, alone=True),)
                return
            for head in range(half, heads):
                part = self.part(sparsity, head)
                yield slice(head, head + 1), (sparsity.far(batch, length, alone=True, part=part),)

    def part(self, sparsity: Sparsity, head: int) -> int:
        """Return which columns of a block are the summary of a far head."""
        return (head - self.heads // 2) % max(1, sparsity.stride // sparsity.summary)

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Attend to what each head sees."""
        (batch, heads, length), first = q.shape[:3], self.outside
        facts: dict[str, Any] = {"keep": layout.keep, "dropout": self.rate()}
        o = []
        if first:
            everything = Rectangles(rows=batch * heads, length=1, keys_length=length)
            o.append(union_attention(q[:, :, :1], k, v, everything, slopes=self.slopes, **facts))
        if length > first:
            parts = [
                union_attention(
                    q[:, some, first:],
                    k[:, some],
                    v[:, some],
                    *sets,
                    slopes=None if self.slopes is None else self.slopes[some],
                    **facts,
                )
                for some, sets in self.shares(self.sparsity, batch, length - first)
            ]
            o.append(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))
        return o[0] if len(o) == 1 else torch.cat(o, dim=2)

    def rate(self) -> float:
        """Return the current dropout probability: 0 in evaluation."""
        return self.dropout if self.training else 0.0

    def initial_state(self, shape: tuple[int, int, int, int, int], like: Tensor) -> State:
        """Return an empty memory of keys and values."""
        return kv_cache.empty_cache(shape, like)

    def extend(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
        state: State,
    ) -> tuple[Float[Tensor, "b h l v"], State]:
        """Attend to the remembered tokens and to the new ones that each query sees.

        Only the last `memory` tokens are in sight. All scores of the new tokens with them are
        worked out, but for tokens that begin: exact, but not sparse.
        """
        seen = kv_cache.append_keys(state, k, v)
        if seen.begins:
            return self.forward(q, k, v, layout), seen.state
        visible = seen.visible & self.sees(seen.query, seen.query - seen.distance)
        mask = sloped_mask(visible, seen.distance, self.slopes, q.dtype)
        keys, values = seen.keys.to(q.dtype), seen.values.to(v.dtype)
        o = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, dropout_p=self.rate())
        return o, seen.state

    def sees(
        self, i: Int[Tensor, "b 1 l 1"], j: Int[Tensor, "b 1 l s"]
    ) -> Bool[Tensor, "b #h l s"]:
        """Return which keys the patterns let each head see."""
        sparsity, near = self.sparsity, self.sparsity.sees_near(i, j)
        if self.head_use == HeadUse.merged:
            return near | sparsity.sees_far(i, j, 0)
        if self.head_use == HeadUse.interleave:
            return sparsity.sees_far(i, j, 0) if self.layer % 2 else near
        far = [
            sparsity.sees_far(i, j, self.part(sparsity, head))
            for head in range(self.heads // 2, self.heads)
        ]
        return torch.cat([near] * (self.heads // 2) + far, dim=1)


@options
class SparseTransformer(MultiHead):
    """Multi-head attention with the strided or the fixed pattern."""

    pattern: SparsePattern = SparsePattern.fixed
    head_use: HeadUse = HeadUse.merged
    stride: Count | None = None
    summary: Count | None = None
    variant: Variant = Variant.faithful
    open_first: bool = False
    bias: bool = True
    lra_version = 1
    needs = (
        Need("summary", pattern=SparsePattern.fixed),
        Need("open_first", variant=Variant.lra),
        Need("open_first", causal=False),
        Need(
            "open_first", words="a model without CLS vector, which is open anyway",
            holds=lambda site, _: not site.cls,
        ),
    )  # fmt: skip

    @classmethod
    def fixed(cls, options: Any) -> Mapping[str, object]:
        """Return what `variant=lra` fixes, and what it takes where nothing else is said."""
        if options.variant != Variant.lra:
            return {}
        usual = {"stride": 50, "summary": 10}
        unsaid = {name: value for name, value in usual.items() if getattr(options, name) is None}
        return {"pattern": SparsePattern.fixed, "head_use": HeadUse.merged, **unsaid}

    def build(self, site: Site) -> None:
        """Make the core. ValueError for heads or a summary that do not fit."""
        averages = self.variant == Variant.lra and not site.causal
        core = SparseCore(site, self)
        super().__init__(site, core, bias=self.bias, mean_at_padding=averages)
