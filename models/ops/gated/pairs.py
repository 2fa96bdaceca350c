"""Weights between pairs of tokens of one chunk, with the decay between the two tokens.

    W_ij = sum_c x_ic y_jc exp(g_(j+1)c + ... + g_ic)    for j <= i, else 0

g <= 0 is a logarithm, one number for a token (scalar) or one for each channel (vector); -inf
forgets all. An exponent is a sum of the g between two tokens, added up where it is needed and never
a difference of two longer sums: such lose in float32 what small gates say behind strong ones, and
have no value at -inf. All are <= 0, so nothing overflows.

A scalar decay has one table of C x C for the chunk, and where all tokens of a head have the same
decay, one for all chunks: e^(g (i - j)). A vector decay has none that fits: halving
makes W of products of matrices. Blocks of 4 on the diagonal are formed directly; then, for s = 4,
8, ..., C / 2, in each block of 2 s tokens its second half sees the first through its middle,

    W[second, first] = (x e^L) (y e^R)^T,

L being the sum of g from the middle up to and with a token, R that behind a token to the middle.

The gradient of g_t adds up what pairs i >= t > j say, and no other: what all of i's or of j's pairs
say is no smaller where g_t leaves little, and differences of such sums would be rounding alone.

Cost       scalar: C exponentials and 2 C k operations a token; vector: (4 + log2(C / 2)) k
           exponentials and about the same operations, C rounded up to a power of two.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from lra.models.ops.numerics import add_product

BASE = 4
"""Tokens of a block that is formed directly; a power of two."""
SCALAR_BASE = 8
"""The same for scalar decays."""


class Operand(NamedTuple):
    """x or y of the weights W, and its gradient so far, to which `pull` adds that of W."""

    tokens: Float[Tensor, "m c k"]
    gradient: Float[Tensor, "m c k"]


class WeighedPairs(NamedTuple):
    """The decayed products W of some x and y, and the gradient of W."""

    weights: Float[Tensor, "m c c"]
    gradient: Float[Tensor, "m c c"]
    """Entries above the diagonal are ignored."""


@runtime_checkable
class Decays(Protocol):
    """The decays of m chunks of c tokens; j is 1 for scalar decays, else k."""

    from_start: Float[Tensor, "m c j"]
    """Factor by which the chunk's first state has decayed at each token."""
    to_end: Float[Tensor, "m c j"]
    """Factor by which each token's key has decayed at the chunk's end."""

    def weights(
        self, x: Float[Tensor, "m c k"], y: Float[Tensor, "m c k"]
    ) -> Float[Tensor, "m c c"]:
        """Return W: the products of x_i and y_j, decayed from token j to token i, 0 for j > i."""
        ...

    def pull(
        self,
        tables: Sequence[Sequence[WeighedPairs]],
        readers: Sequence[Operand],
        writers: Sequence[Operand],
        across: Float[Tensor, "m k"] | None,
    ) -> tuple[list[Float[Tensor, "m c k"]], list[Float[Tensor, "m c k"]], Tensor | None]:
        """Return the gradients of each x, of each y and of g.

        Args:
            tables: `tables[i][j]` has W of the i-th x and the j-th y, and its gradient, which may
                be overwritten if g needs no gradient.
            readers: Each x, with its gradient through the state at the chunk's start.
            writers: Each y, with its gradient through the state at the chunk's end.
            across: Gradient of g through the state that crosses the whole chunk; None: g needs no
                gradient.
        """
        ...


def decays(g: Float[Tensor, "m c"] | Float[Tensor, "m c k"]) -> Decays:
    """Return the decays of m chunks: scalar for g [m c], by channel for g [m c k]."""
    return _Scalar(g) if g.ndim == 2 else VectorDecays(g)


def constant_decays(
    g: Float[Tensor, " h"], length: int, *, scale: float = 1.0, causal: bool = True
) -> Float[Tensor, "h l l"]:
    """Return scale e^(g |i - j|) for all pairs of tokens; if causal, 0 for j > i."""
    distances_back = torch.arange(length - 1, -1, -1, device=g.device)
    distance = (
        distances_back if causal else torch.cat((distances_back, distances_back[:-1].flip(0)))
    )
    row = (g[:, None] * distance).exp_()
    if scale != 1:
        row *= scale
    if causal:
        row = F.pad(row, (0, length - 1))
    return row.unfold(1, length, 1).flip(1)  # row i begins i entries before row 0


def _exponents(g: Float[Tensor, "m c"]) -> Float[Tensor, "m c c"]:
    """Return the sum g_(j+1) + ... + g_i for tokens i and j <= i; -inf above the diagonal."""
    size = g.shape[1]
    ones = torch.ones(size, size, dtype=torch.bool, device=g.device)
    between = g[:, :, None].expand(-1, -1, size)
    sums = between.masked_fill(~ones.tril(-1), 0).cumsum(1)
    return sums.masked_fill_(ones.triu(1), -torch.inf)


