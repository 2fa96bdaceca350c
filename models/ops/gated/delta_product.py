"""What queries read of a state that tokens correct by the delta rule while it decays, in chunks.

    S_t = D_t S_(t-1) + w_t (v_t - k_t^T D_t S_(t-1))^T,    o_t = S_t^T q_t

k_t is where a token reads what the decayed state holds, w_t where it writes the error: beta_t k_t
in delta rules, whose keys have length 1. D_t = exp(g_t): one number, or one for each key channel.
With `early`, k_t^T S_(t-1) takes the place of k_t^T D_t S_(t-1): tokens read before they decay.
With u_t, values are added by keys of their own, the generalised delta rule of RWKV-7:

    S_t = D_t S_(t-1) - w_t (k_t^T D_t S_(t-1))^T + u_t v_t^T

Inside a chunk of C tokens the errors r_i depend on each other by a unit lower triangle; with the
tables of weights P (of k and w, strictly below the diagonal) and Q (of q and w) from `pairs`,

    (1 + P) r = v - (k e^G) S,    o = (q e^G) S + Q r,    S' = e^(G_C) S + (w e^(G_C - G))^T r

The triangle is solved for v and for k e^G at once in all chunks; from chunk to chunk there is one
product of k x k by k x v numbers. Backward solves the transposed triangle. The gradient of g adds
up what crosses a token, as in `decayed_product`, q and k reading what w writes. With u there are
tables of k and of q with it too, K and R; the triangle is then solved for -K v in place of v, and
outputs and states gain R v and (u e^(G_C - G))^T v. With `early`, row i of P, K and k e^G is that
of token i - 1 with the key of token i.

Cost       per token and head, forward: C (2 k + 3 (k + v) / 2) + 3 k (k + v) operations, and C (2 k
           + v) + k v more with u; the double of it backward and forward once more; autograd keeps
           q, k, w, u, v, g and a state for each block of chunks. State: k v numbers.
"""

from functools import partial
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lra.models.kernels.door import door
from lra.models.ops.gated.blockwise import (
    blocks_backward,
    blocks_forward,
    cuts,
    decays_of_tokens,
    first_state,
)
from lra.models.ops.gated.pairs import BASE, Decays, Operand, WeighedPairs, decays
from lra.models.ops.numerics import without_padding


class _Additions(NamedTuple):
    """What n chunks of c tokens write by keys of their own."""

    u: Float[Tensor, "bhn c k"]
    v: Float[Tensor, "bhn c v"]
    seen: Float[Tensor, "bhn c c"]
    """K, strictly below the diagonal."""
    table: Float[Tensor, "bhn c c"]
    """R."""
    ends: Float[Tensor, "bhn c k"]
    """u as it counts at the chunk's end."""


class _DeltaChunks(NamedTuple):
    """n chunks of c tokens in each of b h sequences, all chunks behind each other."""

    q: Float[Tensor, "bhn c k"]
    k: Float[Tensor, "bhn c k"]
    """With `early`, those of the next tokens."""
    w: Float[Tensor, "bhn c k"]
    decays: Decays
    additions: "_Additions | None"
    """Where values are written by keys of their own."""
    triangle: Float[Tensor, "bhn c c"]
    """P."""
    table: Float[Tensor, "bhn c c"]
    """Q."""
    errors: Float[Tensor, "bhn c v"]
    """r."""
    ends: Float[Tensor, "bhn c k"]
    """w as it counts at the chunk's end."""
    reads: Float[Tensor, "bhn c k"]
    """What multiplies the state at the chunk's start in the outputs."""
    moves: Float[Tensor, "b h n k k"]
    """What takes that state to the next chunk's start."""
    states: Float[Tensor, "b h n k v"]
    last: Float[Tensor, "b h k v"]


