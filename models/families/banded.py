"""Softmax attention inside a band, block by block, with a hand-written gradient.

All rows (one per example and head) lie one after another in a buffer, each followed by a gap of
at least one halo, the window rounded up to whole blocks. Cut into blocks of C queries, block b
then sees the C + halo (causal) or C + 2 halo rows around it, which is a strided view of the
buffer: nothing is gathered, and the matrix products of all examples, heads and blocks are one
batch. It is worked off in passes of a size that fits into the cache. The gap holds zeros and is
masked, as are the corners of each block outside the band.

Weights are kept for the backward pass, (C + halo) or (C + 2 halo) per query and head. Computing
them again instead would save 40 % of the memory and cost 20 % more time.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from models.families.feature_product import full_precision

NEVER = -1e30
"""Score of what may not be seen: its weight is exactly 0, and a row of it alone has no NaN."""
PASS_ELEMENTS = {"cpu": 1 << 20}
"""Scores worked on at once, by kind of device: a few MB, so that they stay in the cache."""
PASS_ELEMENTS_ELSEWHERE = 1 << 24


def _add_product(
    target: Float[Tensor, "m i j"],
    a: Float[Tensor, "m i r"],
    b: Float[Tensor, "m r j"],
    scale: float,
) -> None:
    """Add `scale * a b`. Not spelt `baddbmm_`, which torch's counter of operations overlooks."""
    torch.baddbmm(target, a, b, alpha=scale, out=target)


