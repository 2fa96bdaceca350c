"""The causal form of attention by features: a sum over the past, in chunks.

o_i = phi(q_i) S_i / phi(q_i) z_i with S_i = sum_{j <= i} phi(k_j) v_j^T and z_i likewise. Within a
chunk of C rows the weights are formed directly, tril(phi(Q) phi(K)^T); everything before the chunk
enters through the sums [S z]. Cost per row and head: 2 C (m + d) + 4 m d operations forward, with m
features. Nothing of size (length x m x d) is formed, and features are recomputed in backward.

Exponential features carry the logarithm a_j of a factor per key (see `feature_product`). Row i
refers all its weights to the running maximum r_i = max_{j <= i} a_j: inside a chunk through
exp(a_j - r_i) <= 1 for every pair, before it by rescaling the sums. A later key, however large,
therefore changes no bit of the earlier rows' weights, and nothing underflows that is not
negligible next to the largest key seen so far. Where that leaves a row (almost) nothing, and with a
memory, `exponent_sums` computes the same with a reference for each feature.
"""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra.models.device_kind import device_kind
from lra.models.kernels.door import door
from lra.models.ops.chunks import scan, spans, write_rows
from lra.models.ops.linear.exponent_sums import faint, mean_of_past
from lra.models.ops.linear.feature_product import augment, output_gradient
from lra.models.ops.linear.features import CPU_BLOCK, FeatureMaps, block_rows
from lra.models.ops.numerics import full_precision, sum_dtype, without_padding

SMALL = 2**16
"""Features of a sequence, of all heads, that a CPU works on in one block: at twice as many it takes
as long in four, which need half the memory."""


class Memory(NamedTuple):
    """The sums over earlier keys; all zeros before the first key."""

    sums: Float[Tensor, "b h m w"]
    """[S z], each key weighted by exp(its logarithm - level)."""
    level: Float[Tensor, "b h"] | Float[Tensor, "b h m"]
    """Largest logarithm so far, of each feature that is an exponential; 0 for those without."""


def empty_memory(shape: tuple[int, ...], maps: FeatureMaps, like: Tensor) -> Memory:
    """Return the sums of no keys for shape = (b, h, memory, k, v); `memory` has no effect."""
    dtype, by_feature = sum_dtype(like), (*shape[:2], maps.width)
    return Memory(
        like.new_zeros((*by_feature, shape[4] + 1), dtype=dtype),
        like.new_zeros(by_feature if maps.exponentials else shape[:2], dtype=dtype),
    )


class _Levels(NamedTuple):
    """Weights relative to running maxima, for features that carry a logarithm."""

    pair: Float[Tensor, "bhn c c"]
    """exp(a_j - r_i) for row i, key j of one chunk; at most 1, meaningless above the diagonal."""
    past: Float[Tensor, "bhn c 1"]
    """exp(maximum before the chunk - r_i)."""
    key: Float[Tensor, "bhn c 1"]
    """exp(a_j - maximum at the chunk's end)."""
    decay: Float[Tensor, "b h n 1 1"]
    """exp(maximum before the chunk - maximum at its end)."""
    last: Float[Tensor, "b h"]


def _relative_weights(
    log: Float[Tensor, "b h n c"], keep: Bool[Tensor, "b n c"] | None, memory: Memory
) -> _Levels:
    """Return the weights of keys relative to running maxima of their logarithms `log`, by chunk."""
    # A memory with keys has sums above 0, because the largest feature of the largest key is 1.
    has_keys = memory.sums[..., -1].abs().amax(-1) > 0
    before = memory.level.masked_fill(~has_keys, -torch.inf)[..., None]
    if keep is not None:
        log = log.masked_fill(~keep[:, None], -torch.inf)
    running = torch.maximum(log.flatten(2).cummax(-1).values, before).view(*log.shape)
    level = running.masked_fill(running == -torch.inf, 0)
    start = torch.cat((before, running[..., :-1, -1]), dim=-1)
    return _Levels(
        pair=(log[..., None, :] - level[..., None]).clamp_(max=0).exp_().flatten(0, 2),
        past=torch.exp(start[..., None] - level)[..., None].flatten(0, 2),
        key=torch.exp(log - level[..., -1:])[..., None].flatten(0, 2),
        decay=torch.exp(start - level[..., -1])[..., None, None],
        last=level[..., -1, -1],
    )


class _Rows(NamedTuple):
    """Queries, keys and values of some rows of the sequence."""

    q: Float[Tensor, "b h r k"]
    k: Float[Tensor, "b h r k"]
    v: Float[Tensor, "b h r v"]
    keep: Bool[Tensor, "b r"] | None

    def select(self, rows: slice) -> "_Rows":
        """Return the rows in the slice `rows`."""
        if rows == slice(0, self.q.shape[2]):
            return self
        keep = None if self.keep is None else self.keep[:, rows]
        return _Rows(self.q[:, :, rows], self.k[:, :, rows], self.v[:, :, rows], keep)