def _delta_chunks(
    inputs: tuple[Tensor, ...],
    rows: slice,
    chunk: int,
    state: Float[Tensor, "b h k v"],
    *,
    early: bool,
) -> _DeltaChunks:
    """Return the chunks of the tokens `rows` of `inputs`, q, k, w, [u,] v and g, after `state`.

    The triangle (1 + P) is solved for v and k e^G at once. That gives the errors r, and the states
    S' = moves S + gained before each chunk. With `early`, tokens read before they decay the state.
    """
    q, k, w, *u, v, g = (
        x[:, :, rows].to(state.dtype).reshape(-1, chunk, *x.shape[3:]) for x in inputs
    )
    chunk_decays, additions, wanted, first = decays(g), None, v, k[:, :1]
    if early:
        k = _of_next(k)
    starts = k * chunk_decays.from_start
    if early:
        starts = torch.cat((first, starts[:, :-1]), 1)

    def seen(written: Float[Tensor, "bhn c k"]) -> Float[Tensor, "bhn c c"]:
        table = chunk_decays.weights(k, written)
        return F.pad(table[:, :-1], (0, 0, 1, 0)) if early else table.tril(-1)

    if u:
        u_by_key = seen(u[0])
        additions = _Additions(
            u[0], v, u_by_key, chunk_decays.weights(q, u[0]), u[0] * chunk_decays.to_end
        )
        wanted = torch.bmm(u_by_key, v).neg_()  # -K v in place of v
    triangle = seen(w)  # P
    solved = torch.linalg.solve_triangular(
        triangle, torch.cat((wanted, starts), 2), upper=False, unitriangular=True
    )
    solved_values, solved_keys = solved.split((v.shape[2], k.shape[2]), 2)
    table = chunk_decays.weights(q, w)  # Q
    reads = torch.baddbmm(q * chunk_decays.from_start, table, solved_keys, alpha=-1)
    ends = w * chunk_decays.to_end
    whole_decay = torch.diag_embed(chunk_decays.from_start[:, -1].expand(-1, k.shape[2]))
    moves = torch.baddbmm(whole_decay, ends.mT, solved_keys, alpha=-1)
    gained = torch.bmm(ends.mT, solved_values)
    if additions is not None:
        gained.baddbmm_(additions.ends.mT, v)
    shape = (*state.shape[:2], -1)
    moves = moves.view(*shape, *moves.shape[1:])
    states, last = _scan_chunks(state, gained.view(*shape, *gained.shape[1:]), moves)
    errors = torch.baddbmm(solved_values, solved_keys, states.flatten(0, 2), alpha=-1)
    return _DeltaChunks(
        q, k, w, chunk_decays, additions, triangle, table, errors, ends, reads, moves, states, last
    )


def _of_next(x: Float[Tensor, "bhn c j"]) -> Float[Tensor, "bhn c j"]:
    """Return the row of the next token for each token of a chunk, and zeros for the last."""
    return F.pad(x[:, 1:], (0, 0, 0, 1))


def _scan_chunks(
    first: Float[Tensor, "b h k v"],
    gained: Float[Tensor, "b h n k v"],
    moves: Float[Tensor, "b h n k k"],
    *,
    backwards: bool = False,
) -> tuple[Float[Tensor, "b h n k v"], Float[Tensor, "b h k v"]]:
    """Return the states x_0 ... x_(n-1) before each chunk, and x_n, with x_0 = first.

    x_(i+1) = moves_i x_i + gained_i; `backwards`, from the last chunk on with transposed moves.
    """
    states, current = [], first.flatten(0, 1)
    steps = list(zip(moves.flatten(0, 1).unbind(1), gained.flatten(0, 1).unbind(1), strict=True))
    for move, gain in reversed(steps) if backwards else steps:
        states.append(current)
        current = torch.baddbmm(gain, move.mT if backwards else move, current)
    if backwards:
        states.reverse()
    return torch.stack(states, 1).view_as(gained), current.view_as(first)


def _read_outputs(block: _DeltaChunks) -> Float[Tensor, "bhn c v"]:
    """Return o = (q e^G) S + Q r, and R v with additions, for every chunk of the block."""
    decayed = torch.bmm(block.q * block.decays.from_start, block.states.flatten(0, 2))
    if block.additions is not None:
        decayed.baddbmm_(block.additions.table, block.additions.v)
    return torch.baddbmm(decayed, block.table, block.errors)


