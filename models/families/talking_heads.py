"""Talking-heads attention: heads are mixed before the softmax and again after it.

    J_h = Q_h K_h' / sqrt(k)                 for each of h_k heads of queries and keys
    L_i = sum_h P_ih J_h,   A_i = softmax(L_i)   for each of h heads; hidden keys are masked in L
    O_j = (sum_i R_ji A_i) V_j               for each of h_v heads of values

Cost       The forward pass takes 4 n^2 D operations for k = v = D / h, and 2 n^2 h (h_k + h_v) for
           the mixing. Up to five times h n^2 numbers are stored for backward.
Source     Shazeer et al. 2020, arXiv:2003.02436, section 4.
Published  The paper's models are T5 with 6 to 48 heads, with equal h_k, h and h_v.
Differs    P and R start as the identity, so that a model starts as softmax attention. The paper
           draws them from N(0, 1 / h_k) and N(0, 1 / h): set `mixing=normal`. Positions that are
           added to scores are added after P. Dropout applies to A. Projections that depend on the
           tokens (its section 5) are unsupported.
"""

from dataclasses import replace
from enum import StrEnum, auto
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import Count, Growth, Positions, Site
from lra.models.multi_head import HeadCounts, MultiHead
from lra.models.ops.exact import ExactCore, without_blind
from lra.models.ops.numerics import sum_dtype


class Mixing(StrEnum):
    """Initial values of the maps that mix heads."""

    identity = auto()
    normal = auto()


def talking_attention(
    q: Float[Tensor, "b a l k"],
    k: Float[Tensor, "b a s k"],
    v: Float[Tensor, "b c s v"],
    *,
    logits_map: Float[Tensor, "h a"],
    weights_map: Float[Tensor, "c h"],
    causal: bool = False,
    visible: Bool[Tensor, "#b 1 #l s"] | None = None,
    dropout: float = 0.0,
    bias: Float[Tensor, "#b h l s"] | None = None,
) -> Float[Tensor, "b c l v"]:
    """Return talking-heads attention: `logits_map` P before the softmax, `weights_map` R after it.

    Heads: a of queries, h of the softmax, c of values. For other arguments see `softmax_attention`.
    """
    if causal and visible is None:
        length, keys = q.shape[2], k.shape[2]
        visible = torch.ones(length, keys, dtype=torch.bool, device=q.device).tril_()[None, None]
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    scores = scores.to(sum_dtype(scores))
    logits = across_heads(logits_map, scores)
    if bias is not None:
        logits = logits + bias
    if visible is not None:
        logits = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)
    weights = across_heads(weights_map, F.dropout(logits.softmax(-1), dropout))
    o = weights.to(v.dtype) @ v
    return o if visible is None else without_blind(o, visible)


def across_heads(
    weight: Float[Tensor, "o h"], x: Float[Tensor, "b h l s"]
) -> Float[Tensor, "b o l s"]:
    """Return o mixtures of h heads: sums over heads, weighted by the rows of `weight`."""
    mixed = weight.to(x.dtype) @ x.flatten(2)
    return mixed.view(len(x), len(weight), *x.shape[2:])


class TalkingCore(ExactCore):
    """Talking-heads attention with its two maps across heads."""

    def __init__(self, site: Site, key_heads: int, value_heads: int, mixing: Mixing) -> None:
        """Make the maps P and R; rows of R need not sum to 1, so outputs are no weighted means."""
        super().__init__(site, self.talk, memory=Growth(2.0), value_heads=value_heads)
        self.logits_map = mixing_map(site.heads, key_heads, mixing)
        self.weights_map = mixing_map(value_heads, site.heads, mixing)
        added = frozenset({Positions.alibi.value, Positions.t5.value})
        self.traits = replace(self.traits, row_stochastic=False, positions=added)

    def talk(
        self,
        q: Float[Tensor, "b a l k"],
        k: Float[Tensor, "b a s k"],
        v: Float[Tensor, "b c s v"],
        **facts: Any,
    ) -> Float[Tensor, "b c l v"]:
        """Attend with these maps; `facts` are the other arguments of `talking_attention`."""
        maps: dict[str, Any] = {"logits_map": self.logits_map, "weights_map": self.weights_map}
        return talking_attention(q, k, v, **maps, **facts)


def mixing_map(rows: int, columns: int, mixing: Mixing) -> nn.Parameter:
    """Return an initial map across heads; ValueError for an identity that is not square."""
    if mixing == Mixing.normal:
        return nn.Parameter(nn.init.normal_(torch.empty(rows, columns), std=columns**-0.5))
    if rows != columns:
        raise ValueError(
            "mixing=identity needs equal numbers of heads before and after a map: got "
            f"{columns} and {rows}; set mixing=normal, or leave key_heads and value_heads at null"
        )
    return nn.Parameter(torch.eye(rows))


class TalkingHeads(MultiHead):
    """Multi-head attention whose heads share logits and weights.

    Args:
        site: Where it is built; `heads` are those of the softmax.
        key_heads: Number of query and key heads; None: `model.backbone.heads`.
        value_heads: Number of value heads; None: `model.backbone.heads`.
        mixing: Initial values of the maps that mix heads.
    """

    version = 2  # draws only the projections that it uses

    def __init__(
        self,
        site: Site,
        *,
        key_heads: Count | None = None,
        value_heads: Count | None = None,
        mixing: Mixing = Mixing.identity,
        bias: bool = True,
    ) -> None:
        key_count, value_count = (
            site.heads if heads is None else heads for heads in (key_heads, value_heads)
        )
        core = TalkingCore(site, key_count, value_count, mixing)
        heads = HeadCounts(key_count, key_count, value_count, value_count)
        super().__init__(site, core, bias=bias, heads=heads)