def _cut_blocks(
    q: Float[Tensor, "b h l k"], maps: FeatureMaps, chunk: int
) -> list[tuple[slice, int]]:
    """Return slice and chunk size of each block; a short sequence is one block, to save calls."""
    largest = SMALL if device_kind(q.device) == "cpu" else CPU_BLOCK
    uncut = math.prod(q.shape[:3]) * maps.width <= largest
    return spans(q.shape[2], chunk, block_rows(q, maps.width), uncut=uncut)


class _Block(NamedTuple):
    """The tensors of one block that forward and backward use: n chunks of c rows per sequence.

    All chunks of all sequences lie one after another along the first axis of a batched product.
    """

    q: Float[Tensor, "b h n c k"]
    k: Float[Tensor, "b h n c k"]
    phi_q: Float[Tensor, "bhn c m"]
    phi_k: Float[Tensor, "bhn c m"]
    values: Float[Tensor, "bhn c w"]
    """[v 1], zero for padding."""
    carried: Float[Tensor, "bhn c w"]
    """`values`, weighted as they enter the sums."""
    mask: Float[Tensor, "bhn c 1"] | None
    scores: Float[Tensor, "bhn c c"]
    states: Float[Tensor, "bhn m w"]
    """[S z] before each chunk."""
    levels: _Levels | None
    memory: Memory
    """After the block."""


def _make_block(rows: _Rows, memory: Memory, maps: FeatureMaps, chunk: int) -> _Block:
    """Compute the features, scores and states of the chunks in `rows`, after `memory`."""
    dtype = memory.sums.dtype
    b, h, _, width = rows.v.shape
    layout = (b, h, -1, chunk)
    # Contiguous, so that the products below need no copies.
    q, k = (
        x.view(*layout, x.shape[3]).to(dtype, memory_format=torch.contiguous_format)
        for x in rows[:2]
    )
    phi_q = maps.query(q)[0].flatten(0, 2)
    features, log = maps.key(k)
    phi_k = features.flatten(0, 2)
    values = augment(rows.v.view(*layout, width), 1.0, dtype).flatten(0, 2)
    keep = mask = None
    if rows.keep is not None:
        keep = rows.keep.view(b, -1, chunk)
        mask = keep[:, None, ..., None].to(dtype).expand(-1, h, -1, -1, -1).flatten(0, 2)
        values *= mask
    scores = torch.bmm(phi_q, phi_k.mT)
    levels, carried, last = None, values, memory.level
    if log is not None:
        levels = _relative_weights(log, keep, memory)
        scores *= levels.pair
        carried, last = values * levels.key, levels.last
    gained = torch.bmm(phi_k.mT, carried).view(b, h, -1, *memory.sums.shape[2:])
    states, sums = scan(memory.sums, gained, None if levels is None else levels.decay)
    return _Block(
        q, k, phi_q, phi_k, values, carried, mask, scores.tril_(),
        states.flatten(0, 2), levels, Memory(sums, last),
    )  # fmt: skip


