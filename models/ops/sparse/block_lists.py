"""Softmax attention in which every block of queries has a list of key blocks, with its gradient.

A row is one block of C queries of one example and head; it attends to the T key blocks on its list.
Rows are computed in passes whose scores fit into the cache. Their keys and values are copied side
by side, so that scores, outputs and gradients are batches of products with a C x TC matrix; the
gradients of the copies are added to the original blocks. Scores are not stored: the backward pass
computes them again from the logarithm of each query's sum of exponentials.

Exponentials have base two, because exp2 takes half the time of exp.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra.models.device_kind import device_kind
from lra.models.kernels.door import door
from lra.models.ops.numerics import LOG2_E, NEVER, add_product, full_precision

PASS_ELEMENTS = {"cpu": 1 << 19}
"""Scores worked on at once, by kind of device: 2 MB, and twice that for the copies."""
PASS_ELEMENTS_ELSEWHERE = 1 << 23


class Lists(NamedTuple):
    """The key blocks that each block of queries attends to."""

    blocks: Int[Tensor, "b h r t"]
    seen: Bool[Tensor, "b h r t"]
    """False for entries of the list that are ignored."""
    rows: Int[Tensor, " r"]
    """Number of each block of queries in the sequence."""
    block: int
    diagonal: int | None = None
    """Index of the query's block on the list, in which later keys are hidden; None: not causal."""


