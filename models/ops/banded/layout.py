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
        """Number of slots from the start of a row to the start of the next, in whole blocks."""
        return -(-(self.steps + self.halo) // self.block) * self.block

    @property
    def blocks(self) -> int:
        """Number of blocks in the buffer."""
        return self.rows * self.dilation * self.stride // self.block

    @property
    def reach(self) -> int:
        """Number of keys that a block reads: its own and one halo per side that is visible."""
        return self.block + self.halo * (1 if self.causal else 2)

    def lay_out(self, x: Float[Tensor, "b h s k"], *, keys: bool) -> Float[Tensor, "n k"]:
        """Copy the rows of `x` into a buffer of n slots, and return the buffer.

        Queries begin at the first slot of their row. Keys begin one halo later, so that the keys
        that a block reads start at the slot of its first query.
        """
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
        """Write the rows of `x` into `body` from the slot `first` on, and zeros elsewhere.

        With dilation D, token t of `x` goes to row t mod D and slot `first` + t // D.
        """
        whole, rest = divmod(x.shape[2], self.dilation)
        end = first + whole
        body[..., :first, :] = 0
        body[..., end:, :] = 0
        if self.dilation == 1:
            body[:, :, 0, first:end] = x
            return
        whole_steps = torch.unflatten(x[:, :, : whole * self.dilation], 2, (whole, self.dilation))
        body[..., first:end, :] = whole_steps.transpose(2, 3)
        if rest:
            body[:, :, :rest, end] = x[:, :, whole * self.dilation :]  # the last, shorter step

    def queries(self, buffer: Float[Tensor, "n k"]) -> Float[Tensor, "m c k"]:
        """View a buffer of queries as m blocks of c queries."""
        return buffer.view(self.blocks, self.block, buffer.shape[-1])

    def keys(self, buffer: Float[Tensor, "n k"]) -> Float[Tensor, "m w k"]:
        """View a buffer of keys as the w keys of each of m blocks; neighbours overlap."""
        width = buffer.shape[-1]
        return buffer.as_strided((self.blocks, self.reach, width), (self.block * width, width, 1))

    def lift(
        self, buffer: Float[Tensor, "n k"], shape: torch.Size, *, keys: bool
    ) -> Float[Tensor, "b h s k"]:
        """Copy or view the rows of `buffer` as a tensor (b, h, s, k): the inverse of `lay_out`.

        `shape` is (b, h, l) of the queries. s is l for queries, and `past` + l for keys.
        """
        first, size = (self.first, self.past + self.length) if keys else (0, self.length)
        rows, width = self.rows * self.dilation, buffer.shape[-1]
        buffer_rows = buffer[: rows * self.stride].view(
            *shape[:2], self.dilation, self.stride, width
        )
        if self.dilation == 1:
            return buffer_rows[:, :, 0, first : first + size]
        whole, rest = divmod(size, self.dilation)
        # Memory order (b, s, h, k): the heads of a token can be joined later without a copy.
        x = buffer.new_empty(shape[0], size, shape[1], width).transpose(1, 2)
        whole_steps = torch.unflatten(x[:, :, : size - rest], 2, (whole, self.dilation))
        whole_steps.copy_(buffer_rows[..., first : first + whole, :].transpose(2, 3))
        if rest:
            x[:, :, size - rest :] = buffer_rows[:, :, :rest, first + whole]
        return x

    def add_to_keys(
        self,
        buffer: Float[Tensor, "n k"],
        part: slice,
        weights: Float[Tensor, "m c w"],
        x: Float[Tensor, "m c k"],
        scale: float,
    ) -> None:
        """Add `scale * weights^T x` to the slots of the keys that the blocks in `part` read.

        Windows of neighbouring blocks overlap. Therefore keys are added in steps of one block: in
        each step, every block writes to different slots.
        """
        block = self.block
        for first in range(0, self.reach, block):
            target = buffer[part.start * block + first : part.stop * block + first]
            columns = weights[:, :, first : first + block]
            add_product(target.view(x.shape), columns.mT, x, scale)

    def band(self, like: Tensor, *, sloped: bool) -> Float[Tensor, "c w"]:
        """Return the mask that is added to the scores of every block: c queries by w keys.

        It is NEVER outside the band. Inside, it is 0, or minus the distance in tokens if `sloped`.
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
        """Return what is added to the scores of each block's keys, by block and key.

        It is 0 for real keys, and NEVER for padding (False in `keep`) and for gaps between rows.
        """
        total = self.past + self.length
        shape = (self.rows // heads, heads, total, 1)
        if keep is None:
            real = like.new_ones(1).expand(shape)
        else:
            real = keep[:, None, :, None].to(like.dtype).expand(shape)
        return self.keys((1 - self.lay_out(real, keys=True)) * NEVER).mT

    def sees_any(self, keep: Bool[Tensor, "b s"]) -> Bool[Tensor, "b l"]:
        """Return True for each query with at least one real key (True in `keep`) in its band.

        Real keys are counted by differences of cumulative sums.
        """
        step = self.dilation
        real = F.pad(keep, (0, -keep.shape[1] % step)).view(len(keep), -1, step)
        real_before = F.pad(real.cumsum(1), (0, 0, 1, 0))
        steps = real.shape[1]
        query_step = torch.arange(self.past // step, steps, device=keep.device)
        past, future = self.reaches
        first, end = (query_step - past).clamp(min=0), (query_step + future + 1).clamp(max=steps)
        return (real_before[:, end] > real_before[:, first]).flatten(1, 2)[:, : self.length]

    def row(self, part: slice, device: torch.device) -> Int[Tensor, " m"]:
        """Return, for each block of `part`, the row of the buffer in which it lies."""
        return torch.arange(part.start, part.stop, device=device) * self.block // self.stride

    def query_positions(self, part: slice, device: torch.device) -> Int[Tensor, "m c"]:
        """Return the positions of the queries of `part` in their sequences."""
        start = torch.arange(part.start, part.stop, device=device)[:, None] * self.block
        step = start % self.stride + torch.arange(self.block, device=device)
        return step * self.dilation + self.row(part, device)[:, None] % self.dilation

    def passes(self, device: torch.device) -> Iterator[slice]:
        """Yield slices of blocks that together cover every query, each with a bounded size.

        A long row is cut into several slices, which skip the gap after the row. Short rows share a
        slice.
        """
        largest_pass = PASS_ELEMENTS.get(device_kind(device), PASS_ELEMENTS_ELSEWHERE)
        scores_per_block = self.block * self.reach
        rows, blocks_per_row, blocks = 1, 0, self.blocks  # all rows are cut as one
        blocks_with_queries = -(-self.steps // self.block)
        if blocks_with_queries * scores_per_block >= largest_pass // 8:
            rows, blocks_per_row, blocks = (
                self.rows * self.dilation,
                self.stride // self.block,
                blocks_with_queries,
            )
        blocks_per_pass = -(-blocks // max(1, round(blocks * scores_per_block / largest_pass)))
        for row_start in (
            range(0, rows * blocks_per_row, blocks_per_row) if blocks_per_row else (0,)
        ):
            for first in range(0, blocks, blocks_per_pass):
                yield slice(row_start + first, row_start + min(first + blocks_per_pass, blocks))
