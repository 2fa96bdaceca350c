"""Softmax attention over ranks that hold parts of each sequence: keys and values go round a ring.

    o_i = sum_b exp(L_ib - L_i) o_ib,   L_i = log sum_b exp(L_ib)

where b runs over the ranks' parts, o_ib is attention to the keys of part b alone and L_ib the
logarithm of its sum of weights. Each rank keeps its queries; keys, values and what says who sees
them are handed to the next rank, n - 1 times, while the part at hand is worked on. Backward sends
them round again, and behind them their gradients, which come home with the n-th step:

    ds_ij = p_ij (do_i . v_j - do_i . o_i),   p_ij = exp(s_ij - L_i)

Scores are written out for a few queries at a time; a rank never holds more of keys and values than
two parts, nor more scores than `PIECE`. Parts that causal queries cannot see are handed on unread,
so that the last rank works most: as much as any would without causality.

Cost: 4 n^2 D / ranks operations forward for n tokens in all, 2.5 times that backward. Each rank
sends (ranks - 1) parts of keys and values forward, 2 ranks - 1 of them backward.

Source: Liu, Zaharia, Abbeel 2023, arXiv:2310.01889; the sum over parts is that of Dao et al. 2022,
arXiv:2205.14135.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lra.models.context import Context
from lra.models.mixer import Layout, Traits, Unsupported
from lra.models.ops.numerics import blocks, finite, full_precision, sum_dtype
from lra.models.positions import At, Spacing
from lra.models.transport import Request

PIECE = 2**22
"""Scores that a rank writes out at once: 16 MiB in float32."""


class Scored(Protocol):
    """A core whose scores a ring can write out."""

    traits: Traits

    def rate(self) -> float:
        """Return the share of weights that is dropped."""
        ...

    def products(
        self, q: Float[Tensor, "b h l k"], k: Float[Tensor, "b g s k"]
    ) -> Float[Tensor, "b h l s"]:
        """Return the scaled products."""
        ...

    def between(
        self, q: Float[Tensor, "b h l k"], keys: int, at: At, *, later: bool
    ) -> tuple[Float[Tensor, "b h l k"], Float[Tensor, "#b h l s"] | None]:
        """Return what meets keys at these positions, and what positions add to the scores."""
        ...


def spread_heads(x: Float[Tensor, "b g s k"], heads: int) -> Float[Tensor, "b h s k"]:
    """Return each head once for every head of queries of its group."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


class _Facts(NamedTuple):
    """Who sees whom: of this rank's queries, and of the keys at hand."""

    causal: bool
    prefix: Int[Tensor, " b"] | None
    names: tuple[str, ...]
    """Of the facts by token, in the order of `of_queries` and of what goes round."""
    of_queries: tuple[Tensor, ...]

    @classmethod
    def of(cls, layout: Layout, causal: bool) -> "_Facts":
        given = {name: getattr(layout, name) for name in ("keep", "document", "order")}
        given = {name: value for name, value in given.items() if value is not None}
        prefix = layout.prefix if causal else None
        return cls(causal, prefix, tuple(given), tuple(given.values()))

    @property
    def later(self) -> bool:
        """Whether keys behind a query may be in sight."""
        return not self.causal or self.prefix is not None

    def visible(
        self,
        queries: Int[Tensor, " l"],
        keys: Int[Tensor, " s"],
        rows: slice,
        of_keys: Sequence[Tensor],
    ) -> Bool[Tensor, "#b 1 #l s"] | None:
        """Say which key each query may see; None: all."""
        seen: Tensor | None = None
        if self.causal:
            seen = (keys <= queries[:, None])[None, None]
            if self.prefix is not None:
                seen = seen | (keys < self.prefix[:, None, None, None])
        for name, of_query, other in zip(self.names, self.of_queries, of_keys, strict=True):
            if name == "keep":
                more = other[:, None, None, :]
            elif name == "document":
                more = (of_query[:, rows, None] == other[:, None, :])[:, None]
            else:
                more = (other[:, None, :] <= of_query[:, rows, None])[:, None]
            seen = more if seen is None else seen & more
        return seen


