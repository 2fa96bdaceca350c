"""Softmax attention in which every query has a list of key blocks of its own, with its gradient.

    o_i = sum_t exp(z_it - z_i) o_it,    z_i = log sum_t exp(z_it)

where o_it is attention inside the t-th block on the list of query i, and z_it the logarithm of its
sum of weights.

Pairs of a query and a block are sorted by block and cut into chunks, each of one block: scores of a
chunk are one dense product, and no keys are copied for a query of its own. The number of chunks
follows from the shapes alone, so that nothing waits for the contents. Work and memory are linear in
the number of pairs, t to a query, filled up by less than a chunk for each block.

Several heads of queries may share a head of keys, and then their list. Nothing of the size of the
scores is kept: backward makes them again from z. With dropout a byte per score is.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lra.models.device_kind import device_kind
from lra.models.ops.numerics import LOG2_E, NEVER, add_product, full_precision
from lra.models.ops.sparse.block_table import BlockTable

PASS_ELEMENTS = {"cpu": 1 << 19}
"""Scores worked on at once, by kind of device: 2 MB."""
PASS_ELEMENTS_ELSEWHERE = 1 << 25


class Pairs(NamedTuple):
    """Pairs of a query and a block, sorted into chunks of one block each.

    Rows are examples times heads. Numbers of pairs, blocks and places run over all rows; the number
    after the last one means none.
    """

    pair: Int[Tensor, "n c"]
    """In each place."""
    block: Int[Tensor, " n"]
    """Of each chunk."""
    place: Int[Tensor, "q t"]
    """Of each pair: each entry of each query's list."""

    def query(self, part: slice) -> Int[Tensor, "n c"]:
        """Return the query of each pair in the chunks `part`."""
        return self.pair[part] // self.place.shape[1]


