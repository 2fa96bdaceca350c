"""Softmax attention in which every query has a separate list of key blocks, with its gradient.

    o_i = sum_t exp(z_it - z_i) o_it,    z_i = log sum_t exp(z_it)

where o_it is attention inside the t-th block on the list of query i, and z_it the logarithm of its
sum of weights.

Pairs of a query and a block are sorted by block and cut into chunks with one block each. The scores
of a chunk are one dense product, so that keys are not copied for every query. The number of chunks
depends only on shapes, so that the CPU never waits for contents. Time and memory are linear in the
number of pairs, t per query, plus less than a chunk of padding per block.

Several heads of queries may share a head of keys and its list. Scores are not stored: backward
computes them again from z. With dropout, one byte per score is stored.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lra.models.device_kind import device_kind
from lra.models.kernels.door import door
from lra.models.ops.numerics import LOG2_E, NEVER, add_product, full_precision
from lra.models.ops.sparse.block_table import BlockTable

PASS_ELEMENTS = {"cpu": 1 << 19}
"""Scores worked on at once, by kind of device: 2 MB."""
PASS_ELEMENTS_ELSEWHERE = 1 << 25


class Pairs(NamedTuple):
    """Pairs of a query and a block, sorted into n chunks of c places, with one block each.

    Pairs, blocks and places are numbered over all rows (examples times heads). The number after the
    last one means that there is none.
    """

    pair: Int[Tensor, "n c"]
    """The pair in each place."""
    block: Int[Tensor, " n"]
    """The block of each chunk."""
    place: Int[Tensor, "q t"]
    """The place of each entry of each query's list."""

    def query(self, part: slice) -> Int[Tensor, "n c"]:
        """Return the query of each pair in the chunks `part`."""
        return self.pair[part] // self.place.shape[1]


