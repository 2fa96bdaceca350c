"""The causal form of attention by features: a sum over the past, in chunks.

o_i = phi(q_i) S_i / phi(q_i) z_i with S_i = sum_{j <= i} phi(k_j) v_j^T and z_i likewise. Within a
chunk of C rows the weights are formed directly, tril(phi(Q) phi(K)^T); everything before the chunk
enters through the sums [S z]. Cost per row and head: 2 C (m + d) + 4 m d operations forward, with m
features. Nothing of size (length x m x d) is formed, and features are made anew in backward.

Exponential features carry the logarithm a_j of a factor per key (see `feature_product`). Row i
refers all its weights to the running maximum r_i = max_{j <= i} a_j: inside a chunk through
exp(a_j - r_i) <= 1 for every pair, before it by rescaling the sums. A later key, however large,
therefore changes no bit of the earlier rows' weights, and nothing underflows that is not
negligible beside the largest key seen so far.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from models.families.feature_product import (
    FeatureMaps,
    augment,
    block_rows,
    blocks,
    full_precision,
    output_gradient,
    reciprocal,
    sum_dtype,
)


class Memory(NamedTuple):
    """What the past leaves behind. All zeros: nothing seen yet."""

    sums: Float[Tensor, "b h m w"]
    """[S z], each key weighted by exp(its logarithm - level)."""
    level: Float[Tensor, "b h"]
    """Largest logarithm so far; 0 for features without one."""


def empty_memory(shape: tuple[int, ...], features: int, like: Tensor) -> Memory:
    """Return the memory of no key, for shape = (b, h, memory, k, v): its size has no length."""
    dtype = sum_dtype(like)
    return Memory(
        like.new_zeros((*shape[:2], features, shape[4] + 1), dtype=dtype),
        like.new_zeros(shape[:2], dtype=dtype),
    )


class _Levels(NamedTuple):
    """Weights relative to running maxima, for features that carry a logarithm."""

    pair: Float[Tensor, "b h n c c"]
    """exp(a_j - r_i) for row i, key j of one chunk; at most 1, meaningless above the diagonal."""
    past: Float[Tensor, "b h n c 1"]
    """exp(maximum before the chunk - r_i)."""
    key: Float[Tensor, "b h n c 1"]
    """exp(a_j - maximum at the chunk's end)."""
    decay: Float[Tensor, "b h n 1 1"]
    """exp(maximum before the chunk - maximum at its end)."""
    last: Float[Tensor, "b h"]


def _levels(
    log: Float[Tensor, "b h n c"], keep: Bool[Tensor, "b n c"] | None, memory: Memory
) -> _Levels:
    # An empty memory is recognised by its sums: the largest feature of the largest key is 1.
    seen = memory.sums[..., -1].amax(-1) > 0
    before = memory.level.masked_fill(~seen, -torch.inf)[..., None]
    if keep is not None:
        log = log.masked_fill(~keep[:, None], -torch.inf)
    running = torch.maximum(log.flatten(2).cummax(-1).values, before).view(*log.shape)
    level = running.masked_fill(running == -torch.inf, 0)
    start = torch.cat((before, running[..., :-1, -1]), dim=-1)
    return _Levels(
        pair=(log[..., None, :] - level[..., None]).clamp_(max=0).exp_(),
        past=torch.exp(start[..., None] - level)[..., None],
        key=torch.exp(log - level[..., -1:])[..., None],
        decay=torch.exp(start - level[..., -1])[..., None, None],
        last=level[..., -1, -1],
    )


class _Rows(NamedTuple):
    """A stretch of the sequence."""

    q: Float[Tensor, "b h r k"]
    k: Float[Tensor, "b h r k"]
    v: Float[Tensor, "b h r v"]
    keep: Bool[Tensor, "b r"] | None

    def cut(self, rows: slice) -> "_Rows":
        """Return some of the rows."""
        keep = None if self.keep is None else self.keep[:, rows]
        return _Rows(self.q[:, :, rows], self.k[:, :, rows], self.v[:, :, rows], keep)


def _chunked(x: Float[Tensor, "b h r k"], chunk: int) -> Float[Tensor, "b h n c k"]:
    return x.reshape(*x.shape[:2], -1, chunk, x.shape[-1])


class _Block(NamedTuple):
    """Everything that forward and backward need of n chunks of c rows."""

    q: Float[Tensor, "b h n c k"]
    k: Float[Tensor, "b h n c k"]
    phi_q: Float[Tensor, "b h n c m"]
    phi_k: Float[Tensor, "b h n c m"]
    values: Float[Tensor, "b h n c w"]
    """[v 1], zero for padding."""
    carried: Float[Tensor, "b h n c w"]
    """The same, as it enters the sums."""
    kept: Float[Tensor, "b 1 n c 1"] | None
    scores: Float[Tensor, "b h n c c"]
    states: Float[Tensor, "b h n m w"]
    """[S z] before each chunk."""
    levels: _Levels | None
    memory: Memory
    """After the block."""


def _block(rows: _Rows, memory: Memory, maps: FeatureMaps, chunk: int) -> _Block:
    dtype = memory.sums.dtype
    q, k, v = (_chunked(x.to(dtype), chunk) for x in rows[:3])
    keep = rows.keep
    phi_q, _ = maps.query(q)
    phi_k, log = maps.key(k)
    chunked = None if keep is None else keep.view(keep.shape[0], -1, chunk)
    kept = None if chunked is None else chunked[:, None, ..., None].to(dtype)
    values = augment(v, 1.0)
    if kept is not None:
        values *= kept
    # Small products with a transposed right factor run at half speed: the factor is copied.
    turned = phi_k.mT.contiguous()
    scores = phi_q @ turned
    levels, carried, last = None, values, memory.level
    if log is not None:
        levels = _levels(log, chunked, memory)
        scores *= levels.pair
        carried, last = values * levels.key, levels.last
    gained = turned @ carried
    states, sums = [], memory.sums
    for index in range(gained.shape[2]):
        states.append(sums)
        kept_sums = sums if levels is None else sums * levels.decay[:, :, index]
        sums = kept_sums + gained[:, :, index]
    return _Block(
        q, k, phi_q, phi_k, values, carried, kept, scores.tril_(),
        torch.stack(states, dim=2), levels, Memory(sums, last),
    )  # fmt: skip


def _spans(q: Float[Tensor, "b h l k"], features: int, chunk: int) -> list[tuple[slice, int]]:
    """Return the blocks and their chunk size: whole chunks, then the rest as one short chunk."""
    length = q.shape[2]
    whole = length - length % chunk
    rows = max(1, block_rows(q, features) // chunk) * chunk
    spans = [(rows_, chunk) for rows_ in blocks(whole, rows)]
    return spans + ([(slice(whole, length), length - whole)] if whole < length else [])


class _CausalProduct(torch.autograd.Function):
    """Forward from the first block to the last, backward from the last to the first."""

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
    ) -> tuple[Tensor, Tensor, Tensor]:
        o = torch.empty_like(v)
        inverse = v.new_ones(v.shape[:3], dtype=sums.dtype)
        whole, memory = _Rows(q, k, v, keep), Memory(sums, level)
        memories: list[Tensor] = []
        with full_precision(q):
            for rows, size in _spans(q, maps.width, chunk):
                memories += memory
                block = _block(whole.cut(rows), memory, maps, size)
                total = block.phi_q @ block.states
                if block.levels is not None:
                    total *= block.levels.past
                _add_product(total, block.scores, block.values)
                if maps.normalise:
                    inverse[:, :, rows] = reciprocal(total[..., -1]).flatten(2)
                o[:, :, rows] = total[..., :-1].flatten(2, 3) * inverse[:, :, rows, None]
                memory = block.memory
        ctx.maps, ctx.chunk = maps, chunk
        ctx.save_for_backward(q, k, v, keep, o, inverse, *memories)
        ctx.set_materialize_grads(False)
        # The level is a mere reference: the sums it belongs to make up for any change of it.
        final = Memory(memory.sums.clone(), memory.level.clone())
        ctx.mark_non_differentiable(final.level)
        return o, final.sums, final.level

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: Tensor | None, dsums: Tensor | None, _: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        q, k, v, keep, o, inverse, *memories = ctx.saved_tensors
        maps: FeatureMaps = ctx.maps
        if gradient is None:
            gradient = torch.zeros_like(o)
        if dsums is None:
            dsums = torch.zeros_like(memories[0])
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        whole = _Rows(q, k, v, keep)
        spans = _spans(q, maps.width, ctx.chunk)
        with full_precision(q):
            for index in reversed(range(len(spans))):
                rows, size = spans[index]
                memory = Memory(*memories[2 * index : 2 * index + 2])
                block = _block(whole.cut(rows), memory, maps, size)
                g = output_gradient(gradient[:, :, rows], o[:, :, rows], inverse[:, :, rows], maps)
                parts = _pull_block(block, _chunked(g, size), dsums, maps)
                for target, part in zip((dq, dk, dv), parts[:3], strict=True):
                    target[:, :, rows] = part.flatten(2, 3)
                dsums = parts[3]
        return dq, dk, dv, None, dsums, None, None, None


def _pull_block(
    block: _Block,
    g: Float[Tensor, "b h n c w"],
    dsums: Float[Tensor, "b h m w"],
    maps: FeatureMaps,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v and of the sums before the block, given that after it."""
    levels = block.levels
    dscores = g @ block.values.mT.contiguous()
    if levels is not None:
        dscores *= levels.pair
    dscores.tril_()
    past = g if levels is None else g * levels.past
    dstates = block.phi_q.mT @ past
    after = []
    for index in reversed(range(dstates.shape[2])):
        after.append(dsums)
        kept = dsums if levels is None else dsums * levels.decay[:, :, index]
        dsums = kept + dstates[:, :, index]
    dgained = torch.stack(after[::-1], dim=2)

    dphi_q = _add_product(past @ block.states.mT.contiguous(), dscores, block.phi_k)
    dphi_k = _add_product(block.carried @ dgained.mT.contiguous(), dscores.mT, block.phi_q)
    dv = block.phi_k @ dgained[..., :-1]
    if levels is not None:
        dv *= levels.key
    _add_product(dv, block.scores.mT, g[..., :-1])
    if block.kept is not None:
        dv *= block.kept
    dq = maps.query.pull(dphi_q, block.phi_q, block.q)
    dk = maps.key.pull(dphi_k, block.phi_k, block.k)
    return dq, dk, dv, dsums


def _add_product(
    total: Float[Tensor, "b h n i j"],
    left: Float[Tensor, "b h n i m"],
    right: Float[Tensor, "b h n m j"],
) -> Float[Tensor, "b h n i j"]:
    """Add left @ right to `total` in place."""
    total.flatten(0, 2).baddbmm_(left.flatten(0, 2), right.flatten(0, 2))
    return total


def causal_product(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    maps: FeatureMaps,
    *,
    chunk: int,
    keep: Bool[Tensor, "b l"] | None = None,
    memory: Memory | None = None,
) -> tuple[Float[Tensor, "b h l v"], Memory]:
    """Mix the values of kept keys up to each row; return them and the memory for what follows.

    Any cut of a sequence into calls, each with the memory of the one before, gives one and the same
    result. Dtypes and empty rows as in `feature_product`.
    """
    if memory is None:
        memory = empty_memory((*v.shape[:2], 0, q.shape[-1], v.shape[-1]), maps.width, v)
    o, sums, level = _CausalProduct.apply(  # type: ignore[no-untyped-call]
        q, k, v, keep, *memory, maps, min(chunk, q.shape[2])
    )
    return o, Memory(sums, level)
