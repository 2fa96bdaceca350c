"""Exact softmax attention: with explicit scores, through PyTorch's kernels, and along time.

    o_i = sum_j p_ij v_j,    p_ij = exp(q_i . k_j / sqrt(d)) / sum_j' exp(q_i . k_j' / sqrt(d))

where j runs over the keys that query i may attend to; a query without such keys gets 0.
`softmax_attention` computes a tensor of scores, and `sdpa` calls PyTorch's fastest kernel. Both
compute the same function.

Source: Vaswani et al. 2017, arXiv:1706.03762, and Dao et al. 2022, arXiv:2205.14135.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import (
    SCORED,
    Growth,
    Layout,
    Need,
    Positions,
    Site,
    State,
    Traits,
    Variant,
    looked_at,
)
from lra.models.multi_head import MultiHead
from lra.models.ops import kv_cache
from lra.models.ops.numerics import sum_dtype
from lra.models.ops.sinks import sink_attention
from lra.models.positions import At, alibi_slopes
from lra.models.relative import RelativeScores, relative_scores

Attend: TypeAlias = Callable[..., Tensor]
"""`attend(q, k, v, *, causal, visible, dropout)`, as `softmax_attention` below."""


class HiddenPairs(NamedTuple):
    """The inverse of a mask, computed once for all layers of a pass."""

    keys: Bool[Tensor, "#b #h #l s"]
    """False where a query may attend to a key."""
    blind: Bool[Tensor, "#b #h #l 1"] | None
    """True for queries without a visible key; None: every query has one."""


def blind_queries(visible: Bool[Tensor, "#b #h #l s"]) -> Bool[Tensor, "#b #h #l 1"] | None:
    """Return True for queries without a visible key; None if every query is known to have one.

    On a GPU this is never known in advance: looking at the mask would wait for the device.
    """
    blind = ~visible.any(-1, keepdim=True)
    return None if looked_at(blind) and not bool(blind.any()) else blind


def hidden_pairs(visible: Bool[Tensor, "#b #h #l s"]) -> HiddenPairs:
    """Return the inverse of the mask `visible`, for all layers that use it."""
    return HiddenPairs(~visible, blind_queries(visible))


def softmax_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    *,
    causal: bool = False,
    visible: Bool[Tensor, "#b 1 #l s"] | None = None,
    dropout: float = 0.0,
    bias: Float[Tensor, "#b h l s"] | None = None,
    hidden: HiddenPairs | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return softmax(q k^T / sqrt(k) + bias) v, with all l x s scores in memory.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        causal: Whether key j is hidden from queries i < j; ignored if `visible` is given.
        visible: True where query i may attend to key j.
        dropout: Probability that a weight is set to 0; the others are divided by 1 - dropout.
        bias: Added to the scores.
        hidden: The result of `hidden_pairs(visible)`; None: it is computed here.
    """
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    scores = scores.to(sum_dtype(scores))
    return weighted_values(
        scores, v, causal=causal, visible=visible, dropout=dropout, bias=bias, hidden=hidden
    )


