"""How rows of queries and keys become blocks of a band.

All rows (one per example and head) lie one after another in a buffer, each followed by a gap of
at least one halo, the window rounded up to whole blocks. Cut into blocks of C queries, block b
then sees the C + halo (causal) or C + 2 halo rows around it, which is a strided view of the
buffer: nothing is gathered, and the matrix products of all examples, heads and blocks are one
batch. The gap holds zeros and is masked, as are the corners of each block outside the band.

With dilation D, queries see every D-th token alone: a row then becomes D rows, one per remainder of
the position by D, each with an ordinary band.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from lra.models.device_kind import device_kind
from lra.models.ops.numerics import NEVER, add_product, sum_dtype

PASS_ELEMENTS = {"cpu": 1 << 20}
"""Scores worked on at once, by kind of device: a few MB, so that they stay in the cache."""
PASS_ELEMENTS_ELSEWHERE = 1 << 24


class Fold(NamedTuple):
    """How rows become blocks. The last `length` of a row's `past + length` keys have queries.

    `window` and `behind` count steps of `dilation` tokens, which must divide `past`.
    """

    rows: int
    length: int
    past: int
    window: int
    block: int
    causal: bool
    dilation: int = 1
    behind: int | None = None
    """Window towards the past where it is smaller than `window`."""

    @property
    def halo(self) -> int:
        """The window in whole blocks."""
        return -(-self.window // self.block) * self.block

    @property
    def reaches(self) -> tuple[int, int]:
        """How many steps back and ahead a query attends to."""
        return (
            self.window if self.behind is None else self.behind,
            0 if self.causal else self.window,
        )

    @property
    def steps(self) -> int:
        """Number of queries of a row in the buffer: every `dilation`-th token of a sequence."""
        return -(-self.length // self.dilation)

    @property
    def first(self) -> int:
        """Slot at which a row's keys begin in the buffer."""
        return self.halo - self.past // self.dilation

    @property
    def stride(self) -> int:
        """Distance from row to row in the buffer."""
        return -(-(self.steps + self.halo) // self.block) * self.block

    @property
    def blocks(self) -> int:
        """Number of blocks in the buffer."""
        return self.rows * self.dilation * self.stride // self.block

    @property
    def reach(self) -> int:
        """Number of keys before a block."""
        return self.block + self.halo * (1 if self.causal else 2)

    def lay_out(self, x: Float[Tensor, "b h s k"], *, keys: bool) -> Float[Tensor, "n k"]:
        """Copy rows into a buffer: queries begin at the row's first slot, keys a halo later."""
        rows, width = self.rows * self.dilation, x.shape[-1]
        tail = self.reach - self.block if keys else 0
        buffer = x.new_empty(rows * self.stride + tail, width, dtype=sum_dtype(x))
        body = buffer[: rows * self.stride].view(*x.shape[:2], self.dilation, self.stride, width)
        self._write(body, x, self.first if keys else 0)
        buffer[rows * self.stride :] = 0
        return buffer

    def _write(
        self, body: Float[Tensor, "b h dilation stride k"], x: Float[Tensor, "b h s k"], first: int
    ) -> None:
        """Write the rows of `x` into `body` from the slot `first` on, and zeros elsewhere."""
        whole, rest = divmod(x.shape[2], self.dilation)
        behind = first + whole
        body[..., :first, :] = 0
        body[..., behind:, :] = 0
        if self.dilation == 1:
            body[:, :, 0, first:behind] = x
            return
        even = torch.unflatten(x[:, :, : whole * self.dilation], 2, (whole, self.dilation))
        body[..., first:behind, :] = even.transpose(2, 3)
        if rest:
            body[:, :, :rest, behind] = x[:, :, whole * self.dilation :]

    def queries(self, buffer: Float[Tensor, "n k"]) -> Float[Tensor, "m c k"]:
        """View a buffer of queries, block by block."""
        return buffer.view(self.blocks, self.block, buffer.shape[-1])

    def keys(self, buffer: Float[Tensor, "n k"]) -> Float[Tensor, "m w k"]:
        """View a buffer of keys by the window of each block; windows of neighbours overlap."""
        width = buffer.shape[-1]
        return buffer.as_strided((self.blocks, self.reach, width), (self.block * width, width, 1))

    def lift(
        self, buffer: Float[Tensor, "n k"], shape: torch.Size, *, keys: bool
    ) -> Float[Tensor, "b h s k"]:
        """Return rows of a buffer, for queries of `shape` = (b, h, l): the inverse of `lay_out`."""
        first, size = (self.first, self.past + self.length) if keys else (0, self.length)
        rows, width = self.rows * self.dilation, buffer.shape[-1]
        body = buffer[: rows * self.stride].view(*shape[:2], self.dilation, self.stride, width)
        if self.dilation == 1:
            return body[:, :, 0, first : first + size]
        whole, rest = divmod(size, self.dilation)
        # The heads of a token side by side: joining them later copies nothing.
        x = buffer.new_empty(shape[0], size, shape[1], width).transpose(1, 2)
        even = torch.unflatten(x[:, :, : size - rest], 2, (whole, self.dilation))
        even.copy_(body[..., first : first + whole, :].transpose(2, 3))
        if rest:
            x[:, :, size - rest :] = body[:, :, :rest, first + whole]
        return x

    def add_to_keys(
        self,
        buffer: Float[Tensor, "n k"],
        part: slice,
        weights: Float[Tensor, "m c w"],
        x: Float[Tensor, "m c k"],
        scale: float,
    ) -> None:
        """Add `scale * weights^T x` to the keys that the blocks of `part` see.

        One block's width at a time: within such a step no two blocks meet the same key.
        """
        block = self.block
        for first in range(0, self.reach, block):
            target = buffer[part.start * block + first : part.stop * block + first]
            columns = weights[:, :, first : first + block]
            add_product(target.view(x.shape), columns.mT, x, scale)

    def band(self, like: Tensor, *, sloped: bool) -> Float[Tensor, "c w"]:
        """Return a mask that all blocks share: 0 inside the band and NEVER outside.

        If `sloped`, it has minus the distance in tokens inside the band.
        """
        distance = torch.arange(self.reach, device=like.device) - self.halo
        distance = distance - torch.arange(self.block, device=like.device)[:, None]
        past, future = self.reaches
        inside = (distance >= -past) & (distance <= future)
        bias = distance.abs() * -self.dilation if sloped else torch.zeros_like(distance)
        return bias.to(like.dtype).masked_fill_(~inside, NEVER)

    def gaps(
        self, keep: Bool[Tensor, "b s"] | None, like: Tensor, heads: int
    ) -> Float[Tensor, "m 1 w"]:
        """Return 0 where a key of a block is real, and NEVER where it is padding or a gap."""
        total = self.past + self.length
        shape = (self.rows // heads, heads, total, 1)
        if keep is None:
            real = like.new_ones(1).expand(shape)
        else:
            real = keep[:, None, :, None].to(like.dtype).expand(shape)
        return self.keys((1 - self.lay_out(real, keys=True)) * NEVER).mT

    def sees_any(self, keep: Bool[Tensor, "b s"]) -> Bool[Tensor, "b l"]:
        """Return which queries have a visible key in their band."""
        step = self.dilation
        padded = F.pad(keep, (0, -keep.shape[1] % step)).view(len(keep), -1, step)
        before = F.pad(padded.cumsum(1), (0, 0, 1, 0))
        total = padded.shape[1]
        position = torch.arange(self.past // step, total, device=keep.device)
        past, future = self.reaches
        first, behind = (position - past).clamp(min=0), (position + future + 1).clamp(max=total)
        return (before[:, behind] > before[:, first]).flatten(1, 2)[:, : self.length]

    def row(self, part: slice, device: torch.device) -> Int[Tensor, " m"]:
        """Return, for each block of `part`, the row of the buffer in which it lies."""
        return torch.arange(part.start, part.stop, device=device) * self.block // self.stride

    def query_positions(self, part: slice, device: torch.device) -> Int[Tensor, "m c"]:
        """Return the positions of the queries of `part` in their sequences."""
        start = torch.arange(part.start, part.stop, device=device)[:, None] * self.block
        step = start % self.stride + torch.arange(self.block, device=device)
        return step * self.dilation + self.row(part, device)[:, None] % self.dilation

    def passes(self, device: torch.device) -> Iterator[slice]:
        """Yield ranges of blocks of bounded size that cover every query.

        A row long enough to be a pass of its own leaves out its gap; short rows go together.
        """
        elements = PASS_ELEMENTS.get(device_kind(device), PASS_ELEMENTS_ELSEWHERE)
        size = self.block * self.reach
        rows, spacing, count = 1, 0, self.blocks
        needed = -(-self.steps // self.block)
        if needed * size >= elements // 8:
            rows, spacing, count = self.rows * self.dilation, self.stride // self.block, needed
        step = -(-count // max(1, round(count * size / elements)))
        for origin in range(0, rows * spacing, spacing) if spacing else (0,):
            for first in range(0, count, step):
                yield slice(origin + first, origin + min(first + step, count))
