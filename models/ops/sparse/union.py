"""Softmax attention over a union of disjoint sets of keys, without n x n scores.

    o_i = sum_s exp(z_is - z_i) o_is,    z_i = log sum_s exp(z_is)

where o_is is attention inside set s alone and z_is the logarithm of its sum of weights. The sets
may not overlap: a key that is in two of them counts twice. `lra.models.ops.sparse.key_sets` has the
sets.

Scores are computed in passes that fit into the cache and are not stored; backward computes them
again. With z_i, the weights are exp(score - z_i), so that the sets are independent of each other.
Autograd saves q, k, v, o and one number per query; with dropout also one byte per score.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra.models.device_kind import device_kind
from lra.models.kernels.door import door
from lra.models.ops.numerics import LOG2_E, NEVER, add_product, full_precision
from lra.models.ops.sparse.key_sets import (
    PASS_ELEMENTS,
    PASS_ELEMENTS_ELSEWHERE,
    Coordinates,
    KeySet,
    Rectangles,
    Tile,
)


class _Buffers(NamedTuple):
    """One set of keys with the buffers of its queries, keys and values."""

    keyset: KeySet
    coordinates: Coordinates
    q: Tensor
    k: Tensor
    v: Tensor
    gaps: Float[Tensor, "m 1 w"] | None
    slopes: Float[Tensor, "m 1 1"] | None
    scale: float

    def scores(self, tile: Tile) -> Float[Tensor, "n c w"]:
        """Return the scores of a tile times log2(e); NEVER for hidden keys."""
        q, k = self.some_queries(self.q, tile), self.some_keys(self.k, tile)
        scores = q.new_empty(*q.shape[:2], k.shape[1])
        add_product(scores, q, k.mT, self.scale * LOG2_E, overwrite=True)
        if self.slopes is not None:
            distance = (
                self.coordinates.queries[tile.queries, None] - self.coordinates.keys[: tile.keys]
            )
            scores.addcmul_(self.slopes[tile.rectangles], distance.abs().to(q.dtype), value=-1)
        if tile.unclear.stop > tile.unclear.start:
            scores[..., tile.unclear] += self.keyset.mask(self.coordinates, tile)
        if self.gaps is not None:
            scores += self.gaps[tile.rectangles, :, : tile.keys]
        return scores

    def some_queries(self, buffer: Tensor, tile: Tile) -> Float[Tensor, "n c k"]:
        """View the rows of the tile's queries."""
        return self.keyset.queries(buffer)[tile.rectangles, tile.queries]

    def some_keys(self, buffer: Tensor, tile: Tile) -> Float[Tensor, "n w k"]:
        """View the rows of the tile's keys."""
        return self.keyset.keys(buffer)[tile.rectangles, : tile.keys]

    def tiles(self) -> Iterator[Tile]:
        """Yield tiles of a size that suits the device."""
        return self.keyset.tiles(
            PASS_ELEMENTS.get(device_kind(self.q.device), PASS_ELEMENTS_ELSEWHERE)
        )


def _fill_buffer(keyset: KeySet, x: Float[Tensor, "b h s k"], *, keys: bool) -> Tensor:
    """Return the buffer of a set with the tokens `x`, and zeros in empty slots."""
    precise = torch.promote_types(x.dtype, torch.float32)
    if isinstance(keyset, Rectangles) and keyset.classes == 1:  # one rectangle for each row
        return x.flatten(0, 1).to(precise)
    make = torch.zeros if keyset.padded else torch.empty
    buffer = make(keyset.buffer(x, keys=keys), dtype=precise, device=x.device)
    for tokens, slots in keyset.pairs(x, buffer, keys=keys):
        slots.copy_(tokens)
    return buffer


def _read_buffer(
    keyset: KeySet, buffer: Tensor, shape: torch.Size, *, keys: bool
) -> Float[Tensor, "b h s k"]:
    """Return the tokens of a set's buffer, shaped (b, h, s, ...), with s before h in memory."""
    b, h, length = shape[:3]
    if isinstance(keyset, Rectangles) and keyset.classes == 1:  # tokens lie in their order
        return buffer.view(b, h, length, -1)
    x = buffer.new_empty(b, length, h, buffer.shape[-1]).transpose(1, 2)
    for tokens, slots in keyset.pairs(x, buffer, keys=keys):
        tokens.copy_(slots)
    return x


