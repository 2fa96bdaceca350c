"""Softmax attention through a hierarchy of clusters, whose levels are joined into one softmax.

`lra.models.ops.hierarchical.clusters` says how a sequence becomes such a hierarchy. Weights are
kept for the backward pass, 5 C per token and head (causal: 3 C), with C clusters to a block.
"""

from itertools import islice
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra.models.ops.hierarchical.clusters import Plan, Stretch
from lra.models.ops.numerics import add_product, full_precision


class _Local(NamedTuple):
    """The results of the blocks of one stretch, before the levels are joined."""

    out: Float[Tensor, "m c v"]
    top: Float[Tensor, "m c 1"]
    """Largest score of a query; the others are relative to its exponential."""
    total: Float[Tensor, "m c 1"]
    weights: list[Float[Tensor, "m c _"]]
    """By reach."""
    dropout_masks: list[Bool[Tensor, "m c _"]]
    """By dropout; none without it."""


class _Work(NamedTuple):
    """One stretch, and the tensors that forward and backward use for it."""

    plan: Plan
    stretch: Stretch
    qkv: list[Float[Tensor, "n c _"]]
    bias: Float[Tensor, "h c _"] | None
    """Backward: where its gradient is summed."""
    scale: float
    dropout: float

    def scratch(self, used: Float[Tensor, "n c _"], width: int) -> Float[Tensor, "n c _"]:
        """Return a buffer without defined contents; above level 0, `used` if it has this width."""
        if self.stretch is self.plan.stretches[0] or used.shape[2] != width:
            return used.new_empty(*used.shape[:2], width)
        return used


def _attend_blocks(work: _Work, logarithms: Float[Tensor, "n c 1"]) -> _Local:
    """Return softmax attention within the blocks of one stretch, relative to each query's `top`.

    `weights` has a tensor for each reach: the scores, which become exponentials in place.
    """
    stretch, (q, k, v) = work.stretch, work.qkv
    queries = q[1:-1]
    parts = zip(work.plan.patterns(stretch, queries), stretch.near(logarithms), strict=True)
    weights = [pattern + size.mT for pattern, size in parts]
    for scores, bias_part in zip(weights, stretch.biases_by_reach(work.bias), strict=False):
        scores.add_(bias_part[stretch.head(queries.device)])
    for scores, key in zip(weights, stretch.near(k), strict=True):
        add_product(scores, queries, key.mT, work.scale)
    top = weights[0].amax(-1, keepdim=True)
    for scores in weights[1:]:
        torch.maximum(top, scores.amax(-1, keepdim=True), out=top)
    total, dropout_masks = torch.zeros_like(top), []
    out = work.scratch(q, v.shape[2])[1:-1]  # may replace q, which is not needed any more
    for index, (scores, value) in enumerate(zip(weights, stretch.near(v), strict=True)):
        dropped_weights = scores.sub_(top).exp_()
        total += dropped_weights.sum(-1, keepdim=True)
        if work.dropout:
            dropout_masks.append(
                torch.empty_like(dropped_weights, dtype=torch.bool).bernoulli_(1 - work.dropout)
            )
            dropped_weights = dropped_weights * dropout_masks[-1]
        add_product(out, dropped_weights, value, 1 / (1 - work.dropout), overwrite=not index)
    return _Local(out, top, total, weights, dropout_masks)


def _pull_stretch(
    work: _Work,
    given: Float[Tensor, "n c v"],
    balance: Float[Tensor, "m c 1"],
    weights: list[Float[Tensor, "m c _"]],
    dropout_masks: list[Bool[Tensor, "m c _"]],
) -> list[Float[Tensor, "n c _"]]:
    """Return the gradients of queries, keys and values of one stretch; overwrite `given`.

    Args:
        work: The stretch and its inputs; the gradient of the bias is added to `work.bias`.
        given: Gradient of each block's result.
        balance: That gradient times the result, summed over channels.
        weights: Softmax weights by reach.
        dropout_masks: Dropout masks by reach.
    """
    stretch, (q, k, v) = work.stretch, work.qkv
    dscores, dropped_weights = (
        [torch.bmm(given[1:-1], value.mT) for value in stretch.near(v)],
        weights,
    )
    if work.dropout:
        factors = [mask * (1 / (1 - work.dropout)) for mask in dropout_masks]
        dropped_weights = [weight * factor for weight, factor in zip(weights, factors, strict=True)]
        dscores = [dscore.mul_(factor) for dscore, factor in zip(dscores, factors, strict=True)]
    for dscore, weight in zip(dscores, weights, strict=True):
        dscore.sub_(balance).mul_(weight)
    for dbias, dscore in zip(stretch.biases_by_reach(work.bias), dscores, strict=False):
        # Sum over the blocks of each head.
        of_head = torch.arange(stretch.heads, device=q.device)[:, None] == stretch.head(q.device)
        dbias.add_((of_head.to(q.dtype) @ dscore.flatten(1)).view(dbias.shape))
    dv = stretch.put_sums(work.scratch(v, v.shape[2]), dropped_weights, given[1:-1])
    dq = given if given.shape == q.shape else torch.empty_like(q)
    for index, (dscore, key) in enumerate(zip(dscores, stretch.near(k), strict=True)):
        add_product(dq[1:-1], dscore, key, work.scale, overwrite=not index)
    dk = stretch.put_sums(work.scratch(k, k.shape[2]), dscores, q[1:-1], work.scale)
    return [dq, dk, dv]