def by_block(x: Float[Tensor, "b h l k"], block: int) -> Float[Tensor, "n c k"]:
    """Return the blocks of all examples and heads, one after the other, at least in float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32)).reshape(-1, block, x.shape[-1])


class Masks:
    """The masks and biases that are added to the scores of each row."""

    def __init__(
        self,
        lists: Lists,
        keep: Bool[Tensor, "#b s"] | None,
        slopes: Float[Tensor, " h"] | None,
        like: Float[Tensor, "b h s k"],
    ) -> None:
        """Number the listed blocks over all examples and heads, and list what hides keys."""
        (batch, heads), block = like.shape[:2], lists.block
        self.block, self.diagonal = block, lists.diagonal

        def flat(x: Tensor) -> Tensor:
            return x.expand(batch, heads, -1, -1).flatten(0, 2)

        count = like.shape[2] // block
        first = torch.arange(0, batch * heads * count, count, device=like.device)
        self.index = flat(lists.blocks + first.view(batch, heads, 1, 1))  # among all blocks
        self.unseen = flat(~lists.seen)
        self.padding: Tensor | None = None
        if keep is not None:
            by_head = ~keep[:, None].expand(batch, heads, -1)
            self.padding = by_head.reshape(-1, block)
        self.slopes: Tensor | None = None
        if slopes is not None:
            self.offsets = flat(lists.blocks - lists.rows[:, None]) * block
            self.slopes = flat(slopes[:, None, None].expand(-1, len(lists.rows), 1))

    def passes(self) -> Iterator[slice]:
        """Yield slices of rows, so that the scores of a slice fit into the cache."""
        rows, entries = self.index.shape
        elements = PASS_ELEMENTS.get(device_kind(self.index.device), PASS_ELEMENTS_ELSEWHERE)
        step = max(1, elements // (self.block * self.block * entries))
        for start in range(0, rows, step):
            yield slice(start, min(start + step, rows))

    def listed(self, blocks: Float[Tensor, "n c k"], part: slice) -> Float[Tensor, "m w k"]:
        """Return a copy of the blocks on the list of each row in `part`, side by side."""
        index = self.index[part]
        return blocks.index_select(0, index.flatten()).view(len(index), -1, blocks.shape[-1])

    def give_back(
        self, blocks: Float[Tensor, "n c k"], part: slice, x: Float[Tensor, "m w k"], scale: float
    ) -> None:
        """Add `scale * x` to the blocks that `listed` copied."""
        x = x.view(-1, *blocks.shape[1:])
        blocks.index_add_(0, self.index[part].flatten(), x, alpha=scale)

    def shifted_masks(self, part: slice, shift: Float[Tensor, "m c 1"]) -> Float[Tensor, "m c w"]:
        """Return the masks and biases for base-2 scores of the rows in `part`, minus `shift`."""
        unseen, block = self.unseen[part], self.block
        mask = shift.new_zeros(*unseen.shape, block).masked_fill_(unseen[..., None], NEVER)
        if self.padding is not None:
            mask.masked_fill_(self.padding[self.index[part]], NEVER)
        shifted = mask.flatten(1)[:, None] - shift
        offset = torch.arange(block, device=shift.device)
        if self.diagonal is not None:  # the query's block, with later keys
            later = offset > offset[:, None]
            diagonal_part = shifted[..., self.diagonal * block : (self.diagonal + 1) * block]
            diagonal_part.masked_fill_(later, NEVER)
        if self.slopes is not None:
            position = (self.offsets[part][..., None] + offset).flatten(1)
            distance = (position[:, None] - offset[:, None]).abs_().to(shifted.dtype)
            shifted.addcmul_(
                distance, self.slopes[part][..., None].to(shifted.dtype), value=-LOG2_E
            )
        return shifted

    def scores(
        self,
        part: slice,
        queries: Float[Tensor, "m c k"],
        keys: Float[Tensor, "m w k"],
        shift: Float[Tensor, "m c 1"],
    ) -> Float[Tensor, "m c w"]:
        """Return q k^T / sqrt(k) * log2(e) plus masks and biases minus `shift`, for `part`."""
        scores = self.shifted_masks(part, shift)
        scale = LOG2_E * queries.shape[-1] ** -0.5
        add_product(scores, queries, keys.mT, scale)
        return scores


class BlockListAttention(torch.autograd.Function):
    """`apply(q, k, v, keep, lists, slopes, dropout, remember)`; sums are in float32 or more."""

    @staticmethod
    def forward(  # noqa: PLR0917  autograd functions have no keywords
        ctx: Any,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        keep: Bool[Tensor, "#b s"] | None,
        lists: Lists,
        slopes: Float[Tensor, " h"] | None,
        dropout: float,
        remember: bool,
    ) -> Float[Tensor, "b h l v"]:
        """Return the attention of the queries in `lists.rows`; `remember`: save for backward."""
        with full_precision(q):
            masks = Masks(lists, keep, slopes, k)
            queries, keys, values = (by_block(x, lists.block) for x in (q, k, v))
            out = values.new_empty(*queries.shape[:2], v.shape[-1])
            logs = values.new_empty(*queries.shape[:2], 1)
            tiny = torch.finfo(out.dtype).tiny
            dropout_masks: list[Tensor] = []
            for part in masks.passes():
                zero_shift = logs[part].zero_()
                weights = masks.scores(part, queries[part], masks.listed(keys, part), zero_shift)
                # Larger than NEVER, so that queries without a visible key get weights of 0.
                top = weights.amax(-1, keepdim=True).clamp_(min=NEVER / 10)
                total = weights.sub_(top).exp2_().sum(-1, keepdim=True).clamp_(min=tiny)
                torch.add(top, total.log2(), out=logs[part])
                if dropout:
                    mask = torch.empty_like(weights, dtype=torch.bool).bernoulli_(1 - dropout)
                    weights *= mask
                    total *= 1 - dropout
                    dropout_masks += [mask] if remember else []
                torch.bmm(weights, masks.listed(values, part), out=out[part])
                out[part] /= total
        if remember:
            ctx.lists, ctx.dropout = lists, dropout
            ctx.save_for_backward(q, k, v, out, logs, keep, slopes, *dropout_masks)
        return out.view(*q.shape[:3], -1).to(v.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "b h l v"]) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k and v; the scores are computed again."""
        q, k, v, out, logs, keep, slopes, *dropout_masks = ctx.saved_tensors
        lists: Lists = ctx.lists
        scale, masks_of = q.shape[-1] ** -0.5, iter(dropout_masks)
        with full_precision(gradient):
            masks = Masks(lists, keep, slopes, k)
            queries, keys, values, gradient_blocks = (
                by_block(x, lists.block) for x in (q, k, v, gradient)
            )
            dq, dk, dv = torch.empty_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
            mean = (gradient_blocks * out).sum(-1, keepdim=True)  # of dscores, by the weights
            for part in masks.passes():
                listed_keys = masks.listed(keys, part)
                weights = masks.scores(part, queries[part], listed_keys, logs[part]).exp2_()
                dscores = torch.bmm(gradient_blocks[part], masks.listed(values, part).mT)
                dropped_weights = weights
                if ctx.dropout:
                    factor = next(masks_of) * (1 / (1 - ctx.dropout))
                    dropped_weights, dscores = weights * factor, dscores.mul_(factor)
                dscores.sub_(mean[part]).mul_(weights)
                add_product(dq[part], dscores, listed_keys, scale, overwrite=True)
                masks.give_back(dk, part, torch.bmm(dscores.mT, queries[part]), scale)
                masks.give_back(dv, part, torch.bmm(dropped_weights.mT, gradient_blocks[part]), 1.0)
        pairs = zip((dq, dk, dv), (q, k, v), strict=True)
        return *(product.view(x.shape).to(x.dtype) for product, x in pairs), *[None] * 5


@door
def list_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    lists: Lists,
    *,
    keep: Bool[Tensor, "#b s"] | None = None,
    slopes: Float[Tensor, " h"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "b h l v"]:
    """Return softmax attention of each block of queries to the key blocks on its list.

    Args:
        q: Queries of the blocks in `lists.rows`.
        k: Keys, in whole blocks.
        v: Values.
        lists: The key blocks of each block of queries.
        keep: False for hidden keys; None: none. A query without a visible key returns 0.
        slopes: ALiBi's factor of each head, by which distances lower scores; None: no ALiBi.
        dropout: Probability that a weight is set to 0; the others are divided by 1 - dropout.
    """
    remember = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    o: Tensor = BlockListAttention.apply(  # type: ignore[no-untyped-call]
        q, k, v, keep, lists, slopes, dropout, remember
    )
    return o