def sorted_pairs(chosen: Int[Tensor, "r l t"], count: int, chunk: int) -> Pairs:
    """Return the pairs of a query and a chosen block, sorted by block and cut into chunks.

    Each block begins a new chunk, so that surplus places of its last chunk stay empty.

    Args:
        chosen: The t different blocks on the list of each query; -1: no block.
        count: Number of blocks of a row, m.
        chunk: Number of pairs in a chunk, c.
    """
    rows, length, top = chosen.shape
    device, pairs = chosen.device, length * top
    # Bounds: one short chunk for each block; one pair in each chunk; all queries in each block.
    chunks_per_row = min(pairs // chunk + count, pairs, count * -(-length // chunk))
    places = chunks_per_row * chunk
    # The remainder turns -1 (no block) into m, so that these pairs come last.
    blocks, order = chosen.flatten(1).remainder(count + 1).sort(dim=1, stable=True)
    edges = torch.arange(count + 1, device=device).expand(rows, -1).contiguous()
    first_pair = torch.searchsorted(blocks, edges)
    chunks_of_block = (first_pair.diff(dim=1) + chunk - 1) // chunk
    ends = chunks_of_block.cumsum(1)
    chunk_index = torch.arange(chunks_per_row, device=device).expand(rows, -1).contiguous()
    block = torch.searchsorted(ends, chunk_index, right=True).clamp_(max=count - 1)
    block_number = blocks.clamp(max=count - 1)
    rank_in_block = torch.arange(pairs, device=device) - first_pair.gather(1, block_number)
    place = (ends - chunks_of_block).gather(1, block_number) * chunk + rank_in_block
    place = place.masked_fill_(blocks == count, places)
    row = torch.arange(rows, device=device)[:, None]
    pair = torch.full((rows, places + 1), rows * pairs, device=device)
    pair = pair.scatter_(1, place, order + row * pairs)[:, :-1]
    lists = torch.empty_like(place).scatter_(1, order, place)
    lists = torch.where(lists == places, rows * places, lists + row * places)
    return Pairs(pair.reshape(-1, chunk), (block + row * count).flatten(), lists.view(-1, top))


class _ArrangedPairs:
    """Queries, keys, values and masks of all rows, arranged for forward and backward."""

    def __init__(
        self,
        q: Float[Tensor, "b h l k"],
        keys: Float[Tensor, "b g s k"],
        values: Float[Tensor, "b g s v"],
        chosen: Int[Tensor, "b g l t"],
        sight: "Sight",
    ) -> None:
        """Sort the pairs into chunks, and arrange queries by row and keys by block."""
        self.sight, table = sight, sight.table
        self.groups = keys.shape[1]
        self.shared = q.shape[1] // self.groups
        # A chunk has half as many queries of heads as a block has keys, but at least 4 pairs.
        chunk = min(q.shape[2], max(4, table.block // (2 * self.shared)))
        self.pairs = sorted_pairs(chosen.flatten(0, 1), table.block_count, chunk)
        self.scale = q.shape[-1] ** -0.5
        self.q = self.by_query(q)
        self.keys, self.values = (
            x.to(self.q.dtype).reshape(-1, table.block, x.shape[-1]) for x in (keys, values)
        )
        place = table.place[:, None].expand(q.shape[0], self.groups, -1)
        self.place = F.pad(place.reshape(-1), (0, 1))  # the last entry belongs to no query

    def by_query(self, x: Float[Tensor, "b h l k"], fill: float = 0.0) -> Float[Tensor, "q j k"]:
        """Return `x` as q rows, with the j heads that share a list, plus one row of `fill`."""
        precise = torch.promote_types(x.dtype, torch.float32)
        x = torch.unflatten(x.to(precise), 1, (self.groups, self.shared)).transpose(2, 3)
        return F.pad(x.flatten(0, 2), (0, 0, 0, 0, 0, 1), value=fill)

    def by_head(self, x: Float[Tensor, "q j k"], like: Tensor) -> Float[Tensor, "b h l k"]:
        """Return the rows of `by_query` as heads again, without the last row."""
        batch, _, length, _ = like.shape
        return x.view(batch, self.groups, length, self.shared, -1).transpose(2, 3).flatten(1, 2)

    def passes(self) -> Iterator[slice]:
        """Yield slices of chunks, so that the scores of a slice fit into the cache."""
        device, (number, chunk) = self.q.device, self.pairs.pair.shape
        elements = PASS_ELEMENTS.get(device_kind(device), PASS_ELEMENTS_ELSEWHERE)
        step = max(1, elements // (chunk * self.shared * self.sight.table.block))
        for start in range(0, number, step):
            yield slice(start, min(start + step, number))

    def some(self, x: Float[Tensor, "q j k"], part: slice) -> Float[Tensor, "n w k"]:
        """Return the rows of `x` of the queries in the chunks `part`; w = c j."""
        query = self.pairs.query(part)
        return x.index_select(0, query.flatten()).view(len(query), -1, x.shape[-1])

    def by_pair(self, x: Bool[Tensor, "p j c"], part: slice) -> Bool[Tensor, "n w c"]:
        """Return the rows of `x` of the pairs in the chunks `part`."""
        pair = self.pairs.pair[part]
        return x.index_select(0, pair.flatten()).view(len(pair), -1, x.shape[-1])

    def of_block(self, x: Float[Tensor, "p c k"], part: slice) -> Float[Tensor, "n c k"]:
        """Return the block of `x` of each chunk in `part`."""
        return x.index_select(0, self.pairs.block[part])

    def scores(self, part: slice, keys: Float[Tensor, "n c k"]) -> Float[Tensor, "n w c"]:
        """Return the scores of the chunks `part` times log2(e); NEVER for hidden keys."""
        queries, table = self.some(self.q, part), self.sight.table
        scores = queries.new_empty(*queries.shape[:2], keys.shape[1])
        add_product(scores, queries, keys.mT, self.scale * LOG2_E, overwrite=True)
        query, block = self.pairs.query(part), self.pairs.block[part]
        row, number = block // table.block_count, block % table.block_count
        hidden = None
        if self.sight.causal or self.sight.reach is not None:
            offset = torch.arange(table.block, device=block.device)
            place = self.place[query] - (number * table.block)[:, None]
            hidden = self.sight.hidden(place[..., None], offset)
        if table.filled is not None:
            filled = table.filled.reshape(-1, table.block)
            example = row // self.groups if len(table.filled) > 1 else 0  # 0: one for all
            gaps = ~filled[example * table.block_count + number][:, None]
            hidden = gaps if hidden is None else hidden | gaps
        if hidden is not None:
            by_list = scores.view(len(scores), -1, self.shared, table.block)
            by_list.masked_fill_(hidden[:, :, None], NEVER)
        return scores

    def collected(self, x: Float[Tensor, "p j k"]) -> Float[Tensor, "q j k"]:
        """Return, for each query, the sum of the rows of `x` of all pairs on its list."""
        total = x.index_select(0, self.pairs.place[:, 0])
        for place in self.pairs.place.unbind(1)[1:]:
            total += x.index_select(0, place)
        return total


class Sight(NamedTuple):
    """Which keys of a chosen block a query may attend to."""

    table: BlockTable
    causal: bool
    reach: int | None = None
    """Distance from which on keys are hidden, in tokens; None: no key is too far away."""

    def hidden(self, query: Int[Tensor, "n c 1"], key: Int[Tensor, " s"]) -> Bool[Tensor, "n c s"]:
        """Return which keys are hidden; `query` and `key` are places relative to the same slot."""
        distance = query - key
        if self.reach is None:
            return distance < 0
        far = distance.abs() >= self.reach
        return far | (distance < 0) if self.causal else far


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
        """Return each query's softmax attention over its blocks; `remember`: save for backward."""
        dropout_mask = None
        with full_precision(q):
            arranged = _ArrangedPairs(q, keys, values, chosen, sight)
            place_count, shared = arranged.pairs.pair.numel(), arranged.shared
            out = arranged.q.new_zeros(place_count + 1, shared, values.shape[-1])
            logs = arranged.q.new_full((place_count + 1, shared, 1), NEVER / 10)
            tiny, chunk = torch.finfo(out.dtype).tiny, arranged.pairs.pair.shape[1]
            if dropout:  # one mask per pair, so that it does not depend on the choices of others
                size = (arranged.pairs.place.numel() + 1, shared, sight.table.block)
                dropout_mask = torch.empty(size, dtype=torch.bool, device=q.device).bernoulli_(
                    1 - dropout
                )
            for part in arranged.passes():
                weights = arranged.scores(part, arranged.of_block(arranged.keys, part))
                # Larger than NEVER, so that queries without a visible key get weights of 0.
                top = weights.amax(-1, keepdim=True).clamp_(min=NEVER / 10)
                total = weights.sub_(top).exp2_().sum(-1, keepdim=True).clamp_(min=tiny)
                places_of_part = slice(part.start * chunk, part.stop * chunk)
                logs[places_of_part] = (top + total.log2()).view(-1, shared, 1)
                if dropout_mask is not None:
                    weights *= arranged.by_pair(dropout_mask, part)
                    total *= 1 - dropout
                mixed = torch.bmm(weights, arranged.of_block(arranged.values, part)).div_(total)
                out[places_of_part] = mixed.view(-1, shared, mixed.shape[-1])
            logs_of_list = logs[arranged.pairs.place]
            largest = logs_of_list.amax(1, keepdim=True)
            shares = logs_of_list.sub_(largest).exp2_()
            share_sum = shares.sum(1, keepdim=True)
            log_sum = (largest + share_sum.log2()).squeeze(1)
            shares /= share_sum
            o = torch.zeros_like(log_sum).expand(-1, -1, out.shape[-1]).contiguous()
            for place, share in zip(arranged.pairs.place.unbind(1), shares.unbind(1), strict=True):
                o.addcmul_(out.index_select(0, place), share)
            o, log_sum = arranged.by_head(o, q), arranged.by_head(log_sum, q)
        if remember:
            ctx.sight, ctx.dropout = sight, dropout
            ctx.save_for_backward(q, keys, values, chosen, o, log_sum, dropout_mask)
        return o.to(values.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "b h l v"]) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, keys and values."""
        q, keys, values, chosen, o, log_sum, dropout_mask = ctx.saved_tensors
        with full_precision(gradient):
            arranged = _ArrangedPairs(q, keys, values, chosen, ctx.sight)
            gradient_rows = arranged.by_query(gradient)
            gradient_dot_o = arranged.by_query((gradient.to(o.dtype) * o).sum(-1, keepdim=True))
            log_sum = arranged.by_query(log_sum, torch.inf)  # rows without a query get weights of 0
            dq = arranged.q.new_zeros(arranged.pairs.pair.numel() + 1, *arranged.q.shape[1:])
            dk, dv = torch.zeros_like(arranged.keys), torch.zeros_like(arranged.values)
            chunk = arranged.pairs.pair.shape[1]
            for part in arranged.passes():
                keys_of_chunk = arranged.of_block(arranged.keys, part)
                weights = (
                    arranged.scores(part, keys_of_chunk).sub_(arranged.some(log_sum, part)).exp2_()
                )
                part_gradient = arranged.some(gradient_rows, part)
                dscores = torch.bmm(part_gradient, arranged.of_block(arranged.values, part).mT)
                dropped_weights = weights
                if dropout_mask is not None:
                    factor = arranged.by_pair(dropout_mask, part) * (1 / (1 - ctx.dropout))
                    dropped_weights, dscores = weights * factor, dscores.mul_(factor)
                dscores.sub_(arranged.some(gradient_dot_o, part)).mul_(weights)
                dq_part = torch.bmm(dscores, keys_of_chunk).mul_(arranged.scale)
                dq[part.start * chunk : part.stop * chunk] = dq_part.view(-1, *dq.shape[1:])
                block, queries = arranged.pairs.block[part], arranged.some(arranged.q, part)
                dk.index_add_(0, block, torch.bmm(dscores.mT, queries), alpha=arranged.scale)
                dv.index_add_(0, block, torch.bmm(dropped_weights.mT, part_gradient))
            dq = arranged.by_head(arranged.collected(dq), q)
        gradients = (dq, dk.view(keys.shape), dv.view(values.shape))
        pairs = zip(gradients, (q, keys, values), strict=True)
        return *(dx.to(x.dtype) for dx, x in pairs), *[None] * 4


@door
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
    """Return softmax attention of each query to its chosen blocks; 0 without a visible key.

    Args:
        q: Queries of l tokens; heads that share keys are adjacent.
        keys: Keys in s slots.
        values: Values in s slots.
        chosen: The t different blocks of each query; -1: no block.
        table: The slot of each token.
        causal: Whether later keys are hidden.
        reach: Distance from which on keys are hidden, in tokens; None: no key is too far away.
        dropout: Probability that a weight is set to 0; the others are divided by 1 - dropout.
    """
    remember = torch.is_grad_enabled() and any(x.requires_grad for x in (q, keys, values))
    o: Tensor = ChosenBlockAttention.apply(  # type: ignore[no-untyped-call]
        q, keys, values, chosen, Sight(table, causal, reach), dropout, remember
    )
    return o


@torch.no_grad()
def chosen_masses(
    q: Float[Tensor, "b h l k"],
    keys: Float[Tensor, "b g s k"],
    chosen: Int[Tensor, "b g l t"],
    table: BlockTable,
    *,
    causal: bool,
) -> Float[Tensor, "b h l t"]:
    """Return the attention of each query to each block on its list; the sum of a list is 1.

    Arguments are those of `chosen_attention`. Entries of -1 get 0.
    """
    with full_precision(q):
        arranged = _ArrangedPairs(q, keys, keys, chosen, Sight(table, causal))
        places, chunk = arranged.pairs.pair.shape
        logs = arranged.q.new_full((places * chunk + 1, arranged.shared), -torch.inf)
        for part in arranged.passes():
            scores = arranged.scores(part, arranged.of_block(arranged.keys, part))
            sums = (scores / LOG2_E).logsumexp(-1).view(-1, arranged.shared)
            logs[part.start * chunk : part.stop * chunk] = sums
        logs[-1] = NEVER  # the place of entries that are no block
        weights = logs[arranged.pairs.place].softmax(1)
        missing = chosen.flatten(0, 1).flatten(0, 1) < 0
        weights = weights.masked_fill(missing[..., None], 0)
    weights = torch.unflatten(weights, 0, (*chosen.shape[:3],))
    return weights.permute(0, 1, 4, 2, 3).flatten(1, 2)