class _CausalProduct(torch.autograd.Function):
    """`apply(q, k, v, keep, sums, level, maps, chunk)` of `causal_product`, block by block."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd functions take positions only)
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keep: Tensor | None,
        sums: Tensor,
        level: Tensor,
        maps: FeatureMaps,
        chunk: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return outputs, last sums and level, and 1 / sums of weights, block by block."""
        o = torch.empty_like(v)
        inverse = v.new_ones(v.shape[:3], dtype=sums.dtype)
        all_rows, memory = _Rows(q, k, v, keep), Memory(sums, level)
        memories: list[Tensor] = []
        with full_precision(q):
            for rows, size in _cut_blocks(q, maps, chunk):
                memories.extend(memory)  # += does not compile before PyTorch 2.13
                block = _make_block(all_rows.select(rows), memory, maps.at_rows(rows), size)
                total = torch.bmm(block.phi_q, block.states)
                if block.levels is not None:
                    total *= block.levels.past
                total.baddbmm_(block.scores, block.values)
                total = total.view(*v.shape[:2], -1, total.shape[-1])
                part = total[..., :-1]
                if maps.normalise:
                    factor = maps.reciprocal(total[..., -1])
                    part = part * factor[..., None]
                    inverse = write_rows(inverse, rows, factor)
                o = write_rows(o, rows, part)
                memory = block.memory
        ctx.maps, ctx.chunk = maps, chunk
        ctx.save_for_backward(q, k, v, keep, o, inverse, *memories)
        ctx.set_materialize_grads(False)
        # The level gets no gradient, because the result does not depend on this reference.
        final = Memory(memory.sums.clone(), memory.level.clone())
        ctx.mark_non_differentiable(final.level, inverse)
        return o, *final, inverse

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: Tensor | None, dsums: Tensor | None, *_: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k, v and the first sums, from the last block on."""
        q, k, v, keep, o, inverse, *memories = ctx.saved_tensors
        maps: FeatureMaps = ctx.maps
        if gradient is None:
            gradient = torch.zeros_like(o)
        if dsums is None:
            dsums = torch.zeros_like(memories[0])
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        all_rows = _Rows(q, k, v, keep)
        cuts = _cut_blocks(q, maps, ctx.chunk)
        with full_precision(q):
            for index in reversed(range(len(cuts))):
                rows, size = cuts[index]
                block_maps = maps.at_rows(rows)
                memory = Memory(*memories[2 * index : 2 * index + 2])  # saved before the block
                block = _make_block(all_rows.select(rows), memory, block_maps, size)
                g = output_gradient(gradient[:, :, rows], o[:, :, rows], inverse[:, :, rows], maps)
                parts = _pull_block(block, g.view(-1, size, g.shape[-1]), dsums, block_maps)
                dq, dk, dv = (
                    write_rows(target, rows, part.view(*q.shape[:2], -1, part.shape[-1]))
                    for target, part in zip((dq, dk, dv), parts[:3], strict=True)
                )
                dsums = parts[3]
        return dq, dk, dv, None, dsums, None, None, None


def _pull_block(
    block: _Block, g: Float[Tensor, "bhn c w"], dsums: Float[Tensor, "b h m w"], maps: FeatureMaps
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v and the first sums, from that of [numerator denominator]."""
    levels = block.levels
    dscores = torch.bmm(g, block.values.mT)
    past = g
    if levels is not None:
        dscores *= levels.pair
        past = g * levels.past
    dscores.tril_()
    dstates = torch.bmm(block.phi_q.mT, past).view(*dsums.shape[:2], -1, *dsums.shape[2:])
    decay = None if levels is None else levels.decay
    later, dsums = scan(dsums, dstates, decay, backwards=True)
    dgained = later.flatten(0, 2)

    dphi_q = torch.bmm(past, block.states.mT).baddbmm_(dscores, block.phi_k)
    dphi_k = torch.bmm(block.carried, dgained.mT).baddbmm_(dscores.mT, block.phi_q)
    dv = torch.bmm(block.phi_k, dgained[..., :-1])
    if levels is not None:
        dv *= levels.key
    dv.baddbmm_(block.scores.mT, g[..., :-1])
    if block.mask is not None:
        dv *= block.mask
    shape = (*block.q.shape[:-1], maps.width)
    dq = maps.query.pull(dphi_q.view(shape), block.phi_q.view(shape), block.q)
    dk = maps.key.pull(dphi_k.view(shape), block.phi_k.view(shape), block.k)
    return dq, dk, dv, dsums


@door
def causal_product(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    maps: FeatureMaps,
    *,
    chunk: int,
    keep: Bool[Tensor, "b l"] | None = None,
    memory: Memory | None = None,
    blank: bool = False,
) -> tuple[Float[Tensor, "b h l v"], Memory | None]:
    """Return o_i = phi(q_i) S_i / phi(q_i) z_i, where the sums run over real keys up to row i.

    Also return the sums after the last key, or None without `memory`. You can cut a sequence into
    several calls, each with the memory of the call before; the result is the same. `maps` has phi,
    `chunk` is the number of rows per chunk, and `keep` and `blank` are as in `feature_product`.
    """
    start = memory or empty_memory((*v.shape[:2], 0, q.shape[-1], v.shape[-1]), maps, v)
    if not blank:
        k, v = without_padding(k, keep), without_padding(v, keep)
    sides = maps.exponentials
    if sides and memory:
        o, *after = mean_of_past(q, k, v, keep, sides, **start._asdict())
        return o, Memory(*after)
    first_level = start.level[..., 0] if sides else start.level  # all 0: there is no memory here
    o, sums, level, inverse = _CausalProduct.apply(  # type: ignore[no-untyped-call]
        q, k, v, keep, start.sums, first_level, maps, min(chunk, q.shape[2])
    )
    has_key = None if keep is None else keep.cummax(1).values
    if sides and faint(inverse, has_key):  # a row has almost no weight: compute without loss
        o = mean_of_past(q, k, v, keep, sides, **start._asdict())[0]
    return o, Memory(sums, level) if memory else None
