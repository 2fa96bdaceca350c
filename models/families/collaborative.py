"""Collaborative heads: softmax attention whose heads share one query and one key projection.

    S_i = (((X W_Q) * m_i) (Y W_K)' + 1 (Y c_i)') / sqrt(K / h),   O_i = softmax(S_i) Y W_V,i

for head i of h. W_Q and W_K map the tokens to K columns without biases, and m_i weighs each column.
c_i is the content bias: through it, each key adds a number to the scores of all queries.

Cost       The layer takes 2 n^2 (h (K + h) + D) operations: scores take h times as many as those of
           heads that are K / h wide each. Sharing saves parameters, (2 d + h) K + h d instead of 2
           d h k, and state, one key of K + h numbers for each token. It saves time on long
           sequences only if K < k. Scores and n h (K + h) numbers of queries are stored for
           backward.
Source     Cordonnier et al. 2020, arXiv:2006.16362, sections 3 and 4, and the released code.
Notation   the paper's D~_k is `key_width` K; W~_Q, W~_K, M and v_i are `q_proj`, `k_proj`, `mixing`
           and `content`.
Published  The paper uses K from 64 to 512 in Transformer base (WMT 2014 En-De), and from 256 to 768
           in BERT-base.
Differs    By default (`mixing=concatenation`), a model starts as softmax attention whose heads have
           K / h columns each; the released code draws from N(0, 0.04), which is `mixing=normal`
           here. Rotary positions rotate the mixed queries and the shared keys. Positions that are
           added to scores are added after the scaling.
"""

from dataclasses import replace
from enum import StrEnum, auto
from functools import partial
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lra.models.mixer import Count, Growth, Positions, Site, State
from lra.models.multi_head import HeadCounts, MultiHead, Place, biases
from lra.models.ops.exact import ExactCore, weighted_values
from lra.models.ops.numerics import sum_dtype
from lra.models.ops.shared_heads import head_blocks


class MixingStart(StrEnum):
    """How the weights of shared columns begin."""

    concatenation = auto()
    """Each head starts with separate adjacent columns of weight 1; other columns have weight 0."""
    ones = auto()
    normal = auto()
    """N(0, 0.04)."""


def shared_key_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b 1 s k"],
    v: Float[Tensor, "b #h s v"],
    *,
    scale: float,
    causal: bool = False,
    visible: Bool[Tensor, "#b 1 #l s"] | None = None,
    dropout: float = 0.0,
    bias: Float[Tensor, "#b h l s"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return attention of h heads of queries to one shared head of keys.

    Scores are multiplied by `scale`; the other arguments are those of `softmax_attention`.
    """
    # The queries of all heads form one longer sequence, so that keys need no copies.
    scores = (q * scale).flatten(1, 2) @ k[:, 0].mT
    scores = scores.to(sum_dtype(scores)).view(*q.shape[:3], -1)
    return weighted_values(scores, v, causal=causal, visible=visible, dropout=dropout, bias=bias)


class CollaborativeCore(ExactCore):
    """Attention with shared keys; content biases enter the scores after the scale."""

    def __init__(self, site: Site, key_width: int) -> None:
        """Divide scores by sqrt(K / h), as if each head had its share of the K columns."""
        attend = partial(shared_key_attention, scale=(site.heads / key_width) ** 0.5)
        super().__init__(site, attend, memory=Growth(2.0), value_heads=site.heads)
        added = frozenset({Positions.alibi.value, Positions.t5.value})
        self.traits = replace(self.traits, positions=added)


class CollaborativeAttention(MultiHead):
    """Multi-head attention whose heads share queries and keys.

    Args:
        key_width: Number of columns of the shared query and key projections; None: the width of all
            heads together.
        mixing: Initial weights of the shared columns in each head.
        bias: Whether the value and output projections have biases, and scores have content biases;
            the backbone's `qkv_bias` overrides the content biases.

    Raises:
        ValueError: There are too few columns.
    """

    def __init__(
        self,
        site: Site,
        *,
        key_width: Count | None = None,
        mixing: MixingStart = MixingStart.concatenation,
        bias: bool = True,
    ) -> None:
        """Make one head of queries and keys, and the weights of its columns in all heads."""
        width = site.inner_width if key_width is None else key_width
        heads = HeadCounts(1, 1, site.heads, site.heads)
        super().__init__(
            site, CollaborativeCore(site, width), bias=bias, heads=heads, key_width=width
        )
        # The content biases replace biases of queries, and biases of keys have no effect.
        for layer in (self.q_proj, self.k_proj):
            layer.register_parameter("bias", None)
        self.mixing = initial_mixing(site.heads, width, mixing)
        self.content: nn.Linear | None = None
        if biases(site, bias).qkv:
            self.content = nn.Linear(site.width, site.heads, bias=False)
            nn.init.zeros_(self.content.weight)

    def queries(self, placed: Float[Tensor, "b l d"], place: Place) -> Float[Tensor, "b h l k"]:
        """Return the queries of all heads: shared columns times each head's weights.

        With content biases, a one-hot vector of the head follows, which selects its bias in a key.
        """
        shared: Tensor = self.q_proj(placed)
        q = shared[:, None] * self.mixing[:, None].to(shared.dtype)
        if self.rotary:
            q = self.rotate_heads(q, place)
        if self.content is None:
            return q
        one_hot = torch.eye(self.heads, dtype=q.dtype, device=q.device)[:, None]
        return torch.cat((q, one_hot.expand(*q.shape[:3], -1)), dim=-1)

    def keys(self, placed: Float[Tensor, "b l d"], place: Place) -> Float[Tensor, "b 1 l k"]:
        """Return the shared keys, followed by the content biases of all heads."""
        k = super().keys(placed, place)
        if self.content is None:
            return k
        return torch.cat((k, self.content(placed)[:, None]), dim=-1)

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return an empty memory: one shared key per token, and one value per token and head."""
        width = self.key_width + (0 if self.content is None else self.heads)
        like, core = self.q_proj.weight.new_empty(0), cast(CollaborativeCore, self.core)
        return core.initial_state((batch_size, 1, memory, width, self.head_width), like)


def initial_mixing(heads: int, width: int, mixing: MixingStart) -> nn.Parameter:
    """Return the initial weights of the shared columns in each head, [heads width]."""
    if mixing == MixingStart.normal:
        return nn.Parameter(nn.init.normal_(torch.empty(heads, width), std=0.2))
    if mixing == MixingStart.ones:
        return nn.Parameter(torch.ones(heads, width))
    return nn.Parameter(head_blocks(heads, width).to(torch.empty(()).device))