def _fill_all(
    keyset: KeySet,
    qkv: tuple[Tensor, Tensor, Tensor],
    keep: Bool[Tensor, "b s"] | None,
    slopes: Float[Tensor, " h"] | None,
) -> _Buffers:
    """Return the buffers of a set for queries, keys and values, with masks and ALiBi's slopes."""
    q, k, v = _fill_buffer(keyset, qkv[0], keys=False), keyset.pick(qkv[1]), keyset.pick(qkv[2])
    gaps = None
    if keep is not None or keyset.padded:
        b, h, length = qkv[1].shape[:3]
        real = q.new_ones(1) if keep is None else keep[:, None, :, None].to(q.dtype)
        real_buffer = _fill_buffer(keyset, keyset.pick(real.expand(b, h, length, 1)), keys=True)
        gaps = keyset.keys((1 - real_buffer) * NEVER).mT  # hides padding and empty slots
    if slopes is not None:
        rectangles_per_row = keyset.queries(q).shape[0] // keyset.rows
        slopes = (
            slopes.to(q.dtype)
            .repeat(keyset.rows // len(slopes))
            .repeat_interleave(rectangles_per_row)
        )
        slopes = LOG2_E * slopes[:, None, None]
    coordinates, scale = keyset.coordinates(q.device), q.shape[-1] ** -0.5
    k, v = _fill_buffer(keyset, k, keys=True), _fill_buffer(keyset, v, keys=True)
    return _Buffers(keyset, coordinates, q, k, v, gaps, slopes, scale)


class UnionAttention(torch.autograd.Function):
    """`apply(q, k, v, keep, slopes, dropout, remember, sets)`; half precision is made float32."""

    @staticmethod
    def forward(  # noqa: PLR0917  autograd functions have no keywords
        ctx: Any,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        keep: Bool[Tensor, "b s"] | None,
        slopes: Float[Tensor, " h"] | None,
        dropout: float,
        remember: bool,
        sets: tuple[KeySet, ...],
    ) -> Float[Tensor, "b h l v"]:
        """Return softmax attention to the keys of all `sets`; `remember`: save for backward."""
        dropout_masks: list[Tensor] = []
        with full_precision(q):
            parts = [
                _attend_set(
                    _fill_all(keyset, (q, k, v), keep, slopes), q.shape, dropout, dropout_masks
                )
                for keyset in sets
            ]
            o, total = parts[0]  # means of values in the first set, and log2 of its weights' sum
            for _, log_sum in parts[1:]:
                total = torch.logaddexp2(total, log_sum)
            if keep is not None or any(keyset.least for keyset in sets):
                # Queries without a visible key get weights of exp2(-inf) = 0.
                total = total.masked_fill(total < NEVER / 2, torch.inf)
                o *= (parts[0][1] - total).exp2_()
            elif len(parts) > 1:
                o *= (parts[0][1] - total).exp2_()
            for means, log_sum in parts[1:]:
                o.addcmul_(means, (log_sum - total).exp2_())
            o = o.to(v.dtype)
        if remember:
            ctx.sets, ctx.dropout = sets, dropout
            ctx.save_for_backward(q, k, v, keep, slopes, o, total, *dropout_masks)
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "b h l v"]) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k and v."""
        q, k, v, keep, slopes, o, total, *dropout_masks = ctx.saved_tensors
        masks = iter(dropout_masks)
        with full_precision(gradient):
            gradient_dot_o = (gradient.to(total.dtype) * o).sum(-1, keepdim=True)
            numbers = torch.cat((total, gradient_dot_o), dim=-1)  # two numbers for each query
            sums: list[Tensor | None] = [None, None, None]
            for keyset in ctx.sets:
                data = _fill_all(keyset, (q, k, v), keep, slopes)
                dq, dk, dv = map(torch.zeros_like, (data.q, data.k, data.v))
                gradient_buffer = _fill_buffer(keyset, gradient, keys=False)
                numbers_buffer = _fill_buffer(keyset, numbers, keys=False)
                for tile in data.tiles():
                    g = data.some_queries(gradient_buffer, tile)
                    log_sum, dot = torch.split(data.some_queries(numbers_buffer, tile), 1, dim=-1)
                    weights = data.scores(tile).sub_(log_sum).exp2_()
                    dscores = torch.bmm(g, data.some_keys(data.v, tile).mT)
                    dropped_weights = weights
                    if ctx.dropout:
                        factor = next(masks) * (1 / (1 - ctx.dropout))
                        dropped_weights = weights * factor
                        dscores *= factor
                    dscores.sub_(dot).mul_(weights)
                    dq_part = torch.bmm(dscores, data.some_keys(data.k, tile))
                    torch.mul(dq_part, data.scale, out=data.some_queries(dq, tile))
                    keyset.add_to_keys(
                        dk, tile, dscores, data.some_queries(data.q, tile), data.scale
                    )
                    keyset.add_to_keys(dv, tile, dropped_weights, g, 1.0)
                for i, buffer in enumerate((dq, dk, dv)):
                    sums[i] = _collect(keyset, sums[i], buffer, (q, k, v)[i], keys=i > 0)
                del dq, dk, dv
        gradients = (cast(Tensor, x).to(y.dtype) for x, y in zip(sums, (q, k, v), strict=True))
        return *gradients, None, None, None, None, None


def _collect(
    keyset: KeySet, grown: Tensor | None, buffer: Tensor, like: Tensor, *, keys: bool
) -> Float[Tensor, "b h s k"]:
    """Return the gradient of `like`: that in `buffer`, plus the sum `grown` of earlier sets."""
    b, h, length, width = like.shape
    lacks_keys = keys and not keyset.has_every_key
    lifted = _read_buffer(
        keyset, buffer, keyset.pick(like).shape if keys else like.shape, keys=keys
    )
    if grown is None and not lacks_keys:
        return lifted
    if grown is None:
        grown = lifted.new_zeros(b, length, h, width).transpose(1, 2)
    if lacks_keys:
        keyset.give_back(grown, lifted)
        return grown
    return grown.add_(lifted)


def _attend_set(
    data: _Buffers, shape: torch.Size, dropout: float, dropout_masks: list[Tensor]
) -> tuple[Float[Tensor, "b h l v"], Float[Tensor, "b h l 1"]]:
    """Return o_is and z_is log2(e) of one set: means of values, and logarithms of sums."""
    keyset = data.keyset
    # With `least` above 0, some queries have no visible key and stay 0.
    make = data.q.new_zeros if keyset.least else data.q.new_empty
    out = make((*data.q.shape[:-1], data.v.shape[-1]))
    logs = data.q.new_full((*data.q.shape[:-1], 1), NEVER)
    for tile in data.tiles():
        weights = data.scores(tile)
        top = weights.amax(-1, keepdim=True)
        weights.sub_(top).exp2_()
        total = weights.sum(-1, keepdim=True)
        torch.add(top, total.log2(), out=data.some_queries(logs, tile))
        if dropout:
            mask = torch.empty_like(weights, dtype=torch.bool).bernoulli_(1 - dropout)
            dropout_masks.append(mask)
            weights *= mask
            total *= 1 - dropout
        mixed = torch.bmm(weights, data.some_keys(data.v, tile))
        torch.div(mixed, total, out=data.some_queries(out, tile))
    return _read_buffer(keyset, out, shape, keys=False), _read_buffer(
        keyset, logs, shape, keys=False
    )


@door
def union_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    *sets: KeySet,
    keep: Bool[Tensor, "b s"] | None = None,
    slopes: Float[Tensor, " h"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "b h l v"]:
    """Return softmax attention of each query to the keys of all sets together.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        sets: Sets of keys without a common key.
        keep: False for hidden keys; None: none. A query without a visible key returns 0.
        slopes: ALiBi's factor of each head, by which distances lower scores; None: no ALiBi.
        dropout: Probability that a weight is set to 0; the others are divided by 1 - dropout.
    """
    remember = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    o: Tensor = UnionAttention.apply(  # type: ignore[no-untyped-call]
        q, k, v, keep, slopes, dropout, remember, sets
    )
    return o
