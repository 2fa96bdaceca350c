"""Softmax attention to one key per window, whose weights also choose the most relevant blocks.

    p_im = exp(q_i . k_m / sqrt(d)) / sum_m' exp(q_i . k_m' / sqrt(d)),    o_i = sum_m p_im v_m

over windows m without a hidden token; a query without such a window gives 0. A window has c tokens,
and one begins every d tokens, so that windows overlap if d < c. The weight of a block is the sum of
p over its strides of d tokens, over the windows that cover each stride, and over the heads that
share keys. Each query chooses the blocks with the largest weights, and some fixed blocks.

Weights are computed for a part of the queries at a time and not stored; backward computes them
again. With dropout, one byte per weight is stored.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lra.models.ops.numerics import LOG2_E, NEVER, full_precision
from lra.models.ops.sparse.block_choice import block_selection, passes
from lra.models.ops.sparse.block_table import BlockTable


class Choice(NamedTuple):
    """The rules by which a query chooses blocks."""

    table: BlockTable
    causal: bool
    top: int
    """Number of blocks to choose, including those of `first` and `local`."""
    first: int
    """Number of blocks at the start of a document that are always chosen."""
    local: int
    """Number of blocks, up to and including the query's, that are always chosen."""
    width: int
    """Number of tokens of a window, c, at most those of a block."""
    stride: int
    """Number of tokens from one window to the next, d, a divisor of window and block."""

    def covered(self, some: slice) -> Bool[Tensor, "#b l w"]:
        """Return True where a token of `some` may attend to a window."""
        return self.table.visible(some, causal=self.causal, width=self.width, stride=self.stride)

    def of_blocks(self, weights: Float[Tensor, "b g l w"]) -> Float[Tensor, "b g l m"]:
        """Return the weight of each of m blocks, from the weights of w windows."""
        for_stride, count = weights, weights.shape[-1]
        for n in range(1, self.width // self.stride):  # windows that begin n strides earlier
            for_stride = for_stride + F.pad(weights, (n, 0))[..., :count]
        strides = self.table.block // self.stride
        return (
            for_stride if strides == 1 else torch.unflatten(for_stride, -1, (-1, strides)).sum(-1)
        )

    def forced(self, some: slice) -> Bool[Tensor, "#b l m"]:
        """Return True for blocks that the tokens `some` always choose, if they are visible."""
        table = self.table
        home = table.place[:, some, None] // table.block
        is_local = (table.numbers <= home) & (home - table.numbers < self.local)
        return is_local | (table.rank < self.first)[:, None]

    def choose(self, weights: Float[Tensor, "b g j l w"], some: slice) -> Int[Tensor, "b g l t"]:
        """Return the blocks that the tokens `some` choose by the weights of windows."""
        forced = self.forced(some)  # other blocks must end before the query, if causal
        visible = forced | self.table.visible(some, causal=self.causal, width=self.table.block)
        visible = visible & self.table.visible(some, causal=self.causal)
        scores = self.of_blocks(weights.sum(2)).masked_fill_(~visible[:, None], -torch.inf)
        return block_selection(scores, self.top, forced[:, None])


class _ByGroup(NamedTuple):
    """Queries by head of keys, and the keys, in float32 or more."""

    q: Float[Tensor, "b g j l k"]
    keys: Float[Tensor, "b g m k"]
    values: Float[Tensor, "b g m v"]

    @classmethod
    def arrange(cls, q: Tensor, keys: Tensor, values: Tensor) -> "_ByGroup":
        """Return the inputs in float32 or float64, with queries grouped by head of keys."""
        precise = torch.promote_types(q.dtype, torch.float32)
        q = torch.unflatten(q.to(precise), 1, (keys.shape[1], -1))
        return cls(q, keys.to(precise), values.to(precise))

    def pieces(self) -> list[slice]:
        """Return slices of queries, so that the scores of a slice have a bounded size."""
        b, g, shared, length, _ = self.q.shape
        return passes(length, b * g * shared * self.keys.shape[2], self.q.device)

    def scores(self, some: slice, choice: Choice) -> Float[Tensor, "b g j l m"]:
        """Return the scores of the queries `some` times log2(e); NEVER for hidden windows."""
        scores = self.q[..., some, :] @ self.keys[:, :, None].mT
        scores *= LOG2_E * self.q.shape[-1] ** -0.5
        return scores.masked_fill_(~choice.covered(some)[:, None, None], NEVER)


class CompressedAttention(torch.autograd.Function):
    """`apply(q, keys, values, choice, dropout, remember)` gives outputs and chosen blocks."""

    @staticmethod
    def forward(  # noqa: PLR0917  autograd functions have no keywords
        ctx: Any,
        q: Float[Tensor, "b h l k"],
        keys: Float[Tensor, "b g m k"],
        values: Float[Tensor, "b g m v"],
        choice: Choice,
        dropout: float,
        remember: bool,
    ) -> tuple[Float[Tensor, "b h l v"], Int[Tensor, "b g l t"]]:
        """Return outputs and chosen blocks; `remember`: whether to save tensors for backward."""
        with full_precision(q):
            inputs = _ByGroup.arrange(q, keys, values)
            o = inputs.q.new_empty(*inputs.q.shape[:-1], values.shape[-1])
            log_sum, chosen, dropout_mask = inputs.q.new_empty(*inputs.q.shape[:-1], 1), [], None
            tiny = torch.finfo(o.dtype).tiny
            if dropout:
                size = (*inputs.q.shape[:-1], keys.shape[2])
                dropout_mask = torch.empty(size, dtype=torch.bool, device=q.device).bernoulli_(
                    1 - dropout
                )
            for part in inputs.pieces():
                weights = inputs.scores(part, choice)
                # Larger than NEVER, so that queries without a visible window get weights of 0.
                top = weights.amax(-1, keepdim=True).clamp_(min=NEVER / 10)
                total = weights.sub_(top).exp2_().sum(-1, keepdim=True).clamp_(min=tiny)
                log_sum[..., part, :] = top + total.log2()
                weights /= total
                chosen.append(choice.choose(weights, part))
                if dropout_mask is not None:
                    weights *= dropout_mask[..., part, :] * (1 / (1 - dropout))
                o[..., part, :] = weights @ inputs.values[:, :, None]
        lists = torch.cat(chosen, dim=2)
        ctx.mark_non_differentiable(lists)
        if remember:
            ctx.choice, ctx.dropout = choice, dropout
            ctx.save_for_backward(q, keys, values, o, log_sum, dropout_mask)
        return o.flatten(1, 2).to(values.dtype), lists

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: Float[Tensor, "b h l v"], _: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, keys and values; choices have no gradient."""
        q, keys, values, o, log_sum, dropout_mask = ctx.saved_tensors
        scale = q.shape[-1] ** -0.5
        with full_precision(gradient):
            inputs = _ByGroup.arrange(q, keys, values)
            gradient_by_group = gradient.to(o.dtype).view(o.shape)
            gradient_dot_o = (gradient_by_group * o).sum(-1, keepdim=True)
            dq = torch.empty_like(inputs.q)
            dk, dv = torch.zeros_like(inputs.keys), torch.zeros_like(inputs.values)
            for part in inputs.pieces():
                weights = inputs.scores(part, ctx.choice).sub_(log_sum[..., part, :]).exp2_()
                g, dropped_weights = gradient_by_group[..., part, :], weights
                dscores = g @ inputs.values[:, :, None].mT
                if dropout_mask is not None:
                    factor = dropout_mask[..., part, :] * (1 / (1 - ctx.dropout))
                    dropped_weights, dscores = weights * factor, dscores.mul_(factor)
                dscores.sub_(gradient_dot_o[..., part, :]).mul_(weights).mul_(scale)
                dq[..., part, :] = dscores @ inputs.keys[:, :, None]
                dk += dscores.flatten(2, 3).mT @ inputs.q[..., part, :].flatten(2, 3)
                dv += dropped_weights.flatten(2, 3).mT @ g.flatten(2, 3)
        pairs = zip((dq.view(q.shape), dk, dv), (q, keys, values), strict=True)
        return *(dx.to(x.dtype) for dx, x in pairs), *[None] * 3


def compressed_attention(
    q: Float[Tensor, "b h l k"],
    keys: Float[Tensor, "b g m k"],
    values: Float[Tensor, "b g m v"],
    choice: Choice,
    *,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "b h l v"], Int[Tensor, "b g l t"]]:
    """Return attention to one key per window, and the blocks that each query chooses.

    Args:
        q: Queries of l tokens; heads that share keys are adjacent.
        keys: One key for each of m windows.
        values: One value for each of m windows.
        choice: The slots of tokens, the windows, and the number of chosen blocks.
        dropout: Probability that a weight is set to 0; the others are divided by 1 - dropout.
            Choices use the weights before dropout.
    """
    remember = torch.is_grad_enabled() and any(x.requires_grad for x in (q, keys, values))
    o: Tensor
    chosen: Tensor
    o, chosen = CompressedAttention.apply(  # type: ignore[no-untyped-call]
        q, keys, values, choice, dropout, remember
    )
    return o, chosen


def neighbours(table: BlockTable, reach: int, *, causal: bool) -> Int[Tensor, "#b 1 l t"]:
    """Return the blocks with keys less than `reach` tokens away from each token; -1: no block.

    Args:
        table: The slot of each token.
        reach: Distance from which on keys are hidden, in tokens, at least 1.
        causal: Whether later blocks are hidden.
    """
    farthest = min(-(-(reach - 1) // table.block), table.block_count - 1)
    offsets = torch.arange(0 if causal else -farthest, farthest + 1, device=table.place.device)
    home = table.place // table.block
    blocks = home[..., None] - offsets  # offsets above 0 are those of earlier blocks
    visible = (blocks >= 0) & (blocks < table.block_count)
    blocks = blocks.clamp(0, table.block_count - 1)
    document = table.document.gather(1, blocks.flatten(1)).view_as(blocks)
    visible &= document == table.document.gather(1, home)[..., None]
    if table.sight is not None:
        visible &= offsets < table.sight  # older blocks have left the state
    return blocks.masked_fill_(~visible, -1)[:, None]