def weighted_values(
    scores: Float[Tensor, "b h l s"],
    v: Float[Tensor, "b #h s v"],
    *,
    causal: bool,
    visible: Bool[Tensor, "#b 1 #l s"] | None,
    dropout: float,
    bias: Float[Tensor, "#b h l s"] | None,
    hidden: HiddenPairs | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return softmax(scores + bias) v, with 0 for queries without a visible key.

    `scores` are scaled by the caller, have at least float32, and may be overwritten. The other
    arguments are those of `softmax_attention`.
    """
    if causal and visible is None:
        length, keys = scores.shape[-2:]
        visible = torch.ones(length, keys, dtype=torch.bool, device=v.device).tril_()[None, None]
    if bias is not None:
        scores = scores + bias
    if visible is not None:
        hidden = hidden_pairs(visible) if hidden is None else hidden
        # A finite number, because a row of -inf only would become NaN.
        scores = scores.masked_fill_(hidden.keys, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)
    if dropout:
        weights = F.dropout(weights, dropout)
    o = weights.to(v.dtype) @ v
    return o if hidden is None or hidden.blind is None else o.masked_fill(hidden.blind, 0.0)


def without_blind(
    o: Float[Tensor, "b h l v"], visible: Bool[Tensor, "#b #h #l s"]
) -> Float[Tensor, "b h l v"]:
    """Return `o` with zeros for queries without a visible key."""
    blind = blind_queries(visible)
    return o if blind is None else o.masked_fill(blind, 0.0)


def visibility(
    layout: Layout,
    length: int,
    *,
    causal: bool,
    device: torch.device,
    ranks: Int[Tensor, "b l"] | None = None,
) -> Bool[Tensor, "#b 1 #l s"] | None:
    """Return True where one of `length` queries may attend to a key; None if `causal` decides.

    Args:
        layout: Padding, documents, prefix and order of the keys.
        length: Number of queries.
        causal: Whether later keys are hidden, except in the prefix.
        device: Device of the mask.
        ranks: Ranks of the queries in the order; None: those of the keys, `layout.order`.
    """
    keep, document, prefix = layout.keep, layout.document, layout.prefix if causal else None
    order = layout.order
    if keep is None and document is None and prefix is None and order is None:
        return None
    same_for_all = not causal and document is None and order is None
    if keep is not None and (same_for_all or keep.shape[1] != length):
        return keep[:, None, None, :]  # all queries attend to the same keys
    position = torch.arange(length, device=device)
    visible = torch.ones(1, 1, 1, length, dtype=torch.bool, device=device)
    if causal:
        visible = visible & (position <= position[:, None])
    if prefix is not None:
        # Queries after the prefix attend to it already, because it is earlier.
        visible = visible | (position < prefix[:, None, None, None])
    if document is not None:
        visible = visible & (document[:, None, :, None] == document[:, None, None, :])
    if order is not None:
        ranks = order if ranks is None else ranks
        visible = visible & (order[:, None, None, :] <= ranks[:, None, :, None])
    if keep is not None:
        visible = visible & keep[:, None, None, :]
    return visible


def distance_bias(
    slopes: Float[Tensor, " h"], distance: Int[Tensor, "#b 1 l s"]
) -> Float[Tensor, "#b h l s"]:
    """Return ALiBi's bias: minus each head's slope times the distance."""
    return -slopes[:, None, None] * distance.abs()


def sloped_mask(
    visible: Bool[Tensor, "#b #h l s"],
    distance: Int[Tensor, "#b 1 l s"],
    slopes: Float[Tensor, " h"] | None,
    dtype: torch.dtype,
) -> Tensor:
    """Return a mask for PyTorch's kernels: ALiBi's bias, and -inf for hidden keys.

    With `slopes` None, return `visible`. Every query must have a visible key, because a row of -inf
    only gives NaN.
    """
    if slopes is None:
        return visible
    bias = -slopes[:, None, None].to(dtype) * distance
    return bias.masked_fill(~visible, -torch.inf)


def refuse_in_stream(layout: Layout) -> None:
    """Raise ValueError if `layout` has documents or a prefix, which `extend` does not support."""
    if layout.document is not None or layout.prefix is not None:
        raise ValueError(
            "with a state, `extend` reads one document per row and no prefix: begin each document "
            "with an empty state, and call `forward` for rows with a prefix"
        )


class ExactCore(nn.Module):
    """Masks, dropout, positions and state around the attention function of an exact family.

    Args:
        site: The options of the model and the layer.
        attend: The attention function, with arguments as in `softmax_attention`.
        memory: How the memory for the backward pass grows with the length.
        relative: Relative positions that are added to scores; None: those that `site` names.
        value_heads: Number of value heads in the state; None: as many as key heads.
        sink: Whether each head has a learned logit in the denominator of its softmax.
    """

    slopes: Tensor | None
    sinks: nn.Parameter | None

    def __init__(
        self,
        site: Site,
        attend: Attend,
        *,
        memory: Growth,
        relative: RelativeScores | None = None,
        value_heads: int | None = None,
        sink: bool = False,
    ) -> None:
        super().__init__()
        self.sinks = nn.Parameter(torch.zeros(site.heads)) if sink else None
        self.attend, self.dropout = attend, site.attention_dropout
        self.value_heads = value_heads
        alibi = site.positions == Positions.alibi
        self.register_buffer("slopes", alibi_slopes(site.heads) if alibi else None)
        self.relative = relative_scores(site) if relative is None else relative
        self.traits = Traits(
            # The mask can hide padding, documents and later tokens; an order replaces `causal`.
            supports=frozenset({"keep", "start", "document", "prefix"})
            | ({"order"} if not site.causal else set()),
            positions=frozenset(kind.value for kind in SCORED),
            causal=site.causal,
            operations=Growth(2.0),  # all pairs of tokens
            memory=memory,
            row_stochastic=not sink,  # without a sink, the weights of a query sum to 1
            weight_dropout=True,
            cross=not site.causal,
            sees_order=site.causal,  # apart from positions
        )

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b g s k"],
        v: Float[Tensor, "b c s v"],
        layout: Layout,
        at: At | None = None,
        *,
        ranks: Int[Tensor, "b l"] | None = None,
    ) -> Float[Tensor, "b o l v"]:
        """Return the attention of queries to the keys of the same or of another sequence.

        Args:
            q: Queries.
            k: Keys of g heads.
            v: Values of c heads.
            layout: Padding, documents, prefix and order of the keys.
            at: Positions of queries and keys; None: both are consecutive, in the same sequence.
            ranks: Ranks of the queries; None: those of the keys.
        """
        causal = self.traits.causal
        length, facts = (
            q.shape[2],
            (layout.keep, layout.document, layout.prefix, layout.order, ranks),
        )
        visible = layout.once(
            ("visible", length, causal),
            facts,
            lambda: visibility(layout, length, causal=causal, device=q.device, ranks=ranks),
        )
        arguments: dict[str, Any] = {
            "causal": causal, "visible": visible, "dropout": self.rate()
        }  # fmt: skip
        if visible is not None and self.attend is softmax_attention and self.sinks is None:
            arguments["hidden"] = layout.once("unseen", (visible,), lambda: hidden_pairs(visible))
        later = not causal or layout.prefix is not None
        if at is None:
            q, arguments["bias"] = self.in_order(q, q.shape[2], later=later)
        else:
            q, arguments["bias"] = self.between(q, k.shape[2], at, later=later)
        return self.attend_with_sinks(q, k, v, **arguments)

    def attend_with_sinks(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b g s k"],
        v: Float[Tensor, "b c s v"],
        **arguments: Any,
    ) -> Float[Tensor, "b o l v"]:
        """Call the attention function, with the logits of sinks if the core has them."""
        if self.sinks is None:
            return self.attend(q, k, v, **arguments)
        return sink_attention(self.attend, q, k, v, self.sinks, **arguments)

    def between(
        self, q: Float[Tensor, "b h l k"], keys: int, at: At, *, later: bool
    ) -> tuple[Float[Tensor, "b h l k"], Float[Tensor, "#b h l s"] | None]:
        """Return the queries with their position part, and the bias of scores with `keys` keys.

        `at` gives the positions of both; `later` says whether queries may attend to later keys.
        """
        if self.relative is not None:
            return self.relative.queries(q), self.relative.between(q, keys, at, later=later)
        if self.slopes is None:
            return q, None
        return q, distance_bias(self.slopes, at.distance(q.shape[2], keys, q.device)[None, None])

    def in_order(
        self, q: Float[Tensor, "b h l k"], keys: int, *, later: bool
    ) -> tuple[Float[Tensor, "b h l k"], Float[Tensor, "#b o l s"] | None]:
        """Return the queries with their position part, and the bias of scores, as `between` does.

        The keys are consecutive, and the last key has the position of the last query.
        """
        if self.relative is not None:
            return self.relative.queries(q), self.relative.in_order(q, keys, later=later)
        if self.slopes is None:
            return q, None
        position = torch.arange(keys, device=q.device)
        distance = position[keys - q.shape[2] :, None] - position
        return q, distance_bias(self.slopes, distance[None, None])

    def rate(self) -> float:
        """Return the current dropout probability: 0 in evaluation."""
        return self.dropout if self.training else 0.0

    def initial_state(self, shape: tuple[int, int, int, int, int], like: Tensor) -> State:
        """Return the state before the first token, for `shape` = (b, h, memory, k, v)."""
        return kv_cache.empty_cache(shape, like, value_heads=self.value_heads)

    def extend(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b g l k"],
        v: Float[Tensor, "b c l v"],
        layout: Layout,
        state: State,
    ) -> tuple[Float[Tensor, "b o l v"], State]:
        """Return the outputs of new queries, and the state with the new keys and values.

        A query attends to the last `memory` tokens up to and including itself.
        """
        refuse_in_stream(layout)
        cache = kv_cache.append_keys(state, k, v)
        keys, values = cache.keys.to(q.dtype), cache.values.to(v.dtype)
        arguments = {"causal": True, "visible": cache.mask, "dropout": self.rate()}
        q, arguments["bias"] = self.remembered(q, cache)
        return self.attend_with_sinks(q, keys, values, **arguments), cache.state

    def remembered(
        self, q: Float[Tensor, "b h l k"], cache: kv_cache.CacheView
    ) -> tuple[Float[Tensor, "b h l k"], Float[Tensor, "#b h l s"] | None]:
        """Return the queries with their position part, and the bias of scores with cached keys."""
        if cache.begins:
            return self.in_order(q, q.shape[2], later=False)
        if self.relative is not None:
            return self.relative.queries(q), self.relative(q, cache.distance[:, 0], later=False)
        if self.slopes is not None:
            return q, distance_bias(self.slopes, cache.distance)
        return q, None


def sdpa(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    *,
    causal: bool = False,
    visible: Bool[Tensor, "#b 1 #l s"] | None = None,
    dropout: float = 0.0,
    bias: Float[Tensor, "#b h l s"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return softmax attention by PyTorch's `scaled_dot_product_attention`.

    Arguments are those of `softmax_attention`. A query without a visible key returns 0.
    """
    if bias is not None:
        return _attend_biased(q, k, v, bias, causal=causal, visible=visible, dropout=dropout)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, dropout_p=dropout, is_causal=causal and visible is None
    )


