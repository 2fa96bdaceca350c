"""A hierarchy of clusters of a sequence, stored for batched matrix products.

Level 0 has the tokens, and level i the means of pairs of level i - 1: clusters of 2^i tokens,
counted from the first token. Every level is cut into blocks of C clusters. At level 0, a block
attends to itself and its neighbours. Above, it attends only to its neighbours, without the quadrant
between their adjacent halves, which the level below covers. So each pair of tokens is covered by
one level, and levels are added until every block is the neighbour of every other.

All rows (one per example and head) lie one after another in a buffer of blocks, and all levels
above 0 in a second buffer, with an empty block after each level of a row. Neighbouring blocks are
then neighbours in the buffer: nothing is gathered, and all levels, heads and examples are one batch
of products. The last block of a level is filled with empty clusters.

Buffers are overwritten where possible, because on a CPU new memory takes more time than arithmetic.
"""

from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lra.models.ops.numerics import NEVER, add_product, sum_dtype

Shares: TypeAlias = list[Float[Tensor, "#b 1 _ 1"]]
"""By level: the share of the second half in a cluster's mean; the first half has the rest."""


def halves(level: Float[Tensor, "b h i w"]) -> tuple[Tensor, Tensor]:
    """View the first and the second cluster of every pair."""
    first, second = torch.unflatten(level, 2, (-1, 2)).unbind(3)
    return first, second


class Stretch(NamedTuple):
    """Some levels of all rows in one buffer of blocks.

    An empty block, then the rows, then an empty block; in a row, one level after another, each
    followed by an empty block. All but the two ends have queries, if only empty ones.
    """

    batch: int
    heads: int
    block: int
    levels: tuple[int, ...]
    """Number of blocks of each level."""
    reaches: tuple[tuple[int, int], ...]
    """Groups of blocks that a block attends to: offset of the first from itself, and number."""

    @property
    def query_blocks(self) -> int:
        """Number of blocks with queries."""
        return self.batch * self.heads * (sum(self.levels) + len(self.levels))

    def buffer(self, like: Tensor, width: int, fill: float = 0.0) -> Float[Tensor, "n c w"]:
        """Return a new buffer of `width` channels, filled with `fill`."""
        return like.new_full((self.query_blocks + 2, self.block, width), fill)

    def views(self, buffer: Float[Tensor, "_ c w"]) -> list[Float[Tensor, "b h _ w"]]:
        """View every level of a buffer, which may lack the two end blocks."""
        if buffer.shape[0] > self.query_blocks:
            buffer = buffer[1:-1]
        rows = buffer.view(self.batch, self.heads, -1, *buffer.shape[1:])
        first, by_level = 0, []
        for count in self.levels:
            by_level.append(rows[:, :, first : first + count].flatten(2, 3))
            first += count + 1
        return by_level

    def near(self, buffer: Float[Tensor, "n c w"]) -> list[Float[Tensor, "m s w"]]:
        """View, for each reach (a group of neighbours), these blocks of every block of queries."""
        step, across, along = buffer.stride()
        return [
            buffer.as_strided(
                (self.query_blocks, count * self.block, buffer.shape[2]),
                (step, across, along),
                buffer.storage_offset() + (1 + first) * step,  # after the empty first block
            )
            for first, count in self.reaches
        ]

    def put_sums(
        self,
        buffer: Float[Tensor, "n c w"],
        weights: list[Float[Tensor, "m c _"]],
        x: Float[Tensor, "m c w"],
        scale: float = 1.0,
    ) -> Float[Tensor, "n c w"]:
        """Write sums of `scale * weights^T x` to the keys of each block, replacing old contents.

        One neighbour is handled at a time, the furthest first, because within such a step no two
        blocks have the same key. Keys that no block attends to keep their contents.
        """
        # Offsets of neighbours; 1 more, because the buffer begins with an empty block.
        steps = [
            (first + offset_in_reach + 1, piece)
            for (first, _), weight in zip(self.reaches, weights, strict=True)
            for offset_in_reach, piece in enumerate(torch.split(weight, self.block, dim=2))
        ]
        furthest = steps[-1][0]
        buffer[:furthest].zero_()
        for offset, piece in reversed(steps):
            target = buffer[offset : offset + self.query_blocks]
            add_product(target, piece.mT, x, scale, overwrite=offset == furthest)
        return buffer

    def biases_by_reach(self, bias: Float[Tensor, "h c _"] | None) -> list[Float[Tensor, "h c _"]]:
        """View the parts of a bias for the neighbours -1, 0, 1, by reach; empty without a bias."""
        if bias is None:
            return []
        spans = (((1 + first) * self.block, count * self.block) for first, count in self.reaches)
        return [bias[:, :, start : start + keys] for start, keys in spans]

    def head(self, device: torch.device) -> Int[Tensor, " m"]:
        """Return the head of each block of queries."""
        blocks_per_row = self.query_blocks // (self.batch * self.heads)
        return torch.arange(self.query_blocks, device=device) // blocks_per_row % self.heads


