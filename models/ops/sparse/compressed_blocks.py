"""Softmax attention to one key for each window, which also tells the blocks worth a look.

    p_im = exp(q_i . k_m / sqrt(d)) / sum_m' exp(q_i . k_m' / sqrt(d)),    o_i = sum_m p_im v_m

over windows m of which no token is hidden; a query that sees none gives 0. Windows have c tokens,
one every d of them: they overlap where d < c. A block's weight is the sum of p over its strides of
d tokens and the windows that cover each, and over the heads of queries that share keys. Chosen are
the blocks of the largest, and some in any case.

Weights are formed for some queries at a time, and not kept: backward makes them again. With dropout
a byte for each is.
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
    """Blocks to choose, those below included."""
    first: int
    """That many at the start of a document are chosen in any case."""
    local: int
    """And so many up to the query's."""
    width: int
    """Tokens of a window, c: at most those of a block."""
    stride: int
    """Tokens from one window to the next, d; divides those of a window and of a block."""

    def covered(self, some: slice) -> Bool[Tensor, "#b l w"]:
        """Return which windows the tokens `some` may attend to."""
        return self.table.visible(some, causal=self.causal, width=self.width, stride=self.stride)

    def of_blocks(self, weights: Float[Tensor, "b g l w"]) -> Float[Tensor, "b g l m"]:
        """Return the weight of each block."""
        for_stride, count = weights, weights.shape[-1]
        for n in range(1, self.width // self.stride):
            for_stride = for_stride + F.pad(weights, (n, 0))[..., :count]
        each = self.table.block // self.stride
        return for_stride if each == 1 else torch.unflatten(for_stride, -1, (-1, each)).sum(-1)

    def forced(self, some: slice) -> Bool[Tensor, "#b l m"]:
        """Return which blocks the tokens `some` always choose, if these are visible."""
        table = self.table
        home = table.place[:, some, None] // table.block
        near = (table.numbers <= home) & (home - table.numbers < self.local)
        return near | (table.rank < self.first)[:, None]

    def choose(self, weights: Float[Tensor, "b g j l w"], some: slice) -> Int[Tensor, "b g l t"]:
        """Choose blocks by the weights of windows, summed over heads that share keys."""
        forced = self.forced(some)
        seen = forced | self.table.visible(some, causal=self.causal, width=self.table.block)
        seen = seen & self.table.visible(some, causal=self.causal)
        scores = self.of_blocks(weights.sum(2)).masked_fill_(~seen[:, None], -torch.inf)
        return block_selection(scores, self.top, forced[:, None])


class _ByGroup(NamedTuple):
    """Queries by head of keys, and the keys, in float32 or more."""

    q: Float[Tensor, "b g j l k"]
    keys: Float[Tensor, "b g m k"]
    values: Float[Tensor, "b g m v"]

    @classmethod
    def arrange(cls, q: Tensor, keys: Tensor, values: Tensor) -> "_ByGroup":
        """Arrange what `CompressedAttention` takes."""
        precise = torch.promote_types(q.dtype, torch.float32)
        q = torch.unflatten(q.to(precise), 1, (keys.shape[1], -1))
        return cls(q, keys.to(precise), values.to(precise))

    def pieces(self) -> list[slice]:
        """Cut the queries into slices that are computed at once."""
        b, g, shared, length, _ = self.q.shape
        return passes(length, b * g * shared * self.keys.shape[2], self.q.device)

    def scores(self, some: slice, choice: Choice) -> Float[Tensor, "b g j l m"]:
        """Return the scores of the queries `some` in bits; NEVER for hidden windows."""
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
        """Attend and choose. `remember`: whether to save what a backward pass needs."""
        with full_precision(q):
            here = _ByGroup.arrange(q, keys, values)
            o = here.q.new_empty(*here.q.shape[:-1], values.shape[-1])
            level, chosen, kept = here.q.new_empty(*here.q.shape[:-1], 1), [], None
            tiny = torch.finfo(o.dtype).tiny
            if dropout:
                size = (*here.q.shape[:-1], keys.shape[2])
                kept = torch.empty(size, dtype=torch.bool, device=q.device).bernoulli_(1 - dropout)
            for some in here.pieces():
                weights = here.scores(some, choice)
                # Above the scores of queries that see nothing, whose weights so become 0.
                top = weights.amax(-1, keepdim=True).clamp_(min=NEVER / 10)
                total = weights.sub_(top).exp2_().sum(-1, keepdim=True).clamp_(min=tiny)
                level[..., some, :] = top + total.log2()
                weights /= total
                chosen.append(choice.choose(weights, some))
                if kept is not None:
                    weights *= kept[..., some, :] * (1 / (1 - dropout))
                o[..., some, :] = weights @ here.values[:, :, None]
        lists = torch.cat(chosen, dim=2)
        ctx.mark_non_differentiable(lists)
        if remember:
            ctx.choice, ctx.dropout = choice, dropout
            ctx.save_for_backward(q, keys, values, o, level, kept)
        return o.flatten(1, 2).to(values.dtype), lists

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: Float[Tensor, "b h l v"], _: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients by q, keys and values."""
        q, keys, values, o, level, kept = ctx.saved_tensors
        scale = q.shape[-1] ** -0.5
        with full_precision(gradient):
            here = _ByGroup.arrange(q, keys, values)
            given = gradient.to(o.dtype).view(o.shape)
            along = (given * o).sum(-1, keepdim=True)
            dq = torch.empty_like(here.q)
            dk, dv = torch.zeros_like(here.keys), torch.zeros_like(here.values)
            for some in here.pieces():
                weights = here.scores(some, ctx.choice).sub_(level[..., some, :]).exp2_()
                g, used = given[..., some, :], weights
                change = g @ here.values[:, :, None].mT
                if kept is not None:
                    factor = kept[..., some, :] * (1 / (1 - ctx.dropout))
                    used, change = weights * factor, change.mul_(factor)
                change.sub_(along[..., some, :]).mul_(weights).mul_(scale)
                dq[..., some, :] = change @ here.keys[:, :, None]
                dk += change.flatten(2, 3).mT @ here.q[..., some, :].flatten(2, 3)
                dv += used.flatten(2, 3).mT @ g.flatten(2, 3)
        pairs = zip((dq.view(q.shape), dk, dv), (q, keys, values), strict=True)
        return *(each.to(x.dtype) for each, x in pairs), *[None] * 3


def compressed_attention(
    q: Float[Tensor, "b h l k"],
    keys: Float[Tensor, "b g m k"],
    values: Float[Tensor, "b g m v"],
    choice: Choice,
    *,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "b h l v"], Int[Tensor, "b g l t"]]:
    """Attend to one key for each window, and return the blocks that each query chooses as well.

    Args:
        q: Queries, by token; heads that share keys lie side by side.
        keys: One for each window.
        values: The same.
        choice: Where tokens stand, what windows are, and how many blocks are chosen.
        dropout: Probability that a weight is set to 0; the others are divided by 1 - dropout.
            Choices are made before.
    """
    remember = torch.is_grad_enabled() and any(x.requires_grad for x in (q, keys, values))
    o: Tensor
    chosen: Tensor
    o, chosen = CompressedAttention.apply(  # type: ignore[no-untyped-call]
        q, keys, values, choice, dropout, remember
    )
    return o, chosen


def neighbours(table: BlockTable, reach: int, *, causal: bool) -> Int[Tensor, "#b 1 l t"]:
    """Return the blocks with keys less than `reach` tokens away from each token; -1: none.

    Args:
        table: Where tokens stand.
        reach: Keys so many tokens away are out of reach; at least 1.
        causal: Whether later blocks are hidden.
    """
    far = min(-(-(reach - 1) // table.block), table.block_count - 1)
    offsets = torch.arange(0 if causal else -far, far + 1, device=table.place.device)
    home = table.place // table.block
    blocks = home[..., None] - offsets
    there = (blocks >= 0) & (blocks < table.block_count)
    blocks = blocks.clamp(0, table.block_count - 1)
    document = table.document.gather(1, blocks.flatten(1)).view_as(blocks)
    there &= document == table.document.gather(1, home)[..., None]
    if table.sight is not None:
        there &= offsets < table.sight
    return blocks.masked_fill_(~there, -1)[:, None]