def _attend_biased(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    bias: Float[Tensor, "#b h l s"],
    *,
    causal: bool,
    visible: Bool[Tensor, "#b 1 #l s"] | None,
    dropout: float,
) -> Float[Tensor, "b h l v"]:
    """Return `sdpa` with a bias: hidden keys become very negative numbers in the bias."""
    if causal and visible is None:
        visible = torch.ones(bias.shape[-2:], dtype=torch.bool, device=q.device).tril_()[None, None]
    if visible is None:
        return F.scaled_dot_product_attention(q, k, v, bias.to(q.dtype), dropout)
    # A finite number, because a row of -inf only would become NaN.
    mask = bias.to(q.dtype).masked_fill(~visible, torch.finfo(q.dtype).min / 2)
    o = F.scaled_dot_product_attention(q, k, v, mask, dropout)
    return without_blind(o, visible)


class ExactAttention(MultiHead):
    """Multi-head softmax attention; a family sets the function, and how its memory grows.

    Args:
        sink: Whether each head has a learned logit in the denominator of its softmax, which takes
            weight from all keys.
    """

    attend_by: ClassVar[Attend]
    kept: ClassVar[Growth]
    weighs_padding = False
    turns_alone = True
    needs = (Need("variant", causal=False),)
    undecayed = ("core.sinks",)

    @classmethod
    def fixed(cls, options: Any) -> Mapping[str, object]:
        """Return the options that `variant=lra` fixes."""
        lra = options.variant == Variant.lra
        return {"output_gate": False, "qk_norm": False, "sink": False} if lra else {}

    def __init__(
        self,
        site: Site,
        *,
        variant: Variant = Variant.faithful,
        bias: bool = True,
        output_gate: bool = False,
        qk_norm: bool = False,
        sink: bool = False,
    ) -> None:
        super().__init__(
            site,
            ExactCore(site, self.attend_by, memory=self.kept, sink=sink),
            bias=bias,
            mean_at_padding=variant == Variant.lra,
            output_gate=output_gate,
            qk_norm=qk_norm,
        )
