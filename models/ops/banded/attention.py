"""Softmax attention inside a band: block by block, with a hand-written gradient, or all at once.

Rows become blocks as `lra.models.ops.banded.layout` says, and are worked off in passes of a size
that fits into the cache.

Weights are kept for the backward pass, (C + halo) or (C + 2 halo) per query and head. Computing
them again instead would save 40 % of the memory and cost 20 % more time.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra.models.ops.banded.scores import GlobalKeys, Scores
from lra.models.ops.exact import distance_bias, sdpa
from lra.models.ops.numerics import add_product, full_precision


class BandedAttention(torch.autograd.Function):
    """`apply(q, k, v, keys, values, scores, dropout, remember)`.

    `keys` and `values` are those beyond the band, at `scores.positions`, or None. Half precision is
    computed in float32.
    """

    @staticmethod
    def forward(  # noqa: PLR0917  autograd functions have no keywords
        ctx: Any,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        far_k: Float[Tensor, "b h g k"] | None,
        far_v: Float[Tensor, "b h g v"] | None,
        scores: Scores,
        dropout: float,
        remember: bool,
    ) -> Float[Tensor, "b h l v"]:
        """Attend. `remember`: whether to save what a backward pass needs."""
        fold = scores.fold
        ctx.scores, ctx.dropout, ctx.scale = scores, dropout, q.shape[-1] ** -0.5
        ctx.dtypes = q.dtype, k.dtype, v.dtype
        with full_precision(q):
            buffers = (
                fold.lay_out(q, keys=False),
                fold.lay_out(k, keys=True),
                fold.lay_out(v, keys=True),
            )
            queries, keys, values = fold.queries(buffers[0]), *map(fold.keys, buffers[1:])
            # Copied: a view would keep all tokens for the backward pass.
            far = [
                None if x is None else x.flatten(0, 1).to(keys.dtype, copy=True)
                for x in (far_k, far_v)
            ]
            out = values.new_empty(*queries.shape[:2], v.shape[-1])
            saved: list[Tensor] = []
            for part in fold.passes(q.device):
                weights = scores.begin(part)
                add_product(weights[..., : fold.reach], queries[part], keys[part].mT, ctx.scale)
                if far[0] is not None:
                    columns, row = weights[..., fold.reach :], scores.row(part)
                    add_product(columns, queries[part], far[0][row].mT, ctx.scale)
                torch.softmax(weights, -1, out=weights)
                if remember:
                    saved.append(weights)
                if dropout:
                    dropout_mask = torch.empty_like(weights, dtype=torch.bool).bernoulli_(
                        1 - dropout
                    )
                    weights = weights * dropout_mask * (1 / (1 - dropout))
                    if remember:
                        saved.append(dropout_mask)
                torch.bmm(weights[..., : fold.reach], values[part], out=out[part])
                if far[1] is not None:
                    add_product(out[part], weights[..., fold.reach :], far[1][row], 1.0)
        if remember:
            ctx.save_for_backward(*buffers, *far, *saved)
        return fold.lift(out.flatten(0, 1), q.shape[:3], keys=False).to(v.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "b h l v"]) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k and v, and of the keys and values beyond the band."""
        scores_of: Scores = ctx.scores
        fold = scores_of.fold
        q_buffer, k_buffer, v_buffer, far_k, far_v, *saved = ctx.saved_tensors
        queries, keys, values = fold.queries(q_buffer), fold.keys(k_buffer), fold.keys(v_buffer)
        dq, dk, dv = (
            torch.empty_like(q_buffer),
            torch.zeros_like(k_buffer),
            torch.zeros_like(v_buffer),
        )
        # Those of keys beyond the band, by block: summed at the end, in a fixed order everywhere.
        far = [x.new_zeros(fold.blocks, *x.shape[1:]) for x in (far_k, far_v) if x is not None]
        with full_precision(gradient):
            given = fold.queries(fold.lay_out(gradient, keys=False))
            weights_of = iter(saved)
            for part in fold.passes(gradient.device):
                weights, g = next(weights_of), given[part]
                scores = torch.empty_like(weights)  # their gradient, in three steps
                torch.bmm(g, values[part].mT, out=scores[..., : fold.reach])
                if far:
                    row = scores_of.row(part)
                    torch.bmm(g, far_v[row].mT, out=scores[..., fold.reach :])
                used = weights
                if ctx.dropout:
                    factor = next(weights_of) * (1 / (1 - ctx.dropout))
                    used = weights * factor
                    scores *= factor
                scores *= weights
                scores.addcmul_(weights, scores.sum(-1, keepdim=True), value=-1)
                target, inside = fold.queries(dq)[part], scores[..., : fold.reach]
                torch.baddbmm(target, inside, keys[part], beta=0, alpha=ctx.scale, out=target)
                fold.add_to_keys(dk, part, scores, queries[part], ctx.scale)
                fold.add_to_keys(dv, part, used, g, 1.0)
                if far:
                    outside, used = scores[..., fold.reach :], used[..., fold.reach :]
                    add_product(target, outside, far_k[row], ctx.scale)
                    torch.bmm(outside.mT, queries[part], out=far[0][part]).mul_(ctx.scale)
                    torch.bmm(used.mT, g, out=far[1][part])
        shape = gradient.shape[:3]
        by_query = fold.lift(dq, shape, keys=False)
        by_key, by_value = (fold.lift(x, shape, keys=True) for x in (dk, dv))
        dtypes = ctx.dtypes
        gradients = (by_query.to(dtypes[0]), by_key.to(dtypes[1]), by_value.to(dtypes[2]))
        if not far:
            return *gradients, None, None, None, None, None
        far = [x.unflatten(0, (*shape[:2], -1)).sum(2) for x in far]
        return *gradients, far[0].to(dtypes[1]), far[1].to(dtypes[2]), None, None, None