def _decay_factors(g: Float[Tensor, "m c"]) -> Float[Tensor, "m c c"]:
    """Return exp(g_(j+1) + ... + g_i) for tokens i and j <= i, and 0 above the diagonal.

    For tokens of different blocks, this is a product of three factors: from j to its block's end,
    between the blocks, and from the start of i's block to i. So few exponentials are computed.
    """
    chunks, length = g.shape
    if length <= 2 * SCALAR_BASE:
        return _exponents(g).exp_()
    missing = -length % SCALAR_BASE
    blocks = (F.pad(g, (0, missing)) if missing else g).reshape(-1, SCALAR_BASE)
    in_block = _exponents(blocks)
    from_block_start = (
        (in_block[:, :, 0] + blocks[:, :1]).exp_().view(chunks, -1, SCALAR_BASE, 1, 1)
    )
    to_block_end = in_block[:, -1].exp().view(chunks, 1, 1, -1, SCALAR_BASE)
    count = from_block_start.shape[1]
    between_blocks = F.pad(
        _exponents(blocks.sum(1).view(chunks, count))[:, :-1].exp_(), (0, 0, 1, 0)
    )
    table = (from_block_start * between_blocks.view(chunks, count, 1, count, 1)) * to_block_end
    table = table.view(chunks, length + missing, -1)
    _blocks(table, SCALAR_BASE).copy_(in_block.exp_().view(chunks, count, SCALAR_BASE, SCALAR_BASE))
    return table[:, :length, :length]


class _Scalar:
    """One decay for all channels: a table of factors for all pairs of a chunk."""

    def __init__(self, g: Float[Tensor, "m c"]) -> None:
        self.table = _decay_factors(g)
        self.from_start = (self.table[:, :, 0] * g[:, :1].exp())[..., None]  # with token 0
        self.to_end = self.table[:, -1, :, None]

    def weights(
        self, x: Float[Tensor, "m c k"], y: Float[Tensor, "m c k"]
    ) -> Float[Tensor, "m c c"]:
        """Return W: x_i y_j times the decay from token j to token i, and 0 for j > i."""
        return self._decay(torch.bmm(x, y.mT))

    def pull(
        self,
        tables: Sequence[Sequence[WeighedPairs]],
        readers: Sequence[Operand],
        writers: Sequence[Operand],
        across: Float[Tensor, "m k"] | None,
    ) -> tuple[list[Float[Tensor, "m c k"]], list[Float[Tensor, "m c k"]], Tensor | None]:
        """Return the gradients of each x, each y and g (None without `across`); see `Decays`."""
        dg = None
        if across is not None:
            dg = _sum_outside(readers, writers).add_(across.sum(-1, keepdim=True))
        dx, dy = ([side.gradient for side in sides] for sides in (readers, writers))
        for i, row in enumerate(tables):
            for j, (weights, gradient) in enumerate(row):
                inner = self._decay(gradient if dg is None else gradient.clone())  # in place
                add_product(dx[i], inner, writers[j].tokens)
                add_product(dy[j], inner.mT, readers[i].tokens)
                if dg is not None:
                    dg += crossing_sums(torch.mul(gradient, weights, out=inner))
        return dx, dy, dg

    def _decay(self, products: Float[Tensor, "m c c"]) -> Float[Tensor, "m c c"]:
        """Multiply the products of all pairs by their decays, in place."""
        return products.mul_(self.table)


class Constant(_Scalar):
    """One decay for all tokens of a head, and so one table of factors for all chunks.

    Args:
        g: Logarithm of the decay of each head, finite.
        chunks: (b, h, n): n chunks in each of b sequences with h heads.
        length: Number of tokens of a chunk.
    """

    def __init__(self, g: Float[Tensor, " h"], chunks: tuple[int, int, int], length: int) -> None:
        self.chunks = chunks
        table = constant_decays(g, length)
        from_start = table[:, :, 0] * g[:, None].exp()  # token 0 decays the state, too
        self.table = table[:, None]
        self.from_start, self.to_end = (
            factor[:, None, :, None].expand(*chunks, length, 1).reshape(-1, length, 1)
            for factor in (from_start, table[:, -1])
        )

    def _decay(self, products: Float[Tensor, "m c c"]) -> Float[Tensor, "m c c"]:
        shape = products.shape
        return products.view(*self.chunks, *shape[1:]).mul_(self.table).view(shape)


class _Halves(NamedTuple):
    """Decays between the halves of blocks of 2 s tokens, p blocks in all chunks together."""

    second: Float[Tensor, "p s k"]
    """e^L, the decay from the middle to each token of the second half."""
    first: Float[Tensor, "p s k"]
    """e^R, the decay from each token of the first half to the middle."""