class Plan(NamedTuple):
    """The levels of the hierarchy for one sequence length."""

    length: int
    causal: bool
    levels: tuple[int, ...]
    """Number of blocks of each level."""
    stretches: tuple[Stretch, ...]
    """Level 0, and the levels above it where there are any."""

    @classmethod
    def for_length(cls, batch: int, heads: int, length: int, block: int, *, causal: bool) -> "Plan":
        """Return the plan of a sequence of `length` tokens, with blocks of `block` clusters."""
        levels = [-(-length // block)]
        while levels[-1] > 2:
            levels.append(-(-levels[-1] // 2))
        # At level 0: the block before, itself and the block after; above: only the neighbours.
        reaches = (((-1, 2 if causal else 3),), ((-1, 1),) if causal else ((-1, 1), (1, 1)))
        stretches = tuple(
            Stretch(batch, heads, block, tuple(part), reach)
            for part, reach in zip((levels[:1], levels[1:]), reaches, strict=True)
            if part
        )
        return cls(length, causal, tuple(levels), stretches)

    def views(self, buffers: list[Tensor]) -> list[Float[Tensor, "b h _ w"]]:
        """View every level in the buffers of all stretches."""
        pairs = zip(self.stretches, buffers, strict=True)
        return [view for stretch, buffer in pairs for view in stretch.views(buffer)]

    def patterns(self, stretch: Stretch, like: Tensor) -> list[Float[Tensor, "c _"]]:
        """Return masks for each reach: 0 where a block may attend and NEVER elsewhere."""
        size = stretch.block
        masks = [like.new_zeros(size, count * size) for _, count in stretch.reaches]
        if stretch is not self.stretches[0]:  # the level below covers adjacent halves
            masks[0][: size // 2, size // 2 :] = NEVER
            for right in masks[1:]:
                right[size // 2 :, : size // 2] = NEVER
        elif self.causal:  # the block itself comes after the block before it
            masks[0][:, size:] = like.new_full((size, size), NEVER).triu_(1)
        return masks

    def counts(
        self, keep: Bool[Tensor, "b l"] | None, like: Tensor
    ) -> list[Float[Tensor, "#b 1 _ 1"]]:
        """Return the number of real tokens in each cluster of each level."""
        real = like.new_ones(1, self.length) if keep is None else keep.to(like.dtype)
        by_level = []
        for blocks in self.levels:
            short = blocks * self.stretches[0].block - real.shape[1]
            real = torch.nn.functional.pad(real, (0, short))
            by_level.append(real[:, None, :, None])
            real = torch.unflatten(real, 1, (-1, 2)).sum(-1)
        return by_level

    def shares(self, counts: list[Float[Tensor, "#b 1 _ 1"]]) -> tuple[Shares, Shares]:
        """Return the shares of second halves in clusters of queries, and of keys and values.

        Clusters are means of their real tokens. In causal models, a cluster's query is its first
        real token, because a mean would depend on later tokens.
        """
        pairs = [halves(count) for count in counts[:-1]]
        means = [second / (first + second).clamp(min=1) for first, second in pairs]
        if not self.causal:
            return means, means
        return [(first == 0).to(first.dtype) for first, _ in pairs], means

    def logarithms(self, counts: list[Float[Tensor, "#b 1 _ 1"]]) -> list[Float[Tensor, "_ c 1"]]:
        """Return the logarithm of each cluster's number of tokens, which is added to its scores."""
        buffers = [stretch.buffer(counts[0], 1, NEVER) for stretch in self.stretches]
        for view, count in zip(self.views(buffers), counts, strict=True):
            view.copy_(count.log().clamp_(min=NEVER))
        return buffers

    def lay_out(
        self, x: Float[Tensor, "b h l w"], keep: Bool[Tensor, "b l"] | None
    ) -> Float[Tensor, "n c w"]:
        """Copy rows into a buffer for level 0; padding becomes 0."""
        fine = self.stretches[0]
        width, dtype = x.shape[-1], sum_dtype(x)
        buffer = x.new_empty(fine.query_blocks + 2, fine.block, width, dtype=dtype)
        rows = buffer[1:-1].view(*x.shape[:2], -1, width)
        rows[:, :, : self.length] = x
        for empty in (buffer[0], buffer[-1], rows[:, :, self.length :]):
            empty.zero_()
        if keep is not None:
            rows[:, :, : self.length].masked_fill_(~keep[:, None, :, None], 0)
        return buffer

    def lift(self, fine: Float[Tensor, "n c w"], shares: Shares) -> list[Float[Tensor, "_ c w"]]:
        """Return the buffers of all levels; a cluster is the weighted mean of its two halves."""
        buffers = [fine, *(each.buffer(fine, fine.shape[2]) for each in self.stretches[1:])]
        levels = self.views(buffers)
        for below, level, share in zip(levels, levels[1:], shares, strict=False):
            torch.lerp(*halves(below), share, out=level[:, :, : share.shape[2]])
        return buffers

    def lower(
        self, buffers: list[Float[Tensor, "_ c w"]], shares: Shares
    ) -> Float[Tensor, "b h l w"]:
        """Return the gradient of level 0, given that of all levels; the buffers are overwritten."""
        levels = self.views(buffers)
        for below, level, share in reversed([*zip(levels, levels[1:], shares, strict=False)]):
            first, second = halves(below)
            part_gradient = level[:, :, : share.shape[2]]
            part = part_gradient * share
            second.add_(part)
            first.add_(part_gradient.sub_(part))
        return levels[0][:, :, : self.length]

    def join(
        self,
        outs: list[Float[Tensor, "_ c v"]],
        tops: list[Float[Tensor, "_ c 1"]],
        totals: list[Float[Tensor, "_ c 1"]],
    ) -> list[Float[Tensor, "_ c 1"]]:
        """Join the softmax of all levels, from the top level down, and overwrite `outs` with it.

        Args:
            outs: Weighted sums of values of each level, relative to exp(tops).
            tops: Largest score of each query; overwritten with the factors of `outs`.
            totals: Sums of weights of each level, relative to exp(tops).

        Returns:
            The factor by which each cluster multiplied the result of the level above.
        """
        # Clamped above NEVER, so that levels without visible keys get a weight of 0.
        sums = [
            total.log_().add_(top).clamp_(min=NEVER / 2)
            for total, top in zip(totals, tops, strict=True)
        ]
        inherited = [torch.zeros_like(level_sums) for level_sums in sums]
        levels = zip(*map(self.views, (outs, tops, sums, inherited)), strict=True)
        above: tuple[Tensor, Tensor] | None = None
        for out, top, joint, share in reversed([*levels]):
            if above is not None:  # both clusters of a pair add the result of their cluster above
                pairs, half = torch.unflatten(joint, 2, (-1, 2)), joint.shape[2] // 2
                larger = above[0][:, :, :half, None]
                torch.logaddexp(pairs, larger, out=pairs)
                shares = torch.unflatten(share, 2, (-1, 2)).copy_(larger).sub_(pairs).exp_()
            out.mul_(top.sub_(joint).exp_())
            if above is not None:
                wide = torch.unflatten(out, 2, (-1, 2))
                wide.addcmul_(above[1][:, :, :half, None], shares)
            above = joint, out
        return inherited

    def give(
        self,
        gradient: Float[Tensor, "b h l v"],
        o: Float[Tensor, "b h l v"],
        inherited: list[Float[Tensor, "_ c 1"]],
    ) -> tuple[list[Float[Tensor, "_ c v"]], list[Float[Tensor, "_ c 1"]]]:
        """Return the gradient of each cluster's result, and the sum of this gradient times o.

        This reverses `join`: from the tokens up, each cluster gets the sum over its two halves,
        multiplied by the factors `inherited`.
        """
        gradients = [self.lay_out(gradient, None)]
        fine, width = gradients[0], gradient.shape[-1]
        gradients += [stretch.buffer(fine, width) for stretch in self.stretches[1:]]
        balance = [stretch.buffer(fine, 1) for stretch in self.stretches]
        levels = self.views(gradients), self.views(balance)
        rows = levels[0][0][:, :, : self.length]
        rows.mul_(o)  # only for the sum below
        levels[1][0][:, :, : self.length] = rows.sum(-1, keepdim=True)
        rows.copy_(gradient)
        shares = [halves(share) for share in self.views(inherited)]
        for views in levels:
            for below, level, (first, second) in zip(views, views[1:], shares, strict=False):
                first_half, second_half = halves(below)
                target = level[:, :, : first_half.shape[2]]
                torch.mul(first_half, first, out=target)
                target.addcmul_(second_half, second)
        return gradients, [buffer[1:-1] for buffer in balance]