class _Ring(NamedTuple):
    """What does not change on the way round."""

    core: Scored
    context: Context
    facts: _Facts

    def hidden(self, source: int) -> bool:
        """Return whether none of the queries here sees a key of that rank."""
        return not self.facts.later and source > self.context.rank

    def pieces(self, q: Tensor, k: Tensor) -> Iterator[slice]:
        """Cut the queries so that their scores are not too many."""
        return blocks(q.shape[2], max(1, PIECE // max(1, q.shape[0] * q.shape[1] * k.shape[2])))

    def scores(
        self, q: Tensor, k: Tensor, rows: slice, source: int, of_keys: Sequence[Tensor]
    ) -> tuple[Float[Tensor, "b h r s"], Bool[Tensor, "#b 1 #r s"] | None]:
        """Return the scores of some queries, and which of them count."""
        first, first_key = self.context.offset + rows.start, self.context.offset_of(source)
        at = At(Spacing(first), Spacing(first_key))
        met, bias = self.core.between(q, k.shape[2], at, later=self.facts.later)
        products = self.core.products(met, k)
        products = products.to(sum_dtype(products))
        if bias is not None:
            products = products + bias
        queries = at.queries.ids(q.shape[2], q.device)
        return products, self.facts.visible(
            queries, at.keys.ids(k.shape[2], q.device), rows, of_keys
        )


class _Round:
    """One way round: iterate over whose keys, values and facts are at hand.

    Args:
        ring: Of which ranks.
        k: Keys of this rank.
        v: Values of this rank.
        gradients: Zeros like both; to be added to while a part is at hand. They go round behind it,
            and `gradients` are this rank's own, complete, when the iteration is over.
    """

    def __init__(self, ring: _Ring, k: Tensor, v: Tensor, gradients: Sequence[Tensor] = ()) -> None:
        self.context, self.gradients = ring.context, gradients
        self.parts = [each.contiguous() for each in (k, v, *ring.facts.of_queries)]
        self.axes = [2, 2, *(1 for _ in ring.facts.of_queries)]

    def __iter__(self) -> Iterator[tuple[int, Tensor, Tensor, Sequence[Tensor]]]:
        context, parts = self.context, self.parts
        for step in range(context.ranks):
            source = (context.rank - step) % context.ranks
            following, pending = parts, list[Request]()
            if step < context.ranks - 1:
                following, pending = context.shifting(parts, self.axes, source)
            yield source, parts[0], parts[1], parts[2:]
            if self.gradients:
                self.gradients, more = context.shifting(self.gradients, [2, 2], source)
                pending += more
            for request in pending:
                request.wait()
            parts = following


class _RingAttention(torch.autograd.Function):
    """`apply(ring, q, k, v, *parameters)`, the parameters being those of the scores."""

    @staticmethod
    def forward(ctx: Any, ring: _Ring, q: Tensor, k: Tensor, v: Tensor, *weights: Tensor) -> Tensor:
        dtype = sum_dtype(q)
        heads = q.shape[1]
        level = q.new_full(q.shape[:3], -torch.inf, dtype=dtype)
        o = v.new_zeros((*q.shape[:3], v.shape[-1]), dtype=dtype)
        with full_precision(q):
            for source, keys, values, of_keys in _Round(ring, k, v):
                if ring.hidden(source):
                    continue
                wide = spread_heads(values, heads).to(dtype)
                for rows in ring.pieces(q, keys):
                    scores, seen = ring.scores(q[:, :, rows], keys, rows, source, of_keys)
                    if seen is not None:
                        scores = scores.masked_fill(~seen, -torch.inf)
                    here = scores.logsumexp(-1)
                    before = level[:, :, rows]
                    after = torch.logaddexp(before, here)
                    base = finite(after)[..., None]
                    part = (scores - base).exp_() @ wide
                    o[:, :, rows] = o[:, :, rows] * (before[..., None] - base).exp() + part
                    level[:, :, rows] = after
        ctx.ring, ctx.weights = ring, weights
        ctx.save_for_backward(q, k, v, o, level)
        return o.to(v.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, o, level = ctx.saved_tensors
        ring: _Ring = ctx.ring
        learned = [weight for weight in ctx.weights if weight.requires_grad]
        by_weight = [torch.zeros_like(weight) for weight in learned]
        dq = torch.zeros_like(q, dtype=o.dtype)
        given = gradient.to(o.dtype)
        drift = (given * o).sum(-1, keepdim=True)
        way = _Round(ring, k, v, [x.new_zeros(x.shape, dtype=o.dtype) for x in (k, v)])
        with full_precision(q):
            for source, keys, values, of_keys in way:
                if ring.hidden(source):
                    continue
                dk, dv = way.gradients
                groups, heads = values.shape[1], q.shape[1]
                wide = spread_heads(values, heads).to(o.dtype)
                for rows in ring.pieces(q, keys):
                    with torch.enable_grad():
                        query = q[:, :, rows].detach().requires_grad_()
                        key = keys.detach().requires_grad_()
                        scores, seen = ring.scores(query, key, rows, source, of_keys)
                    weights = (scores.detach() - finite(level[:, :, rows])[..., None]).exp_()
                    if seen is not None:
                        weights = weights.masked_fill(~seen, 0.0)
                    g = given[:, :, rows]
                    to_values = weights.mT @ g
                    dv += torch.unflatten(to_values, 1, (groups, -1)).sum(2)
                    to_scores = weights * (g @ wide.mT - drift[:, :, rows])
                    gradients = torch.autograd.grad(
                        scores, [query, key, *learned], to_scores, allow_unused=True
                    )
                    dq[:, :, rows] += gradients[0]
                    dk += gradients[1]
                    for so_far, more in zip(by_weight, gradients[2:], strict=True):
                        if more is not None:
                            so_far.add_(more)
        dk, dv = way.gradients
        rest = iter(by_weight)
        of_weights = [next(rest) if weight.requires_grad else None for weight in ctx.weights]
        return None, dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), *of_weights


def ring_attention(
    core: nn.Module,
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b g l k"],
    v: Float[Tensor, "b c l v"],
    layout: Layout,
) -> Float[Tensor, "b h l v"]:
    """Attend to the keys of all ranks.

    Args:
        core: A module that is `Scored`, whose parameters are all those of its scores.
        q: This rank's queries.
        k: Its keys.
        v: Its values.
        layout: The ranks, and facts of this one's tokens; a prefix counts from the first token of
            the sequence.

    Raises:
        Unsupported: Weights are to be dropped: they are not kept for backward.
    """
    scored = cast(Scored, core)
    refuse_dropout(scored.rate())
    assert layout.context is not None, "a core asks where there are ranks"
    ring = _Ring(scored, layout.context, _Facts.of(layout, scored.traits.causal))
    o: Tensor = _RingAttention.apply(ring, q, k, v, *core.parameters())  # type: ignore[no-untyped-call]
    return o


def refuse_dropout(rate: float) -> None:
    """Raise `Unsupported` where weights that go round a ring are to be dropped."""
    if rate:
        raise Unsupported(
            "attention over ranks makes its weights anew in backward, and cannot drop the same "
            f"ones again: got model.backbone.attention_dropout={rate:g} with hardware.context "
            "above 1; set attention_dropout=0, or context=1"
        )
