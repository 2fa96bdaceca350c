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
    """How heads and layers use the two sparse patterns, near and far keys."""

    merged = auto()
    interleave = auto()
    heads = auto()


class SparseCore(nn.Module):
    """The patterns of each head, ALiBi and the state along time."""

    slopes: Float[Tensor, " h"] | None

    def __init__(self, site: Site, chosen: "SparseTransformer") -> None:
        """Check the options in `chosen`, and make the patterns of the heads."""
        super().__init__()
        lra = chosen.variant == Variant.lra
        self.pattern, self.head_use, self.stride = chosen.pattern, chosen.head_use, chosen.stride
        self.summary = (10 if lra else 8) if chosen.summary is None else chosen.summary
        if lra and site.causal and site.cls:
            raise Unsupported(
                "with variant=lra, the CLS vector attends to all tokens and they to it, but this "
                "model must be causal: choose another pooling, or variant=faithful"
            )
        if self.head_use == HeadUse.heads and site.heads < 2:
            raise ValueError(
                "head_use=heads uses each of two patterns in half of the heads: got "
                f"heads={site.heads}; set heads to at least 2, or head_use=merged"
            )
        if lra and self.stride is None:
            self.stride = 50
        self.causal = site.causal or lra
        # Number of tokens at the start that are outside the pattern: 0 or 1.
        self.outside = int(lra and (site.cls or chosen.open_first))
        self.layer, self.heads, self.dropout = site.layer, site.heads, site.attention_dropout
        self.sparsity = self.for_length(site.max_length)
        stride = self.sparsity.stride
        if self.pattern == SparsePattern.fixed and self.summary >= stride:
            raise ValueError(
                "summary (summary tokens per block) must be less than stride (the block size), or "
                "every token would attend to all earlier ones: got "
                f"summary={self.summary}, stride={stride}; set a smaller summary"
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
        """Return whether a bidirectional layer ignores the order of `length` tokens.

        It does if each head attends to all tokens, or each token only to itself.
        """
        stride, strided = self.sparsity.stride, self.pattern == SparsePattern.strided
        # Near keys of the strided pattern reach `stride` tokens back, so n - 1 is enough for all.
        near_is_all, far_is_all = stride >= length - strided, strided and stride == 1
        if self.head_use == HeadUse.merged:
            return near_is_all or far_is_all
        # With a stride of n or more, the only far key of a token is the token itself.
        far_ignores_order = far_is_all or (strided and stride >= length)
        if self.head_use == HeadUse.heads:
            return near_is_all and far_ignores_order
        return far_ignores_order if self.layer % 2 else near_is_all

    def growth(self) -> Growth:
        """Return the growth of operations: per token, `stride` near and n / `stride` far keys."""
        near_only = self.head_use == HeadUse.interleave and self.layer % 2 == 0
        if self.stride is None:  # it then grows with the square root of the length
            return Growth(1.5)
        return Growth(1.0 if near_only else 2.0)

    def for_length(self, longest: int) -> Sparsity:
        """Return the patterns of a model for up to `longest` tokens."""
        stride = self.stride or max(2 * self.summary, math.isqrt(max(longest, 1) - 1) + 1)
        return Sparsity(
            pattern=self.pattern, stride=stride, summary=self.summary, causal=self.causal
        )

    def shares(
        self, sparsity: Sparsity, batch: int, length: int
    ) -> Iterator[tuple[slice, tuple[KeySet, ...]]]:
        """Yield ranges of heads, each with the sets of keys to which these heads attend."""
        heads, half, first = self.heads, self.heads // 2, self.outside
        if self.head_use == HeadUse.merged:
            yield slice(0, heads), sparsity.union(batch * heads, length, first=first)
        elif self.head_use == HeadUse.interleave:
            use_near, rows = self.layer % 2 == 0, batch * heads
            keys = (
                sparsity.near(rows, length) if use_near else sparsity.far(rows, length, alone=True)
            )
            yield slice(0, heads), (keys,)
        else:
            yield slice(0, half), (sparsity.near(batch * half, length),)
            if self.pattern == SparsePattern.strided:
                rows = batch * (heads - half)
                yield slice(half, heads), (sparsity.far(rows, length, alone=True),)
                return
            # In the fixed pattern, each far head has summary columns of its own (`part`).
            for head in range(half, heads):
                part = self.part(sparsity, head)
                yield slice(head, head + 1), (sparsity.far(batch, length, alone=True, part=part),)

    def part(self, sparsity: Sparsity, head: int) -> int:
        """Return the number of the columns of a block that `head`, a far head, uses as summary."""
        return (head - self.heads // 2) % max(1, sparsity.stride // sparsity.summary)

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Let each head attend to the keys of its pattern.

        With `variant=lra`, the first token may be outside the pattern and attend to all tokens.
        """
        (batch, heads, length), first = q.shape[:3], self.outside
        facts: dict[str, Any] = {"keep": layout.keep, "dropout": self.rate()}
        o = []
        if first:
            everything = Rectangles(rows=batch * heads, length=1, keys_length=length)
            o.append(union_attention(q[:, :, :1], k, v, everything, slopes=self.slopes, **facts))
        if length > first:
            parts = [
                union_attention(
                    q[:, head_range, first:],
                    k[:, head_range],
                    v[:, head_range],
                    *key_sets,
                    slopes=None if self.slopes is None else self.slopes[head_range],
                    **facts,
                )
                for head_range, key_sets in self.shares(self.sparsity, batch, length - first)
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
        """Let each new query attend to the keys of its pattern among the last `memory` tokens.

        The first tokens use the sparse form. Later ones mask all scores: exact, but not faster.
        """
        cache = kv_cache.append_keys(state, k, v)
        if cache.begins:
            return self.forward(q, k, v, layout), cache.state
        visible = cache.visible & self.sees(cache.query, cache.query - cache.distance)
        mask = sloped_mask(visible, cache.distance, self.slopes, q.dtype)
        keys, values = cache.keys.to(q.dtype), cache.values.to(v.dtype)
        o = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, dropout_p=self.rate())
        return o, cache.state

    def sees(
        self, i: Int[Tensor, "b 1 l 1"], j: Int[Tensor, "b 1 l s"]
    ) -> Bool[Tensor, "b #h l s"]:
        """Return whether the query at position `i` attends to the key at `j`, for each head."""
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
            "open_first", words="a model without CLS vector (which always attends to all tokens)",
            holds=lambda site, _: not site.cls,
        ),
    )  # fmt: skip

    @classmethod
    def fixed(cls, options: Any) -> Mapping[str, object]:
        """Return the options that `variant=lra` fixes, and its values of options that are None."""
        if options.variant != Variant.lra:
            return {}
        values = {"stride": 50, "summary": 10}
        unset = {name: value for name, value in values.items() if getattr(options, name) is None}
        return {"pattern": SparsePattern.fixed, "head_use": HeadUse.merged, **unset}

    def build(self, site: Site) -> None:
        """Make the core and the projections; ValueError for heads or a summary that do not fit."""
        averages = self.variant == Variant.lra and not site.causal
        core = SparseCore(site, self)
        super().__init__(site, core, bias=self.bias, mean_at_padding=averages)
