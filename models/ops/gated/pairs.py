"""Weights between the tokens of one chunk, of which each has decayed since it was written.

    W_ij = sum_c x_ic y_jc exp(g_(j+1)c + ... + g_ic)    for j <= i, else 0

g <= 0 is a logarithm, one number for a token (scalar) or one for each channel (vector); -inf
forgets all. An exponent is a sum of the g between two tokens, added up where it is needed and never
a difference of two longer sums: such lose in float32 what small gates say behind strong ones, and
have no value at -inf. All are <= 0, so nothing overflows.

A scalar decay has one table of C x C for the chunk. A vector decay has none that fits: halving
makes W of products of matrices. Blocks of 4 on the diagonal are formed directly; then, for s = 4,
8, ..., C / 2, in each block of 2 s tokens its second half sees the first through its middle,

    W[second, first] = (x e^L) (y e^R)^T,

L being the sum of g from the middle up to and with a token, R that behind a token to the middle.

Cost       scalar: C exponentials and 2 C k operations a token; vector: (4 + log2(C / 2)) k
           exponentials and about the same operations, C rounded up to a power of two.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

BASE = 4
"""Tokens of a block that is formed directly; a power of two."""
SCALAR_BASE = 8
"""The same for scalar decays."""


@runtime_checkable
class Decays(Protocol):
    """What the decays of m chunks of c tokens make; j is 1 for scalar ones, else k."""

    from_start: Float[Tensor, "m c j"]
    """What is left, at each token, of what the chunk starts from."""
    to_end: Float[Tensor, "m c j"]
    """What is left at the chunk's end of what each token wrote."""

    def weights(
        self, x: Float[Tensor, "m c k"], y: Float[Tensor, "m c k"]
    ) -> Float[Tensor, "m c c"]:
        """Return W."""
        ...

    def pull(
        self, gradient: Float[Tensor, "m c c"], x: Float[Tensor, "m c k"], y: Float[Tensor, "m c k"]
    ) -> tuple[Float[Tensor, "m c k"], Float[Tensor, "m c k"]]:
        """Return the gradients of x and y, given that of W, which is read up to the diagonal."""
        ...


def decays(g: Float[Tensor, "m c"] | Float[Tensor, "m c k"]) -> Decays:
    """Return what scalar or vector decays of m chunks make."""
    return _Scalar(g) if g.ndim == 2 else _Vector(g)


def _exponents(g: Float[Tensor, "m c *k"]) -> Float[Tensor, "m c c *k"]:
    """Return g_(j+1) + ... + g_i for token i and j <= i, -inf above the diagonal."""
    size = g.shape[1]
    shape = (size, size, *(1 for _ in g.shape[2:]))
    ones = torch.ones(size, size, dtype=torch.bool, device=g.device)
    between = g[:, :, None].expand(-1, -1, size, *g.shape[2:])
    sums = between.masked_fill(~ones.tril(-1).view(shape), 0).cumsum(1)
    return sums.masked_fill_(ones.triu(1).view(shape), -torch.inf)


def _factors(g: Float[Tensor, "m c"]) -> Float[Tensor, "m c c"]:
    """Return exp of the sums of `_exponents`, 0 above the diagonal.

    Tokens of different blocks meet by way of the ends of their blocks: of three exponentials there
    is one each for tokens, one each for blocks, and only their products are as many as pairs.
    """
    chunks, length = g.shape
    if length <= 2 * SCALAR_BASE:
        return _exponents(g).exp_()
    behind = -length % SCALAR_BASE
    blocks = (F.pad(g, (0, behind)) if behind else g).reshape(-1, SCALAR_BASE)
    near = _exponents(blocks)
    left = (near[:, :, 0] + blocks[:, :1]).exp_().view(chunks, -1, SCALAR_BASE, 1, 1)
    right = near[:, -1].exp().view(chunks, 1, 1, -1, SCALAR_BASE)
    count = left.shape[1]
    between = F.pad(_exponents(blocks.sum(1).view(chunks, count))[:, :-1].exp_(), (0, 0, 1, 0))
    table = (left * between.view(chunks, count, 1, count, 1)) * right
    table = table.view(chunks, length + behind, -1)
    _blocks(table, SCALAR_BASE).copy_(near.exp_().view(chunks, count, SCALAR_BASE, SCALAR_BASE))
    return table[:, :length, :length]


class _Scalar:
    """One decay for all channels: a table of factors."""

    def __init__(self, g: Float[Tensor, "m c"]) -> None:
        self.table = _factors(g)
        self.from_start = (self.table[:, :, 0] * g[:, :1].exp())[..., None]
        self.to_end = self.table[:, -1, :, None]

    def weights(
        self, x: Float[Tensor, "m c k"], y: Float[Tensor, "m c k"]
    ) -> Float[Tensor, "m c c"]:
        return torch.bmm(x, y.mT).mul_(self.table)

    def pull(
        self, gradient: Float[Tensor, "m c c"], x: Float[Tensor, "m c k"], y: Float[Tensor, "m c k"]
    ) -> tuple[Float[Tensor, "m c k"], Float[Tensor, "m c k"]]:
        inner = gradient * self.table
        return torch.bmm(inner, y), torch.bmm(inner.mT, x)