def sorted_pairs(chosen: Int[Tensor, "r l t"], count: int, chunk: int) -> Pairs:
    """Sort the pairs of a query and a chosen block by block.

    Args:
        chosen: Different blocks on the list of each query; -1: none.
        count: Blocks of a row, m.
        chunk: Pairs of a chunk, c.
    """
    rows, length, top = chosen.shape
    device, pairs = chosen.device, length * top
    number = min(pairs // chunk + count, pairs, count * -(-length // chunk))
    places = number * chunk
    blocks, order = chosen.flatten(1).remainder(count + 1).sort(dim=1, stable=True)  # none: m
    edges = torch.arange(count + 1, device=device).expand(rows, -1).contiguous()
    first = torch.searchsorted(blocks, edges)
    chunks = (first.diff(dim=1) + chunk - 1) // chunk
    ends = chunks.cumsum(1)
    index = torch.arange(number, device=device).expand(rows, -1).contiguous()
    block = torch.searchsorted(ends, index, right=True).clamp_(max=count - 1)
    there = blocks.clamp(max=count - 1)
    rank = torch.arange(pairs, device=device) - first.gather(1, there)
    place = (ends - chunks).gather(1, there) * chunk + rank
    place = place.masked_fill_(blocks == count, places)
    row = torch.arange(rows, device=device)[:, None]
    pair = torch.full((rows, places + 1), rows * pairs, device=device)
    pair = pair.scatter_(1, place, order + row * pairs)[:, :-1]
    lists = torch.empty_like(place).scatter_(1, order, place)
    lists = torch.where(lists == places, rows * places, lists + row * places)
    return Pairs(pair.reshape(-1, chunk), (block + row * count).flatten(), lists.view(-1, top))


class _PairsLaid:
    """Queries, keys and values by row, and their masks, for forward and backward."""

    def __init__(
        self,
        q: Float[Tensor, "b h l k"],
        keys: Float[Tensor, "b g s k"],
        values: Float[Tensor, "b g s v"],
        chosen: Int[Tensor, "b g l t"],
        sight: "Sight",
    ) -> None:
        self.sight, table = sight, sight.table
        self.groups = keys.shape[1]
        self.shared = q.shape[1] // self.groups
        chunk = min(q.shape[2], max(4, table.block // (2 * self.shared)))
        self.pairs = sorted_pairs(chosen.flatten(0, 1), table.block_count, chunk)
        self.scale = q.shape[-1] ** -0.5
        self.q = self.by_query(q)
        self.keys, self.values = (
            x.to(self.q.dtype).reshape(-1, table.block, x.shape[-1]) for x in (keys, values)
        )
        place = table.place[:, None].expand(q.shape[0], self.groups, -1)
        self.place = F.pad(place.reshape(-1), (0, 1))

    def by_query(self, x: Float[Tensor, "b h l k"], fill: float = 0.0) -> Float[Tensor, "q j k"]:
        """Return rows with the heads that share a list side by side, plus one row of `fill`."""
        precise = torch.promote_types(x.dtype, torch.float32)
        x = torch.unflatten(x.to(precise), 1, (self.groups, self.shared)).transpose(2, 3)
        return F.pad(x.flatten(0, 2), (0, 0, 0, 0, 0, 1), value=fill)

    def by_head(self, x: Float[Tensor, "q j k"], like: Tensor) -> Float[Tensor, "b h l k"]:
        """Return the rows of `by_query` as heads again, without the last row."""
        batch, _, length, _ = like.shape
        return x.view(batch, self.groups, length, self.shared, -1).transpose(2, 3).flatten(1, 2)

    def passes(self) -> Iterator[slice]:
        """Yield ranges of chunks."""
        device, (number, chunk) = self.q.device, self.pairs.pair.shape
        elements = PASS_ELEMENTS.get(device_kind(device), PASS_ELEMENTS_ELSEWHERE)
        step = max(1, elements // (chunk * self.shared * self.sight.table.block))
        for start in range(0, number, step):
            yield slice(start, min(start + step, number))

    def some(self, x: Float[Tensor, "q j k"], part: slice) -> Float[Tensor, "n w k"]:
        """Copy the rows of the queries in the chunks `part`; w = c j."""
        query = self.pairs.query(part)
        return x.index_select(0, query.flatten()).view(len(query), -1, x.shape[-1])

    def by_pair(self, x: Bool[Tensor, "p j c"], part: slice) -> Bool[Tensor, "n w c"]:
        """Copy the rows of the pairs in the chunks `part`."""
        pair = self.pairs.pair[part]
        return x.index_select(0, pair.flatten()).view(len(pair), -1, x.shape[-1])

    def of_block(self, x: Float[Tensor, "p c k"], part: slice) -> Float[Tensor, "n c k"]:
        """Copy the blocks of the chunks `part`."""
        return x.index_select(0, self.pairs.block[part])

    def scores(self, part: slice, keys: Float[Tensor, "n c k"]) -> Float[Tensor, "n w c"]:
        """Return the scores of the chunks `part` in bits; NEVER for hidden keys."""
        queries, table = self.some(self.q, part), self.sight.table
        scores = queries.new_empty(*queries.shape[:2], keys.shape[1])
        add_product(scores, queries, keys.mT, self.scale * LOG2_E, overwrite=True)
        query, block = self.pairs.query(part), self.pairs.block[part]
        row, number = block // table.block_count, block % table.block_count
        hidden = None
        if self.sight.causal or self.sight.reach is not None:
            within = torch.arange(table.block, device=block.device)
            place = self.place[query] - (number * table.block)[:, None]
            hidden = self.sight.hidden(place[..., None], within)
        if table.filled is not None:
            filled = table.filled.reshape(-1, table.block)
            example = row // self.groups if len(table.filled) > 1 else 0
            gaps = ~filled[example * table.block_count + number][:, None]
            hidden = gaps if hidden is None else hidden | gaps
        if hidden is not None:
            by_list = scores.view(len(scores), -1, self.shared, table.block)
            by_list.masked_fill_(hidden[:, :, None], NEVER)
        return scores

    def collected(self, x: Float[Tensor, "p j k"]) -> Float[Tensor, "q j k"]:
        """Sum, for each query, the rows of all pairs on its list."""
        total = x.index_select(0, self.pairs.place[:, 0])
        for place in self.pairs.place.unbind(1)[1:]:
            total += x.index_select(0, place)
        return total


class Sight(NamedTuple):
    """Which keys of a chosen block a query may attend to."""

    table: BlockTable
    causal: bool
    reach: int | None = None
    """Keys so many tokens away, and more, are hidden; None: none."""

    def hidden(self, query: Int[Tensor, "n c 1"], key: Int[Tensor, " s"]) -> Bool[Tensor, "n c s"]:
        """Return which keys are hidden; `query` and `key` are places relative to the same slot."""
        away = query - key
        if self.reach is None:
            return away < 0
        far = away.abs() >= self.reach
        return far | (away < 0) if self.causal else far


class ChosenBlockAttention(torch.autograd.Function):
    """`apply(q, keys, values, chosen, sight, dropout, remember)`; sums in float32 or more."""

    @staticmethod
    def forward(  # noqa: PLR0917  autograd functions have no keywords
        ctx: Any,
        q: Float[Tensor, "b h l k"],
        keys: Float[Tensor, "b g s k"],
        values: Float[Tensor, "b g s v"],
        chosen: Int[Tensor, "b g l t"],
        sight: Sight,
        dropout: float,
        remember: bool,
    ) -> Float[Tensor, "b h l v"]:
        """Attend. `remember`: whether to save what a backward pass needs."""
        kept = None
        with full_precision(q):
            laid = _PairsLaid(q, keys, values, chosen, sight)
            places, shared = laid.pairs.pair.numel(), laid.shared
            out = laid.q.new_zeros(places + 1, shared, values.shape[-1])
            logs = laid.q.new_full((places + 1, shared, 1), NEVER / 10)
            tiny, chunk = torch.finfo(out.dtype).tiny, laid.pairs.pair.shape[1]
            if dropout:  # by pair, so that later choices move no draw
                size = (laid.pairs.place.numel() + 1, shared, sight.table.block)
                kept = torch.empty(size, dtype=torch.bool, device=q.device).bernoulli_(1 - dropout)
            for part in laid.passes():
                weights = laid.scores(part, laid.of_block(laid.keys, part))
                # Above the scores of queries that see nothing, whose weights so become 0.
                top = weights.amax(-1, keepdim=True).clamp_(min=NEVER / 10)
                total = weights.sub_(top).exp2_().sum(-1, keepdim=True).clamp_(min=tiny)
                here = slice(part.start * chunk, part.stop * chunk)
                logs[here] = (top + total.log2()).view(-1, shared, 1)
                if kept is not None:
                    weights *= laid.by_pair(kept, part)
                    total *= 1 - dropout
                mixed = torch.bmm(weights, laid.of_block(laid.values, part)).div_(total)
                out[here] = mixed.view(-1, shared, mixed.shape[-1])
            of_list = logs[laid.pairs.place]
            peak = of_list.amax(1, keepdim=True)
            shares = of_list.sub_(peak).exp2_()
            whole = shares.sum(1, keepdim=True)
            level = (peak + whole.log2()).squeeze(1)
            shares /= whole
            o = torch.zeros_like(level).expand(-1, -1, out.shape[-1]).contiguous()
            for place, share in zip(laid.pairs.place.unbind(1), shares.unbind(1), strict=True):
                o.addcmul_(out.index_select(0, place), share)
            o, level = laid.by_head(o, q), laid.by_head(level, q)
        if remember:
            ctx.sight, ctx.dropout = sight, dropout
            ctx.save_for_backward(q, keys, values, chosen, o, level, kept)
        return o.to(values.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "b h l v"]) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, keys and values."""
        q, keys, values, chosen, o, level, kept = ctx.saved_tensors
        with full_precision(gradient):
            laid = _PairsLaid(q, keys, values, chosen, ctx.sight)
            given = laid.by_query(gradient)
            along = laid.by_query((gradient.to(o.dtype) * o).sum(-1, keepdim=True))
            level = laid.by_query(level, torch.inf)  # so that no query's weights are 0
            dq = laid.q.new_zeros(laid.pairs.pair.numel() + 1, *laid.q.shape[1:])
            dk, dv = torch.zeros_like(laid.keys), torch.zeros_like(laid.values)
            chunk = laid.pairs.pair.shape[1]
            for part in laid.passes():
                listed = laid.of_block(laid.keys, part)
                weights = laid.scores(part, listed).sub_(laid.some(level, part)).exp2_()
                g = laid.some(given, part)
                change = torch.bmm(g, laid.of_block(laid.values, part).mT)
                used = weights
                if kept is not None:
                    factor = laid.by_pair(kept, part) * (1 / (1 - ctx.dropout))
                    used, change = weights * factor, change.mul_(factor)
                change.sub_(laid.some(along, part)).mul_(weights)
                by_query = torch.bmm(change, listed).mul_(laid.scale)
                dq[part.start * chunk : part.stop * chunk] = by_query.view(-1, *dq.shape[1:])
                block, queries = laid.pairs.block[part], laid.some(laid.q, part)
                dk.index_add_(0, block, torch.bmm(change.mT, queries), alpha=laid.scale)
                dv.index_add_(0, block, torch.bmm(used.mT, g))
            dq = laid.by_head(laid.collected(dq), q)
        gradients = (dq, dk.view(keys.shape), dv.view(values.shape))
        pairs = zip(gradients, (q, keys, values), strict=True)
        return *(each.to(x.dtype) for each, x in pairs), *[None] * 4


def chosen_attention(
    q: Float[Tensor, "b h l k"],
    keys: Float[Tensor, "b g s k"],
    values: Float[Tensor, "b g s v"],
    chosen: Int[Tensor, "b g l t"],
    table: BlockTable,
    *,
    causal: bool,
    reach: int | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "b h l v"]:
    """Attend to the chosen blocks. A query without a visible key returns 0.

    Args:
        q: Queries, by token; heads that share keys lie side by side.
        keys: Keys, by slot.
        values: Values, by slot.
        chosen: Blocks of each query, each once; -1: none.
        table: Where tokens stand.
        causal: Whether keys behind a query are hidden.
        reach: Keys so many tokens away, and more, are hidden; None: none.
        dropout: Probability that a weight is set to 0; the others are divided by 1 - dropout.
    """
    remember = torch.is_grad_enabled() and any(x.requires_grad for x in (q, keys, values))
    o: Tensor = ChosenBlockAttention.apply(  # type: ignore[no-untyped-call]
        q, keys, values, chosen, Sight(table, causal, reach), dropout, remember
    )
    return o
