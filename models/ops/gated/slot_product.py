"""Attention over memory slots, and its first half: a decayed product that is read the other way.

    S_t = Diag(e^(g_t)) S_(t-1) + s_t k_t^T,    o_t = S_t q_t         S: m slots of k channels

`decayed_product` reads S^T q; here the decays stand on the axis that is read. Inside a chunk,

    o = spread(q k^T, s) + e^G (S q),   spread(W, s)_i = sum_(j <= i) W_ij e^(G_i - G_j) s_j

With p = do, the gradients of sum_i do_i · o_i are those of sum_i q_i · (S_i^T p_i): the output of
`decayed_product` for the queries p is the gradient of q, and with the gradient q of its outputs its
gradients are those of s, k, g and S.

Cost       That of `decayed_product`, with k as long as values are and s as keys are.
"""

from typing import Any, cast

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
from lra.models.ops.gated.decayed_product import (
    DecayedChunks,
    block_gradients,
    block_outputs,
    decayed_product,
    numbers_per_token,
)
from lra.models.ops.gated.pairs import VectorDecays, decays
from lra.models.ops.numerics import without_padding


def _chunks(
    inputs: tuple[Tensor, ...], rows: slice, chunk: int, state: Float[Tensor, "b h m k"]
) -> DecayedChunks:
    """Return chunks of the tokens `rows` of (q, k, s, g) whose keys are s and whose values are k.

    Their weights are q k^T, without decays.
    """
    q, k, s, g = (x[:, :, rows].to(state.dtype).reshape(-1, chunk, x.shape[3]) for x in inputs)
    shape, chunk_decays = (*state.shape[:2], (rows.stop - rows.start) // chunk), decays(g)
    factor = chunk_decays.from_start[:, -1, :, None].view(*shape, -1, 1)
    kept = s * chunk_decays.to_end
    states, last = scan(state, torch.bmm(kept.mT, k).view(*shape, *state.shape[2:]), factor)
    return DecayedChunks(
        q, s, k, chunk_decays, factor, states, torch.bmm(q, k.mT), kept, last
    )  # fmt: skip


def _outputs(block: DecayedChunks) -> Float[Tensor, "bhn c m"]:
    """Return o = spread(q k^T, s) + e^G (S q) for every chunk of the block."""
    earlier = torch.bmm(block.q, block.states.flatten(0, 2).mT) * block.decays.from_start
    return cast(VectorDecays, block.decays).spread(block.weights, block.k) + earlier


def _gradients(
    block: DecayedChunks, do: Float[Tensor, "bhn c m"], dlast: Float[Tensor, "b h m k"]
) -> list[Tensor]:
    """Return the gradients of q, k, s, g and of the state before the block."""
    turned = block._replace(q=do, weights=block.decays.weights(do, block.k))
    _, ds, dk, dg, dfirst = block_gradients(turned, block.q, dlast, gates=True)
    return [block_outputs(turned), dk, ds, dg, dfirst]


class _SlotProduct(torch.autograd.Function):
    """`apply(q, k, s, g, state, chunk)`: forward from the first block, backward from the last."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd functions take positions only)
        ctx: Any, q: Tensor, k: Tensor, s: Tensor, g: Tensor, state: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs and the last state."""
        spans = cuts(q, chunk, numbers_per_token(s, k, g, chunk))
        return blocks_forward(ctx, (q, k, s, g), state, spans, _chunks, _outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor, dstate: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k, s, g and the first state."""
        gradients, dstate = blocks_backward(ctx, do, dstate, _chunks, _gradients)
        return *gradients, dstate, None


def slot_product(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    s: Float[Tensor, "b h l m"],
    g: Float[Tensor, "b h l m"],
    *,
    state: Float[Tensor, "b h m k"] | None = None,
    chunk: int = 64,
    keep: Bool[Tensor, "b l"] | None = None,
) -> tuple[Float[Tensor, "b h l m"], Float[Tensor, "b h m k"]]:
    """Return o_t = S_t q_t with S_t = Diag(e^(g_t)) S_(t-1) + s_t k_t^T, and the last state.

    o has the dtype of `s`. You can cut a sequence into several calls, each with the state of the
    call before; the result is the same.

    Args:
        q: Queries, already scaled.
        k: Keys.
        s: How much each of m slots takes of a token's key.
        g: Logarithms of the factors by which a token decays the slots; at most 0, or -inf.
        state: The state after earlier tokens; None: there are none. It is float32 at least.
        chunk: Tokens per chunk of the parallel form; affects speed and memory, not results.
        keep: False for padding, which leaves the state as it was.
    """
    state = first_state(s, k, state)
    k, s, g = without_padding(k, keep), without_padding(s, keep), decays_of_tokens(g, keep)
    o, last = _SlotProduct.apply(  # type: ignore[no-untyped-call]
        q, k, s, g, state, min(chunk, q.shape[2])
    )
    return o, last


@door
def slot_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    s: Float[Tensor, "b h l m"],
    g: Float[Tensor, "b h l m"],
    *,
    state: Float[Tensor, "b h m k+v"] | None = None,
    chunk: int = 64,
    keep: Bool[Tensor, "b l"] | None = None,
) -> tuple[Float[Tensor, "b h l v"], Float[Tensor, "b h m k+v"]]:
    """Return softmax attention of each query over m slots, and the last keys and values of slots.

    Keys of slots are the states of `slot_product`; their values decay and take in `v` alike. The
    state has both side by side, and the other arguments are those of `slot_product`.
    """
    keys = values = None
    if state is not None:
        keys, values = state[..., : k.shape[3]], state[..., k.shape[3] :]
    scores, keys = slot_product(q, k, s, g, state=keys, chunk=chunk, keep=keep)
    weights = scores.softmax(-1)
    o, values = decayed_product(weights, s, v, g, state=values, chunk=chunk, keep=keep)
    return o, torch.cat((keys, values), -1)
