"""What queries read of a state that decays from token to token, in chunks.

    S_t = D_t S_(t-1) + k_t v_t^T,    o_t = S_t^T q_t,  or S_(t-1)^T q_t where read before

D_t = exp(g_t) is one number for all channels of the keys, or one for each of them. Inside a chunk
of C tokens the weights between all pairs are formed (`pairs`); what came before enters through the
state at the chunk's start, and states go from chunk to chunk:

    o = W v + (q e^G) S,    S' = e^(G_C) S + (k e^(G_C - G))^T v,    G_i = g_1 + ... + g_i

The gradient of g adds up what crosses a token: pairs of the chunk, queries that read the state at
its start, keys that count at its end, and e^(G_C) S dS' summed over the values.

Cost       per token and head: C (k + v) operations forward for the weights and 4 k v for the
           states, twice as much backward and the weights once more; autograd keeps q, k, v, g and
           a state for each block of chunks. State: k v numbers.
"""

from enum import StrEnum, auto
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra.models.kernels.door import door
from lra.models.ops.chunks import scan
from lra.models.ops.gated.blockwise import (
    blocks_backward,
    blocks_forward,
    cuts,
    decays_of_tokens,
    first_state,
)
from lra.models.ops.gated.pairs import BASE, Constant, Decays, Operand, WeighedPairs, decays
from lra.models.ops.numerics import full_precision, without_padding


class Reads(StrEnum):
    """Which state a token reads."""

    after = auto()
    """The state that contains the token's own key and value."""
    before = auto()
    """The state after the token before, without the token's decay."""


class DecayedChunks(NamedTuple):
    """n chunks of c tokens in each of b h sequences, all chunks behind each other."""

    q: Float[Tensor, "bhn c k"]
    k: Float[Tensor, "bhn c k"]
    v: Float[Tensor, "bhn c v"]
    decays: Decays
    whole: Float[Tensor, "b h n j 1"]
    """What a whole chunk leaves of what it starts from."""
    states: Float[Tensor, "b h n k v"]
    """Before each chunk."""
    weights: Float[Tensor, "bhn c c"]
    kept: Float[Tensor, "bhn c k"]
    """Keys as they count at the chunk's end."""
    last: Float[Tensor, "b h k v"]