class _DeltaProduct(torch.autograd.Function):
    """`apply(state, chunk, early, q, k, w, [u,] v, g)`: forward, then backward from the end."""

    @staticmethod
    def forward(
        ctx: Any, state: Tensor, chunk: int, early: bool, *inputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs and the last state; `inputs` are q, k, w, [u,] v and g."""
        q, ctx.early = inputs[0], early
        spans = cuts(q, chunk, _count_values(inputs, chunk))
        chunks = partial(_delta_chunks, early=early)
        return blocks_forward(ctx, inputs, state, spans, chunks, _read_outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor, dstate: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the first state and of each input."""
        chunks = partial(_delta_chunks, early=ctx.early)
        pull = partial(_pull_block, early=ctx.early)
        gradients, dstate = blocks_backward(ctx, do, dstate, chunks, pull)
        return dstate, None, None, *gradients


def _pull_block(
    block: _DeltaChunks,
    do: Float[Tensor, "bhn c v"],
    dlast: Float[Tensor, "b h k v"],
    *,
    early: bool,
) -> list[Tensor]:
    """Return the gradients of q, k, w, [u,] v, g, and of the state before the block."""
    q, k, w, chunk_decays, r = block.q, block.k, block.w, block.decays, block.errors
    additions = block.additions
    dstates = torch.bmm(block.reads.mT, do).view_as(block.states)
    dafter, dfirst = _scan_chunks(dlast, dstates, block.moves, backwards=True)
    dends, states = dafter.flatten(0, 2), block.states.flatten(0, 2)
    dr = torch.baddbmm(torch.bmm(block.ends, dends), block.table.mT, do)
    dv = torch.linalg.solve_triangular(block.triangle.mT, dr, upper=True, unitriangular=True)
    dstarts = torch.bmm(dv, states.mT)
    dreads = _of_next(dstarts) if early else dstarts
    readers = [
        Operand(q, torch.bmm(do, states.mT).mul_(chunk_decays.from_start)),
        Operand(k, dreads.mul_(chunk_decays.from_start).neg_()),
    ]
    writers = [Operand(w, torch.bmm(r, dends.mT).mul_(chunk_decays.to_end))]
    query_pairs = [WeighedPairs(block.table, torch.bmm(do, r.mT))]
    key_pairs = [WeighedPairs(block.triangle, torch.bmm(dv, r.mT).tril(-1).neg_())]
    if additions is not None:
        u, v = additions.u, additions.v
        writers.append(Operand(u, torch.bmm(v, dends.mT).mul_(chunk_decays.to_end)))
        query_pairs.append(WeighedPairs(additions.table, torch.bmm(do, v.mT)))
        key_pairs.append(WeighedPairs(additions.seen, torch.bmm(dv, v.mT).tril(-1).neg_()))
        dv = torch.bmm(additions.seen.mT, dv).neg_()
        dv.baddbmm_(additions.table.mT, do).baddbmm_(additions.ends, dends)
    if early:  # pairs and gradients are those of the keys that `_of_next` has shifted
        key_pairs = [WeighedPairs(*map(_of_next, table)) for table in key_pairs]
    across = (states * dends).sum(-1) * chunk_decays.from_start[:, -1]
    (dq, dk), written, dg = chunk_decays.pull([query_pairs, key_pairs], readers, writers, across)
    if early:
        dk = torch.cat((-dstarts[:, :1], dk[:, :-1]), 1)
    return [dq, dk, *written, dv, cast(Tensor, dg), dfirst]


def _count_values(inputs: tuple[Tensor, ...], chunk: int) -> int:
    """Return the number of values per token and head that a block needs in memory."""
    q, *_, v, g = inputs
    key, value = q.shape[3], v.shape[3]
    gates = (BASE + 2) * key if g.ndim == 4 else chunk
    additions = 2 * key + 2 * chunk if len(inputs) == 6 else 0  # u, and its tables of pairs
    # Keys, values, tables of pairs, and the token's share of `moves` and of the state.
    return 4 * key + 2 * value + 2 * chunk + gates + additions + key * (key + value) // chunk


@door
def delta_product(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    w: Float[Tensor, "b h l k"] | None,
    v: Float[Tensor, "b h l v"],
    g: Float[Tensor, "b h l"] | Float[Tensor, "b h l k"],
    *,
    beta: Float[Tensor, "b h l"] | None = None,
    u: Float[Tensor, "b h l k"] | None = None,
    state: Float[Tensor, "b h k v"] | None = None,
    chunk: int = 32,
    keep: Bool[Tensor, "b l"] | None = None,
    early: bool = False,
) -> tuple[Float[Tensor, "b h l v"], Float[Tensor, "b h k v"]]:
    """Return o_t = S_t^T q_t, S_t = D_t S_(t-1) + w_t (v_t - k_t^T D_t S_(t-1))^T, and the last S.

    D_t is e^(g_t); o has the dtype of `v`. You can cut a sequence into several calls, each with the
    state of the call before; the result is the same.

    Args:
        q: Queries, already scaled.
        k: Keys by which tokens read the decayed state. They should have length 1: products
            w_i · k_j larger than 2 let errors grow from token to token.
        w: Keys by which tokens write the error v_t - S^T k_t; None: beta_t k_t.
        v: Values that the state should return for k; with `u`, values that are added.
        g: Logarithms of the factor by which a token decays the state; at most 0, or -inf.
        beta: In place of w, how much of its error a token writes by the key that it reads by.
        u: Keys by which `v` is added, while w subtracts S^T k_t; None: w writes the whole error.
        state: The state after earlier tokens; None: there are none. It is float32 at least.
        chunk: Tokens per chunk of the parallel form; affects speed and memory, not results.
        keep: False for padding, which leaves the state as it was.
        early: Whether a token reads by k before it decays the state: k_t^T S_(t-1).
    """
    if w is None:
        w = beta[..., None] * k  # type: ignore[index]
    state = first_state(q, v, state)
    written = (k, w, v) if u is None else (k, w, u, v)
    inputs = (q, *(without_padding(x, keep) for x in written), decays_of_tokens(g, keep))
    return _DeltaProduct.apply(  # type: ignore[no-untyped-call,no-any-return]
        state, min(chunk, q.shape[2]), early, *inputs
    )
