"""Compression of blocks of tokens to one entry each, by a softmax in every channel.

    e_n = norm(sum_j softmax_j(Z_j + B_j) * C_j),   C = W_C x, Z = W_Z x

over the m tokens j of block n; B is learned, one vector for each place in a block. With overlap,
there are two series of C, Z and B: an entry is the softmax over series 0 of the block before and
series 1 of block n, 2 m tokens. The first block of a document has no block before it.

`BlockPlaces` says where tokens stand in blocks, also after an unfinished block of a state.

Source: DeepSeek-AI 2026, DeepSeek-V4, sections 2.3.1 and 2.3.2.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.linear_map import projection
from lra.models.mixer import Roles
from lra.models.ops.numerics import norm_channels, sum_dtype
from lra.models.ops.sparse.block_table import BlockTable

NORM_EPSILON = 1e-6


class BlockPooling(Roles):
    """The maps W_C and W_Z, the vectors B and the norm of the module's docstring.

    Args:
        width_in: Channels of a token.
        width: Channels of an entry.
        block: Tokens of a block, m.
        overlap: Whether entries also depend on the block before.
    """

    no_matrices = ("places",)

    def __init__(self, width_in: int, width: int, block: int, *, overlap: bool) -> None:
        super().__init__()
        self.width, self.series = width, 2 if overlap else 1
        self.value_proj = projection(width_in, self.series * width, bias=False)
        self.gate_proj = projection(width_in, self.series * width, bias=False)
        self.places = nn.Parameter(torch.zeros(block, self.series * width))
        self.norm = nn.RMSNorm(width, NORM_EPSILON)

    def read(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b l raw"]:
        """Return C and Z of each token, of all series."""
        return torch.cat((self.value_proj(x), self.gate_proj(x)), -1)

    def forward(
        self, raw: Float[Tensor, "b m c raw"], first: Bool[Tensor, "#b n"]
    ) -> Float[Tensor, "b n width"]:
        """Return the entries of n blocks, the last of m = n blocks, or with overlap n + 1.

        Args:
            raw: C and Z of the tokens.
            first: Whether a block is the first of its document.
        """
        values, gates = raw.chunk(2, -1)
        gates = (gates + self.places).to(sum_dtype(gates))
        if self.series == 2:
            before = gates[:, :-1, :, : self.width].masked_fill(first[..., None, None], -torch.inf)
            gates = torch.cat((before, gates[:, 1:, :, self.width :]), 2)
            own = values[:, 1:, :, self.width :]
            values = torch.cat((values[:, :-1, :, : self.width], own), 2)
        weights = gates.softmax(2).to(values.dtype)
        return norm_channels((weights * values).sum(2), self.norm)


class PooledBlocks(NamedTuple):
    """Entries, and what a state stores of the tokens and of the entries."""

    entries: Float[Tensor, "b n c"]
    state: tuple[Tensor, ...]
    """What is read from tokens of unfinished blocks, and the last entries; (): no state."""


class BlockPlaces(NamedTuple):
    """Where new tokens, after `seen` others, stand in blocks of `size`."""

    size: int
    series: int
    """Number of blocks on which an entry depends."""
    length: int
    """Number of new tokens."""
    seen: Int[Tensor, " b"]

    @property
    def new(self) -> int:
        """Return the largest number of blocks that the new tokens may complete."""
        return -(-self.length // self.size)

    @property
    def numbers(self) -> Int[Tensor, "b n"]:
        """Return the numbers of the blocks from the unfinished one on."""
        index = torch.arange(self.new, device=self.seen.device)
        return (self.seen // self.size)[:, None] + index

    def finished(self) -> Int[Tensor, "b l"]:
        """Return the number of whole blocks up to each new token, since the first one of all."""
        return (self.positions() + 1) // self.size

    def positions(self) -> Int[Tensor, "b l"]:
        """Return the positions of the new tokens."""
        return self.seen[:, None] + torch.arange(self.length, device=self.seen.device)

    def filled(
        self, old: Float[Tensor, "b r raw"] | None, raw: Float[Tensor, "b l raw"]
    ) -> Float[Tensor, "b s raw"]:
        """Return slots with the stored tokens `old`, then the new ones; None: nothing is stored.

        The stored ones are the unfinished block and, with two series, the one before it.
        """
        stored = self.series * self.size
        if old is None:
            missing = (self.new + 1) * self.size - self.length
            return F.pad(raw, (0, 0, stored - self.size, missing))
        place = self.positions() - (self.seen // self.size * self.size)[:, None]
        index = (stored - self.size + place)[..., None].expand_as(raw)
        slots = F.pad(old.to(raw.dtype), (0, 0, 0, self.new * self.size))
        return slots.scatter(1, index, raw)

    def last(self, x: Float[Tensor, "b s c"], count: int, each: int = 1) -> Float[Tensor, "b r c"]:
        """Return what a state stores of `x`: `count` blocks with `each` rows, up to the last new.

        `x` has as many blocks of the past.
        """
        moved = (self.seen + self.length) // self.size - self.seen // self.size
        index = moved[:, None] * each + torch.arange(count * each, device=x.device)
        return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))

    def pool(
        self,
        pooling: BlockPooling,
        x: Float[Tensor, "b l d"],
        table: BlockTable | None,
        state: tuple[Tensor, ...] | None,
        turn: Callable[[Tensor, Tensor], Tensor],
    ) -> PooledBlocks:
        """Return the entries of the state and of new blocks, and the state after the tokens `x`.

        Args:
            pooling: How blocks are compressed.
            x: The new tokens.
            table: Documents of blocks; None: one document.
            state: That of an earlier call; None: nothing is stored.
            turn: Rotates heads, [b n 1 c], by the positions [b n].
        """
        raw, stored = (None, None) if state is None else state
        slots = self.filled(raw, pooling.read(x))
        count = self.series - 1 + self.new
        blocks = torch.unflatten(slots[:, : count * self.size], 1, (count, self.size))
        entries = pooling(blocks, (self.numbers if table is None else table.rank) == 0)
        entries = turn(entries[:, :, None], self.numbers * self.size)[:, :, 0]
        if raw is None or stored is None:
            return PooledBlocks(entries, ())
        entries = torch.cat((stored.to(entries.dtype), entries), 1)
        last = self.last(entries, stored.shape[1]).to(stored.dtype)
        return PooledBlocks(entries, (self.last(slots, self.series, self.size).to(raw.dtype), last))
