"""The small networks that score tokens or blocks for each query, in the forms of four models."""

from enum import StrEnum, auto
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lra.models.linear_map import projection
from lra.models.mixer import Roles
from lra.models.ops.numerics import norm_channels, sum_dtype
from lra.models.ops.sparse.block_table import BlockTable
from lra.models.ops.sparse.index_scores import Index
from lra.models.positions import rotate, rotation

NORM_EPSILON = 1e-6


class IndexForm(StrEnum):
    """What an index scores, and how."""

    dsa = auto()
    """Each token, by one key with LayerNorm; heads have weights that the query's token gives."""
    qsa = auto()
    """Blocks, by the mean of the raw keys of their tokens, then RMSNorm; all heads weigh 1."""
    kpool = auto()
    """As `dsa`, but blocks, by means of keys with learned weights in each channel."""
    msa = auto()
    """Blocks, by the highest product with one of their tokens; each head of keys chooses its own
    blocks, by one head of the index without ReLU."""


BLOCKS = (IndexForm.qsa, IndexForm.kpool, IndexForm.msa)
"""Forms that choose blocks of more than one token."""
WEIGHTED = (IndexForm.dsa, IndexForm.kpool)
"""Forms whose heads have weights."""


class IndexReading(NamedTuple):
    """What an index reads from tokens."""

    q: Float[Tensor, "b h l c"]
    weights: Float[Tensor, "b h l"] | None
    tokens: Float[Tensor, "b 1 l r"]
    """What the key of a token or block is made of; a state stores it."""


class IndexScorer(Roles):
    """Queries and keys of an index.

    Args:
        width: Number of channels of a token.
        form: What is scored, and how.
        heads: Number of heads of queries; there is one head of keys.
        index_width: Number of channels of a head, c.
        block: Number of tokens of a block.
        rotary: Number of first channels that are rotated by position; None: all, or half under dsa.

    Raises:
        ValueError: `rotary` is odd or more than `index_width`.
    """

    no_matrices = ("place",)

    def __init__(
        self,
        width: int,
        *,
        form: IndexForm,
        heads: int,
        index_width: int,
        block: int,
        rotary: int | None,
    ) -> None:
        """Check `rotary`; make projections and norms."""
        super().__init__()
        if form == IndexForm.kpool:
            rotary = 0
        elif rotary is None:
            rotary = (index_width + 3) // 4 * 2 if form == IndexForm.dsa else index_width
        if not 0 <= rotary <= index_width or rotary % 2:
            raise ValueError(
                f"index_rotary must be even and 0 to index_width={index_width}: got {rotary}; set "
                f"an even number, such as {index_width // 2 * 2}"
            )
        self.form, self.width, self.rotary = form, index_width, rotary
        self.queries = projection(width, heads * index_width, bias=False)
        self.keys = projection(width, index_width, bias=False)
        self.weights = projection(width, heads, bias=False) if form in WEIGHTED else None
        self.q_norm: nn.Module | None = None
        self.k_norm: nn.Module = nn.LayerNorm(index_width, NORM_EPSILON)
        if form not in WEIGHTED:
            self.q_norm, self.k_norm = (nn.RMSNorm(index_width, NORM_EPSILON) for _ in range(2))
        self.gate: nn.Linear | None = None
        if form == IndexForm.kpool:
            self.gate = nn.Linear(width, index_width, bias=False)
            nn.init.zeros_(self.gate.weight)
            self.place = nn.Parameter(torch.zeros(block, index_width))

    def turn(
        self, x: Float[Tensor, "b h l c"], ids: Int[Tensor, "#b l"]
    ) -> Float[Tensor, "b h l c"]:
        """Rotate the first channels by the positions `ids`."""
        if not self.rotary:
            return x
        turned, fixed = torch.split(x, [self.rotary, self.width - self.rotary], -1)
        turned = rotate(turned, rotation(turned, self.rotary, ids))
        return torch.cat((turned, fixed), -1)

    def read(self, x: Float[Tensor, "b l d"], ids: Int[Tensor, "#b l"]) -> IndexReading:
        """Return what the index reads from tokens `x` at the positions `ids`."""
        q = torch.unflatten(self.queries(x), 2, (-1, self.width)).transpose(1, 2)
        q = self.turn(q if self.q_norm is None else norm_channels(q, self.q_norm).to(q.dtype), ids)
        weights = None
        if self.weights is not None:
            weights = self.weights(x).mT * q.shape[1] ** -0.5
        tokens: Tensor = self.keys(x)[:, None]
        if self.form != IndexForm.qsa:  # its norm and rotation follow the mean
            tokens = norm_channels(tokens, self.k_norm).to(tokens.dtype)
        if self.form in {IndexForm.dsa, IndexForm.msa}:
            tokens = self.turn(tokens, ids)
        if self.gate is not None:
            tokens = torch.cat((tokens, self.gate(x)[:, None]), -1)
        return IndexReading(q, weights, tokens)

    @property
    def stored_channels(self) -> int:
        """Number of channels that a state stores for a token."""
        return self.width * (2 if self.gate is not None else 1)

    def index(
        self,
        reading: IndexReading,
        slots: Float[Tensor, "b 1 s r"],
        table: BlockTable,
        starts: Int[Tensor, "#b m"],
    ) -> Index:
        """Return the index of all blocks.

        Args:
            reading: What was read from the tokens of the queries.
            slots: What was read from all tokens, in the slots of `table`.
            table: The slot of each token.
            starts: The position of the first token of each block.
        """
        by_head, keys = self.form == IndexForm.msa, slots[:, 0]
        if self.form == IndexForm.qsa:
            means = table.means(slots).to(slots.dtype)
            means = norm_channels(means, self.k_norm).to(means.dtype)
            keys = self.turn(means, starts)[:, 0]
        elif self.gate is not None:
            keys = self.pool(slots, table)
        return Index(reading.q, keys, reading.weights, by_head)

    def pool(self, slots: Float[Tensor, "b 1 s r"], table: BlockTable) -> Float[Tensor, "b m c"]:
        """Return the mean key of each block, with weights by softmax over its tokens."""
        keys, gates = torch.unflatten(slots[:, 0], 1, (-1, table.block)).chunk(2, -1)
        logits = gates.to(sum_dtype(gates)) + self.place
        if table.filled is not None:
            empty = ~torch.unflatten(table.filled, 1, (-1, table.block))[..., None]
            logits = logits.masked_fill(empty, torch.finfo(logits.dtype).min)
        return (logits.softmax(2) * keys).sum(2)


def block_starts(
    table: BlockTable, ids: Int[Tensor, "#b l"], *, continued: bool
) -> Int[Tensor, "#b m"]:
    """Return the position of the first token of each block.

    Args:
        table: The slot of each token.
        ids: The position of each token of the pass.
        continued: Whether blocks of a state, all of them full, come before those of the pass.
    """
    if continued:
        return (ids[:, 0] - table.place[:, 0])[:, None] + table.block * table.numbers
    ids = ids.expand(max(len(ids), len(table.place)), -1)
    slots = table.contents(ids[:, None, :, None].float())  # whole numbers up to 2^24 stay exact
    return slots[:, 0, :: table.block, 0].long()
