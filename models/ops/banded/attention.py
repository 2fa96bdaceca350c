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
    """Softmax attention inside a band: `apply(q, k, v, far_k, far_v, scores, dropout, remember)`.

    `far_k` and `far_v` are the g keys and values outside the band that every query reads, at
    `scores.positions`; None: there are none. Inputs in half precision are computed in float32.
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
        """Return softmax(q k^T / sqrt(k) + masks and biases) v, one pass of blocks after another.

        Queries and keys lie in the blocks of `scores.fold`: m blocks of c queries and w keys. With
        `remember`, the weights are saved for the backward pass.
        """
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
            # A copy, because a view would keep all tokens in memory until the backward pass.
            far_kv = [
                None if x is None else x.flatten(0, 1).to(keys.dtype, copy=True)
                for x in (far_k, far_v)
            ]
            output = values.new_empty(*queries.shape[:2], v.shape[-1])
            saved: list[Tensor] = []
            for blocks in fold.passes(q.device):
                weights = scores.begin(blocks)
                add_product(weights[..., : fold.reach], queries[blocks], keys[blocks].mT, ctx.scale)
                if far_kv[0] is not None:
                    far_scores, rows = weights[..., fold.reach :], scores.row(blocks)
                    add_product(far_scores, queries[blocks], far_kv[0][rows].mT, ctx.scale)
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
                torch.bmm(weights[..., : fold.reach], values[blocks], out=output[blocks])
                if far_kv[1] is not None:
                    add_product(output[blocks], weights[..., fold.reach :], far_kv[1][rows], 1.0)
        if remember:
            ctx.save_for_backward(*buffers, *far_kv, *saved)
        return fold.lift(output.flatten(0, 1), q.shape[:3], keys=False).to(v.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "b h l v"]) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k, v, far_k and far_v, then None for the other arguments.

        With weights P, dP = gradient v^T and dscores = P * (dP - sum_j P_ij dP_ij), the gradients
        are dq = scale dscores k, dk = scale dscores^T q and dv = P^T gradient.
        """
        scores_of: Scores = ctx.scores
        fold = scores_of.fold
        q_buffer, k_buffer, v_buffer, far_k, far_v, *saved = ctx.saved_tensors
        queries, keys, values = fold.queries(q_buffer), fold.keys(k_buffer), fold.keys(v_buffer)
        dq, dk, dv = (
            torch.empty_like(q_buffer),
            torch.zeros_like(k_buffer),
            torch.zeros_like(v_buffer),
        )
        # Gradients of far keys and values are stored per block and summed at the end, so that the
        # order of the sum is the same on every machine.
        dfar = [x.new_zeros(fold.blocks, *x.shape[1:]) for x in (far_k, far_v) if x is not None]
        with full_precision(gradient):
            dout = fold.queries(fold.lay_out(gradient, keys=False))
            weights_of = iter(saved)
            for blocks in fold.passes(gradient.device):
                weights, dblock = next(weights_of), dout[blocks]
                dscores = torch.empty_like(weights)  # first dP, then dscores
                torch.bmm(dblock, values[blocks].mT, out=dscores[..., : fold.reach])
                if dfar:
                    rows = scores_of.row(blocks)
                    torch.bmm(dblock, far_v[rows].mT, out=dscores[..., fold.reach :])
                dropped_weights = weights
                if ctx.dropout:
                    factor = next(weights_of) * (1 / (1 - ctx.dropout))
                    dropped_weights = weights * factor
                    dscores *= factor
                dscores *= weights
                dscores.addcmul_(weights, dscores.sum(-1, keepdim=True), value=-1)
                dq_block, in_band = fold.queries(dq)[blocks], dscores[..., : fold.reach]
                torch.baddbmm(
                    dq_block, in_band, keys[blocks], beta=0, alpha=ctx.scale, out=dq_block
                )
                fold.add_to_keys(dk, blocks, dscores, queries[blocks], ctx.scale)
                fold.add_to_keys(dv, blocks, dropped_weights, dblock, 1.0)
                if dfar:
                    of_far, dropped_weights = (
                        dscores[..., fold.reach :],
                        dropped_weights[..., fold.reach :],
                    )
                    add_product(dq_block, of_far, far_k[rows], ctx.scale)
                    torch.bmm(of_far.mT, queries[blocks], out=dfar[0][blocks]).mul_(ctx.scale)
                    torch.bmm(dropped_weights.mT, dblock, out=dfar[1][blocks])
        shape = gradient.shape[:3]
        by_query = fold.lift(dq, shape, keys=False)
        by_key, by_value = (fold.lift(x, shape, keys=True) for x in (dk, dv))
        dtypes = ctx.dtypes
        gradients = (by_query.to(dtypes[0]), by_key.to(dtypes[1]), by_value.to(dtypes[2]))
        if not dfar:
            return *gradients, None, None, None, None, None
        dfar = [x.unflatten(0, (*shape[:2], -1)).sum(2) for x in dfar]
        return (*gradients, dfar[0].to(dtypes[1]), dfar[1].to(dtypes[2]), None, None, None)


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
    """Return the attention of `window_attention` where the window covers all keys.

    All l x s scores are computed at once. Neighbouring keys are `dilation` tokens apart; `beyond`
    holds global keys, which are put before the others.
    """
    length, total, device = q.shape[2], k.shape[2], q.device
    query_position = torch.arange(length, device=device)[:, None]
    key_position = torch.arange(length - total, length, device=device)
    visible = None if keep is None else keep[:, None]
    if causal and (
        visible is not None or total > length or slopes is not None or beyond is not None
    ):
        earlier = (key_position <= query_position)[None]  # `sdpa` ignores `causal` with a mask
        visible = earlier if visible is None else earlier & visible
    distance = (query_position - key_position).abs()[None] * dilation
    if beyond is not None:
        k, v = torch.cat((beyond.keys, k), dim=2), torch.cat((beyond.values, v), dim=2)
        far_visible = beyond.sight(length, causal=causal)
        if far_visible is not None or visible is not None:
            visible = _join_masks(far_visible, visible, q, beyond.positions.shape[1], total)
        far_distance = (query_position - beyond.positions[:, None]).abs()
        distance = torch.cat((far_distance, distance.expand(len(far_distance), -1, -1)), dim=-1)
    return sdpa(
        q,
        k,
        v,
        causal=causal,
        visible=None if visible is None else visible[:, None],
        dropout=dropout,
        bias=None if slopes is None else distance_bias(slopes, distance[:, None]),
    )


def _join_masks(
    far_visible: Bool[Tensor, "#b #l g"] | None,
    window_visible: Bool[Tensor, "#b #l s"] | None,
    q: Float[Tensor, "b h l k"],
    *widths: int,
) -> Bool[Tensor, "b l w"]:
    """Return one mask for g global keys and s keys of the window, `widths` = (g, s).

    A mask of None means that all of its keys are visible.
    """
    masks = []
    for visible, width in zip((far_visible, window_visible), widths, strict=True):
        mask = q.new_ones(1, dtype=torch.bool) if visible is None else visible
        masks.append(mask.expand(len(q), q.shape[2], width))
    return torch.cat(masks, dim=-1)