class _Halves(NamedTuple):
    """Factors between the halves of blocks of 2 s tokens, p blocks in all chunks together."""

    second: Float[Tensor, "p s k"]
    """From the middle to tokens of the second half: e^L."""
    first: Float[Tensor, "p s k"]
    """From tokens of the first half to the middle: e^R."""


class _Vector:
    """A decay for each channel: halving."""

    def __init__(self, g: Float[Tensor, "m c k"]) -> None:
        chunks, self.length, width = g.shape
        self.size = 1 << (self.length - 1).bit_length()
        g = self._padded(g)
        base = min(BASE, self.size)
        blocks = g.reshape(-1, base, width)
        exponents = _exponents(blocks)
        left = exponents[:, :, 0] + blocks[:, :1]
        right = exponents[:, -1]
        self.base = exponents.exp()
        self.levels: list[_Halves] = []
        half = base
        while half < self.size:
            lefts, rights = (part.view(-1, 2, half, width) for part in (left, right))
            self.levels.append(_Halves(lefts[:, 1].exp(), rights[:, 0].exp()))
            totals = lefts[:, :, -1:]
            left = torch.stack((lefts[:, 0], lefts[:, 1] + totals[:, 0]), 1)
            right = torch.stack((rights[:, 0] + totals[:, 1], rights[:, 1]), 1)
            half *= 2
        left, right = (part.view(chunks, self.size, width) for part in (left, right))
        self.from_start = left[:, : self.length].exp()
        self.to_end = right[:, : self.length].exp()

    def _padded(self, x: Float[Tensor, "m c k"]) -> Float[Tensor, "m s k"]:
        """Put zeros behind the last token, up to a power of two."""
        behind = self.size - self.length
        return F.pad(x, (0, 0, 0, behind)) if behind else x

    def _sides(
        self, level: _Halves, x: Float[Tensor, "m s k"], y: Float[Tensor, "m s k"]
    ) -> tuple[Float[Tensor, "p s2 k"], Float[Tensor, "p s2 k"]]:
        """Return what the second halves of x and the first of y are in a level's product."""
        shape = (-1, 2, *level.first.shape[1:])
        return x.view(shape)[:, 1] * level.second, y.view(shape)[:, 0] * level.first

    def weights(
        self, x: Float[Tensor, "m c k"], y: Float[Tensor, "m c k"]
    ) -> Float[Tensor, "m c c"]:
        x, y = self._padded(x).contiguous(), self._padded(y).contiguous()
        table = x.new_zeros(len(x), self.size, self.size)
        shape = (-1, *self.base.shape[2:])
        near = (x.view(shape)[:, :, None] * self.base).mul_(y.view(shape)[:, None]).sum(-1)
        _blocks(table, near.shape[1]).copy_(near.view(len(x), -1, *near.shape[1:]))
        for level in self.levels:
            second, first = self._sides(level, x, y)
            half = first.shape[1]
            corner = torch.bmm(second, first.mT).view(len(x), -1, half, half)
            _blocks(table, 2 * half)[:, :, half:, :half].copy_(corner)
        return table[:, : self.length, : self.length]

    def pull(
        self, gradient: Float[Tensor, "m c c"], x: Float[Tensor, "m c k"], y: Float[Tensor, "m c k"]
    ) -> tuple[Float[Tensor, "m c k"], Float[Tensor, "m c k"]]:
        x, y = self._padded(x).contiguous(), self._padded(y).contiguous()
        behind = self.size - self.length
        if behind:
            gradient = F.pad(gradient, (0, behind, 0, behind))
        shape = (-1, *self.base.shape[2:])
        near = _blocks(gradient, self.base.shape[1]).flatten(0, 1)[..., None] * self.base
        dx = (near * y.view(shape)[:, None]).sum(2).view_as(x)
        dy = near.mul_(x.view(shape)[:, :, None]).sum(1).view_as(y)
        for level in self.levels:
            second, first = self._sides(level, x, y)
            half = first.shape[1]
            corner = _blocks(gradient, 2 * half)[:, :, half:, :half].flatten(0, 1)
            cut = (-1, 2, *first.shape[1:])
            dx.view(cut)[:, 1].addcmul_(torch.bmm(corner, first), level.second)
            dy.view(cut)[:, 0].addcmul_(torch.bmm(corner.mT, second), level.first)
        return dx[:, : self.length], dy[:, : self.length]


def _blocks(table: Float[Tensor, "m c c"], size: int) -> Float[Tensor, "m n size size"]:
    """Return the square blocks on the diagonal of each table, as a view."""
    number = table.shape[1] // size
    cut = table.view(len(table), number, size, number, size)
    return cut.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
