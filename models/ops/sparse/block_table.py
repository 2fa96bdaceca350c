"""Tokens laid out in whole blocks: those of each document begin with a block of their own.

A token's place is its slot among m blocks of C. Where tokens follow one another, it is its index.
Documents are laid one behind the other, each from a new block on, so that a block holds tokens of
one document. Padding has no slot: what is laid out is the row without it. Behind a state, places
are counted from the oldest block that is remembered.
"""

from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from lra.models.mixer import Layout, State
from lra.models.ops.numerics import sum_dtype


class BlockTable(NamedTuple):
    """The slot of each token, and the document of each block."""

    block: int
    """Slots of a block, C."""
    place: Int[Tensor, "#b l"]
    """Slot of each token."""
    document: Int[Tensor, "#b m"]
    """Number of the document in each block; -1: there is none."""
    rank: Int[Tensor, "#b m"]
    """Number of the block in its document."""
    filled: Bool[Tensor, "#b s"] | None = None
    """Which slots hold a token that may be seen; None: all up to each query."""
    keep: Bool[Tensor, "b l"] | None = None
    """Which tokens have a slot; a token of padding stands with the one before it."""
    in_order: bool = True
    """Whether the place of each token is its index."""
    sight: int | None = None
    """How many blocks back a query sees, its own included; None: all."""

    @property
    def block_count(self) -> int:
        """Return the number of blocks, m."""
        return self.document.shape[1]

    def contents(self, x: Float[Tensor, "b h l k"]) -> Float[Tensor, "b h s k"]:
        """Return the tokens in their slots, with zeros in empty slots."""
        slots = self.block_count * self.block
        if self.in_order:
            return F.pad(x, (0, 0, 0, slots - x.shape[2])) if slots > x.shape[2] else x
        return self.insert(x.new_zeros(*x.shape[:2], slots, x.shape[3]), x)

    def insert(
        self, slots: Float[Tensor, "b h s k"], x: Float[Tensor, "b h l k"]
    ) -> Float[Tensor, "b h s k"]:
        """Write the tokens `x` into their slots; padding is skipped."""
        place = self.place
        if self.keep is not None:
            slots = F.pad(slots, (0, 0, 0, 1))
            place = place.where(self.keep, slots.shape[2] - 1)
        return slots.scatter(2, place[:, None, :, None].expand_as(x), x)[
            :, :, : self.block_count * self.block
        ]

    def visible(
        self, some: slice, *, causal: bool, width: int = 1, stride: int | None = None
    ) -> Bool[Tensor, "#b l w"]:
        """Return which windows the tokens `some` attend to: of their document, and in `sight`.

        Args:
            some: The tokens.
            causal: Whether windows of which some tokens are hidden are hidden.
            width: Slots of a window; 1: blocks are seen from their first token on.
            stride: Slots from one window to the next, which divide those of a block; None: all.
        """
        place = self.place[:, some, None]
        slots, stride = self.block_count * self.block, stride or self.block
        first = torch.arange(0, slots, stride, device=place.device)
        home, block = place // self.block, first // self.block
        seen = self.document[:, None, block] == self.document.gather(1, home[..., 0])[..., None]
        if causal:
            seen &= first + width <= place + 1
        if self.sight is not None:
            seen &= home - block < self.sight
        there = self.document[:, block] >= 0 if self.filled is None else self.filled[:, first]
        return seen & there[:, None]

    @property
    def numbers(self) -> Int[Tensor, " m"]:
        """Return the numbers of the blocks."""
        return torch.arange(self.block_count, device=self.place.device)

    def windows(
        self,
        slots: Float[Tensor, "b h s k"],
        width: int,
        stride: int,
        filled: Bool[Tensor, "#b w c"] | None,
    ) -> Float[Tensor, "b h w c k"]:
        """Return windows of `width` slots, one every `stride`, with zeros where not `filled`."""
        cut = torch.unflatten(slots, 2, (-1, stride))
        more = [F.pad(cut[:, :, n:], (0, 0, 0, 0, 0, n)) for n in range(1, width // stride)]
        whole = torch.cat((cut, *more), 3) if more else cut
        return whole if filled is None else whole.masked_fill(~filled[:, None, ..., None], 0)

    def filled_windows(
        self, width: int, stride: int, *, causal: bool
    ) -> Bool[Tensor, "#b w c"] | None:
        """Return which slots of each window hold a token of the window's first document.

        None: all slots that matter. If later tokens are hidden, windows with gaps are not used.
        """
        if self.filled is None and (causal or width == stride):
            return None
        slots = torch.ones_like(self.numbers, dtype=torch.bool).repeat_interleave(self.block)[None]
        cut = torch.unflatten(slots if self.filled is None else self.filled, 1, (-1, stride))
        document = self.document.repeat_interleave(self.block // stride, 1)
        parts = []
        for n in range(width // stride):
            same = F.pad(document[:, n:], (0, n), value=-1) == document
            parts.append(F.pad(cut[:, n:], (0, 0, 0, n)) & same[..., None])
        return torch.cat(parts, 2)

    def means(self, slots: Float[Tensor, "b h s k"]) -> Float[Tensor, "b h m k"]:
        """Return the mean over the tokens of each visible block, at least in float32.

        If later tokens are hidden, the last block is treated as full.
        """
        filled = self.filled_windows(self.block, self.block, causal=True)
        return block_means(self.windows(slots, self.block, self.block, filled), filled)


def block_means(
    x: Float[Tensor, "b h m c k"], filled: Bool[Tensor, "#b m c"] | None
) -> Float[Tensor, "b h m k"]:
    """Return the mean over the filled slots of each block, the others being 0; None: all."""
    total = x.to(sum_dtype(x)).sum(3)
    size = x.shape[3] if filled is None else filled.sum(-1).clamp(min=1)[:, None, :, None]
    return total / size


def laid_out(layout: Layout, length: int, block: int, *, causal: bool, like: Tensor) -> BlockTable:
    """Return the table that assigns slots to the tokens of a pass.

    Args:
        layout: With padding, which has no slot, and documents.
        length: Tokens of a row.
        block: Number of tokens of a block, C.
        causal: Whether later tokens are hidden, those that are not there among them.
        like: Gives the device.
    """
    device = like.device
    if layout.document is not None or layout.keep is not None:
        return _moved(layout.document, layout.keep, block)
    count = -(-length // block)
    index, filled = torch.arange(length, device=device)[None], None
    if not causal and length % block:
        filled = torch.arange(count * block, device=device)[None] < length
    document = torch.zeros(1, count, dtype=torch.int64, device=device)
    return BlockTable(block, index, document, torch.arange(count, device=device)[None], filled)


def _moved(
    document: Int[Tensor, "b l"] | None, keep: Bool[Tensor, "b l"] | None, block: int
) -> BlockTable:
    """Return a table that orders tokens by document, without padding."""
    if document is None:
        document = torch.zeros_like(cast(Tensor, keep), dtype=torch.int64)
        count = -(-document.shape[1] // block)
    else:
        count = document.shape[1]  # or fewer, where tensors have contents
    kept = torch.ones_like(document, dtype=torch.bool) if keep is None else keep
    numbers, order = document.sort(dim=1, stable=True)
    begins = F.pad(numbers[:, 1:] != numbers[:, :-1], (1, 0), value=True)
    there = kept.gather(1, order)
    so_far = there.cumsum(1)
    before = torch.where(begins, so_far - there.long(), 0).cummax(1).values
    rank = (so_far - before - 1).clamp_(min=0)  # in the document
    block_of = (begins | (there & (rank % block == 0) & (rank > 0))).cumsum(1) - 1
    if document.device.type != "meta":
        count = min(count, int(block_of.max()) + 1)
    place = torch.empty_like(order).scatter(1, order, block_of * block + rank % block)
    empty = torch.full((len(document), count), -1, device=document.device)
    slots = torch.zeros_like(kept[:, :1]).repeat(1, count * block + 1)
    return BlockTable(
        block,
        place,
        empty.scatter(1, block_of, begins.cumsum(1) - 1),
        empty.scatter(1, block_of, rank // block),
        slots.scatter(1, place.where(kept, count * block), value=True)[:, :-1],
        keep=keep,
        in_order=False,
    )


def blocks_in_memory(memory: int, block: int) -> int:
    """Return how many whole blocks surely contain the last `memory` tokens."""
    if memory < 1:
        raise ValueError(f"memory is a number of tokens, at least 1: got {memory}")
    return -(-(memory - 1) // block) + 1


def empty_table(shape: tuple[int, int, int, int, int], block: int, like: Tensor) -> State:
    """Return the state of no tokens; shape = (b, h, memory, k, v).

    It is `(keys, values, seen)`: the last blocks, of which the next token enters the last one, and
    the number of tokens so far.
    """
    batch, heads, memory, key_width, value_width = shape
    slots = blocks_in_memory(memory, block) * block
    return (
        like.new_zeros(batch, heads, slots, key_width),
        like.new_zeros(batch, heads, slots, value_width),
        torch.zeros(batch, dtype=torch.int64, device=like.device),
    )


class ContinuedBlocks(NamedTuple):
    """The remembered and new tokens that new tokens attend to."""

    table: BlockTable
    keys: Float[Tensor, "b g s k"]
    values: Float[Tensor, "b g s v"]
    moved: Int[Tensor, " b"]
    """By how many blocks what is remembered moves on."""
    seen: Int[Tensor, " b"]
    """Tokens, the new ones included."""

    @property
    def state(self) -> State:
        """The state after the new tokens."""
        return *(self.last(x, self.table.block) for x in (self.keys, self.values)), self.seen

    def last(self, x: Float[Tensor, "b h s k"], each: int = 1) -> Float[Tensor, "b h r k"]:
        """Return what is to be remembered, `each` for a block."""
        size = cast(int, self.table.sight) * each
        index = self.moved[:, None] * each + torch.arange(size, device=x.device)
        return x.gather(2, index[:, None, :, None].expand(*x.shape[:2], -1, x.shape[3]))


def append_blocks(
    state: State, k: Float[Tensor, "b g l k"], v: Float[Tensor, "b g l v"], block: int
) -> ContinuedBlocks:
    """Return remembered and new tokens in their slots, and the blocks to remember."""
    keys, values, seen = cast(tuple[Tensor, Tensor, Int[Tensor, " b"]], state)
    length, past = k.shape[2], keys.shape[2] // block
    index = torch.arange(past + -(-length // block), device=k.device)
    number = (seen // block - (past - 1))[:, None] + index  # of each block in the stream
    place = (past - 1) * block + (seen % block)[:, None] + torch.arange(length, device=k.device)
    table = BlockTable(
        block,
        place,
        torch.where(number >= 0, 0, -1),
        number,
        in_order=False,
        sight=past,
    )
    more = (len(index) - past) * block
    keys, values = (
        table.insert(F.pad(old, (0, 0, 0, more)), new.to(old.dtype))
        for old, new in ((keys, k), (values, v))
    )
    moved = (seen + length) // block - seen // block
    return ContinuedBlocks(table, keys, values, moved, seen + length)