def attend_in_sight(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    *,
    causal: bool,
    keep: Bool[Tensor, "b s"] | None,
    dropout: float,
    dilation: int = 1,
    slopes: Float[Tensor, " h"] | None = None,
    beyond: GlobalKeys | None = None,
) -> Float[Tensor, "b h l v"]:
    """Attend to all keys at once where the band covers everything.

    Neighbouring keys are `dilation` tokens apart.
    """
    length, total, device = q.shape[2], k.shape[2], q.device
    query_position = torch.arange(length, device=device)[:, None]
    position = torch.arange(length - total, length, device=device)
    visible = None if keep is None else keep[:, None]
    if causal and (
        visible is not None or total > length or slopes is not None or beyond is not None
    ):
        triangle = (position <= query_position)[None]
        visible = triangle if visible is None else triangle & visible
    distance = (query_position - position).abs()[None] * dilation
    if beyond is not None:
        k, v = torch.cat((beyond.keys, k), dim=2), torch.cat((beyond.values, v), dim=2)
        sight = beyond.sight(length, causal=causal)
        if sight is not None or visible is not None:
            visible = _joined_sight(sight, visible, q, beyond.positions.shape[1], total)
        far = (query_position - beyond.positions[:, None]).abs()
        distance = torch.cat((far, distance.expand(len(far), -1, -1)), dim=-1)
    return sdpa(
        q,
        k,
        v,
        causal=causal,
        visible=None if visible is None else visible[:, None],
        dropout=dropout,
        bias=None if slopes is None else distance_bias(slopes, distance[:, None]),
    )


def _joined_sight(
    far: Bool[Tensor, "#b #l g"] | None,
    near: Bool[Tensor, "#b #l s"] | None,
    q: Float[Tensor, "b h l k"],
    *widths: int,
) -> Bool[Tensor, "b l w"]:
    """Join the masks of keys beyond the band and inside it; None if all are visible."""
    sides = []
    for seen, width in zip((far, near), widths, strict=True):
        every = q.new_ones(1, dtype=torch.bool) if seen is None else seen
        sides.append(every.expand(len(q), q.shape[2], width))
    return torch.cat(sides, dim=-1)