class _HierarchicalAttention(torch.autograd.Function):
    """Half precision is computed in float32. `remember`: whether a backward pass will come."""

    @staticmethod
    def forward(  # noqa: PLR0917  autograd functions have no keywords
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        keep: Tensor | None,
        block: int,
        causal: bool,
        dropout: float,
        remember: bool,
    ) -> Tensor:
        """Attend within all levels of clusters, and join the levels to one softmax."""
        plan = Plan.for_length(q.shape[0], q.shape[1], q.shape[2], block, causal=causal)
        scale = q.shape[-1] ** -0.5
        with full_precision(q):
            fine = [plan.lay_out(x, keep) for x in (q, k, v)]
            counts = plan.counts(keep, fine[0])
            query_shares, key_shares = plan.shares(counts)
            sides = zip(fine, (query_shares, key_shares, key_shares), strict=True)
            lifted = [plan.lift(x, shares) for x, shares in sides]
            parts = zip(plan.stretches, *lifted, plan.logarithms(counts), strict=True)
            by_stretch = [
                _attend_blocks(_Work(plan, stretch, qkv, bias, scale, dropout), sizes)
                for stretch, *qkv, sizes in parts
            ]
            triples = ((local.out, local.top, local.total) for local in by_stretch)
            outs, tops, totals = ([*tensors] for tensors in zip(*triples, strict=True))
            inherited = plan.join(outs, tops, totals)
        o: Tensor = plan.views(outs)[0][:, :, : plan.length].to(v.dtype)
        if remember:
            for local in by_stretch:
                for weights in local.weights:  # `join` wrote the factor of each result into `top`
                    weights.mul_(local.top)
            saved_weights = [
                x for local in by_stretch for x in (*local.weights, *local.dropout_masks)
            ]
            ctx.save_for_backward(
                bias, keep, o, *fine, *inherited, *query_shares, *key_shares, *saved_weights
            )
            ctx.plan, ctx.scale, ctx.dropout = plan, scale, dropout
            ctx.dtypes = q.dtype, k.dtype, v.dtype
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k, v and bias, stretch by stretch."""
        plan: Plan = ctx.plan
        bias, keep, o, *saved = ctx.saved_tensors
        rest = iter(saved)  # in the order in which `forward` saved them
        fine, inherited = [*islice(rest, 3)], [*islice(rest, len(plan.stretches))]
        query_shares, key_shares = ([*islice(rest, len(plan.levels) - 1)] for _ in range(2))
        dbias = None if bias is None else torch.zeros_like(bias)
        pulled = []
        with full_precision(gradient):
            sides = zip(fine, (query_shares, key_shares, key_shares), strict=True)
            lifted = [plan.lift(x, shares) for x, shares in sides]
            parts = zip(plan.stretches, *lifted, *plan.give(gradient, o, inherited), strict=True)
            for stretch, *qkv, given, balance in parts:
                count = len(stretch.reaches)
                weights, dropout_masks = (
                    [*islice(rest, count)],
                    [*islice(rest, count * bool(ctx.dropout))],
                )
                work = _Work(plan, stretch, qkv, dbias, ctx.scale, ctx.dropout)
                pulled.append(_pull_stretch(work, given, balance, weights, dropout_masks))
            sides = zip(
                zip(*pulled, strict=True), (query_shares, key_shares, key_shares), strict=True
            )
            gradients = [plan.lower([*buffers], shares) for buffers, shares in sides]
            if keep is not None:
                gradients = [x.masked_fill_(~keep[:, None, :, None], 0) for x in gradients]
        dq, dk, dv = (x.to(dtype) for x, dtype in zip(gradients, ctx.dtypes, strict=True))
        return dq, dk, dv, dbias, None, None, None, None, None


def hierarchical_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    *,
    block: int,
    causal: bool = False,
    keep: Bool[Tensor, "b l"] | None = None,
    bias: Float[Tensor, "h c s"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "b h l v"]:
    """Return softmax attention with exact keys near by, and means of clusters farther away.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        block: Clusters of one block, an even number.
        causal: Whether later tokens are hidden.
        keep: False for tokens to hide. A query left without a key returns 0.
        bias: Added to the scores of the `block` clusters of a block with the 3 `block` of its left
            neighbour, itself and its right neighbour, at every level.
        dropout: Probability that the weight of a pair of clusters is set to 0; the others grow by
            1 / (1 - dropout).
    """
    remember = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in (q, k, v, bias)
    )
    o: Tensor = _HierarchicalAttention.apply(  # type: ignore[no-untyped-call]
        q, k, v, bias, keep, block, causal, dropout, remember
    )
    return o