class Fold(NamedTuple):
    """How rows become blocks. The last `length` of a row's `past + length` keys have queries."""

    rows: int
    length: int
    past: int
    window: int
    block: int
    causal: bool

    @property
    def halo(self) -> int:
        """The window in whole blocks."""
        return -(-self.window // self.block) * self.block

    @property
    def stride(self) -> int:
        """Distance from row to row in the buffer."""
        return -(-(self.length + self.halo) // self.block) * self.block

    @property
    def blocks(self) -> int:
        """Number of blocks in the buffer."""
        return self.rows * self.stride // self.block

    @property
    def reach(self) -> int:
        """Number of keys before a block."""
        return self.block + self.halo * (1 if self.causal else 2)

    def lay(self, x: Float[Tensor, "b h s k"], *, keys: bool) -> Float[Tensor, "n k"]:
        """Copy rows into a buffer: queries from the row's first place on, keys a halo later."""
        rows, stride, width = self.rows, self.stride, x.shape[-1]
        tail = self.reach - self.block if keys else 0
        first = self.halo - self.past if keys else 0
        behind = first + x.shape[2]
        precise = torch.promote_types(x.dtype, torch.float32)
        buffer = x.new_empty(rows * stride + tail, width, dtype=precise)
        body = buffer[: rows * stride].view(*x.shape[:2], stride, width)
        body[:, :, :first] = 0
        body[:, :, first:behind] = x
        body[:, :, behind:] = 0
        buffer[rows * stride :] = 0
        return buffer

    def queries(self, buffer: Float[Tensor, "n k"]) -> Float[Tensor, "m c k"]:
        """View a buffer of queries by block."""
        return buffer.view(self.blocks, self.block, buffer.shape[-1])

    def keys(self, buffer: Float[Tensor, "n k"]) -> Float[Tensor, "m w k"]:
        """View a buffer of keys by what each block sees; neighbours overlap."""
        width = buffer.shape[-1]
        return buffer.as_strided((self.blocks, self.reach, width), (self.block * width, width, 1))

    def lift(
        self, buffer: Float[Tensor, "n k"], shape: torch.Size, *, keys: bool
    ) -> Float[Tensor, "b h s k"]:
        """View the rows of a buffer, for queries of `shape` = (b, h, l): the inverse of `lay`."""
        first = self.halo - self.past if keys else 0
        behind = self.halo + self.length if keys else self.length
        body = buffer[: self.rows * self.stride].view(*shape[:2], self.stride, buffer.shape[-1])
        return body[:, :, first:behind]

    def spread(
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
            _add_product(target.view(x.shape), columns.mT, x, scale)

    def band(self, like: Tensor) -> Float[Tensor, "c w"]:
        """Return 0 inside the band and NEVER outside, the same for every block."""
        distance = torch.arange(self.reach, device=like.device) - self.halo
        distance = distance - torch.arange(self.block, device=like.device)[:, None]
        inside = (distance >= -self.window) & (distance <= (0 if self.causal else self.window))
        return like.new_zeros(inside.shape).masked_fill_(~inside, NEVER)

    def gaps(self, keep: Bool[Tensor, "b s"] | None, like: Tensor) -> Float[Tensor, "m 1 w"]:
        """Return 0 where a block's key is real and NEVER where it is padding or gap."""
        first = self.halo - self.past
        buffer = like.new_full((self.rows * self.stride + self.reach - self.block, 1), NEVER)
        body = buffer[: self.rows * self.stride].view(self.rows, self.stride)
        real = body[:, first : self.halo + self.length]
        if keep is None:
            real.zero_()
        else:
            # Rows run over the heads of an example first.
            real.view(keep.shape[0], -1, keep.shape[1]).masked_fill_(keep[:, None], 0)
        return self.keys(buffer).mT

    def passes(self, device: torch.device) -> Iterator[slice]:
        """Yield ranges of blocks of bounded size that cover every query.

        A row long enough to be a pass of its own leaves out its gap; short rows go together.
        """
        elements = PASS_ELEMENTS.get(device.type, PASS_ELEMENTS_ELSEWHERE)
        size = self.block * self.reach
        rows, spacing, count = 1, 0, self.blocks
        needed = -(-self.length // self.block)
        if needed * size >= elements // 8:
            rows, spacing, count = self.rows, self.stride // self.block, needed
        step = -(-count // max(1, round(count * size / elements)))
        for origin in range(0, rows * spacing, spacing) if spacing else (0,):
            for first in range(0, count, step):
                yield slice(origin + first, origin + min(first + step, count))


class BandedAttention(torch.autograd.Function):
    """`apply(q, k, v, keep, fold, dropout, remember)`; half precision is computed in float32."""

    @staticmethod
    def forward(  # noqa: PLR0917  autograd functions have no keywords
        ctx: Any,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        keep: Bool[Tensor, "b s"] | None,
        fold: Fold,
        dropout: float,
        remember: bool,
    ) -> Float[Tensor, "b h l v"]:
        """Attend. `remember`: whether a backward pass will come."""
        ctx.fold, ctx.dropout, ctx.scale = fold, dropout, q.shape[-1] ** -0.5
        ctx.dtypes = q.dtype, k.dtype, v.dtype
        with full_precision(q):
            buffers = fold.lay(q, keys=False), fold.lay(k, keys=True), fold.lay(v, keys=True)
            queries, keys, values = fold.queries(buffers[0]), *map(fold.keys, buffers[1:])
            band, gaps = fold.band(queries), fold.gaps(keep, queries)
            out = values.new_empty(*queries.shape[:2], v.shape[-1])
            kept: list[Tensor] = []
            for part in fold.passes(q.device):
                weights = band + gaps[part]
                _add_product(weights, queries[part], keys[part].mT, ctx.scale)
                torch.softmax(weights, -1, out=weights)
                if remember:
                    kept.append(weights)
                if dropout:
                    spared = torch.empty_like(weights, dtype=torch.bool).bernoulli_(1 - dropout)
                    weights = weights * spared * (1 / (1 - dropout))
                    if remember:
                        kept.append(spared)
                torch.bmm(weights, values[part], out=out[part])
        if remember:
            ctx.save_for_backward(*buffers, *kept)
        return fold.lift(out.flatten(0, 1), q.shape[:3], keys=False).to(v.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "b h l v"]) -> tuple[Tensor | None, ...]:
        """Return the gradients by q, k and v."""
        fold: Fold = ctx.fold
        q_buffer, k_buffer, v_buffer, *kept = ctx.saved_tensors
        queries, keys, values = fold.queries(q_buffer), fold.keys(k_buffer), fold.keys(v_buffer)
        dq, dk, dv = (
            torch.empty_like(q_buffer),
            torch.zeros_like(k_buffer),
            torch.zeros_like(v_buffer),
        )
        with full_precision(gradient):
            given = fold.queries(fold.lay(gradient, keys=False))
            weights_of = iter(kept)
            for part in fold.passes(gradient.device):
                weights, g = next(weights_of), given[part]
                scores = torch.bmm(g, values[part].mT)  # their gradient, in three steps
                used = weights
                if ctx.dropout:
                    factor = next(weights_of) * (1 / (1 - ctx.dropout))
                    used = weights * factor
                    scores *= factor
                scores *= weights
                scores.addcmul_(weights, scores.sum(-1, keepdim=True), value=-1)
                target = fold.queries(dq)[part]
                torch.baddbmm(target, scores, keys[part], beta=0, alpha=ctx.scale, out=target)
                fold.spread(dk, part, scores, queries[part], ctx.scale)
                fold.spread(dv, part, used, g, 1.0)
        shape = gradient.shape[:3]
        by_query = fold.lift(dq, shape, keys=False)
        by_key, by_value = (fold.lift(x, shape, keys=True) for x in (dk, dv))
        dtypes = ctx.dtypes
        gradients = (by_query.to(dtypes[0]), by_key.to(dtypes[1]), by_value.to(dtypes[2]))
        return *gradients, None, None, None, None
