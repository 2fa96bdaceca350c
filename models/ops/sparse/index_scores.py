"""A small index that scores keys for each query, and the choice of those with the highest scores.

    I_ts = sum_h w_th relu(q_th . k_s) / sqrt(c),    or one score q_th . k_s / sqrt(c) a head

Keys of the index stand for tokens, blocks or other entries. A choice has no gradient; the scores
have one. Many scores are equal, because the ReLU makes them 0; then the nearer entry is chosen, on
every device. Scores are computed for a part of the queries at a time, and are not stored.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lra.models.ops.numerics import full_precision, sum_dtype
from lra.models.ops.sparse.block_choice import passes
from lra.models.ops.sparse.block_table import BlockTable


class Index(NamedTuple):
    """The queries and keys of an index, with h heads of c channels."""

    q: Float[Tensor, "b h l c"]
    keys: Float[Tensor, "b m c"]
    weights: Float[Tensor, "b h l"] | None = None
    """Weight of each head, of any sign; None: 1."""
    by_head: bool = False
    """Whether each head has scores of its own, without ReLU; if not, heads are added up."""

    def scores(self, some: slice) -> Float[Tensor, "b g l m"]:
        """Return the scores of the queries `some`, at least in float32; g is 1, or h by head."""
        precise = sum_dtype(self.q)
        q, keys = self.q[:, :, some].to(precise), self.keys.to(precise).mT
        scale = q.shape[-1] ** -0.5
        if self.by_head:
            own: Tensor = (q * scale) @ keys[:, None]
            return own
        # The heads of a query lie side by side, so that they are added up by one product.
        heads = q.transpose(1, 2).flatten(1, 2) @ keys
        heads = torch.unflatten(heads.relu(), 1, (-1, q.shape[1]))
        if self.weights is None:
            total: Tensor = heads.sum(2, keepdim=True) * scale
        else:
            weights = self.weights[:, :, some].to(precise).mT[:, :, None] * scale
            total = weights @ heads
        return total.transpose(1, 2)

    def of_queries(self, some: slice) -> "Index":
        """Return the index with the queries `some` alone."""
        weights = None if self.weights is None else self.weights[:, :, some]
        return Index(self.q[:, :, some], self.keys, weights, self.by_head)

    def parts(self) -> list[slice]:
        """Return slices of the queries with a bounded number of scores."""
        batch, heads, length, _ = self.q.shape
        return passes(length, batch * heads * self.keys.shape[1], self.q.device)


@torch.no_grad()
def best_entries(
    scores: Float[Tensor, "b g l m"], near: Int[Tensor, "#b #g #l m"], top: int
) -> Int[Tensor, "b g l t"]:
    """Return the `top` entries with the highest scores, the nearer among equals.

    There are -1 in place of entries that are missing because fewer are visible.

    Args:
        scores: Scores of m entries, -inf for hidden ones.
        near: Numbers from 0 to 2 m - 1, different for all entries of a query: higher is nearer.
        top: Number of entries to choose; with more than m, all are chosen.
    """
    count = scores.shape[-1]
    if top < count:
        # A choice among equals depends on the sort, but the lowest score that is chosen does not.
        lowest = scores.topk(top).values[..., -1:]
        order = torch.where(scores > lowest, near + 2 * count, near)
        chosen = order.masked_fill_(scores < lowest, -1).topk(top).indices
    else:
        chosen = torch.arange(count, device=scores.device).expand_as(scores)
    return chosen.masked_fill(scores.gather(-1, chosen) == -torch.inf, -1)


def nearness(home: Int[Tensor, "#b l"], count: int, *, causal: bool) -> Int[Tensor, "#b 1 #l m"]:
    """Return how near each of `count` entries is to the queries' own entries `home`.

    Of two entries at one distance, the earlier is nearer. For causal models, whose hidden entries
    are later ones, the number of the entry is enough.
    """
    number = torch.arange(count, device=home.device)
    if causal:
        return number[None, None, None]
    offset = number - home[:, None, :, None]
    return 2 * (count - 1 - offset.abs()).clamp(min=0) + (offset <= 0)


class BlockRule(NamedTuple):
    """The rule by which queries choose blocks by an index with one key a block, or a slot."""

    table: BlockTable
    top: int
    """Number of blocks to choose."""
    causal: bool
    whole: bool = True
    """Whether causal queries score only blocks that they have passed; the block that a query has
    not passed yet is then chosen as well, in addition to `top`."""
    local: int = 0
    """Number of blocks, up to and including the query's, that are always among the chosen."""

    def home(self, some: slice) -> Int[Tensor, "#b l"]:
        """Return the block of each of the queries `some`."""
        return self.table.place[:, some] // self.table.block

    def scores(self, index: Index, some: slice) -> Float[Tensor, "b g l m"]:
        """Return the score of each block for the queries `some`, -inf for hidden ones."""
        return self.by_block(index.scores(some), some)

    def by_block(self, scores: Float[Tensor, "b g l s"], some: slice) -> Float[Tensor, "b g l m"]:
        """Hide blocks from the scores of `some`; a block's score is the highest of its slots."""
        table, causal = self.table, self.causal
        if scores.shape[-1] > table.block_count:
            visible = table.visible(some, causal=causal, stride=1)
            scores = scores.masked_fill(~visible[:, None], -torch.inf)
            return torch.unflatten(scores, -1, (-1, table.block)).amax(-1)
        width = table.block if self.whole and causal else 1
        visible = table.visible(some, causal=causal, width=width)
        return scores.masked_fill(~visible[:, None], -torch.inf)

    @torch.no_grad()
    def choose(self, index: Index, some: slice) -> Int[Tensor, "b g l t"]:
        """Return the blocks that the queries `some` choose; -1: no block."""
        table, scores, home = self.table, self.scores(index, some), self.home(some)
        if self.local:
            offset = home[..., None] - table.numbers
            forced = ((offset >= 0) & (offset < self.local))[:, None] & (scores > -torch.inf)
            scores = scores.masked_fill_(forced, torch.inf)
        near = nearness(home, table.block_count, causal=self.causal)
        chosen = best_entries(scores, near, self.top)
        if not (self.whole and self.causal and table.block > 1):
            return chosen
        begun = (table.place[:, some] + 1) % table.block > 0
        tail = home.where(begun, -1)[:, None, :, None].expand(*chosen.shape[:3], 1)
        return torch.cat((chosen, tail), -1)


@torch.no_grad()
def chosen_by_index(
    index: Index, choose: Callable[[Index, slice], Int[Tensor, "b g l t"]]
) -> Int[Tensor, "b g l t"]:
    """Return what `choose` returns for all queries, in passes, without autocast."""
    with full_precision(index.q):
        return torch.cat([choose(index, some) for some in index.parts()], 2)
