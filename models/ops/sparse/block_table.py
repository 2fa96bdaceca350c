"""Tables that assign tokens to slots of blocks, so that each document begins with a new block.

The place of a token is the number of its slot among m blocks of C slots. In one document without
padding, it is the token's index. Each document begins with a new block, so that a block has tokens
of one document only. Padding has no slot. With a state, places are counted from the oldest block
in the state.
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
    """True for slots with a visible token; None: all slots up to each query have one."""
    keep: Bool[Tensor, "b l"] | None = None
    """True for tokens with a slot; padding has the place of the token before it."""
    in_order: bool = True
    """Whether the place of each token is its index."""
    sight: int | None = None
    """Number of blocks that a query attends to, up to and including its own; None: all."""

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
        """Return `slots` with the tokens `x` written to their places; padding is skipped."""
        place = self.place
        if self.keep is not None:
            slots = F.pad(slots, (0, 0, 0, 1))  # one more slot, to which padding is written
            place = place.where(self.keep, slots.shape[2] - 1)
        return slots.scatter(2, place[:, None, :, None].expand_as(x), x)[
            :, :, : self.block_count * self.block
        ]

    def visible(
        self, some: slice, *, causal: bool, width: int = 1, stride: int | None = None
    ) -> Bool[Tensor, "#b l w"]:
        """Return True where a token of `some` may attend to a window: in its document and `sight`.

        Args:
            some: The tokens.
            causal: Whether windows with a later token are hidden.
            width: Slots of a window; with 1, a block is visible from its first token on.
            stride: Slots from one window to the next, a divisor of a block; None: one block.
        """
        place = self.place[:, some, None]
        slots, stride = self.block_count * self.block, stride or self.block
        first = torch.arange(0, slots, stride, device=place.device)
        home, block = place // self.block, first // self.block
        visible = self.document[:, None, block] == self.document.gather(1, home[..., 0])[..., None]
        if causal:
            visible &= first + width <= place + 1  # the window ends at the token or before it
        if self.sight is not None:
            visible &= home - block < self.sight
        used = self.document[:, block] >= 0 if self.filled is None else self.filled[:, first]
        return visible & used[:, None]

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
        strides = torch.unflatten(slots, 2, (-1, stride))
        shifted = [F.pad(strides[:, :, n:], (0, 0, 0, 0, 0, n)) for n in range(1, width // stride)]
        joined = torch.cat((strides, *shifted), 3) if shifted else strides
        return joined if filled is None else joined.masked_fill(~filled[:, None, ..., None], 0)

    def filled_windows(
        self, width: int, stride: int, *, causal: bool
    ) -> Bool[Tensor, "#b w c"] | None:
        """Return True for slots of each window with a token of the window's first document.

        None: no mask is needed. In causal models, no token attends to a window with gaps.
        """
        if self.filled is None and (causal or width == stride):
            return None
        slots = torch.ones_like(self.numbers, dtype=torch.bool).repeat_interleave(self.block)[None]
        strides = torch.unflatten(slots if self.filled is None else self.filled, 1, (-1, stride))
        document = self.document.repeat_interleave(self.block // stride, 1)
        parts = []
        for n in range(width // stride):
            same_document = F.pad(document[:, n:], (0, n), value=-1) == document
            parts.append(F.pad(strides[:, n:], (0, 0, 0, n)) & same_document[..., None])
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
    """Return the mean over the filled slots of each block; empty slots of `x` must be 0."""
    total = x.to(sum_dtype(x)).sum(3)
    size = x.shape[3] if filled is None else filled.sum(-1).clamp(min=1)[:, None, :, None]
    return total / size


def laid_out(layout: Layout, length: int, block: int, *, causal: bool, like: Tensor) -> BlockTable:
    """Return the table that assigns slots to the tokens of a pass.

    Args:
        layout: Padding and documents of the tokens.
        length: Number of tokens of a row.
        block: Number of tokens of a block, C.
        causal: Whether later tokens are hidden; then empty slots at the end need no mask.
        like: A tensor on the device of the table.
    """
    device = like.device
    if layout.document is not None or layout.keep is not None:
        return _order_by_document(layout.document, layout.keep, block)
    count = -(-length // block)
    index, filled = torch.arange(length, device=device)[None], None
    if not causal and length % block:
        filled = torch.arange(count * block, device=device)[None] < length
    document = torch.zeros(1, count, dtype=torch.int64, device=device)
    return BlockTable(block, index, document, torch.arange(count, device=device)[None], filled)


def _order_by_document(
    document: Int[Tensor, "b l"] | None, keep: Bool[Tensor, "b l"] | None, block: int
) -> BlockTable:
    """Return the table of rows with documents or padding: documents begin with new blocks."""
    if document is None:
        document = torch.zeros_like(cast(Tensor, keep), dtype=torch.int64)
        count = -(-document.shape[1] // block)
    else:
        count = document.shape[1]  # or fewer, where tensors have contents
    real = torch.ones_like(document, dtype=torch.bool) if keep is None else keep
    numbers, order = document.sort(dim=1, stable=True)
    begins = F.pad(numbers[:, 1:] != numbers[:, :-1], (1, 0), value=True)
    sorted_real = real.gather(1, order)
    real_count = sorted_real.cumsum(1)
    # Real tokens before the document of each token; a document's tokens are counted from there.
    first_count = torch.where(begins, real_count - sorted_real.long(), 0).cummax(1).values
    rank = (real_count - first_count - 1).clamp_(min=0)  # in the document
    # A block begins with each document, and after every `block` tokens of it.
    block_of = (begins | (sorted_real & (rank % block == 0) & (rank > 0))).cumsum(1) - 1
    if document.device.type != "meta":
        count = min(count, int(block_of.max()) + 1)
    place = torch.empty_like(order).scatter(1, order, block_of * block + rank % block)
    empty = torch.full((len(document), count), -1, device=document.device)
    slots = torch.zeros_like(real[:, :1]).repeat(1, count * block + 1)
    return BlockTable(
        block,
        place,
        empty.scatter(1, block_of, begins.cumsum(1) - 1),
        empty.scatter(1, block_of, rank // block),
        slots.scatter(1, place.where(real, count * block), value=True)[:, :-1],
        keep=keep,
        in_order=False,
    )


def blocks_in_memory(memory: int, block: int) -> int:
    """Return the smallest number of whole blocks that always contains the last `memory` tokens."""
    if memory < 1:
        raise ValueError(f"memory is a number of tokens, at least 1: got {memory}")
    return -(-(memory - 1) // block) + 1


def empty_table(shape: tuple[int, int, int, int, int], block: int, like: Tensor) -> State:
    """Return the state before the first token, for `shape` = (b, h, memory, k, v).

    It is `(keys, values, seen)`: the slots of the last blocks, the last of which is being filled,
    and the number of tokens so far.
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
    """Number of blocks that leave the state, because as many new ones were begun."""
    seen: Int[Tensor, " b"]
    """Number of tokens so far, including the new ones."""

    @property
    def state(self) -> State:
        """The state after the new tokens."""
        return *(self.last(x, self.table.block) for x in (self.keys, self.values)), self.seen

    def last(self, x: Float[Tensor, "b h s k"], each: int = 1) -> Float[Tensor, "b h r k"]:
        """Return the last entries of `x` for the state, if `x` has `each` entries per block."""
        size = cast(int, self.table.sight) * each
        index = self.moved[:, None] * each + torch.arange(size, device=x.device)
        return x.gather(2, index[:, None, :, None].expand(*x.shape[:2], -1, x.shape[3]))


def append_blocks(
    state: State, k: Float[Tensor, "b g l k"], v: Float[Tensor, "b g l v"], block: int
) -> ContinuedBlocks:
    """Return the tokens of the state and the l new tokens in their slots, and the new state."""
    keys, values, token_count = cast(tuple[Tensor, Tensor, Int[Tensor, " b"]], state)
    length, past = k.shape[2], keys.shape[2] // block
    index = torch.arange(past + -(-length // block), device=k.device)
    number = (token_count // block - (past - 1))[:, None] + index  # of each block in the stream
    # New tokens continue the last block of the state.
    place = (
        (past - 1) * block + (token_count % block)[:, None] + torch.arange(length, device=k.device)
    )
    table = BlockTable(
        block, place, torch.where(number >= 0, 0, -1), number, in_order=False, sight=past
    )
    missing = (len(index) - past) * block
    keys, values = (
        table.insert(F.pad(old, (0, 0, 0, missing)), new.to(old.dtype))
        for old, new in ((keys, k), (values, v))
    )
    moved = (token_count + length) // block - token_count // block
    return ContinuedBlocks(table, keys, values, moved, token_count + length)
