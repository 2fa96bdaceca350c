"""Linear systems, one for each token, whose matrices are sums of keys that decay, in chunks.

    (1 + H_t) x_t = q_t,    H_t = D_t H_(t-1) + beta_t k_t k_t^T

D_t = exp(g_t) is one number a head. No H_t is formed: conjugate gradients multiply with all of them
at once, as `decayed_product` does, a number of times that is fixed. In exact arithmetic x is the
solution after k steps, and near it after fewer: errors shrink by (sqrt(c) - 1) / (sqrt(c) + 1) or
more in each, c being 1 + the largest eigenvalue of H_t.

Gradients are those of the solution: with y_t from the same system for the gradient of x_t, q_t has
y_t, and H_t has -y_t x_t^T, which is one `decayed_product` backward.

Cost       per token and head, forward: 2 C k + k^2 operations and 10 k more for each step, of which
           backward takes as many again; autograd keeps x, k, beta k, g and a state for each block
           of chunks. State: k^2 numbers.
"""

from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

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
    decayed_chunks,
    numbers_per_token,
)
from lra.models.ops.numerics import reciprocal, without_padding


def _solve_by_gradients(
    block: DecayedChunks, wanted: Float[Tensor, "bhn c k"], *, steps: int
) -> Float[Tensor, "bhn c k"]:
    """Return x of (1 + H_t) x_t = wanted_t for each token, by conjugate gradients from x = 0."""
    scale = wanted.abs().amax(-1, keepdim=True)
    residual = wanted * reciprocal(scale)  # gradients may be so small that their squares are 0
    x, direction, zero = torch.zeros_like(residual), residual.clone(), torch.zeros_like(scale)
    squared, least = residual.square().sum(-1, keepdim=True), torch.finfo(residual.dtype).eps ** 2
    for _ in range(steps):
        product = block_outputs(
            block._replace(q=direction, weights=block.decays.weights(direction, block.k))
        ).add_(direction)
        # Below rounding, further steps bring nothing, and tiny numbers slow the processor down.
        converging = squared > least
        factor = torch.where(
            converging, squared / (direction * product).sum(-1, keepdim=True), zero
        )
        x.addcmul_(direction, factor)
        residual.addcmul_(product, factor, value=-1)
        squared_before, squared = squared, residual.square().sum(-1, keepdim=True)
        direction = torch.addcmul(
            residual, direction, torch.where(converging, squared / squared_before, zero)
        )
    return x.mul_(scale)


class _DecayedSolve(torch.autograd.Function):
    """`apply(q, w, k, g, state, chunk, steps)`, w being beta k."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd functions take positions only)
        ctx: Any, q: Tensor, w: Tensor, k: Tensor, g: Tensor, state: Tensor, chunk: int, steps: int
    ) -> tuple[Tensor, Tensor]:
        """Return x of (1 + H_t) x_t = q_t and the last H, by `steps` steps per token."""
        spans = cuts(q, chunk, numbers_per_token(q, k, g, chunk))
        ctx.steps = steps

        def solved(block: DecayedChunks) -> Tensor:
            return _solve_by_gradients(block, block.q, steps=steps)

        return blocks_forward(ctx, (q, w, k, g), state, spans, decayed_chunks, solved, solves=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx: Tensor, dstate: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, w, k, g and the first state."""
        pull = partial(_pull_block, steps=ctx.steps)
        gradients, dstate = blocks_backward(ctx, dx, dstate, decayed_chunks, pull)
        return *gradients, dstate, None, None


def _pull_block(
    block: DecayedChunks, dx: Float[Tensor, "bhn c k"], dlast: Float[Tensor, "b h k k"], steps: int
) -> list[Tensor]:
    """Return the gradients of q, w, k, g and the state before a block, whose `q` is x."""
    y = _solve_by_gradients(block, dx, steps=steps)
    return [y, *block_gradients(block, -y, dlast, gates=True)[1:]]


def decayed_solve(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    beta: Float[Tensor, "b h l"],
    g: Float[Tensor, "b h l"],
    *,
    state: Float[Tensor, "b h k k"] | None = None,
    steps: int = 30,
    chunk: int = 32,
    keep: Bool[Tensor, "b l"] | None = None,
) -> tuple[Float[Tensor, "b h l k"], Float[Tensor, "b h k k"]]:
    """Return x of (1 + H_t) x_t = q_t, in the dtype of `k`, and H after the last token.

    You can cut a sequence into several calls, each with the state of the call before; the result is
    the same.

    Args:
        q: Right sides of the systems.
        k: Keys, float32 at least.
        beta: Weight of k_t k_t^T in H_t, 0 or more.
        g: Logarithms of the factor by which a token decays the matrix; at most 0, or -inf.
        state: H before the first token; None: 0. It is float32 at least.
        steps: Number of conjugate gradient steps.
        chunk: Number of tokens per chunk of the parallel form; it affects only speed and memory.
        keep: False for padding, which leaves H as it was.
    """
    state = first_state(k, k, state)
    k, g = without_padding(k, keep), decays_of_tokens(g, keep)
    return _DecayedSolve.apply(  # type: ignore[no-untyped-call,no-any-return]
        q, beta[..., None] * k, k, g, state, min(chunk, q.shape[2]), steps
    )