class VectorDecays:
    """A decay for each channel: chunks are halved again and again."""

    def __init__(self, g: Float[Tensor, "m c k"]) -> None:
        """Sum g within blocks of `BASE` tokens, then double the blocks up to a whole chunk."""
        chunks, self.length, width = g.shape
        self.size = 1 << (self.length - 1).bit_length()
        g = self._padded(g)
        base = min(BASE, self.size)
        blocks = g.reshape(-1, base, width)
        self.base = blocks.new_zeros(len(blocks), base, base, width)
        self.base.diagonal(dim1=1, dim2=2).fill_(1)
        from_start, to_end = blocks.clone(), torch.zeros_like(blocks)
        for token in range(1, base):
            from_start[:, token] += from_start[:, token - 1]
            to_end[:, :token] += blocks[:, token : token + 1]
            self.base[:, token, :token] = to_end[:, :token].exp()
        self.levels: list[_Halves] = []
        half = base
        while half < self.size:  # two neighbouring blocks become the halves of one
            lefts, rights = (part.view(-1, 2, half, width) for part in (from_start, to_end))
            self.levels.append(_Halves(lefts[:, 1].exp(), rights[:, 0].exp()))
            totals = lefts[:, :, -1:]
            from_start = torch.stack((lefts[:, 0], lefts[:, 1] + totals[:, 0]), 1)
            to_end = torch.stack((rights[:, 0] + totals[:, 1], rights[:, 1]), 1)
            half *= 2
        from_start, to_end = (part.view(chunks, self.size, width) for part in (from_start, to_end))
        self.from_start = from_start[:, : self.length].exp()
        self.to_end = to_end[:, : self.length].exp()

    def _padded(self, x: Float[Tensor, "m c k"]) -> Float[Tensor, "m s k"]:
        """Pad the length with zeros to a power of two."""
        missing = self.size - self.length
        return F.pad(x, (0, 0, 0, missing)) if missing else x

    def _decayed_halves(
        self, level: _Halves, x: Float[Tensor, "m s k"], y: Float[Tensor, "m s k"]
    ) -> tuple[Float[Tensor, "p s2 k"], Float[Tensor, "p s2 k"]]:
        """Return x e^L of the second halves and y e^R of the first halves, for one level."""
        shape = (-1, 2, *level.first.shape[1:])
        return x.view(shape)[:, 1] * level.second, y.view(shape)[:, 0] * level.first

    def weights(
        self, x: Float[Tensor, "m c k"], y: Float[Tensor, "m c k"]
    ) -> Float[Tensor, "m c c"]:
        """Return W: blocks of `BASE` tokens directly, then the pairs of halves, level by level."""
        x, y = self._padded(x).contiguous(), self._padded(y).contiguous()
        table = x.new_zeros(len(x), self.size, self.size)
        shape = (-1, *self.base.shape[2:])
        block_weights = (x.view(shape)[:, :, None] * self.base).mul_(y.view(shape)[:, None]).sum(-1)
        _blocks(table, block_weights.shape[1]).copy_(
            block_weights.view(len(x), -1, *block_weights.shape[1:])
        )
        for level in self.levels:
            second, first = self._decayed_halves(level, x, y)
            half = first.shape[1]
            corner = torch.bmm(second, first.mT).view(len(x), -1, half, half)
            _blocks(table, 2 * half)[:, :, half:, :half].copy_(corner)
        return table[:, : self.length, : self.length]

    def spread(
        self, table: Float[Tensor, "m c c"], y: Float[Tensor, "m c k"]
    ) -> Float[Tensor, "m c k"]:
        """Return sum_(j <= i) table_ij y_j at token i, decayed by channel from token j to i."""
        missing = self.size - self.length
        table = F.pad(table, (0, missing, 0, missing)) if missing else table
        y, base = self._padded(y).contiguous(), self.base.shape[1]
        inside = _blocks(table, base).flatten(0, 1)[..., None] * self.base
        sums = inside.mul_(y.view(-1, 1, *self.base.shape[2:])).sum(2).view_as(y)
        for level in self.levels:
            _, first = self._decayed_halves(level, y, y)
            half = first.shape[1]
            corner = _blocks(table, 2 * half)[:, :, half:, :half].flatten(0, 1)
            to_second = torch.bmm(corner, first)
            sums.view(-1, 2, *first.shape[1:])[:, 1].addcmul_(to_second, level.second)
        return sums[:, : self.length]

    def pull(
        self,
        tables: Sequence[Sequence[WeighedPairs]],
        readers: Sequence[Operand],
        writers: Sequence[Operand],
        across: Float[Tensor, "m k"] | None,
    ) -> tuple[list[Float[Tensor, "m c k"]], list[Float[Tensor, "m c k"]], Tensor | None]:
        """Return the gradients of each x, each y and g (None without `across`); see `Decays`."""
        sides = (readers, writers)
        x, y = ([self._padded(operand.tokens).contiguous() for operand in side] for side in sides)
        dx, dy = ([self._padded(operand.gradient) for operand in side] for side in sides)
        missing, base = self.size - self.length, self.base.shape[1]
        pairs = [
            (i, j, F.pad(dtable, (0, missing, 0, missing)) if missing else dtable)
            for i, row in enumerate(tables)
            for j, (_, dtable) in enumerate(row)
        ]
        dg, half = across, self.size
        for level in (*reversed(self.levels), *[None] * (base.bit_length() - 1)):
            half //= 2
            cut = (-1, 2, half, self.base.shape[3])
            if dg is not None:  # dx and dy so far come from pairs with tokens outside the block
                crossed = torch.stack((_sum_half(x, dx, cut, 1), _sum_half(y, dy, cut, 0)), 1)
                dg = (crossed + dg[:, None]).flatten(0, 1)
            if level is None:  # inside the smallest blocks, pairs are added below
                continue
            for i, j, gradient in pairs:
                second, first = self._decayed_halves(level, x[i], y[j])
                corner = _blocks(gradient, 2 * half)[:, :, half:, :half].flatten(0, 1)
                dx[i].view(cut)[:, 1].addcmul_(torch.bmm(corner, first), level.second)
                dy[j].view(cut)[:, 0].addcmul_(torch.bmm(corner.mT, second), level.first)
        shape = (-1, *self.base.shape[2:])
        if dg is not None:
            whole = (-1, 1, 1, shape[2])
            dg = (dg + _sum_half(x, dx, whole, 0)).view(shape)
        for i, j, gradient in pairs:
            block_gradient = _blocks(gradient, base).flatten(0, 1)[..., None] * self.base
            reader, writer = x[i].view(shape), y[j].view(shape)
            reader_gradient = block_gradient * writer[:, None]
            dx[i].view(shape).add_(reader_gradient.sum(2))
            dy[j].view(shape).add_(block_gradient.mul_(reader[:, :, None]).sum(1))
            if dg is None:
                continue
            for token in range(1, base):
                earlier = torch.zeros_like(reader[:, token])
                for between in range(1, token + 1):
                    earlier.add_(reader_gradient[:, token, between - 1])
                    dg[:, between].addcmul_(reader[:, token], earlier)
        dx, dy = ([padded[:, : self.length] for padded in side] for side in (dx, dy))
        return dx, dy, None if dg is None else dg.view_as(x[0])[:, : self.length]