def decayed_chunks(
    inputs: tuple[Tensor, ...], rows: slice, chunk: int, state: Float[Tensor, "b h k v"]
) -> DecayedChunks:
    """Return the chunks of the tokens `rows` of (q, k, v, g), and the state before each chunk."""
    q, k, v = (x[:, :, rows].to(state.dtype).reshape(-1, chunk, x.shape[3]) for x in inputs[:3])
    shape, g = (*state.shape[:2], (rows.stop - rows.start) // chunk), inputs[3].to(state.dtype)
    chunk_decays = (
        Constant(g, shape, chunk)
        if g.ndim == 1
        else decays(g[:, :, rows].reshape(-1, chunk, *g.shape[3:]))
    )
    chunk_factor = chunk_decays.from_start[:, -1, :, None]  # decay over a whole chunk
    keys_at_end = k * chunk_decays.to_end
    gained = torch.bmm(keys_at_end.mT, v).view(*shape, *state.shape[2:])
    chunk_factor = chunk_factor.view(*shape, *chunk_factor.shape[1:])
    states, last = scan(state, gained, chunk_factor)
    return DecayedChunks(
        q, k, v, chunk_decays, chunk_factor, states, chunk_decays.weights(q, k), keys_at_end, last
    )


def block_outputs(block: DecayedChunks) -> Float[Tensor, "bhn c v"]:
    """Return o = W v + (q e^G) S for every chunk of the block."""
    decayed = torch.bmm(block.q * block.decays.from_start, block.states.flatten(0, 2))
    return torch.baddbmm(decayed, block.weights, block.v)


class _DecayedProduct(torch.autograd.Function):
    """`apply(q, k, v, g, state, chunk)`: forward from the first block, backward from the last."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd functions take positions only)
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs and the last state."""
        spans = cuts(q, chunk, numbers_per_token(q, v, g, chunk))
        return blocks_forward(ctx, (q, k, v, g), state, spans, decayed_chunks, block_outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor, dstate: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k, v, g (None: not needed) and the first state."""
        gates = ctx.needs_input_grad[3]
        pull = partial(block_gradients, gates=gates)
        gradients, dstate = blocks_backward(ctx, do, dstate, decayed_chunks, pull)
        return *gradients[:3], gradients[3] if gates else None, dstate, None


def block_gradients(
    block: DecayedChunks,
    do: Float[Tensor, "bhn c v"],
    dlast: Float[Tensor, "b h k v"],
    *,
    gates: bool,
) -> list[Tensor]:
    """Return the gradients of q, k, v, of g if `gates`, and of the state before the block."""
    q, k, v, chunk_decays = block.q, block.k, block.v, block.decays
    dstates = torch.bmm((q * chunk_decays.from_start).mT, do).view_as(block.states)
    ends, dfirst = scan(dlast, dstates, block.whole, backwards=True)
    dends, states = ends.flatten(0, 2), block.states.flatten(0, 2)
    dv = torch.baddbmm(torch.bmm(block.kept, dends), block.weights.mT, do)
    reader = Operand(q, torch.bmm(do, states.mT).mul_(chunk_decays.from_start))
    writer = Operand(k, torch.bmm(v, dends.mT).mul_(chunk_decays.to_end))
    pairs = WeighedPairs(block.weights, torch.bmm(do, v.mT))
    across = (states * dends).sum(-1) * chunk_decays.from_start[:, -1] if gates else None
    (dq,), (dk,), dg = chunk_decays.pull([[pairs]], [reader], [writer], across)
    return [dq, dk, dv, *([] if dg is None else [dg]), dfirst]


def numbers_per_token(q: Tensor, v: Tensor, g: Tensor, chunk: int) -> int:
    """Return the number of values per token and head that a block needs in memory."""
    key, value = q.shape[3], v.shape[3]
    # A key, a value, a row of weights, decays, and the token's share of the chunk's state.
    gates = (BASE + 2) * key if g.ndim == 4 else chunk
    return key + value + chunk + gates + key * value // chunk


@door
def decayed_product(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    g: Float[Tensor, "b h l"] | Float[Tensor, "b h l k"] | Float[Tensor, " h"],
    *,
    state: Float[Tensor, "b h k v"] | None = None,
    chunk: int = 64,
    keep: Bool[Tensor, "b l"] | None = None,
    reads: Reads = Reads.after,
) -> tuple[Float[Tensor, "b h l v"], Float[Tensor, "b h k v"]]:
    """Return o_t = S_t^T q_t with S_t = e^(g_t) S_(t-1) + k_t v_t^T, and the last state.

    o has the dtype of `v`. You can cut a sequence into several calls, each with the state of the
    call before; the result is the same.

    Args:
        q: Queries, already scaled.
        k: Keys.
        v: Values.
        g: Logarithms of the factor by which a token decays the state; at most 0, or -inf. With one
            number per head, all tokens decay alike; these must be finite and get no gradient.
        state: The state after earlier tokens; None: there are none. It is float32 at least.
        chunk: Tokens per chunk of the parallel form; affects speed and memory, not results.
        keep: False for padding, which leaves the state as it was.
        reads: Whether a token reads S_t or, not yet decayed, S_(t-1).
    """
    state = first_state(q, v, state)
    if g.ndim == 1 and keep is not None:
        g = g[:, None].expand(q.shape[:3])
    k, v, g = without_padding(k, keep), without_padding(v, keep), decays_of_tokens(g, keep)
    before = reads == Reads.before
    o, last = _DecayedProduct.apply(  # type: ignore[no-untyped-call]
        next_queries(q) if before else q, k, v, g, state, min(chunk, q.shape[2])
    )
    return reads_before(q, o, state) if before else o, last


def next_queries(q: Float[Tensor, "b h l k"]) -> Float[Tensor, "b h l k"]:
    """Return the next token's query for each token: it reads the state after this token."""
    return torch.cat((q[:, :, 1:], torch.zeros_like(q[:, :, :1])), 2)


def reads_before(
    q: Float[Tensor, "b h l k"], o: Float[Tensor, "b h l v"], state: Float[Tensor, "b h k v"]
) -> Float[Tensor, "b h l v"]:
    """Return what `q` read of the states before their tokens, the first of which is `state`.

    `o` is what `next_queries` read of the states after each token.
    """
    with full_precision(q):
        first = (q[:, :, :1].to(state.dtype) @ state).to(o.dtype)
    return torch.cat((first, o[:, :, :-1]), 2)