def crossing_sums(table: Float[Tensor, "*m r s"], first: int = 0) -> Float[Tensor, "*m s"]:
    """Return, for each token t, the sum of `table` over pairs of tokens i >= t > j.

    Row 0 of the table is token i = `first`, and column 0 is token j = 0.
    """
    # Sums over j < t, for rows i >= t; then those over the columns before `first`.
    crossing = table[..., first:].cumsum(-1).tril_(-1).sum(-2)
    crossing = F.pad(crossing[..., :-1], (1, 0))
    if not first:
        return crossing
    earlier, rows = table[..., :first], table.shape[-2]
    crossing[..., :rows] += earlier.sum(-1).flip(-1).cumsum(-1).flip(-1)
    before = earlier[..., :-1].sum(-2).cumsum(-1)
    return torch.cat((F.pad(before, (1, 0)), crossing), -1)


def _sum_outside(readers: Sequence[Operand], writers: Sequence[Operand]) -> Float[Tensor, "m c"]:
    """Return, for each token, the sum of x dx of readers from it on and of y dy before it."""
    read, written = (
        torch.stack([(operand.tokens * operand.gradient).sum(-1) for operand in side]).sum(0)
        for side in (readers, writers)
    )
    return read.flip(1).cumsum(1).flip(1) + F.pad(written[:, :-1].cumsum(1), (1, 0))


def _sum_half(
    tokens: list[Tensor], gradients: list[Tensor], cut: tuple[int, ...], half: int
) -> Float[Tensor, "p k"]:
    """Return the sums of tokens times gradients over one half of each block, by channel."""
    halves = zip(tokens, gradients, strict=True)
    return torch.stack(
        [(x.view(cut)[:, half] * dx.view(cut)[:, half]).sum(1) for x, dx in halves]
    ).sum(0)


def _blocks(table: Float[Tensor, "m c c"], size: int) -> Float[Tensor, "m n size size"]:
    """Return the square blocks on the diagonal of each table, as a view."""
    number = table.shape[1] // size
    cut = table.view(len(table), number, size, number, size)
    return cut.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
